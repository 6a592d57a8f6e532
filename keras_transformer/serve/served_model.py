"""One version of a model: its requests wait here, and become batches."""

import asyncio
import json
import math
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.export.files import METADATA
from keras_transformer.serve.batching import (
    QueuedRows,
    RowQueue,
    answer_batch,
    inputs_of,
)
from keras_transformer.serve.engine import Engine
from keras_transformer.serve.errors import (
    ProcessEndedError,
    ServingError,
    VersionEndedError,
    invalid,
    too_large,
)
from keras_transformer.serve.metrics import Metrics
from keras_transformer.serve.settings import ServeSettings
from keras_transformer.serve.signatures import DEFAULT

# The rows of these signatures may be computed with those of other requests.
# Another signature may pad its rows to the longest, as `explain` does, so its
# requests are computed alone.
ROW_WISE = {DEFAULT, "n_best", "control", "score"}
# A batch may crash the process, so it is tried at most so often.
MOST_TRIES = 3


class ServedModel:
    """A version of a model whose requests are computed by an `Engine`.

    Args:
        name: name of the model.
        path: folder of the export, `NAME/VERSION`.
        engine: computes batches.
        settings: limits of requests, batches and the queue.
        metrics: counts what is done.

    Attributes:
        number: number of the version.
        signatures: `SignatureDef` messages by name.
        metadata: contents of `keras_transformer.json`.
        search: settings of the search of plain requests.
    """

    def __init__(
        self,
        name: str,
        path: str | os.PathLike,
        engine: Engine,
        settings: ServeSettings,
        metrics: Metrics,
    ):
        path = pathlib.Path(path)
        self.name = name
        self.number = int(path.name)
        self.signatures: Mapping[str, Any] = engine.signatures
        self.metadata: Mapping[str, Any] = json.loads(
            (path / METADATA).read_text()
        )
        self._defaults = {
            key: {
                input_name: tf.make_ndarray(value)
                for input_name, value in signature.defaults.items()
            }
            for key, signature in self.signatures.items()
        }
        given = {"beam_size": settings.beam_size, "alpha": settings.alpha}
        self.search = self.metadata["search"] | {
            key: value for key, value in given.items() if value is not None
        }
        most = self.search["max_beam_size"]
        if self.search["beam_size"] > most:
            raise ValueError(
                f"The search of this export keeps at most {most} hypotheses. "
                f"Received: beam_size={settings.beam_size}, for {name}/"
                f"{self.number}. Serve it with a smaller --beam-size."
            )
        self._engine = engine
        self._settings = settings
        self._metrics = metrics
        self._labels = (self.name, self.number)
        self._queue = RowQueue(settings.max_batch_rows, settings.by_length)
        self._arrived = asyncio.Event()
        self._free = asyncio.Semaphore(engine.slots)
        self._answering: set[QueuedRows] = set()
        self._computing: set[asyncio.Task] = set()
        self._dispatching = asyncio.create_task(self._dispatch())

    @property
    def is_running(self) -> bool:
        """Whether requests are computed; `False` while what computes them
        cannot be started."""
        return self._engine.is_running

    async def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, np.ndarray],
        timeout: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Computes a signature.

        Args:
            signature_name: name of a signature of the model.
            inputs: arrays by name; strings are arrays of `bytes` objects.
                Inputs that have a default may be missing.
            timeout: seconds until the answer is of no use. Defaults to `None`.

        Raises:
            ServingError: with a code for the client.
        """
        if signature_name == DEFAULT and self._searches_otherwise():
            found = await self.predict(
                "n_best", self._searched(inputs), timeout
            )
            first = {k: x[:, 0] for k, x in found.items() if x.ndim == 2}
            return found | first
        inputs = {**self._defaults[signature_name], **inputs}
        self._check_rows(_rows(inputs))
        items = _items(signature_name, inputs)
        self._check_items(items)
        self._check_answer(self._most_elements(signature_name, items))
        self._queue.put(items)
        self._arrived.set()
        self._metrics.queued(self._labels, self._queue.rows)
        self._answering.update(items)
        try:
            async with asyncio.timeout(timeout):
                parts = await asyncio.gather(*(item.answer for item in items))
        except TimeoutError:
            raise ServingError(
                "DEADLINE_EXCEEDED", "Timed out waiting for the answer."
            ) from None
        finally:
            self._answering.difference_update(items)
            for item in items:  # or it would be computed for nobody
                item.answer.cancel()
            if any(item.answer.cancelled() for item in items):
                self._queue.forget_cancelled()
                self._metrics.queued(self._labels, self._queue.rows)
        outputs = _joined(parts)
        self._check_answer(sum(x.size for x in outputs.values()))
        return outputs

    def _searches_otherwise(self):
        """Returns whether plain requests have another search than exported."""
        return self.search != self.metadata["search"]

    def _searched(self, inputs):
        """Returns inputs of `n_best` for those of a plain request."""
        return {
            **inputs,
            "beam_size": np.int32(self.search["beam_size"]),
            "alpha": np.float32(self.search["alpha"]),
        }

    async def stop(self) -> None:
        """Answers the requests that it has, and ends its engine."""
        while self._answering:
            if not self.is_running:  # its folder was deleted, for example
                _fail(self._answering, VersionEndedError())
            await asyncio.sleep(0.05)
        # Nobody waits for what is still computed.
        for task in (self._dispatching, *self._computing):
            task.cancel()
        await self._engine.stop()

    def _check_rows(self, rows):
        """Raises a `ServingError` for too many rows, before they are made
        items, which takes long."""
        if rows > self._settings.max_request_rows:
            raise too_large("rows", rows, self._settings.max_request_rows)

    def _check_items(self, items):
        """Raises a `ServingError` for requests that are too large or many."""
        settings = self._settings
        at_once = items[0].key[0] not in ROW_WISE
        largest = max(item.rows for item in items)
        if at_once and largest > settings.max_batch_rows:
            raise too_large(
                "rows, which are computed at once",
                largest,
                settings.max_batch_rows,
            )
        rows = sum(item.rows for item in items)
        length = sum(item.bytes for item in items)
        if length > settings.max_request_text:
            raise too_large("bytes of text", length, settings.max_request_text)
        if (
            self._queue.rows
            and self._queue.rows + rows > settings.max_queue_rows
        ):
            raise ServingError(
                "RESOURCE_EXHAUSTED",
                f"The queue of model {self.name} is full: {self._queue.rows:,} "
                "rows are waiting. Try again later.",
                retry_after=1,
            )

    def _most_elements(self, signature_name, items):
        """Returns how many elements an answer may have, before it is computed.

        The first axis of an output is rows, and each other axis of unknown
        size is as long as a source or a translation; both of the encoder's
        attention are as long as a source. A source has about as many pieces as
        bytes at most.
        """
        rows = sum(item.rows for item in items)
        longest = max(item.length for item in items) + 1
        source = min(longest, self.metadata["max_pieces"] + 1)
        extra = self.metadata["search"]["extra_length"]
        target = min(source + extra, self.metadata["max_length"])
        total = 0
        for name, output in self.signatures[signature_name].outputs.items():
            height = source if name == "encoder_attention" else target
            unknown = iter((height, source))
            sizes = [dim.size for dim in output.tensor_shape.dim[1:]]
            sizes = [next(unknown, 1) if n < 0 else n for n in sizes]
            total += math.prod(sizes, start=rows)
        return total

    def _check_answer(self, elements):
        """Raises a `ServingError` for an answer that is too large."""
        limit = self._settings.max_answer_elements
        if elements > limit:
            raise invalid(
                f"An answer may have {limit:,} elements. Received: texts whose "
                f"answer may have {elements:,}. Send fewer, or shorter ones."
            )

    async def _dispatch(self):
        """Makes batches, one whenever a thread of the engine is free."""
        while True:
            await self._free.acquire()
            while not (batch := self._queue.take(self._engine.slots)):
                self._arrived.clear()
                await self._arrived.wait()
            self._metrics.batch_begun(self._labels, batch, self._queue.rows)
            task = asyncio.create_task(self._compute(batch))
            self._computing.add(task)
            task.add_done_callback(self._computing.discard)

    async def _compute(self, batch):
        """Computes a batch, and answers its items or has them wait again."""
        signature_name = batch[0].key[0]
        for item in batch:
            item.tries += 1
        start = time.monotonic()
        try:
            outputs = await self._engine.compute(
                signature_name, inputs_of(batch)
            )
            seconds = time.monotonic() - start
            self._metrics.batch_ended(self._labels, outputs, seconds)
            answer_batch(batch, outputs)
        except ProcessEndedError:
            self._repeat(batch)
        except ServingError as error:
            _fail(batch, error)
        except Exception as error:
            _fail(batch, ServingError("INTERNAL", f"{error}"))
        finally:
            self._free.release()

    def _repeat(self, batch):
        """Has the items of a batch wait again, if they have tries left."""
        tired = [item for item in batch if item.tries >= MOST_TRIES]
        _fail(
            tired,
            ServingError(
                "INTERNAL",
                f"The model's process has ended {MOST_TRIES} times while it "
                "computed this request.",
            ),
        )
        self._queue.put([item for item in batch if item.tries < MOST_TRIES])
        self._arrived.set()


def _rows(inputs):
    """Returns how many rows a request has."""
    return max((len(x) for x in inputs.values() if x.ndim), default=1)


def _items(signature_name, inputs):
    """Returns the items of a request: one a row, or one for all rows."""
    future = asyncio.get_running_loop().create_future
    batched = {name: value for name, value in inputs.items() if value.ndim}
    scalars = {n: value for n, value in inputs.items() if not value.ndim}
    counts = {len(value) for value in batched.values()}
    count = max(counts, default=1)
    is_row_wise = (
        signature_name in ROW_WISE
        and counts == {count}
        and count > 0
        and all(value.ndim == 1 for value in batched.values())
    )
    if not is_row_wise:
        key = signature_name, object()  # equal to no other
        lengths = _lengths(batched)
        length = max(lengths, default=0)
        rows = max(count, 1)
        return [QueuedRows(key, inputs, rows, length, sum(lengths), future())]
    key = (
        signature_name,
        *((name, value.tolist()) for name, value in sorted(scalars.items())),
    )
    items = []
    for i in range(count):
        row = {name: value[i : i + 1] for name, value in batched.items()}
        length = sum(_lengths(row))
        items.append(
            QueuedRows(key, {**row, **scalars}, 1, length, length, future())
        )
    return items


def _lengths(inputs):
    """Returns the length of each string of the inputs, in bytes."""
    return [
        len(string)
        for array in inputs.values()
        if array.dtype == object
        for string in array.flat
    ]


def _joined(parts):
    """Returns the outputs of a request's parts, one after another."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: np.concatenate([part[name] for part in parts])
        for name in parts[0]
    }


def _fail(items, error):
    for item in items:
        if not item.answer.done():
            item.answer.set_exception(error)
