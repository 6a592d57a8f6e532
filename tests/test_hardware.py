"""Checks that processor and GPUs determine what "auto" stands for."""

import dataclasses
import json
import subprocess
import sys

import pytest
import tensorflow as tf
from conftest import SMALL

from keras_transformer import hardware
from keras_transformer.training.models import make_model
from keras_transformer.training.new_run import start_run

PLAIN = "avx2 fma"
WITH_BFLOAT16 = "avx2 avx512f avx512_bf16"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Returns a function that simulates instructions, settings and GPUs."""

    def pretend(flags, settings=None, gpus=()):
        path = tmp_path / "cpuinfo"
        path.write_text(f"model name\t: A CPU\nflags\t\t: {flags}\n\n")
        monkeypatch.setattr(hardware, "CPU_INFO", str(path))
        for name in ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (settings or {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(
            tf.config, "list_physical_devices", lambda *_: list(gpus)
        )
        monkeypatch.setattr(
            tf.config.experimental,
            "get_device_details",
            lambda gpu: {"compute_capability": gpu},
        )

    return pretend


@pytest.mark.parametrize(
    ("flags", "settings", "gpus", "expected"),
    [
        (WITH_BFLOAT16, {}, [], True),
        ("avx512f amx_bf16", {"TF_ENABLE_ONEDNN_OPTS": "1"}, [], True),
        (PLAIN, {}, [], False),
        ("avx2 avx512f", {}, [], False),
        (WITH_BFLOAT16, {"TF_ENABLE_ONEDNN_OPTS": "0"}, [], False),
        (WITH_BFLOAT16, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, [], False),
        (WITH_BFLOAT16, {"ONEDNN_MAX_CPU_ISA": "avx512_core"}, [], False),
        (WITH_BFLOAT16, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, [], True),
        (PLAIN, {}, [(8, 0), (9, 0)], True),
        (WITH_BFLOAT16, {}, [(8, 0), (7, 5)], False),
    ],
)
def test_auto_is_half_precision_where_the_hardware_computes_in_it(
    machine, flags, settings, gpus, expected
):
    machine(flags, settings, gpus)
    assert hardware.computes_in_bfloat16() is expected
    policy = "mixed_bfloat16" if expected else "float32"
    assert hardware.resolve_dtype_policy("auto") == policy
    assert hardware.resolve_dtype("auto") == policy.removeprefix("mixed_")
    assert hardware.resolve_dtype_policy("float32") == "float32"


@pytest.mark.parametrize(
    ("flags", "settings", "expected"),
    [
        (WITH_BFLOAT16, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, True),
        ("avx2 avx512f", {"ONEDNN_MAX_CPU_ISA": "avx2"}, True),
        (WITH_BFLOAT16, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, False),
        (PLAIN, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, False),
        (
            WITH_BFLOAT16,
            {"ONEDNN_MAX_CPU_ISA": "AVX2", "TF_ENABLE_ONEDNN_OPTS": "0"},
            False,
        ),
        (WITH_BFLOAT16, {}, False),
    ],
)
def test_half_precision_that_would_abort_the_process_is_refused(
    machine, recipe, tmp_path, flags, settings, expected
):
    machine(flags, settings)
    assert hardware.aborts_in_half_precision() is expected
    if expected:
        asked = dataclasses.replace(recipe, dtype_policy="mixed_bfloat16")
        message = r"mixed_bfloat16, ONEDNN_MAX_CPU_ISA=(?i:avx2)\. Unset"
        with pytest.raises(ValueError, match=message):
            start_run(tmp_path / "run", "tiny", asked, **SMALL)
    else:
        asked = "mixed_bfloat16"
        assert hardware.resolve_dtype_policy(asked) == asked
    hardware.check_half_precision("float32")


def test_a_system_without_cpuinfo_computes_in_float32(monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "CPU_INFO", str(tmp_path / "none"))
    assert hardware.resolve_dtype_policy("auto") == "float32"
    assert hardware.describe()


def test_the_processor_is_described_by_its_instructions(machine):
    machine(WITH_BFLOAT16)
    assert hardware.describe() == "A CPU, avx2, avx512f, avx512_bf16"


def test_a_run_records_what_auto_stood_for(recipe, machine, tmp_path):
    """So it resumes in the same dtype on another machine."""
    machine(WITH_BFLOAT16)
    auto = dataclasses.replace(recipe, dtype_policy="auto")
    run = start_run(tmp_path / "run", "tiny", auto, **SMALL)
    metadata = json.loads((run.folder / "run.json").read_text())
    assert metadata["recipe"]["dtype_policy"] == "mixed_bfloat16"
    assert run.recipe.dtype_policy == "mixed_bfloat16"
    machine(PLAIN)
    policies = [
        make_model(run.config, recipe).dtype_policy.name
        for recipe in (run.recipe, auto)
    ]
    assert policies == ["mixed_bfloat16", "float32"]


@pytest.mark.parametrize(
    ("files", "allowed", "expected"),
    [
        ({}, 5, 5),
        ({"CPU_MAX": "max 100000\n"}, 5, 5),
        ({"CPU_MAX": "150000 100000\n"}, 5, 2),
        ({"CPU_MAX": "900000 100000\n"}, 5, 5),
        ({"CPU_MAX": "1000 100000\n"}, 5, 1),
        ({"CPU_MAX": "junk"}, 3, 3),
        ({"CPU_QUOTA": "-1\n", "CPU_PERIOD": "100000\n"}, 5, 5),
        ({"CPU_QUOTA": "300000\n", "CPU_PERIOD": "100000\n"}, 5, 3),
    ],
)
def test_a_process_has_the_cores_that_it_may_use(
    monkeypatch, tmp_path, files, allowed, expected
):
    for name in ("CPU_MAX", "CPU_QUOTA", "CPU_PERIOD"):
        path = tmp_path / name
        monkeypatch.setattr(hardware, name, str(path))
        if name in files:
            path.write_text(files[name])
    monkeypatch.setattr(
        hardware.os, "sched_getaffinity", lambda _: set(range(allowed))
    )
    assert hardware.cores() == expected


def test_taskset_counts():
    code = "from keras_transformer import hardware; print(hardware.cores())"
    set_one = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"{set_one}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "1\n"
