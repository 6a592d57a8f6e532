"""Batches: section 5.1, "batched together by approximate sequence length".

Shapes: B batch, T target length, S source length.
"""

import dataclasses
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

    @property
    def lengths(self) -> np.ndarray:
        """`(N, 2)`: tokens of source and target, end token included."""
        sides = (self.source.row_lengths(), self.target.row_lengths())
        return np.stack([side.numpy() for side in sides], axis=1)


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
        return _cut(np.argsort(-longest, kind="stable"), longest, tokens)
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(longest))
    average = max(1, int(longest.mean())) if len(longest) else 1
    pool = max(1, POOL * tokens // average)
    plan = []
    for start in range(0, len(order), pool):
        some = order[start : start + pool]
        keys = lengths[some]
        some = some[np.lexsort((keys[:, 0], keys[:, 1], longest[some]))]
        plan.extend(_cut(some, longest, tokens))
    return [plan[i] for i in rng.permutation(len(plan))]


def _cut(order, longest, tokens):
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
    encoded: EncodedPairs,
    tokens: int,
    seed: int,
    replicas: int = 1,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Endless shuffled batches for `fit`.

    Args:
        encoded: the pairs.
        tokens: about how many tokens to a batch and side.
        seed: of the order, which changes with each epoch.
        replicas: the number of rows is a multiple of it; what is missing is
            filled with empty rows, which carry no loss.
        first_batch: how many batches to leave out, for resuming.

    Returns:
        Batches `(inputs, labels, weights)`, see `make_batch`.
    """
    return _dataset(
        encoded,
        lambda: _endless_plan(encoded.lengths, tokens, seed, first_batch),
        tf.data.INFINITE_CARDINALITY,
        replicas,
    )


def evaluation_batches(
    encoded: EncodedPairs, tokens: int, replicas: int = 1
) -> tf.data.Dataset:
    """Every pair once, in batches as above, longest first."""
    plan = plan_batches(encoded.lengths, tokens, seed=None)
    return _dataset(encoded, lambda: iter(plan), len(plan), replicas)


def _endless_plan(lengths, tokens, seed, skip) -> Iterator[np.ndarray]:
    epoch = 0
    while True:
        plan = plan_batches(lengths, tokens, seed, epoch)
        yield from plan[skip:]
        skip = max(0, skip - len(plan))
        epoch += 1


def _dataset(encoded, plan, count, replicas):
    dataset = tf.data.Dataset.from_generator(
        plan, output_signature=tf.TensorSpec((None,), tf.int64)
    ).map(
        lambda rows: make_batch(
            tf.gather(encoded.source, rows),
            tf.gather(encoded.target, rows),
            replicas,
        ),
        num_parallel_calls=2,
        deterministic=True,
    )
    # Otherwise `fit` takes the end of the data for a fault.
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    options = tf.data.Options()
    # An autotuned iterator holds up the end of every `fit` for as long as a
    # minute: its destructor waits for the tuning thread to wake up.
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return dataset.prefetch(8).with_options(options)


def make_batch(source, target, replicas=1):
    """One batch for `fit`.

    Args:
        source, target: ragged ids `(B, None)` with end tokens.
        replicas: rows are filled up to a multiple of it.

    Returns:
        inputs: `{"source": (B, S), "target": (B, T)}`, the target shifted
            right behind the start token; int32, padded with 0.
        labels: `(B, T)`, the target.
        weights: float32 `(B, T)`, 1 / (real labels of the whole batch) at
            real labels, 0 at padding: a *sum* of weighted losses, over however
            many replicas, is then the mean over the batch's real tokens.
    """
    starts = tf.fill([target.nrows(), 1], START)
    shifted = tf.concat([starts, target[:, :-1]], axis=1)
    missing = tf.cast(-source.nrows() % replicas, tf.int32)
    source, shifted, labels = (
        tf.pad(ids.to_tensor(PAD), [[0, missing], [0, 0]])
        for ids in (source, shifted, target)
    )
    real = tf.cast(tf.not_equal(labels, PAD), tf.float32)
    weights = tf.math.divide_no_nan(real, tf.reduce_sum(real))
    return {"source": source, "target": shifted}, labels, weights
