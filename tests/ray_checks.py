"""Checks of the server on Ray: replicas that end, clusters, what is left.

Run by `make test-ray`, after the checks of `serve_checks.py` on Ray.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

import grpc
import pytest
from serving import (
    Load,
    Server,
    command_line,
    descendants,
    translations,
    wait_until,
)

RAY = "--engine", "ray", "--ray-replicas", "1"
TWO = *RAY, "--ray-replicas", "2"
TEXTS = [
    "Room 7 is on the third floor.",
    "It costs €5.",
    "The train to Vienna leaves at half past six from platform 12.",
    "",
]
LISTENS = "0A"  # the state of a socket in /proc/net/tcp
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F")


@pytest.fixture(scope="module")
def expected(exported):
    """Returns the translation of each text, by the export itself."""
    return {
        text: {translation}
        for text, translation in translations(exported, TEXTS).items()
    }


@pytest.fixture(scope="module")
def folder(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "demo"
    shutil.copytree(exported, folder / "1")
    return folder


def are_alive(processes):
    """Returns whether any of the processes runs."""
    for pid in processes:
        with contextlib.suppress(OSError):
            status = pathlib.Path(f"/proc/{pid}/stat").read_text()
            if status.rpartition(")")[2].split()[0] != "Z":
                return True
    return False


def test_no_request_fails_when_replicas_are_killed(folder, tmp_path, expected):
    server = Server(folder, tmp_path / "log.txt", *TWO, "--timeout", "55")
    with Load(server, expected, threads=8) as load:

        def wait_for_answers(count):
            end = load.answers + count
            wait_until(lambda: load.answers > end)

        def kill(count):
            """Kills replicas and waits until others replace them."""
            wait_for_answers(50)
            killed = server.workers()[:count]
            assert len(killed) == count
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            wait_for_answers(50)
            wait_until(lambda: len(set(server.workers()) - set(killed)) == 2)

        kill(1)
        kill(2)
        wait_for_answers(50)
    assert server.stop() == 0
    assert load.failures == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ray_ends_with_the_server(folder, tmp_path, number):
    server = Server(folder, tmp_path / "log.txt", *RAY)
    processes = server.processes()
    assert any("raylet" in command_line(pid) for pid in processes)
    assert server.stop(number) == (0 if number == signal.SIGTERM else -number)
    # After SIGKILL, agents of Ray take most of a minute to notice it.
    wait_until(lambda: not are_alive(processes))


def listening(processes):
    """Returns address, in hexadecimal, and port of all sockets that listen."""
    sockets = set()
    for pid in processes:
        for file in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(file))
    found = set()
    for table in ("tcp", "tcp6"):
        lines = pathlib.Path(f"/proc/net/{table}").read_text().splitlines()
        for line in lines[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in sockets:
                address, port = fields[1].split(":")
                found.add((address, int(port, 16)))
    return found


def test_what_ray_shows_to_others(folder, tmp_path, expected):
    """It refuses others, and leaves the log to requests."""
    server = Server(folder, tmp_path / "log.txt", *RAY)
    for text, (translation,) in expected.items():
        assert server.translate(text) == [translation]
    open_to_others = [
        port
        for address, port in listening(server.processes())
        if address not in LOOPBACK
    ]
    assert len(open_to_others) == len(server.workers())  # Ray has no option
    for port in open_to_others:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=10)
        assert caught.value.code().name == "UNAUTHENTICATED"
    assert server.stop() == 0
    for line in server.lines():
        assert line.startswith(("keras-transformer: ", '{"time": '))


def test_replicas_are_added_under_load(folder, tmp_path, expected):
    server = Server(
        folder, tmp_path / "log.txt", *RAY, "--ray-max-replicas", "2"
    )
    assert len(server.workers()) == 1
    with Load(server, expected, threads=8) as load:
        wait_until(lambda: len(server.workers()) == 2)
    assert server.stop() == 0
    assert load.failures == []


def test_errors_are_those_of_the_local_engine(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "demo" / "1")
    (file,) = (tmp_path / "demo" / "1" / "variables").glob("*.data*")
    file.write_bytes(file.read_bytes()[:-1])
    errors = []
    for options in ((), RAY):
        result = subprocess.run(
            [
                *(sys.executable, "-m", "keras_transformer", "serve"),
                *(str(tmp_path / "demo"), "--port=0", "--grpc-port=0"),
                *options,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 1
        errors.append(result.stderr)
    assert errors[0] == errors[1]
    assert "is not what was exported" in errors[0]


@contextlib.contextmanager
def cluster(folder):
    """Runs a cluster of Ray; returns its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray = pathlib.Path(sys.executable).parent / "ray"
    process = subprocess.Popen(
        [
            *(ray, "start", "--head", "--block", "--num-cpus=2"),
            *(f"--port={port}", "--include-dashboard=false"),
            *("--node-ip-address=127.0.0.1", "--disable-usage-stats"),
        ],
        stdout=subprocess.DEVNULL,
    )
    processes = []
    try:
        wait_until(
            lambda: any(
                "raylet" in command_line(pid)
                for pid in descendants(process.pid)
            )
        )
        yield f"127.0.0.1:{port}"
    finally:
        processes = descendants(process.pid)
        process.terminate()
        process.wait(60)
        wait_until(lambda: not are_alive(processes))


APPLICATIONS = """
import ray, sys
from ray import serve
ray.init(sys.argv[1], log_to_driver=False)
print(*serve.status().applications)
"""


def test_two_servers_share_a_cluster(folder, tmp_path, expected):
    with cluster(tmp_path) as address:
        options = *RAY, "--ray-address", address
        first = Server(folder, tmp_path / "first.txt", *options)
        second = Server(folder, tmp_path / "second.txt", *options)
        with Load(second, expected) as load:
            for text, (translation,) in expected.items():
                assert first.translate(text) == [translation]
            assert first.stop() == 0
            before = load.answers
            wait_until(lambda: load.answers > before + 20)
        assert load.failures == []
        assert second.stop() == 0
        result = subprocess.run(
            [sys.executable, "-c", APPLICATIONS, address],
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.strip() == ""
