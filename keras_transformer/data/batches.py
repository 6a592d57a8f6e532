"""Batches: section 5.1, "batched together by approximate sequence length".

The pairs of an epoch are shuffled and divided into pools of about 100 batches.
Inside a pool, pairs are sorted by length and divided into batches that have
about as many target tokens each. The number of batches of an epoch is fixed, so
a step alone says which epoch, pool and batch it sees, and training can begin at
any step without reading what comes before.

Shapes: R replicas, A parts, B rows of a part, T target length, S source length.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import PAD, START

# Pairs are sorted by length inside pools of about this many batches, so that a
# batch has little padding and still changes from epoch to epoch.
POOL = 100


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
        values = np.array([i for row in rows for i in row], np.int32)
        return cls(values, lengths)

    def __len__(self):
        return len(self.lengths)

    def take(self, rows: np.ndarray) -> "Rows":
        """Returns the rows with these numbers, in this order."""
        starts = np.cumsum(self.lengths) - self.lengths
        return take_slices(self.values, starts[rows], self.lengths[rows])

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
        _encode(source, source_tokenizer), _encode(target, target_tokenizer)
    )


def _encode(sentences, tokenizer):
    ids = tokenizer.encode(tf.constant(sentences, tf.string))
    return Rows(ids.values.numpy(), ids.row_lengths().numpy())


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
) -> tf.data.Dataset:
    """Returns an endless data set of shuffled batches.

    Python reads a pool of batches at a time; TensorFlow makes the batches.

    Args:
        pairs: the pairs of an epoch.
        tokens: approximate number of target tokens of a batch, end tokens
            included.
        seed: seed of the order, which differs in each epoch.
        sharding: how each batch is divided. Defaults to no division.
        first_batch: number of batches to skip, for resuming. Defaults to 0.

    Returns:
        A data set of this worker's share of the batches, an element for each
        replica, see `make_batch`.
    """
    plan = make_plan(pairs, tokens, seed)
    pool, batch = plan.position(first_batch)

    def read(number):
        found, sizes = plan.read(pairs, int(number))
        return *_arrays(found), sizes

    pools = (
        tf.data.Dataset.range(pool, tf.int64.max)
        .map(
            lambda number: tf.numpy_function(
                read, [number], [tf.int32, tf.int64] * 2 + [tf.int64]
            )
        )
        .prefetch(1)
    )
    return _dataset(pools.flat_map(_batches).skip(batch), sharding)


def evaluation_batches(
    encoded: EncodedPairs, tokens: int, sharding: Sharding = Sharding()
) -> tf.data.Dataset:
    """Returns a data set with every pair once, the longest pairs first.

    Its elements are like those of `training_batches`.
    """
    order, sizes = cut_batches(encoded.lengths, _batch_count(encoded, tokens))
    arrays = *_arrays(encoded.take(order[::-1])), sizes[::-1]
    return _dataset(_batches(*map(tf.constant, arrays)), sharding)


def _batch_count(pairs, tokens):
    return min(len(pairs), max(1, round(pairs.target_tokens / tokens)))


def _arrays(pairs):
    """Returns values and lengths of both sides."""
    for side in (pairs.source, pairs.target):
        yield from (side.values.astype(np.int32), side.lengths)


def _batches(source, source_lengths, target, target_lengths, sizes):
    """Divides pairs into batches of consecutive rows."""
    sides = [
        tf.RaggedTensor.from_row_lengths(
            tf.ensure_shape(values, [None]),
            tf.ensure_shape(lengths, [None]),
            validate=False,
        )
        for values, lengths in (
            (source, source_lengths),
            (target, target_lengths),
        )
    ]
    ends = tf.cumsum(tf.ensure_shape(sizes, [None]))
    return tf.data.Dataset.from_tensor_slices((ends - sizes, ends)).map(
        lambda start, end: tuple(side[start:end] for side in sides)
    )


def _dataset(batches, sharding):
    """Makes batches of ragged rows, divides and prefetches them."""
    dataset = (
        batches.map(
            lambda source, target: make_batch(source, target, sharding),
            num_parallel_calls=2,
            deterministic=True,
        )
        .unbatch()
        .prefetch(8 * sharding.replicas)
    )
    options = tf.data.Options()
    # An autotuned iterator can take a minute to be destroyed: its destructor
    # waits for the tuning thread to wake up.
    options.autotune.enabled = False
    return dataset.with_options(options)


def make_batch(
    source: tf.RaggedTensor,
    target: tf.RaggedTensor,
    sharding: Sharding = Sharding(),
) -> dict[str, tf.Tensor]:
    """Returns this worker's share of a batch, divided into parts.

    Consecutive rows go to different parts, so that all parts have about as many
    tokens. Empty rows, which have no loss, make the parts equally large.

    Args:
        source, target: ragged ids `(None, None)` with end tokens.
        sharding: how the batch is divided. Defaults to no division.

    Returns:
        A dictionary with an entry of each tensor for each of R replicas and A
        parts. `source` `(R, A, B, S)`, `target` and `labels` `(R, A, B, T)`
        are int32 ids padded with 0: `labels` is the target, and `target` the
        same shifted right, behind the start token. `weights` `(R, A, B, T)` is
        float32, 1 / (real labels of the whole batch) at real labels and 0 at
        padding. So the *sum* of weighted losses over any number of parts is
        the mean over the batch's real tokens.
    """
    starts = tf.fill([target.nrows(), 1], START)
    shifted = tf.concat([starts, target[:, :-1]], axis=1)
    labels = target.to_tensor(PAD)
    real = tf.cast(tf.not_equal(labels, PAD), tf.float32)
    batch = {
        "source": source.to_tensor(PAD),
        "target": shifted.to_tensor(PAD),
        "labels": labels,
        "weights": tf.math.divide_no_nan(real, tf.reduce_sum(real)),
    }
    return {
        name: _dealt_to_replicas(rows, sharding) for name, rows in batch.items()
    }


def _dealt_to_replicas(rows, sharding):
    """Divides `(rows, length)` into this worker's `(R, A, B, length)`."""
    replicas = sharding.devices
    parts = replicas * sharding.parts  # in all workers
    missing = -tf.shape(rows)[0] % parts
    rows = tf.pad(rows, [[0, missing], [0, 0]])
    length = tf.shape(rows)[1]
    # Row i goes to part i mod parts.
    rows = tf.reshape(rows, (-1, replicas, sharding.parts, length))
    rows = tf.transpose(rows, (1, 2, 0, 3))
    first = sharding.worker * sharding.replicas
    rows = rows[first : first + sharding.replicas]
    return tf.ensure_shape(
        rows, (sharding.replicas, sharding.parts, None, None)
    )


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
        shuffled = tf.random.experimental.index_shuffle(
            rows, (self.seed, epoch), self.pairs - 1
        )
        found = pairs.read(shuffled.numpy(), epoch)
        order, sizes = cut_batches(found.lengths, end - first)
        rng = np.random.default_rng((self.seed, epoch, pool))
        chosen = rng.permutation(len(sizes))
        batches = np.split(order, np.cumsum(sizes)[:-1])
        order = np.concatenate([batches[i] for i in chosen])
        return found.take(order), sizes[chosen]


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
