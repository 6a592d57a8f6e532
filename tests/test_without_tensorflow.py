"""Checks that everything public works without TensorFlow."""

import os
import pathlib
import subprocess
import sys

import same_outputs

# Nearly all of the time goes into compiling 900 small programs.
COMPILES_FASTER = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
TESTS = pathlib.Path(__file__).parent


def test_everything_conforms_on_jax(tmp_path):
    """Runs pytest in a process on JAX; `make test-torch` does it on PyTorch."""
    reference = tmp_path / "reference.npz"
    same_outputs.write_reference(reference)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:xdist"),
            *(TESTS / "test_conformance.py", TESTS / "same_outputs.py"),
        ],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            **COMPILES_FASTER,
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
            "REFERENCE_OUTPUTS": str(reference),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
