"""Rows of all requests in batches of similar length."""

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

# Fewer rows are not worth a thread of their own.
ROWS_PER_THREAD = 16
# The deadline of a row is its arrival plus this many seconds for each of its
# bytes, at most the second number: short sentences go first, and long ones are
# not put off for ever.
PATIENCE = 0.03
MOST_PATIENCE = 10.0
# The longest row of a batch has at most this many times the bytes of the
# shortest, and so many more.
LENGTH_RATIO, LENGTH_MARGIN = 2.0, 16


@dataclasses.dataclass(eq=False)
class QueuedRows:
    """A part of a request that is computed at once: a row, or all of them.

    Args:
        key: those of the same key may be in one batch.
        inputs: arrays `(rows, …)`, and scalars, which the key determines.
        rows: number of rows.
        length: length in bytes of its longest row.
        bytes: length in bytes of all its rows.
        answer: future of the outputs, arrays `(rows, …)`.
        arrival: time at which the request came. Defaults to now.
        tries: how often its computation has begun and not ended.
    """

    key: Any
    inputs: Mapping[str, np.ndarray]
    rows: int
    length: int
    bytes: int
    answer: asyncio.Future
    arrival: float = dataclasses.field(default_factory=time.monotonic)
    tries: int = 0


class RowQueue:
    """Rows that wait, of which `take` makes batches.

    Args:
        max_batch_rows: maximum number of rows of a batch.
        by_length: whether batches have rows of similar length, and short ones
            go first. Otherwise rows are taken as they arrive. Defaults to
            True.
    """

    def __init__(self, max_batch_rows: int, by_length: bool = True):
        self.max_batch_rows = max_batch_rows
        self.by_length = by_length
        self.rows = 0
        self._items: list[QueuedRows] = []

    def put(self, items: list[QueuedRows]) -> None:
        """Adds items; those that were taken before keep their place."""
        self._items += items
        self.rows += sum(item.rows for item in items)

    def take(self, threads: int) -> list[QueuedRows]:
        """Removes and returns the next batch, or an empty list.

        Args:
            threads: number of threads among which the waiting rows are shared.
        """
        self.forget_cancelled()
        if not self._items:
            return []
        first = min(self._items, key=self._urgency)
        alike = [item for item in self._items if item.key == first.key]
        if self.by_length:
            alike = [item for item in alike if _are_similar(item, first)]
            alike.sort(key=lambda item: abs(item.length - first.length))
        else:
            alike.sort(key=self._urgency)
        share = -(-sum(item.rows for item in alike) // threads)
        limit = min(max(share, ROWS_PER_THREAD), self.max_batch_rows)
        batch, rows = [first], first.rows
        for item in alike:
            if item is not first and rows + item.rows <= limit:
                batch.append(item)
                rows += item.rows
        taken = set(map(id, batch))
        self._items = [item for item in self._items if id(item) not in taken]
        self.rows -= rows
        return batch

    def _urgency(self, item):
        if not self.by_length:
            return item.arrival
        return item.arrival + min(PATIENCE * item.length, MOST_PATIENCE)

    def forget_cancelled(self) -> None:
        """Removes items that nobody waits for."""
        self._items = [item for item in self._items if not item.answer.done()]
        self.rows = sum(item.rows for item in self._items)


def _are_similar(item, other):
    short, long = sorted((item.length, other.length))
    return long <= LENGTH_RATIO * short + LENGTH_MARGIN


def inputs_of(batch: list[QueuedRows]) -> dict[str, np.ndarray]:
    """Returns the inputs of a batch: rows one after another."""
    first = batch[0].inputs
    if len(batch) == 1:
        return dict(first)
    return {
        name: np.concatenate([item.inputs[name] for item in batch])
        if value.ndim
        else value
        for name, value in first.items()
    }


def answer_batch(
    batch: list[QueuedRows], outputs: Mapping[str, np.ndarray]
) -> None:
    """Gives each item of a batch its rows of the outputs."""
    start = 0
    for item in batch:
        rows = slice(start, start + item.rows)
        start += item.rows
        if not item.answer.done():
            item.answer.set_result(
                {name: value[rows] for name, value in outputs.items()}
            )
