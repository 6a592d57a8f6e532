import itertools
import threading

import numpy as np
import pytest
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
    prefetched,
    rounded_up,
    shuffled,
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
    assert sorted(sorted(rows) for rows in batches) == [[0], [1], [2, 3]]


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


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 65, 331, 10_007])
def test_shuffled_numbers_are_a_permutation_number_by_number(size):
    order = shuffled(np.arange(size), size, (5, 2))
    assert sorted(order) == list(range(size))
    for i in range(min(size, 67)):
        assert shuffled(np.array([i]), size, (5, 2)) == order[i]


def test_a_number_goes_anywhere_by_seed_and_epoch():
    seeds = itertools.product(range(40), range(50))
    orders = np.array([shuffled(np.arange(13), 13, seed) for seed in seeds])
    counts = [np.bincount(places, minlength=13) for places in orders.T]
    np.testing.assert_allclose(counts, 2000 / 13, rtol=0.35)
    large = shuffled(np.arange(10_007), 10_007, (5, 2))
    assert abs(np.corrcoef(large[:-1], large[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(large, np.arange(10_007))[0, 1]) < 0.05


def test_little_is_padding():
    """In a corpus whose sides are about as long as each other."""
    rng = np.random.default_rng(1)
    target = np.clip(rng.poisson(23, size=5003), 2, None)
    source = np.clip(target * rng.normal(1, 0.15, size=5003), 2, None)
    lengths = source.astype(np.int64), target
    pairs = EncodedPairs(*(Rows(np.ones(n.sum(), int), n) for n in lengths))
    plan = make_plan(pairs, 997, seed=1)
    batches = training_batches(pairs, 997, seed=1)
    batches = list(itertools.islice(batches, plan.batches))
    for side in ("source", "labels"):
        found = [batch[side] for batch in batches]
        real = sum(np.count_nonzero(x) for x in found)
        assert real / sum(x.size for x in found) > 0.9


def test_rows_are_padded_to_the_longest_or_further():
    rows = Rows.of([[5, 6, 7], [], [8]])
    whole = np.array([[5, 6, 7, 0, 0], [0] * 5, [8, 0, 0, 0, 0]])
    for length, columns in ((0, 3), (2, 3), (5, 5)):
        found = rows.padded(length)
        np.testing.assert_array_equal(found, whole[:, :columns])


@pytest.mark.parametrize("least", [1, 4])
def test_numbers_are_rounded_up_to_few(least):
    found = [rounded_up(n, least) for n in range(1025)]
    for n in range(1, 1025):
        assert n <= found[n] < n + max(least, n / 8)
        assert found[n] % least == 0
    assert len(set(found[513:])) == 8


PAIRS = EncodedPairs(
    Rows.of([[7, 8, END], [9, END]]), Rows.of([[5, END], [6, 4, 5, END]])
)


def batch(**cut):
    return make_batch(PAIRS, Sharding(**cut))


def test_a_batch_written_out():
    found = {name: x[0, 0].tolist() for name, x in batch().items()}
    assert found["source"] == [[7, 8, END], [9, END, 0]]
    assert found["target"] == [[START, 5, 0, 0], [START, 6, 4, 5]]
    assert found["labels"] == [[5, END, 0, 0], [6, 4, 5, END]]
    weights = np.array(found["labels"]) != 0
    np.testing.assert_allclose(found["weights"], weights / 6)


def test_rows_are_dealt_out_and_empty_ones_fill_up():
    found = batch(replicas=3)
    assert found["source"].shape == (3, 1, 1, 3)
    np.testing.assert_array_equal(
        found["source"][:, 0, 0], [[7, 8, END], [9, END, 0], [0, 0, 0]]
    )
    assert found["weights"].sum() == pytest.approx(1)
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


def test_the_replicas_share_the_rows_of_a_batch():
    shared = evaluation_batches(encoded(30), 97, Sharding(replicas=2, parts=3))
    whole = evaluation_batches(encoded(30), 97)
    for found, expected in zip(shared, whole, strict=True):
        assert found["source"].shape[:2] == (2, 3)
        rows = found["source"].reshape(-1, found["source"].shape[-1])
        rows = [row for row in rows.tolist() if any(row)]
        assert sorted(rows) == sorted(expected["source"][0, 0].tolist())


def test_batches_of_few_shapes_hold_the_same_pairs():
    pairs, sharding = encoded(5003), Sharding(replicas=2, parts=3)
    shapes, both = (
        [],
        [
            training_batches(pairs, 499, 3, sharding, longest=longest)
            for longest in (None, 23)
        ],
    )
    for _ in range(300):  # more than two epochs
        plain, few = map(next, both)
        for name, x in plain.items():
            missing = np.subtract(few[name].shape, x.shape)
            expected = np.pad(x, [(0, n) for n in missing])
            np.testing.assert_array_equal(few[name], expected)
        assert few["source"].shape == few["target"].shape
        assert few["source"].shape[-1] <= 23  # and no multiple of 4 beyond
        shapes.append(
            [(b["source"].shape, b["target"].shape) for b in (plain, few)]
        )
    many, some = (len(set(found)) for found in zip(*shapes, strict=True))
    assert 4 * some < many


def test_workers_train_on_the_batches_of_one():
    """Together, in the order of one worker, whatever their number."""

    def rows(sharding):
        batches = training_batches(encoded(), 331, 3, sharding)
        return [
            sorted(row[row != 0].tolist() for row in b["source"][0, 0])
            for b in itertools.islice(batches, 40)
        ]

    parts = [rows(Sharding(3, i)) for i in range(3)]
    together = [
        sorted(row for part in batch for row in part if row)
        for batch in zip(*parts, strict=True)
    ]
    assert together == rows(Sharding())


def test_resuming_takes_up_where_it_stopped():
    def batches(first, count):
        found = training_batches(encoded(), 331, seed=3, first_batch=first)
        return [x["source"] for x in itertools.islice(found, count)]

    whole = batches(0, 40)  # more than two epochs
    for first in (1, 17, 39):
        some = batches(first, 40 - first)
        for expected, found in zip(whole[first:], some, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_what_is_prefetched_comes_in_order_and_so_does_its_error():
    found = prefetched((60 // (5 - i) for i in range(9)), 3)
    assert list(itertools.islice(found, 5)) == [12, 15, 20, 30, 60]
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert list(prefetched(range(7), 3)) == list(range(7))


def test_a_thread_that_prefetches_ends_with_its_consumer():
    before, found = set(threading.enumerate()), prefetched(itertools.count(), 3)
    assert [next(found), next(found)] == [0, 1]
    (thread,) = set(threading.enumerate()) - before
    found.close()
    thread.join(5)
    assert not thread.is_alive()
