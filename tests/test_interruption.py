"""Checks that a training process can be stopped or killed without loss.

Each command runs in its own process, on data small enough to take seconds.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import SMALL

from keras_transformer.training import checkpoints

pytestmark = pytest.mark.programs

STEPS = 20

# The command, with a preset that trains in seconds.
PROGRAM = f"""
import sys
from keras_transformer.config import PRESETS
PRESETS["small"] = {SMALL}
from keras_transformer.cli.main import main
sys.exit(main())
"""


def train_command(corpus, out):
    return [
        sys.executable,
        "-c",
        PROGRAM,
        "train",
        "--preset=small",
        f"--corpus={corpus}",
        f"--out={out}",
        f"--steps={STEPS}",
        "--resume",
        "--deterministic",
        "--vocab-size=400",
        "--tokens-per-batch=300",
        "--warmup-steps=20",
        "--validate-every=4",
        "--keep-checkpoints=3",
        "--average-checkpoints=1",
        "--bpe-dropout=0.1",
        "--attention-dropout-rate=0.1",
    ]


def state_after(folder, step=STEPS):
    path = dict(checkpoints.steps(folder / "checkpoints"))[step]
    return checkpoints.read(path)


def assert_same_state(folder, other):
    metadata, arrays = state_after(folder)
    other_metadata, others = state_after(other)
    assert metadata["best"] == other_metadata["best"]
    assert arrays.keys() == others.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(others[name], value, err_msg=name)


def wait_for_step(folder, step, process):
    while process.poll() is None:
        found = checkpoints.steps(folder / "checkpoints")
        if found and found[-1][0] >= step:
            return
        time.sleep(0.02)


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    subprocess.run(
        train_command(corpus, folder), check=True, capture_output=True
    )
    return folder


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_the_state_and_ends_the_process(
    corpus, uninterrupted, tmp_path, number, status
):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        train_command(corpus, folder), stderr=subprocess.PIPE, text=True
    )
    wait_for_step(folder, 8, process)
    time.sleep(0.2)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    (step, _) = checkpoints.steps(folder / "checkpoints")[-1]
    assert f"after step {step}; all state is saved" in errors
    assert step < STEPS
    subprocess.run(
        train_command(corpus, folder), check=True, capture_output=True
    )
    assert_same_state(folder, uninterrupted)
    assert logged_steps(folder) == logged_steps(uninterrupted)


def logged_steps(folder):
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_the_log_of_a_run_has_a_line_for_each_validation(uninterrupted):
    assert logged_steps(uninterrupted) == [*range(4, STEPS + 1, 4)]


@pytest.mark.slow
def test_twenty_kills_change_nothing(corpus, uninterrupted, tmp_path):
    """Kills with SIGKILL at random moments, every fourth time inside a save."""
    rng = random.Random(1)
    folder = tmp_path / "run"
    kills = inside = 0
    while kills < 20:
        process = subprocess.Popen(
            train_command(corpus, folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        before = [s for s, _ in checkpoints.steps(folder / "checkpoints")]
        wait_for_step(folder, (before or [0])[-1] + 1, process)
        if kills % 4 == 3:
            while process.poll() is None and not half_written(folder):
                pass
            process.kill()
            inside += bool(half_written(folder))
        else:
            time.sleep(rng.uniform(0, 1))
            process.kill()
        if process.wait() == 0:
            # The run finished before it could be killed: start another one.
            assert_same_state(folder, uninterrupted)
            folder = tmp_path / f"run-{kills}"
            continue
        kills += 1
    print(f"{kills} kills, {inside} of them seen inside a save")
    assert inside
    subprocess.run(
        train_command(corpus, folder), check=True, capture_output=True
    )
    assert_same_state(folder, uninterrupted)


def half_written(folder):
    try:
        names = os.listdir(folder / "checkpoints")
    except FileNotFoundError:
        return []
    return [name for name in names if name.startswith(".step")]
