"""One update, however its batch is cut: replicas, parts, machines."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from replicas import trained
from test_interruption import command, wait_for_step

from keras_transformer.training import checkpoints
from keras_transformer.training.distribution import default_strategy

PROGRAM = pathlib.Path(__file__).with_name("replicas.py")
CLIPNORM = 0.05


@pytest.fixture(scope="module")
def uncut():
    """Trains on one device, with and without clipping of gradients."""
    strategy = tf.distribute.get_strategy()
    return {c: trained(strategy, clipnorm=c) for c in (None, CLIPNORM)}


def assert_same(one, other, tolerance):
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_allclose(
            other[name], one[name], atol=tolerance, rtol=0, err_msg=name
        )
    assert one["moved"] > 1e-3


@pytest.mark.parametrize(
    ("replicas", "parts", "clipnorm"),
    [(2, 1, None), (1, 3, None), (2, 2, CLIPNORM)],
)
def test_replicas_and_parts_are_one(uncut, replicas, parts, clipnorm):
    """Odd batches, batches of one row (so that pieces are empty), Adam,
    clipping by the norm of the summed gradient."""
    strategy = tf.distribute.get_strategy()
    if replicas > 1:
        cpus = [f"/cpu:{i}" for i in range(replicas)]
        strategy = tf.distribute.MirroredStrategy(cpus)
    assert_same(uncut[clipnorm], trained(strategy, parts, clipnorm), 1e-6)


def test_clipping_clips(uncut):
    free, clipped = uncut[None], uncut[CLIPNORM]
    assert any(np.abs(free[k] - clipped[k]).max() > 1e-5 for k in free)


def two_workers():
    """`TF_CONFIG` of each."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    return [
        json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})
        for i in range(2)
    ]


def test_a_chief_is_refused(monkeypatch):
    cluster = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
    task = {"type": "worker", "index": 0}
    config = json.dumps({"cluster": cluster, "task": task})
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match=r"worker only.*\['chief', 'worker'\]"):
        default_strategy()


def test_two_machines_are_one(uncut, tmp_path):
    """`MultiWorkerMirroredStrategy` on loopback: the same weights on both, and
    those of one device. Before that, workers that do not begin with the same
    step both say so, instead of waiting for each other for ever."""
    paths = [tmp_path / f"{i}.npz" for i in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, path],
            env={**os.environ, "TF_CONFIG": worker},
            stderr=subprocess.PIPE,
            text=True,
        )
        for path, worker in zip(paths, two_workers(), strict=True)
    ]
    for i, process in enumerate(processes):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3000:]
        assert f"Received: step {i} here, 0.5 on average" in errors
    first, second = (dict(np.load(path)) for path in paths)
    assert_same(first, second, 0)
    assert_same(uncut[CLIPNORM], first, 1e-5)


@pytest.mark.slow
def test_the_command_on_two_machines(corpus, tmp_path):
    """SIGTERM to one worker stops both after the same step; the same command
    goes on to the end."""
    folder = tmp_path / "run"

    def run():
        return [
            subprocess.Popen(
                command(corpus, folder),
                env={**os.environ, "TF_CONFIG": worker},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for worker in two_workers()
        ]

    processes = run()
    wait_for_step(folder, 8, processes[0])
    processes[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [p.returncode for p in processes] == [143, 143], outputs
    (step, _) = checkpoints.steps(folder / "checkpoints")[-1]
    assert all(f"after step {step}" in output for output in outputs)
    processes = run()
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [p.returncode for p in processes] == [0, 0], outputs
    assert f"Going on from step {step}" in outputs[0]
    assert (folder / "weights.npz").exists()
    assert "Chosen" in outputs[0]
    assert "Chosen" not in outputs[1]
