import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.batches import (
    EncodedPairs,
    Rows,
    Sharding,
    cut_batches,
    evaluation_batches,
    make_batch,
    make_plan,
    training_batches,
)
from keras_transformer.ids import END, START


def encoded(count=331, seed=1):
    """Returns pairs whose ids are 10 + the number of the pair, repeated."""
    rng = np.random.default_rng(seed)
    sides = [
        [[10 + i] * rng.integers(1, 23) + [END] for i in range(count)]
        for _ in range(2)
    ]
    return EncodedPairs(*map(Rows.of, sides))


def epoch_of(plan, pairs, epoch):
    """Returns the numbers of the pairs in each batch of an epoch."""
    batches = []
    for pool in range(epoch * plan.pools, (epoch + 1) * plan.pools):
        found, sizes = plan.read(pairs, pool)
        numbers = [row[0] - 10 for row in found.source.tolist()]
        batches += np.split(np.array(numbers), np.cumsum(sizes)[:-1])
    return [batch.tolist() for batch in batches]


# Batches in an epoch: several pools, one pool, one batch, a pair in each.
each_size = pytest.mark.parametrize("tokens", [17, 97, 10**6, 1])


@each_size
def test_every_pair_is_in_exactly_one_batch_of_an_epoch(tokens):
    pairs = encoded()
    plan = make_plan(pairs, tokens, seed=5)
    for epoch in (0, 3):
        batches = epoch_of(plan, pairs, epoch)
        assert len(batches) == plan.batches
        assert all(batches)
        assert sorted(itertools.chain(*batches)) == list(range(331))


@each_size
def test_a_step_says_its_pool_and_its_batch(tokens):
    plan = make_plan(encoded(), tokens, seed=5)
    sizes = np.diff([plan.first_batch(p) for p in range(plan.pools + 1)])
    assert sizes.sum() == plan.batches
    assert sizes.max() - sizes.min() <= 1
    expected = [
        (pool, batch)
        for pool in range(3 * plan.pools)
        for batch in range(sizes[pool % plan.pools])
    ]
    found = [plan.position(step) for step in range(3 * plan.batches)]
    assert found == expected


def test_batches_have_about_as_many_target_tokens():
    pairs = encoded(5003)
    plan = make_plan(pairs, 997, seed=5)
    assert plan.batches == round(pairs.target_tokens / 997)
    lengths = pairs.target.lengths
    tokens = [lengths[rows].sum() for rows in epoch_of(plan, pairs, 0)]
    assert max(abs(n - 997) for n in tokens) < 3 * 23
    assert np.mean(tokens) == pytest.approx(997, rel=0.01)


def test_a_pair_longer_than_a_batch_is_a_batch():
    lengths = np.array([[5, 7], [3, 101], [2, 2], [1, 1]])
    order, sizes = cut_batches(lengths, 3)
    batches = np.split(order, np.cumsum(sizes)[:-1])
    assert sorted(map(sorted, (rows.tolist() for rows in batches))) == [
        [0],
        [1],
        [2, 3],
    ]


@given(
    st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), min_size=1),
    st.data(),
)
def test_any_pairs_make_any_number_of_batches(lengths, data):
    count = data.draw(st.integers(1, len(lengths)))
    order, sizes = cut_batches(np.array(lengths), count)
    assert sorted(order) == list(range(len(lengths)))
    assert len(sizes) == count
    assert min(sizes) >= 1
    assert sum(sizes) == len(lengths)


def test_the_plan_depends_on_seed_and_epoch_alone():
    def plan(seed, epoch):
        pairs = encoded()
        return epoch_of(make_plan(pairs, 97, seed), pairs, epoch)

    assert plan(5, 2) == plan(5, 2)
    assert plan(5, 2) != plan(5, 3)
    assert plan(5, 2) != plan(6, 2)


def test_little_is_padding():
    """In a corpus whose sides are about as long as each other."""
    rng = np.random.default_rng(1)
    target = np.clip(rng.poisson(23, size=5003), 2, None)
    source = np.clip(target * rng.normal(1, 0.15, size=5003), 2, None)
    pairs = EncodedPairs(
        *(
            Rows(np.ones(n.sum(), np.int32), n)
            for n in (source.astype(np.int64), target)
        )
    )
    plan = make_plan(pairs, 997, seed=1)
    batches = training_batches(pairs, 997, seed=1).take(plan.batches)
    for side in ("source", "labels"):
        found = [batch[side].numpy() for batch in batches]
        real = sum(np.count_nonzero(x) for x in found)
        assert real / sum(x.size for x in found) > 0.9


SOURCE = [[7, 8, END], [9, END]]
TARGET = [[5, END], [6, 4, 5, END]]


def batch(**cut):
    sides = (tf.ragged.constant(s, dtype=tf.int32) for s in (SOURCE, TARGET))
    return make_batch(*sides, Sharding(**cut))


def test_a_batch_written_out():
    found = {name: x[0, 0] for name, x in batch().items()}
    np.testing.assert_array_equal(found["source"], [[7, 8, END], [9, END, 0]])
    np.testing.assert_array_equal(
        found["target"], [[START, 5, 0, 0], [START, 6, 4, 5]]
    )
    np.testing.assert_array_equal(
        found["labels"], [[5, END, 0, 0], [6, 4, 5, END]]
    )
    np.testing.assert_allclose(
        found["weights"], (found["labels"].numpy() != 0) / 6
    )


def test_rows_are_dealt_out_and_empty_ones_fill_up():
    found = batch(replicas=3)
    assert found["source"].shape == (3, 1, 1, 3)
    np.testing.assert_array_equal(
        found["source"][:, 0, 0], [[7, 8, END], [9, END, 0], [0, 0, 0]]
    )
    assert tf.reduce_sum(found["weights"]).numpy() == pytest.approx(1)
    np.testing.assert_array_equal(found["weights"][2], np.zeros((1, 1, 4)))


@pytest.mark.parametrize(
    "cut", [{"replicas": 2}, {"parts": 5}, {"replicas": 2, "parts": 3}]
)
def test_workers_share_what_one_has_alone(cut):
    whole = batch(**(cut | {"replicas": 2 * cut.get("replicas", 1)}))
    halves = [batch(workers=2, worker=i, **cut) for i in range(2)]
    for name, expected in whole.items():
        found = np.concatenate([half[name] for half in halves])
        np.testing.assert_array_equal(found, expected)


def test_each_replica_gets_its_piece():
    pieces = list(
        evaluation_batches(encoded(30), 97, Sharding(replicas=2, parts=3))
    )
    batches = list(evaluation_batches(encoded(30), 97))
    assert len(pieces) == 2 * len(batches)
    for i, whole in enumerate(batches):
        rows = [
            row
            for piece in pieces[2 * i : 2 * i + 2]
            for row in piece["source"]
            .numpy()
            .reshape(-1, whole["source"].shape[-1])
            if row.any()
        ]
        expected = whole["source"].numpy()[0]
        assert sorted(map(tuple, rows)) == sorted(map(tuple, expected))


def test_workers_train_on_the_batches_of_one():
    """Together, in the order of one worker, whatever their number."""

    def rows(sharding):
        batches = training_batches(encoded(), 331, 3, sharding).take(40)
        return [
            sorted(row[row != 0].tolist() for row in b["source"].numpy()[0])
            for b in batches
        ]

    parts = [rows(Sharding(3, i)) for i in range(3)]
    together = [
        sorted(row for part in batch for row in part if row)
        for batch in zip(*parts, strict=True)
    ]
    assert together == rows(Sharding())


def test_resuming_takes_up_where_it_stopped():
    def batches(first, count):
        dataset = training_batches(encoded(), 331, seed=3, first_batch=first)
        return [x["source"].numpy() for x in dataset.take(count)]

    whole = batches(0, 40)  # more than two epochs
    for first in (1, 17, 39):
        some = batches(first, 40 - first)
        for expected, found in zip(whole[first:], some, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_autotuning_is_off():
    """It would hold up the end of every validation."""
    for dataset in (
        training_batches(encoded(), 97, seed=3),
        evaluation_batches(encoded(), 97),
    ):
        assert dataset.options().autotune.enabled is False
