"""Starts the process of a version and sends it what it has to compute."""

import asyncio
import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import sys
from collections.abc import Mapping

import numpy as np

from keras_transformer import hardware
from keras_transformer.export.files import METADATA
from keras_transformer.serve import ipc
from keras_transformer.serve.errors import ProcessEndedError, ServingError


class ModelProcess:
    """A running process that computes the signatures of an export.

    Use `await ModelProcess.start(...)`.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ):
        self.process = process
        self.ended = asyncio.Event()
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future] = {}
        self._listening: asyncio.Task | None = None

    @classmethod
    async def start(
        cls,
        path: str | os.PathLike,
        threads: int,
        loader: str | None = None,
    ) -> "ModelProcess":
        """Starts a process and waits until it has loaded and warmed up.

        Args:
            path: folder of the export, `NAME/VERSION`.
            threads: number of threads that compute.
            loader: "module:name" of a function such as `worker.load`, which is
                the default.

        Raises:
            ValueError: if the export cannot be loaded.
            ProcessEndedError: if the process ends before it is ready.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "keras_transformer.serve.worker",
                str(theirs.fileno()),
                str(path),
                str(threads),
                *([loader] if loader else []),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                env={
                    **computing_environment(path, hardware.cores(), threads),
                    **os.environ,
                },
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        self = cls(process, reader, writer)
        try:
            kind, message = await ipc.receive(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await process.wait()
            raise ProcessEndedError(
                f"The process of {str(path)!r} has ended with status {status} "
                "while it was loading."
            ) from None
        except BaseException:
            await self.stop()
            raise
        if kind == "failed":
            await self.stop()
            raise ValueError(message)
        self._listening = asyncio.create_task(self._listen())
        return self

    async def compute(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Computes a signature.

        Raises:
            ServingError: if the computation fails.
            ProcessEndedError: if the process ends before it answers.
        """
        if self.ended.is_set():
            raise ProcessEndedError
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._writer.write(ipc.packed((number, signature_name, inputs)))
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def stop(self) -> None:
        """Ends the process."""
        self.ended.set()
        if self._listening:
            self._listening.cancel()
        self._writer.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def _listen(self):
        """Hands answers to those who wait, until the process ends."""
        try:
            while True:
                number, kind, value = await ipc.receive(self._reader)
                answer = self._waiting.get(number)
                if answer is None or answer.done():
                    continue
                if kind == "outputs":
                    answer.set_result(value)
                else:
                    answer.set_exception(ServingError(*value))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ProcessEndedError())
            await self.process.wait()


def computing_environment(
    path: str | os.PathLike, cores: int, threads: int
) -> dict[str, str]:
    """Returns the environment variables with which TensorFlow is fastest.

    Args:
        path: folder of the export, `NAME/VERSION`.
        cores: number of cores to compute on.
        threads: number of batches that are computed side by side.
    """
    environment = {
        "TF_NUM_INTRAOP_THREADS": str(max(cores // threads, 1)),
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    # See `cli/commands.py`: right for bfloat16 alone.
    file = pathlib.Path(path, METADATA)
    metadata = json.loads(file.read_text()) if file.exists() else {}
    if metadata.get("dtype") == "bfloat16":
        environment["TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"] = "1"
    return environment
