import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import END, START
from keras_transformer.data.batches import (
    EncodedPairs,
    Sharding,
    evaluation_batches,
    make_batch,
    plan_batches,
    training_batches,
)


def encoded(count=331, seed=1):
    """Ids that say which pair they are: 10 + its number, repeated."""
    rng = np.random.default_rng(seed)
    sides = [
        [[10 + i] * rng.integers(1, 23) + [END] for i in range(count)]
        for _ in range(2)
    ]
    return EncodedPairs(
        *(tf.ragged.constant(side, dtype=tf.int32) for side in sides)
    )


@pytest.mark.parametrize("seed", [None, 5])
def test_every_pair_is_in_exactly_one_batch(seed):
    plan = plan_batches(encoded().lengths, 97, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(plan)), np.arange(331))


def test_batches_are_full_and_no_fuller():
    lengths = encoded().lengths
    for rows in plan_batches(lengths, 97, 5):
        assert lengths[rows].max() * len(rows) <= 97


def test_a_pair_longer_than_a_batch_is_a_batch():
    lengths = np.array([[5, 7], [101, 3], [2, 2]])
    plan = plan_batches(lengths, 11, 5)
    assert [1] in [rows.tolist() for rows in plan]


def test_the_plan_depends_on_seed_and_epoch_alone():
    lengths = encoded().lengths

    def plan(seed, epoch):
        return [
            rows.tolist() for rows in plan_batches(lengths, 97, seed, epoch)
        ]

    assert plan(5, 2) == plan(5, 2)
    assert plan(5, 2) != plan(5, 3)
    assert plan(5, 2) != plan(6, 2)


def test_little_is_padding():
    real = total = 0
    for batch in evaluation_batches(encoded(2000), 500):
        real += int(tf.reduce_sum(tf.cast(batch["target"] != 0, tf.int32)))
        total += int(tf.size(batch["target"]))
    assert real / total > 0.6  # both lengths are random here, and independent


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


def test_resuming_takes_up_where_it_stopped():
    def batches(first, count):
        dataset = training_batches(encoded(), 97, seed=3, first_batch=first)
        return [x["source"].numpy() for x in dataset.take(count)]

    whole = batches(0, 150)  # more than two epochs
    for first in (0, 1, 61, 149):
        some = batches(first, 150 - first)
        for expected, found in zip(whole[first:], some, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_epochs_differ_and_each_is_whole():
    data = encoded()
    epoch = len(plan_batches(data.lengths, 97, 3, 0))
    rows = [
        x["source"].numpy()[0, :, 0]
        for x in itertools.islice(training_batches(data, 97, seed=3), epoch)
    ]
    np.testing.assert_array_equal(
        np.sort(np.concatenate(rows)), 10 + np.arange(331)
    )


def test_autotuning_is_off():
    """It would hold up the end of every validation."""
    for dataset in (
        training_batches(encoded(), 97, seed=3),
        evaluation_batches(encoded(), 97),
    ):
        assert dataset.options().autotune.enabled is False
