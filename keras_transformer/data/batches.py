"""Batches: section 5.1, "batched together by approximate sequence length".

Shapes: R replicas, A parts, B rows of a part, T target length, S source length.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.config import PAD, START
from keras_transformer.data.corpus import SentencePairs
from keras_transformer.data.tokenizer import Tokenizer

# Pairs are sorted by length inside pools of this many batches, so that a batch
# has little padding and still changes from epoch to epoch.
POOL = 100


@dataclasses.dataclass(frozen=True)
class EncodedPairs:
    """Holds the ids of sentence pairs.

    Args:
        source, target: ragged ids `(N, None)`, each row with its end token.
    """

    source: tf.RaggedTensor
    target: tf.RaggedTensor

    def __len__(self):
        return int(self.source.nrows())

    def epoch(self, number: int) -> "EncodedPairs":
        """Returns the pairs of an epoch: here, the same in every epoch.

        `bpe_dropout.SampledPairs` returns other pairs in each epoch.
        """
        return self

    @property
    def lengths(self) -> np.ndarray:
        """Returns the number of tokens of source and target, `(N, 2)`.

        The end token is included.
        """
        sides = (self.source.row_lengths(), self.target.row_lengths())
        return np.stack([side.numpy() for side in sides], axis=1)


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


class TrainingPairs(Protocol):
    """Describes sentence pairs that may change from epoch to epoch.

    `EncodedPairs` and `bpe_dropout.SampledPairs` are such pairs.
    """

    def __len__(self) -> int: ...

    def epoch(self, number: int) -> EncodedPairs:
        """Returns the pairs of an epoch."""


def encode_pairs(
    pairs: SentencePairs,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    max_length: int | None = None,
) -> tuple[EncodedPairs, int]:
    """Encodes pairs and drops those longer than `max_length` on either side.

    Args:
        pairs: the text.
        source_tokenizer, target_tokenizer: a `Tokenizer` each.
        max_length: maximum number of tokens on a side, end token included, or
            `None` to keep all pairs.

    Returns:
        The encoded pairs, and the number of dropped pairs.
    """
    encoded = EncodedPairs(
        source_tokenizer.encode(tf.constant(pairs.source, tf.string)),
        target_tokenizer.encode(tf.constant(pairs.target, tf.string)),
    )
    if max_length is None:
        return encoded, 0
    fits = (encoded.lengths <= max_length).all(axis=1)
    kept = EncodedPairs(
        tf.ragged.boolean_mask(encoded.source, fits),
        tf.ragged.boolean_mask(encoded.target, fits),
    )
    return kept, int((~fits).sum())


def plan_batches(
    lengths: np.ndarray, tokens: int, seed: int | None, epoch: int = 0
) -> list[np.ndarray]:
    """Divides the pairs of one epoch into batches.

    Every pair is in exactly one batch. A batch holds pairs of similar length,
    as many as fit in `tokens` padded tokens on the longer side, and at least
    one. The plan depends only on the arguments, so that training can resume in
    the middle of an epoch.

    Args:
        lengths: `(N, 2)`, numbers of tokens of source and target.
        tokens: approximate number of tokens of a batch on each side.
        seed: seed of the order, or `None` for the longest pairs first, for
            evaluation.
        epoch: number of the epoch; each epoch has its own plan. Defaults to 0.

    Returns:
        For each batch, an array of indices into the pairs.
    """
    longest = lengths.max(axis=1)
    if seed is None:
        return _split_by_tokens(
            np.argsort(-longest, kind="stable"), longest, tokens
        )
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(longest))
    average = max(1, int(longest.mean())) if len(longest) else 1
    pool = max(1, POOL * tokens // average)
    plan = []
    for start in range(0, len(order), pool):
        rows = order[start : start + pool]
        keys = lengths[rows]
        rows = rows[np.lexsort((keys[:, 0], keys[:, 1], longest[rows]))]
        plan.extend(_split_by_tokens(rows, longest, tokens))
    return [plan[i] for i in rng.permutation(len(plan))]


def _split_by_tokens(order, longest, tokens):
    batches, start, width = [], 0, 0
    for i, pair in enumerate(order):
        width = max(width, longest[pair])
        if i > start and width * (i - start + 1) > tokens:
            batches.append(order[start:i])
            start, width = i, longest[pair]
    if start < len(order):
        batches.append(order[start:])
    return batches


def training_batches(
    pairs: TrainingPairs,
    tokens: int,
    seed: int,
    sharding: Sharding = Sharding(),
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Returns an endless data set of shuffled batches.

    Args:
        pairs: an `EncodedPairs`, or a `SampledPairs`, which changes in every
            epoch.
        tokens: approximate number of tokens of a batch on each side.
        seed: seed of the order, which differs in each epoch.
        sharding: how each batch is divided. Defaults to no division.
        first_batch: number of batches to skip, for resuming. Defaults to 0.

    Returns:
        A data set of this worker's share of the batches, an element for each
        replica, see `make_batch`.
    """

    def batches():
        skip = first_batch
        for epoch in itertools.count():
            encoded = pairs.epoch(epoch)
            plan = plan_batches(encoded.lengths, tokens, seed, epoch)
            yield from _rows(encoded, plan[skip:])
            skip = max(0, skip - len(plan))

    return _dataset(batches, sharding)


def evaluation_batches(
    encoded: EncodedPairs, tokens: int, sharding: Sharding = Sharding()
) -> tf.data.Dataset:
    """Returns a data set with every pair once, the longest pairs first.

    Its elements are like those of `training_batches`.
    """
    plan = plan_batches(encoded.lengths, tokens, seed=None)
    return _dataset(lambda: _rows(encoded, plan), sharding)


def _rows(encoded, plan) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields values and row lengths of both sides for each batch of a plan."""
    sides = [
        (side.values.numpy(), side.row_splits.numpy())
        for side in (encoded.source, encoded.target)
    ]
    for rows in plan:
        batch = []
        for values, splits in sides:
            pieces = [values[splits[i] : splits[i + 1]] for i in rows]
            batch.append(np.concatenate(pieces))
            batch.append(np.array([len(piece) for piece in pieces]))
        yield tuple(batch)


def _dataset(batches, sharding):
    ragged = tf.TensorSpec((None,), tf.int32), tf.TensorSpec((None,), tf.int64)

    def pieces(source, source_lengths, target, target_lengths):
        return make_batch(
            tf.RaggedTensor.from_row_lengths(source, source_lengths),
            tf.RaggedTensor.from_row_lengths(target, target_lengths),
            sharding,
        )

    dataset = (
        tf.data.Dataset.from_generator(
            batches, output_signature=(*ragged, *ragged)
        )
        .map(pieces, num_parallel_calls=2, deterministic=True)
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
