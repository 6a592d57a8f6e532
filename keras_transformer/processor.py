"""The processor of this machine: its name, and the dtype it computes fast in.

Importing this module imports neither Keras nor TensorFlow.
"""

import os
import pathlib
import platform

DTYPE_POLICIES = ("auto", "float32", "mixed_bfloat16")
DTYPES = ("auto", "float32", "bfloat16")  # of an export's matrices
CPU_INFO = "/proc/cpuinfo"
# Instructions that multiply matrices in bfloat16. With fewer, bfloat16 is
# emulated, which takes longer than float32.
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
MATRIX_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
# Settings of ONEDNN_MAX_CPU_ISA that hold these instructions back.
ISAS_WITHOUT_AVX512 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"}
ISAS_WITHOUT_BFLOAT16 = ISAS_WITHOUT_AVX512 | {
    "AVX512_CORE",
    "AVX512_CORE_VNNI",
}


def describe() -> str:
    """Returns the processor's name and its instructions for matrices."""
    fields = _cpu_info()
    name = fields.get("model name") or platform.processor() or "unknown"
    flags = fields.get("flags", "").split()
    return ", ".join([name, *(flag for flag in MATRIX_FLAGS if flag in flags)])


def resolve_dtype_policy(policy: str) -> str:
    """Returns a dtype policy of Keras for `policy`.

    "auto" becomes "mixed_bfloat16" where the GPU, or without one the
    processor, multiplies matrices in bfloat16, and "float32" elsewhere. Other
    policies are returned as they are.

    Raises:
        ValueError: see `check_half_precision`.
    """
    if policy != "auto":
        check_half_precision(policy)
        return policy
    return "mixed_bfloat16" if computes_in_bfloat16() else "float32"


def resolve_dtype(dtype: str) -> str:
    """Returns the dtype of an export's matrices for `dtype`.

    "auto" becomes "bfloat16" where this machine multiplies matrices in it, and
    "float32" elsewhere. Other dtypes are returned as they are.
    """
    if dtype != "auto":
        return dtype
    return "bfloat16" if computes_in_bfloat16() else "float32"


def computes_in_bfloat16() -> bool:
    """Returns whether products of bfloat16 matrices are fast on this machine.

    The answer takes account of `TF_ENABLE_ONEDNN_OPTS` and
    `ONEDNN_MAX_CPU_ISA`, by which TensorFlow can be kept from the
    instructions for bfloat16.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        details = map(tf.config.experimental.get_device_details, gpus)
        return all(
            detail.get("compute_capability", (0, 0)) >= (8, 0)
            for detail in details
        )
    return (
        _has_onednn()
        and _highest_isa() not in ISAS_WITHOUT_BFLOAT16
        and bool(BFLOAT16_FLAGS & _flags())
    )


def check_half_precision(dtype: str):
    """Checks that matrices can be multiplied in a dtype or dtype policy.

    On a processor with AVX-512, TensorFlow leaves products in half precision
    to oneDNN. If `ONEDNN_MAX_CPU_ISA` holds AVX-512 back, oneDNN has no kernel
    for them, and TensorFlow ends the process.

    Raises:
        ValueError: in that case, if the dtype is half precision.
    """
    if dtype.endswith("float16") and aborts_in_half_precision():
        raise ValueError(
            "TensorFlow cannot multiply matrices in half precision on this "
            "processor while ONEDNN_MAX_CPU_ISA holds AVX-512 back. Received: "
            f"{dtype}, ONEDNN_MAX_CPU_ISA={os.environ['ONEDNN_MAX_CPU_ISA']}. "
            "Unset ONEDNN_MAX_CPU_ISA, or choose float32."
        )


def aborts_in_half_precision() -> bool:
    """Returns whether a product in half precision would end the process."""
    return (
        _has_onednn()
        and _highest_isa() in ISAS_WITHOUT_AVX512
        and "avx512f" in _flags()
    )


def _has_onednn():
    setting = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1")
    return setting.lower() not in ("0", "false")


def _highest_isa():
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()


def _flags():
    return set(_cpu_info().get("flags", "").split())


def _cpu_info() -> dict[str, str]:
    """The fields of the last core, empty where the system has no such file."""
    path = pathlib.Path(CPU_INFO)
    if not path.is_file():
        return {}
    pairs = [line.split(":", 1) for line in path.read_text().splitlines()]
    return {p[0].strip(): p[1].strip() for p in pairs if len(p) == 2}
