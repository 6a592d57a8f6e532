"""Engines compute signatures; the default one is a process of this machine.

Another engine is a class with the methods of `Engine`, and a coroutine function
of a folder and a number of threads that returns one, for
`keras_transformer.serve.server.serve`. The command finds engines by a table of
`keras_transformer.integrations`.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from keras_transformer import hardware
from keras_transformer.serve.errors import ProcessEndedError
from keras_transformer.serve.model_process import ModelProcess
from keras_transformer.serve.signatures import read_signatures

# Seconds between two attempts to start a process: they double.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
logger = logging.getLogger("keras_transformer.serve")


class Engine(Protocol):
    """Computes the signatures of one export.

    Attributes:
        slots: number of batches that are computed side by side.
        is_running: `False` while what computes cannot be started again.
        signatures: `SignatureDef` messages by name.
    """

    slots: int
    is_running: bool
    signatures: Mapping[str, Any]

    async def compute(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Computes a batch.

        Raises:
            ServingError: if the computation fails.
            ProcessEndedError: if it ends before it answers; repeat it then.
        """
        ...

    async def stop(self) -> None:
        """Ends what computes."""
        ...


class LocalEngine:
    """An `Engine` with one process, started again whenever it ends.

    Use `await LocalEngine.start(...)`.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        threads: int,
        process: ModelProcess,
        signatures: Mapping[str, Any],
        loader: str | None = None,
    ):
        self.slots = threads
        self.is_running = True
        self.signatures = signatures
        self._path = path
        self._process = process
        self._loader = loader
        self._restarting = asyncio.Lock()
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def start(
        cls,
        path: str | os.PathLike,
        threads: int | None = None,
        loader: str | None = None,
        read: Callable[[str | os.PathLike], dict[str, Any]] = read_signatures,
    ) -> "LocalEngine":
        """Starts the process and waits until it is ready.

        Args:
            path: folder of the export, `NAME/VERSION`.
            threads: number of batches that are computed side by side.
                Defaults to `None`, the number of cores.
            loader: as for `ModelProcess.start`. Defaults to `None`: it loads a
                SavedModel.
            read: function of the folder that returns the `SignatureDef`
                messages by name. Defaults to those of a SavedModel.

        Raises:
            ValueError: if the export cannot be loaded.
            ProcessEndedError: if the process ends before it is ready.
        """
        threads = threads or hardware.cores()
        process = await ModelProcess.start(path, threads, loader)
        return cls(path, threads, process, read(path), loader)

    async def compute(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        await self._restart()
        return await self._process.compute(signature_name, inputs)

    async def stop(self):
        self._watching.cancel()
        await asyncio.wait({self._watching})
        await self._process.stop()

    async def _watch(self):
        """Starts the process again, also while no request comes."""
        while True:
            await self._process.ended.wait()
            await self._restart()

    async def _restart(self):
        """Starts the process again if it has ended, until that succeeds."""
        async with self._restarting:
            if self._process.ended.is_set():
                await self._start_again()

    async def _start_again(self):
        pause = FIRST_PAUSE
        logger.warning(
            "The process of %s has ended: it is started again.", self._path
        )
        while True:
            try:
                self._process = await ModelProcess.start(
                    self._path, self.slots, self._loader
                )
                self.is_running = True
                return
            except (ValueError, ProcessEndedError, OSError) as error:
                self.is_running = False
                logger.error("%s cannot be started: %s", self._path, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
