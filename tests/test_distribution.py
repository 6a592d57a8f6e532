"""One update, however its batch is cut: replicas, parts, machines.

Each case is a process of its own, since devices are set before TensorFlow
starts.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

PROGRAM = pathlib.Path(__file__).with_name("replicas.py")


def start(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, PROGRAM, *map(str, arguments)],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process):
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """Weights of one device by their clipnorm."""
    folder = tmp_path_factory.mktemp("uncut")
    paths = {}
    for clip in ((), (0.05,)):
        paths[clip] = folder / f"{len(clip)}.npz"
        finished(start(paths[clip], 1, 1, *clip))
    return paths


def assert_same(path, other, tolerance):
    with np.load(path) as one, np.load(other) as two:
        assert set(one) == set(two)
        for name in one:
            np.testing.assert_allclose(
                two[name], one[name], atol=tolerance, rtol=0, err_msg=name
            )
        assert one["moved"] > 1e-3


@pytest.mark.parametrize(
    ("devices", "parts", "clip"),
    [(2, 1, ()), (1, 3, ()), (2, 2, (0.05,))],
)
def test_replicas_and_parts_are_one(uncut, tmp_path, devices, parts, clip):
    """Odd batches, batches of one row (so that pieces are empty), Adam,
    clipping by the norm of the summed gradient."""
    path = tmp_path / "weights.npz"
    finished(start(path, devices, parts, *clip))
    assert_same(uncut[clip], path, 1e-6)


def test_clipping_clips(uncut):
    with np.load(uncut[()]) as free, np.load(uncut[(0.05,)]) as clipped:
        assert any(np.abs(free[k] - clipped[k]).max() > 1e-5 for k in free)


def test_two_machines_are_one(uncut, tmp_path):
    """`MultiWorkerMirroredStrategy` on loopback: the same weights on both, and
    those of one device."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    workers = [f"127.0.0.1:{port}" for port in ports]
    paths = [tmp_path / f"{i}.npz" for i in range(2)]
    processes = [
        start(
            paths[i],
            1,
            1,
            0.05,
            TF_CONFIG=json.dumps(
                {
                    "cluster": {"worker": workers},
                    "task": {"type": "worker", "index": i},
                }
            ),
        )
        for i in range(2)
    ]
    for process in processes:
        finished(process)
    assert_same(paths[0], paths[1], 0)
    assert_same(uncut[(0.05,)], paths[0], 1e-5)
