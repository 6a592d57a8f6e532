"""Checks that replicas, parts and machines give the update of one device."""

import functools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from replicas import train_small_model
from test_interruption import train_command, wait_for_step

from keras_transformer.training import checkpoints
from keras_transformer.training.tensorflow_trainer import default_strategy

PROGRAM = pathlib.Path(__file__).with_name("replicas.py")
CLIPNORM = 0.05


@functools.cache
def undivided(clipnorm):
    """Trains on one device."""
    return train_small_model(tf.distribute.get_strategy(), clipnorm=clipnorm)


def assert_same(one, other, tolerance):
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_allclose(
            other[name], one[name], atol=tolerance, rtol=0, err_msg=name
        )
    assert one["moved"] > 1e-3


@pytest.mark.parametrize(
    ("replicas", "parts", "clipnorm"),
    [
        (2, 1, None),
        pytest.param(2, 2, CLIPNORM, marks=pytest.mark.programs),
        pytest.param(1, 3, None, marks=pytest.mark.programs),
    ],
)
def test_replicas_and_parts_give_the_weights_of_one_device(
    replicas, parts, clipnorm
):
    """Among the batches are odd ones, and ones of a single row, which leave
    replicas or parts empty. Gradients are clipped by the norm of their sum.
    """
    strategy = tf.distribute.get_strategy()
    if replicas > 1:
        cpus = [f"/cpu:{i}" for i in range(replicas)]
        strategy = tf.distribute.MirroredStrategy(cpus)
    assert_same(
        undivided(clipnorm), train_small_model(strategy, parts, clipnorm), 1e-6
    )


@pytest.mark.programs
def test_replicas_learn_the_same_from_a_teacher():
    taught = {"teacher_weight": 0.5, "initial_run": "the teacher's"}
    one = train_small_model(tf.distribute.get_strategy(), **taught)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    assert_same(one, train_small_model(strategy, 2, **taught), 1e-6)
    alone = undivided(None)
    assert any(np.abs(alone[k] - one[k]).max() > 1e-5 for k in alone)


@pytest.mark.programs
def test_clipping_changes_the_weights():
    free, clipped = undivided(None), undivided(CLIPNORM)
    assert any(np.abs(free[k] - clipped[k]).max() > 1e-5 for k in free)


def trained_by_program(folder, backend, devices=1, parts=1):
    """Trains ten steps from a folder's checkpoint in a process of its own."""
    environment = {
        "KERAS_BACKEND": backend,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling takes most time
    }
    command = [sys.executable, PROGRAM, folder / "found.npz", folder]
    subprocess.run(
        [*map(str, [*command, devices, parts])],
        env={**os.environ, **environment},
        check=True,
    )
    return dict(np.load(folder / "found.npz"))


@pytest.mark.programs
def test_jax_trains_as_tensorflow_does(tmp_path):
    """On one device and on two, in parts; and either goes on from the last
    checkpoint of the other."""
    first = trained_by_program(tmp_path / "tensorflow", "tensorflow")
    for name, devices, parts in (
        ("tensorflow on two", 2, 1),
        ("jax", 1, 1),
        ("jax on two", 2, 3),
    ):
        folder = tmp_path / name
        folder.mkdir()
        start = tmp_path / "tensorflow" / "step-00000000.npz"
        shutil.copy(start, folder)
        backend = name.split()[0]
        found = trained_by_program(folder, backend, devices, parts)
        np.testing.assert_allclose(found["epochs"], first["epochs"], rtol=1e-5)
        assert_same(first, found, 2e-5)
    ours = trained_by_program(tmp_path / "tensorflow", "jax")
    theirs = trained_by_program(tmp_path / "jax", "tensorflow")
    assert_same(ours, theirs, 4e-5)


def two_workers():
    """Returns the `TF_CONFIG` of each of two workers."""
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


@pytest.mark.programs
def test_two_machines_give_the_weights_of_one_device(tmp_path):
    """Trains with `MultiWorkerMirroredStrategy` on the loopback interface.

    Before that, both workers report that they do not start at the same step,
    instead of waiting for each other for ever.
    """
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
    assert_same(undivided(CLIPNORM), first, 1e-5)


@pytest.mark.slow
def test_a_signal_to_one_worker_stops_both_and_they_resume(corpus, tmp_path):
    """Both stop after the same step, and the same command trains to the end."""
    folder = tmp_path / "run"

    def start_workers():
        return [
            subprocess.Popen(
                train_command(corpus, folder),
                env={**os.environ, "TF_CONFIG": worker},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for worker in two_workers()
        ]

    processes = start_workers()
    wait_for_step(folder, 8, processes[0])
    processes[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [p.returncode for p in processes] == [143, 143], outputs
    (step, _) = checkpoints.steps(folder / "checkpoints")[-1]
    assert all(f"after step {step}" in output for output in outputs)
    processes = start_workers()
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [p.returncode for p in processes] == [0, 0], outputs
    assert f"Going on from step {step}" in outputs[0]
    assert (folder / "weights.npz").exists()
    assert "Chosen" in outputs[0]
    assert "Chosen" not in outputs[1]
