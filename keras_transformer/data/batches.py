"""Batches: section 5.1, "batched together by approximate sequence length".

The pairs of an epoch are shuffled and divided into pools of about 100 batches.
Inside a pool, pairs are sorted by length and divided into batches that have
about as many target tokens each. The number of batches of an epoch is fixed, so
a step alone says which epoch, pool and batch it sees, and training can begin at
any step without reading what comes before.

Shapes: R replicas, A parts, B rows of a part, T target length, S source length.
"""

import dataclasses
import itertools
import queue
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import PAD, START

# Pairs are sorted by length inside pools of about this many batches, so that a
# batch has little padding and still changes from epoch to epoch.
POOL = 100
ROUNDS = 6  # of the network that shuffles

Batch = dict[str, np.ndarray]
Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Holds rows of ids of different lengths, one after another.

    Args:
        values: the ids of all rows, one-dimensional.
        lengths: int64 `(N,)`, the number of ids of each row.
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Rows":
        """Returns the rows of a list of lists."""
        lengths = np.array([len(row) for row in rows], np.int64)
        values = itertools.chain.from_iterable(rows)
        return cls(np.fromiter(values, np.int32, lengths.sum()), lengths)

    def __len__(self):
        return len(self.lengths)

    def take(self, rows: np.ndarray) -> "Rows":
        """Returns the rows with these numbers, in this order."""
        starts = np.cumsum(self.lengths) - self.lengths
        return take_slices(self.values, starts[rows], self.lengths[rows])

    def padded(self, length: int = 0) -> np.ndarray:
        """Returns the rows as int32 `(N, L)`, padded with 0.

        Args:
            length: L, unless a row is longer.
        """
        length = max(length, self.lengths.max(initial=0))
        padded = np.full((len(self), length), PAD, np.int32)
        padded[np.arange(length) < self.lengths[:, None]] = self.values
        return padded

    def tolist(self) -> list[list[int]]:
        """Returns the rows as lists."""
        ends = np.cumsum(self.lengths)
        return [
            self.values[end - length : end].tolist()
            for length, end in zip(self.lengths, ends, strict=True)
        ]


def take_slices(
    values: np.ndarray, starts: np.ndarray, lengths: np.ndarray
) -> Rows:
    """Returns slices of an array as rows; slice i begins at `starts[i]`."""
    lengths = lengths.astype(np.int64)
    # Where a slice begins in `values`, less where it begins in the result.
    shifts = starts - (np.cumsum(lengths) - lengths)
    places = np.repeat(shifts, lengths)
    places += np.arange(len(places))
    return Rows(values[places], lengths)


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Holds the ids of N sentence pairs.

    Args:
        source, target: `Rows` of N sentences, each with its end token.
    """

    source: Rows
    target: Rows

    def __len__(self):
        return len(self.source)

    @property
    def target_tokens(self) -> int:
        """The number of target tokens, end tokens included."""
        return len(self.target.values)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of source and target, `(N, 2)`.

        The end token is included.
        """
        return np.stack([self.source.lengths, self.target.lengths], axis=1)

    def take(self, rows: np.ndarray) -> "EncodedPairs":
        """Returns the pairs with these numbers, in this order."""
        return EncodedPairs(self.source.take(rows), self.target.take(rows))

    def read(self, rows: np.ndarray, epoch: int) -> "EncodedPairs":
        """Returns pairs of an epoch: here, the same in every epoch.

        This makes pairs in memory usable where prepared ones are.
        """
        return self.take(rows)


def encode_pairs(
    source: Sequence[str],
    target: Sequence[str],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
) -> EncodedPairs:
    """Encodes sentences and their translations, end tokens included."""
    return EncodedPairs(
        Rows.of(source_tokenizer.encode(source)),
        Rows.of(target_tokenizer.encode(target)),
    )


class TrainingPairs(Protocol):
    """Describes the sentence pairs of an epoch, in memory or on disk."""

    @property
    def target_tokens(self) -> int:
        """The number of target tokens of an epoch."""

    def __len__(self) -> int: ...

    def read(self, rows: np.ndarray, epoch: int) -> EncodedPairs:
        """Returns the pairs of an epoch with these numbers."""


@dataclasses.dataclass(frozen=True)
class Sharding:
    """Describes how a batch is divided.

    It is divided over workers, over the replicas of each worker, and into parts
    that a replica computes one after the other. Sums over all parts do not
    depend on the division.

    Args:
        workers: number of workers. Defaults to 1.
        worker: number of this worker, counted from 0. Defaults to 0.
        replicas: number of replicas of each worker. Defaults to 1.
        parts: number of parts of each replica. Defaults to 1.
    """

    workers: int = 1
    worker: int = 0
    replicas: int = 1
    parts: int = 1

    @property
    def devices(self) -> int:
        """Returns the number of replicas of all workers."""
        return self.workers * self.replicas


def training_batches(
    pairs: TrainingPairs,
    tokens: int,
    seed: int,
    sharding: Sharding = Sharding(),
    first_batch: int = 0,
    longest: int | None = None,
) -> Iterator[Batch]:
    """Yields shuffled batches without end.

    Args:
        pairs: the pairs of an epoch.
        tokens: approximate number of target tokens of a batch, end tokens
            included.
        seed: seed of the order, which differs in each epoch.
        sharding: how each batch is divided. Defaults to no division.
        first_batch: number of batches to skip, for resuming. Defaults to 0.
        longest: pads batches to a few shapes, see `make_batch`. Defaults to
            `None`.

    Yields:
        This worker's share of each batch, see `make_batch`.
    """
    plan = make_plan(pairs, tokens, seed)
    first, skipped = plan.position(first_batch)
    for pool in itertools.count(first):
        for batch in cut(*plan.read(pairs, pool), skipped):
            yield make_batch(batch, sharding, longest)
        skipped = 0


def evaluation_batches(
    encoded: EncodedPairs,
    tokens: int,
    sharding: Sharding = Sharding(),
    longest: int | None = None,
) -> list[Batch]:
    """Returns batches with every pair once, the longest pairs first.

    They are like those of `training_batches`.
    """
    order, sizes = cut_batches(encoded.lengths, _batch_count(encoded, tokens))
    return [
        make_batch(batch, sharding, longest)
        for batch in cut(encoded.take(order[::-1]), sizes[::-1])
    ]


def _batch_count(pairs, tokens):
    return min(len(pairs), max(1, round(pairs.target_tokens / tokens)))


def cut(
    pairs: EncodedPairs, sizes: np.ndarray, skipped: int = 0
) -> Iterator[EncodedPairs]:
    """Yields consecutive pairs: as many each time as `sizes` says.

    Args:
        pairs: all pairs.
        sizes: number of pairs of each batch.
        skipped: number of batches to leave out. Defaults to 0.
    """
    ends = np.cumsum(sizes)
    for start, end in list(zip(ends - sizes, ends, strict=True))[skipped:]:
        yield pairs.take(np.arange(start, end))


def make_batch(
    pairs: EncodedPairs,
    sharding: Sharding = Sharding(),
    longest: int | None = None,
) -> Batch:
    """Returns this worker's share of a batch, divided into parts.

    Consecutive rows go to different parts, so that all parts have about as many
    tokens. Empty rows, which have no loss, make the parts equally large.

    Args:
        pairs: the pairs of the batch, with end tokens.
        sharding: how the batch is divided. Defaults to no division.
        longest: maximum number of tokens of a side. With it, rows and lengths
            are rounded up, lengths at most to it, so that a program that is
            compiled for each shape is compiled for few; source and target have
            the same length. Defaults to `None`: as little padding as possible.

    Returns:
        A dictionary with an entry of each array for each of R replicas and A
        parts. `source` `(R, A, B, S)`, `target` and `labels` `(R, A, B, T)`
        are int32 ids padded with 0: `labels` is the target, and `target` the
        same shifted right, behind the start token. `weights` `(R, A, B, T)` is
        float32, 1 / (real labels of the whole batch) at real labels and 0 at
        padding. So the *sum* of weighted losses over any number of parts is
        the mean over the batch's real tokens.
    """
    rows, length = -(-len(pairs) // (sharding.devices * sharding.parts)), 0
    if longest is not None:
        rows = rounded_up(rows)
        length = rounded_up(int(pairs.lengths.max(initial=1)), least=4)
        length = min(length, longest)
    labels = pairs.target.padded(length)
    real = labels != PAD
    target = np.roll(labels, 1, axis=1)
    target[:, :1] = START
    batch = {
        "source": pairs.source.padded(length),
        "target": np.where(real, target, PAD).astype(np.int32),
        "labels": labels,
        "weights": (real / max(real.sum(), 1)).astype(np.float32),
    }
    return {name: _dealt(x, rows, sharding) for name, x in batch.items()}


def rounded_up(number: int, least: int = 1) -> int:
    """Returns the next number of a few: eight between a power of two and the
    next one, all of them multiples of `least`."""
    step = max(least, 1 << max((number - 1).bit_length() - 4, 0))
    return -(-number // step) * step


def _dealt(batch, rows, sharding):
    """Divides `(N, length)` into this worker's `(R, A, rows, length)`."""
    replicas, parts = sharding.devices, sharding.parts
    missing = rows * replicas * parts - len(batch)
    batch = np.pad(batch, [(0, missing), (0, 0)])
    # Row i goes to part i mod parts.
    batch = batch.reshape(rows, replicas, parts, -1).transpose(1, 2, 0, 3)
    first = sharding.worker * sharding.replicas
    return batch[first : first + sharding.replicas]


def prefetched(
    items: Iterable[Item], count: int = 4
) -> Generator[Item, None, None]:
    """Yields items that a thread makes in advance; close it to end the thread.

    Args:
        items: what to yield. An error in it is raised here.
        count: how many are made in advance. Defaults to 4.
    """
    made: queue.Queue = queue.Queue(count)
    is_over = threading.Event()

    def put(*entry):
        while not is_over.is_set():
            try:
                return made.put(entry, timeout=0.1)
            except queue.Full:
                pass

    def work():
        try:
            for item in items:
                put(item, None)
                if is_over.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:  # raised where it is seen
            put(None, error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item
    finally:
        is_over.set()
        thread.join()  # a thread inside a library would abort the process


@dataclasses.dataclass(frozen=True)
class Plan:
    """Says which pairs are in which batch of which epoch.

    It takes as much memory for a large corpus as for a small one.

    Args:
        pairs: number of pairs of an epoch.
        batches: number of batches of an epoch.
        seed: seed of the order, which differs in each epoch.
    """

    pairs: int
    batches: int
    seed: int

    @property
    def pools(self) -> int:
        """The number of pools of an epoch."""
        return -(-self.batches // POOL)

    def first_batch(self, pool: int) -> int:
        """Returns the number of the first batch of a pool in its epoch."""
        return self.batches * pool // self.pools

    def position(self, step: int) -> tuple[int, int]:
        """Returns the pool of a step, counted through all epochs, and the
        number of the step's batch in that pool."""
        epoch, batch = divmod(step, self.batches)
        pool = ((batch + 1) * self.pools - 1) // self.batches
        return epoch * self.pools + pool, batch - self.first_batch(pool)

    def read(
        self, pairs: TrainingPairs, pool: int
    ) -> tuple[EncodedPairs, np.ndarray]:
        """Reads the pairs of a pool in the order of its batches.

        Args:
            pairs: what the plan was made for.
            pool: its number, counted through all epochs.

        Returns:
            The pairs, and the number of pairs of each batch.
        """
        epoch, pool = divmod(pool, self.pools)
        # A pool has the share of the pairs that it has of the batches.
        first, end = self.first_batch(pool), self.first_batch(pool + 1)
        rows = np.arange(
            *(self.pairs * b // self.batches for b in (first, end))
        )
        rows = shuffled(rows, self.pairs, (self.seed, epoch))
        found = pairs.read(rows, epoch)
        order, sizes = cut_batches(found.lengths, end - first)
        rng = np.random.default_rng((self.seed, epoch, pool))
        chosen = rng.permutation(len(sizes))
        batches = np.split(order, np.cumsum(sizes)[:-1])
        order = np.concatenate([batches[i] for i in chosen])
        return found.take(order), sizes[chosen]


def shuffled(
    numbers: np.ndarray, size: int, seed: tuple[int, ...]
) -> np.ndarray:
    """Returns where numbers go in a random order of 0 to `size` − 1.

    No other number is looked at, so that a large order takes no memory. A
    Feistel network permutes the numbers below a power of four; those that leave
    the range walk on until they are back.

    Args:
        numbers: integers `(N,)` below `size`.
        size: how many numbers the order has.
        seed: of the order.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = np.random.default_rng(seed).integers(
        2**64, size=ROUNDS, dtype=np.uint64
    )
    found = np.asarray(numbers).astype(np.uint64)
    walking = np.arange(len(found))
    while len(walking):
        left, right = found[walking] >> half, found[walking] & mask
        for key in keys:
            left, right = right, left ^ (_hash(right + key) & mask)
        found[walking] = left << half | right
        walking = walking[found[walking] >= size]
    return found.astype(np.int64)


def _hash(x):
    """Returns uint64 numbers that are mixed as by SplitMix64 (Steele et al.,
    2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def make_plan(pairs: TrainingPairs, tokens: int, seed: int) -> Plan:
    """Plans batches of about `tokens` target tokens."""
    return Plan(len(pairs), _batch_count(pairs, tokens), seed)


def cut_batches(
    lengths: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Divides pairs into batches of similar lengths, the shortest first.

    Args:
        lengths: `(N, 2)`, numbers of tokens of source and target.
        count: number of batches, at most N. Each has at least one pair and
            about as many target tokens as the others.

    Returns:
        The pairs' numbers in the order of the batches, `(N,)`, and the number
        of pairs of each batch, `(count,)`.
    """
    order = np.lexsort((lengths[:, 0], lengths[:, 1], lengths.max(axis=1)))
    tokens = np.cumsum(lengths[order, 1])
    shares = tokens[-1] * np.arange(1, count) / count
    ends = np.searchsorted(tokens, shares)
    # At least one pair each, also where a sentence is longer than a share.
    steps = np.arange(1, count)
    ends = np.maximum.accumulate(np.maximum(ends, steps) - steps) + steps
    ends = np.minimum(ends, len(order) - count + steps)
    return order, np.diff(ends, prepend=0, append=len(order))
