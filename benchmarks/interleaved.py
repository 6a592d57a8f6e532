"""Benchmark peers in processes that take turns, round after round, so that all
see the same noise of the machine."""

import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import resource
import subprocess
import sys
import tempfile
import threading

# Environments of the peers that imitate other processors.
SETTINGS = {
    # All instructions, as in our commands.
    "native": {"TF_ENABLE_ONEDNN_OPTS": "1"},
    # TensorFlow's own kernels: its default on processors without AVX-512.
    "off": {"TF_ENABLE_ONEDNN_OPTS": "0"},
    # oneDNN on a processor with AVX2 alone; the other engines likewise.
    "avx2": {
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "CT2_FORCE_CPU_ISA": "AVX2",
    },
}


def set_up(setting):
    """Sets the environment for a setting, and prints it with the machine."""
    os.environ.update(SETTINGS[setting])
    print(f"{machine()}; setting: {setting}", flush=True)


def machine():
    """Describes the machine and the versions of the libraries."""
    versions = []
    for name in ("tensorflow", "keras", "jax", "torch", "ctranslate2"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return (
        f"{platform.platform()} {cpu()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {', '.join(versions)}"
    )


def megabytes():
    """Returns the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident(kind="VmRSS"):
    """Returns the megabytes of this process now, by `/proc/self/status`."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{kind}:\s+(\d+)", status)[1]) / 1024


@contextlib.contextmanager
def watched(most):
    """Records peak megabytes in `most["anonymous"]`, without pages of files.

    Libraries are files: processes share their pages, and the system can take
    them back.
    """
    done = threading.Event()

    def watch():
        while not done.wait(0.002):
            most["anonymous"] = max(
                most.get("anonymous", 0), resident("RssAnon")
            )

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def serve(make):
    """Runs a peer: answers each line of standard input, both in JSON.

    Args:
        make: returns the first message, and a function from a question to its
            answer. An ImportError says that the peer is not installed.
    """
    output = sys.stdout
    sys.stdout = sys.stderr

    def say(answer):
        print(json.dumps(answer), file=output, flush=True)

    try:
        metadata, answer = make()
    except ImportError as error:
        say({"missing": str(error)})
        return
    say(metadata)
    for line in sys.stdin:
        say(answer(json.loads(line)))


class Peer:
    """The other end of `serve`.

    Args:
        name: for the report.
        command: arguments of a Python process that calls `serve`.

    Attributes:
        metadata: the first message; has "missing" if the peer cannot run.
    """

    def __init__(self, name, *command):
        self.name = name
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115, ends with it
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.metadata = self._read()

    def _read(self):
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        if (status := self.process.wait()) < 0:
            return {"missing": f"ended by signal {-status}"}
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").split("\n")
        return {"missing": next(filter(str.strip, lines[::-1]), "it failed")}

    def ask(self, question=None):
        """Returns the answer, or ends the program if the peer failed."""
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the reason is read below
        answer = self._read()
        if isinstance(answer, dict) and "missing" in answer:
            sys.exit(f"{self.name} failed: {answer['missing']}")
        return answer

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def start(commands):
    """Starts peers by name. Missing ones are reported and left out.

    The program ends if all are missing.
    """
    peers = [Peer(name, *command) for name, command in commands.items()]
    for peer in peers:
        if "missing" in peer.metadata:
            print(f"{peer.name}: left out, {peer.metadata['missing']}")
            peer.end()
    found = [peer for peer in peers if "missing" not in peer.metadata]
    if not found:
        sys.exit("Nothing is left to measure.")
    return found


def cpu():
    """Returns the processor and its instructions for matrices."""
    path = pathlib.Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor()
    pairs = [x.split(":", 1) for x in path.read_text().split("\n") if ":" in x]
    lines = {name.strip(): value.strip() for name, value in pairs}
    flags = lines.get("flags", lines.get("Features", "")).split()
    for_matrices = (
        *("avx2", "avx512f", "avx512_bf16", "amx_tile"),
        *("asimd", "sve", "bf16"),
    )
    extras = [flag for flag in for_matrices if flag in flags]
    name = lines.get("model name", platform.machine())
    return f"{name}, {' '.join(extras)}"
