"""The hardware of this machine: its processor, and the dtype it is fast in.

It imports neither Keras nor TensorFlow, so the command shows its help fast.
"""

import math
import os
import pathlib
import platform

DTYPE_POLICIES = ("auto", "float32", "mixed_bfloat16")
DTYPES = ("auto", "float32", "bfloat16", "int8")  # an export's matrices
CPU_INFO = "/proc/cpuinfo"
# Where a container's share of the processor stands, by the version of cgroups.
CPU_MAX = "/sys/fs/cgroup/cpu.max"
CPU_QUOTA = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"
CPU_PERIOD = "/sys/fs/cgroup/cpu/cpu.cfs_period_us"
# Instructions that multiply matrices in bfloat16. Without them bfloat16 is
# emulated, which takes longer than float32.
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
MATRIX_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
# Values of ONEDNN_MAX_CPU_ISA that disable these instructions.
ISAS_WITHOUT_AVX512 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"}
ISAS_WITHOUT_BFLOAT16 = ISAS_WITHOUT_AVX512 | {
    "AVX512_CORE",
    "AVX512_CORE_VNNI",
}


def describe() -> str:
    """Returns the processor's name and its matrix instructions."""
    fields = _cpu_info()
    name = fields.get("model name") or platform.processor() or "unknown"
    flags = fields.get("flags", "").split()
    return ", ".join([name, *(flag for flag in MATRIX_FLAGS if flag in flags)])


def cores() -> int:
    """Returns the number of cores that this process may use, at least 1.

    Those of the machine may be more: `taskset` and containers leave a process
    some of them, or a share of their time.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no such function
        count = os.cpu_count() or 1
    return max(1, min(count, _quota() or count))


def _quota():
    """Returns how many cores a container may use, rounded up, or `None`."""
    found = _first_words(CPU_MAX)
    if not found:
        found = _first_words(CPU_QUOTA) + _first_words(CPU_PERIOD)
    try:
        quota, period = map(int, found)
        return math.ceil(quota / period) if quota > 0 else None
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return None


def _first_words(path):
    try:
        return pathlib.Path(path).read_text("utf-8").split()
    except (OSError, ValueError):
        return []


def resolve_dtype_policy(policy: str) -> str:
    """Returns the Keras dtype policy to compute in.

    "auto" becomes "mixed_bfloat16" if the GPU (or the processor, on a machine
    without GPU) multiplies matrices in bfloat16, and "float32" otherwise. Other
    policies are returned unchanged.

    Raises:
        ValueError: if this machine cannot compute in the policy, see
            `check_half_precision`.
    """
    if policy != "auto":
        check_half_precision(policy)
        return policy
    return "mixed_bfloat16" if computes_in_bfloat16() else "float32"


def resolve_dtype(dtype: str) -> str:
    """Returns the dtype for the matrices of an export.

    "auto" becomes "bfloat16" if this machine multiplies matrices in bfloat16,
    and "float32" otherwise. Other dtypes are returned unchanged.
    """
    if dtype != "auto":
        return dtype
    return "bfloat16" if computes_in_bfloat16() else "float32"


def computes_in_bfloat16() -> bool:
    """Returns whether products of bfloat16 matrices are fast on this machine.

    The environment variables `TF_ENABLE_ONEDNN_OPTS` and `ONEDNN_MAX_CPU_ISA`
    can keep TensorFlow from using bfloat16 instructions; the result takes
    them into account. On JAX it is false for all processors.
    """
    import keras

    if keras.backend.backend() == "jax":
        import jax

        # AMD's GPUs have a name instead of a number, such as "gfx942".
        found = [getattr(x, "compute_capability", "8") for x in jax.devices()]
        return jax.default_backend() != "cpu" and all(
            "gfx" in x or float(x) >= 8 for x in map(str, found)
        )
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


def make_deterministic() -> None:
    """Lets GPUs compute the same bits each time. Call it before they are
    used."""
    import keras

    if keras.backend.backend() == "jax":
        flags = os.environ.get("XLA_FLAGS", "")
        flags += " --xla_gpu_deterministic_ops=true"
        os.environ["XLA_FLAGS"] = flags.strip()
        return
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()


def check_half_precision(dtype: str) -> None:
    """Checks that matrices can be multiplied in a dtype or dtype policy.

    On a processor with AVX-512, TensorFlow multiplies half-precision matrices
    with oneDNN. If `ONEDNN_MAX_CPU_ISA` disables AVX-512, oneDNN has no kernel
    for these products, and TensorFlow ends the process.

    Raises:
        ValueError: if the dtype is half precision and a product would end the
            process.
    """
    if dtype.endswith("float16") and aborts_in_half_precision():
        raise ValueError(
            "TensorFlow cannot multiply matrices in half precision on this "
            "processor while ONEDNN_MAX_CPU_ISA disables AVX-512. Received: "
            f"{dtype}, ONEDNN_MAX_CPU_ISA={os.environ['ONEDNN_MAX_CPU_ISA']}. "
            "Unset ONEDNN_MAX_CPU_ISA, or choose float32."
        )


def aborts_in_half_precision() -> bool:
    """Returns whether a half-precision product would end the process."""
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
    """Returns the fields of the last core, or {} if the file is missing."""
    path = pathlib.Path(CPU_INFO)
    if not path.is_file():
        return {}
    pairs = [line.split(":", 1) for line in path.read_text().splitlines()]
    return {p[0].strip(): p[1].strip() for p in pairs if len(p) == 2}
