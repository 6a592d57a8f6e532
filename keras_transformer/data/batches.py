"""Batches: section 5.1, "batched together by approximate sequence length".

Shapes: R replicas, A parts, B rows of a part, T target length, S source length.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from keras_transformer.config import PAD, START
from keras_transformer.data.corpus import SentencePairs

# Pairs are sorted by length inside pools of this many batches, so that a batch
# has little padding and still changes from epoch to epoch.
POOL = 100


@dataclasses.dataclass(frozen=True)
class EncodedPairs:
    """Ids of both sides, ragged `(N, None)`, each row with its end token."""

    source: tf.RaggedTensor
    target: tf.RaggedTensor

    def __len__(self):
        return int(self.source.nrows())

    def epoch(self, number: int) -> "EncodedPairs":
        """The same in every epoch; see also `bpe_dropout.SampledPairs`."""
        return self

    @property
    def lengths(self) -> np.ndarray:
        """`(N, 2)`: tokens of source and target, end token included."""
        sides = (self.source.row_lengths(), self.target.row_lengths())
        return np.stack([side.numpy() for side in sides], axis=1)


@dataclasses.dataclass(frozen=True)
class Sharding:
    """Says how a batch is divided over workers, their replicas, and parts that
    a replica computes one after the other. Sums over all parts do not depend
    on it.

    Args:
        workers: number of workers.
        worker: which of them this is.
        replicas: number of replicas of each worker.
        parts: number of parts of each replica.
    """

    workers: int = 1
    worker: int = 0
    replicas: int = 1
    parts: int = 1

    @property
    def devices(self) -> int:
        """The replicas of all workers."""
        return self.workers * self.replicas


def encode_pairs(
    pairs: SentencePairs, source_tokenizer, target_tokenizer, max_length=None
) -> tuple[EncodedPairs, int]:
    """Word pieces of all pairs, without those longer than `max_length` on a
    side; gives also how many were dropped."""
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
    """Which pairs make which batch in one epoch: every pair exactly once.

    A batch holds pairs of similar length, as many as fit in `tokens` padded
    tokens on the longer side, at least one. The plan depends on its arguments
    alone, so that training can go on where it stopped.

    Args:
        lengths: `(N, 2)`, tokens of source and target.
        tokens: about how many tokens to a batch and side.
        seed: `None` keeps the longest first, for evaluation.
        epoch: another epoch, another plan.

    Returns:
        Arrays of indices into the pairs.
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
        some = order[start : start + pool]
        keys = lengths[some]
        some = some[np.lexsort((keys[:, 0], keys[:, 1], longest[some]))]
        plan.extend(_split_by_tokens(some, longest, tokens))
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
    pairs: EncodedPairs,
    tokens: int,
    seed: int,
    sharding: Sharding = Sharding(),
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Endless shuffled batches.

    Args:
        pairs: an `EncodedPairs`, or a `SampledPairs`, other in every epoch.
        tokens: about how many tokens to a batch and side.
        seed: of the order, which changes with each epoch.
        sharding: how each batch is divided.
        first_batch: how many batches to leave out, for resuming.

    Returns:
        The pieces of each batch for this worker, one for each of its replicas,
        see `make_batch`.
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
    """Every pair once, in batches as above, longest first."""
    plan = plan_batches(encoded.lengths, tokens, seed=None)
    return _dataset(lambda: _rows(encoded, plan), sharding)


def _rows(encoded, plan) -> Iterator[tuple[np.ndarray, ...]]:
    """The rows of each batch of a plan: values and row lengths, both sides."""
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
    some = tf.TensorSpec((None,), tf.int32), tf.TensorSpec((None,), tf.int64)

    def pieces(source, source_lengths, target, target_lengths):
        return make_batch(
            tf.RaggedTensor.from_row_lengths(source, source_lengths),
            tf.RaggedTensor.from_row_lengths(target, target_lengths),
            sharding,
        )

    dataset = (
        tf.data.Dataset.from_generator(batches, output_signature=(*some, *some))
        .map(pieces, num_parallel_calls=2, deterministic=True)
        .unbatch()
        .prefetch(8 * sharding.replicas)
    )
    options = tf.data.Options()
    # An autotuned iterator holds up its own end for as long as a minute: the
    # destructor waits for the tuning thread to wake up.
    options.autotune.enabled = False
    return dataset.with_options(options)


def make_batch(
    source, target, sharding: Sharding = Sharding()
) -> dict[str, tf.Tensor]:
    """One batch, in pieces.

    Rows are dealt out in turn, so that every piece has a like share of the
    tokens; what is missing to equal numbers of rows is filled with empty ones,
    which carry no loss.

    Args:
        source, target: ragged ids `(None, None)` with end tokens.
        sharding: how the batch is divided.

    Returns:
        For this worker's replicas: int32 ids padded with 0, `source`
        `(R, A, B, S)`, `target` `(R, A, B, T)`, shifted right behind the start
        token, and `labels` `(R, A, B, T)`, the target; float32 `weights`
        `(R, A, B, T)`, 1 / (real labels of the whole batch) at real labels, 0
        at padding: a *sum* of weighted losses, over however many pieces, is
        then the mean over the batch's real tokens.
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
    """`(rows, length)` to this worker's `(R, A, B, length)`."""
    replicas = sharding.devices
    pieces = replicas * sharding.parts
    missing = -tf.shape(rows)[0] % pieces
    rows = tf.pad(rows, [[0, missing], [0, 0]])
    length = tf.shape(rows)[1]
    # Row i goes to piece i mod pieces.
    rows = tf.reshape(rows, (-1, replicas, sharding.parts, length))
    rows = tf.transpose(rows, (1, 2, 0, 3))
    first = sharding.worker * sharding.replicas
    rows = rows[first : first + sharding.replicas]
    return tf.ensure_shape(
        rows, (sharding.replicas, sharding.parts, None, None)
    )
