"""A server in a process of its own, and clients that load it."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.integrations.ctranslate2_engine import (
    CTranslate2Translator,
)

# Command lines of the processes of both engines.
COMPUTES = re.compile("keras_transformer.serve.worker|ray::ServeReplica")


def translations(exported, texts):
    """Returns the translation of each text, by the export itself."""
    is_saved_model = (exported / "saved_model.pb").exists()
    kind = SavedTranslator if is_saved_model else CTranslate2Translator
    return dict(zip(texts, kind(exported)(texts), strict=True))


def make_certificate(folder, name):
    """Returns new files of a certificate for localhost and of its key."""
    if not shutil.which("openssl"):
        pytest.skip("openssl, which makes certificates, is not installed")
    files = folder / f"{name}.pem", folder / f"{name}_key.pem"
    command = "openssl req -x509 -nodes -subj /CN=localhost -newkey ec -pkeyopt"
    command += " ec_paramgen_curve:prime256v1 -addext"
    command = [*command.split(), "subjectAltName=DNS:localhost"]
    subprocess.run(
        [*command, "-out", files[0], "-keyout", files[1]],
        check=True,
        capture_output=True,
    )
    return files


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def descendants(pid):
    """Returns the process ids of a process and of what it has started."""
    found = [pid]
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            for child in path.read_text().split():
                found += descendants(int(child))
    return found


def command_line(pid):
    """Returns the command line of a process, or "" if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


class Server:
    """`keras-transformer serve` in a process, at free ports.

    The environment variable `SERVE_OPTIONS` has options for every server.
    """

    def __init__(self, folder, log, *options):
        command = [sys.executable, "-m", "keras_transformer", "serve"]
        command += [str(folder), "--port", "0", "--grpc-port", "0"]
        command += [*shlex.split(os.environ.get("SERVE_OPTIONS", "")), *options]
        self.log = pathlib.Path(log)
        root = str(pathlib.Path(__file__).parents[1])
        with open(self.log, "w") as file:
            self.process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": root},
                start_new_session=True,  # a signal may be for all of it
            )
        self.wait_for("Stop with")
        addresses = next(
            line for line in self.lines() if "Stop with Ctrl-C" in line
        )
        self.port = int(addresses.split("//")[1].split("/")[0].split(":")[1])
        grpc = addresses.split("gRPC at ")[1].split(". Stop")[0]
        self.grpc_address = grpc

    def lines(self):
        return self.log.read_text().splitlines()

    def wait_for(self, text, seconds=90):
        """Waits until the log has a text."""
        end = time.monotonic() + seconds
        while text not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"No {text!r} in:\n{self.log.read_text()}")
            time.sleep(0.05)

    def processes(self):
        """Returns the process ids of the server and of what it has started."""
        return descendants(self.process.pid)

    def workers(self):
        """Returns the process ids of what computes."""
        return [
            pid
            for pid in self.processes()
            if COMPUTES.search(command_line(pid))
        ]

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Returns status, headers and body of an answer."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=timeout
        )
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read()
        finally:
            connection.close()

    def translate(self, *texts, version=None):
        """Returns the translations of texts."""
        path = "/v1/models/demo"
        if version is not None:
            path += f"/versions/{version}"
        body = json.dumps({"inputs": {"text": texts}})
        status, _, answer = self.request("POST", f"{path}:predict", body)
        if status != 200:
            raise RuntimeError(f"{status}: {answer.decode()}")
        return json.loads(answer)["outputs"]["translation"]

    def stop(self, number=signal.SIGTERM):
        """Stops the server and returns its exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def interrupt(self):
        """Stops the server as Ctrl-C does, which reaches all its processes."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(60)

    def end(self):
        """Stops the server as systemd does, which ends all processes of a
        service."""
        os.killpg(self.process.pid, signal.SIGTERM)
        return self.process.wait(60)


class Load:
    """Threads that translate until they are told to stop.

    Used as `with Load(server, expected) as load:`. Each answer is compared
    with the expected one; `failures` has all others and all errors.
    """

    def __init__(self, server, expected, threads=6):
        self.server = server
        self.expected = expected
        self.failures = []
        self.answers = 0
        self._is_over = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)
        self._threads = threads

    def __enter__(self):
        self._futures = [
            self._pool.submit(self._translate, i) for i in range(self._threads)
        ]
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._pool.shutdown()

    def _translate(self, start):
        texts = list(self.expected)
        i = start
        while not self._is_over.is_set():
            text = texts[i % len(texts)]
            i += 1
            try:
                (answer,) = self.server.translate(text)
            except Exception as error:
                self.failures.append(repr(error))
                continue
            if answer not in self.expected[text]:
                self.failures.append((text, answer))
            self.answers += 1
