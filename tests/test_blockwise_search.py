"""Compares blockwise search with greedy search, for good and bad proposals."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from test_decoding import END, TableModel

from keras_transformer import blockwise_search, greedy_search

V = 7


class BlockModel(TableModel):
    """A `TableModel` that reads blocks, and whose proposals are given.

    Args:
        proposals: ids `(B, L)`, proposed at each position, whatever came
            before.
    """

    def __init__(self, seed, proposals, never_zero=False):
        super().__init__(seed, len(proposals), V)
        if never_zero:  # which is what the first block holds
            self.table[..., 0] = -30
        self.proposals = np.asarray(proposals)

    def start(self, block_size):
        rows = np.arange(len(self.table), dtype="int32")
        return {
            **super().start(1),
            "block": np.zeros((len(rows), block_size), "int32"),
            "positions": np.zeros(len(rows), "int32"),
        }

    def verify(self, tokens, cache, positions):
        before = ops.concatenate([cache["before"], tokens[:, :-1]], axis=1)
        place = (cache["sentence"] * V + before) * V + tokens
        table = ops.reshape(ops.convert_to_tensor(self.table), (-1, V))
        logits = ops.take(table, place, axis=0)
        return logits, {**cache, "block": tokens, "positions": positions}

    def propose(self, cache, accepted, certain):
        block = cache["block"]
        before = ops.take_along_axis(block, accepted[:, None], axis=1)
        first = cache["positions"] + accepted + 1
        places = first[:, None] + np.arange(block.shape[1] - 1, dtype="int32")
        places = ops.minimum(places, self.proposals.shape[1] - 1)
        proposals = ops.take_along_axis(
            ops.convert_to_tensor(self.proposals, "int32"), places, axis=1
        )
        return proposals, {**cache, "before": before}

    def search(self, limits, block_size, **arguments):
        return blockwise_search(
            self.verify,
            self.propose,
            self.start(block_size),
            limits,
            block_size,
            **arguments,
        )

    def greedy(self, limits, **arguments):
        start = super().start(1)
        return greedy_search(self.step, start, limits, **arguments)


def same_as_greedy(model, limits, block_size, **arguments):
    """Checks that both searches find the same; returns ids and steps."""
    ids, scores, steps = model.search(limits, block_size, **arguments)
    expected, expected_scores = model.greedy(limits, **arguments)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)
    return np.asarray(ids), np.asarray(steps)


def lengths_of(ids, end_id=END):
    return (ids == end_id).argmax(axis=1) + 1


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    limits=st.lists(st.integers(1, 11), min_size=1, max_size=3),
    block_size=st.integers(1, 5),
    share=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_any_proposals_give_what_greedy_search_gives(
    seed, limits, block_size, share
):
    rng = np.random.default_rng(seed)
    proposals = rng.integers(V, size=(len(limits), 13))
    right = np.asarray(BlockModel(seed, proposals).greedy(limits)[0])
    is_right = rng.random(right.shape) < share
    width = right.shape[1]
    proposals[:, :width] = np.where(is_right, right, proposals[:, :width])
    model = BlockModel(seed, proposals)
    ids, steps = same_as_greedy(model, limits, block_size)
    lengths = lengths_of(ids)
    assert (steps <= lengths).all()
    assert (steps >= -(-lengths // block_size)).all()


@pytest.mark.parametrize("block_size", [2, 3, 5])
def test_right_proposals_fill_whole_blocks(block_size):
    limits = [13, 7, 11]
    greedy = BlockModel(1, np.zeros((3, 13)), never_zero=True).greedy(limits)
    model = BlockModel(1, np.asarray(greedy[0]), never_zero=True)
    ids, steps = same_as_greedy(model, limits, block_size)
    # Nothing is proposed before the first step, which finds one token.
    others = lengths_of(ids) - 1
    assert steps.tolist() == (1 - (-others // block_size)).tolist()
    assert (others >= block_size).any()


def test_wrong_proposals_find_one_token_a_step():
    limits = [13, 7, 11]
    greedy = BlockModel(1, np.zeros((3, 13)), never_zero=True).greedy(limits)
    wrong = (np.asarray(greedy[0]) + 1) % V
    model = BlockModel(1, wrong, never_zero=True)
    ids, steps = same_as_greedy(model, limits, 3)
    assert steps.tolist() == lengths_of(ids).tolist()


def test_other_start_and_end_tokens():
    model = BlockModel(5, np.full((2, 9), 4))
    same_as_greedy(model, [9, 5], 3, start_id=6, end_id=0)


def test_scores_are_float32_whatever_the_default_dtype():
    keras.config.set_floatx("float64")
    try:
        _, scores, _ = BlockModel(1, np.zeros((2, 3))).search([3, 2], 3)
    finally:
        keras.config.set_floatx("float32")
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"


def test_no_sentences():
    ids, scores, steps = BlockModel(1, np.zeros((0, 3))).search([], 3)
    assert ids.shape == (0, 1)
    assert scores.shape == steps.shape == (0,)


@pytest.mark.parametrize("block_size", [0, -2])
def test_an_empty_block_is_refused(block_size):
    with pytest.raises(ValueError, match=f"block_size={block_size}"):
        blockwise_search(None, None, {}, [5], block_size)
