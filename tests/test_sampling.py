"""Checks that sampling draws from the model's distribution."""

import keras
import numpy as np
import paper
import pytest
import tensorflow as tf
from keras import ops
from test_decoding import END, TableModel

from keras_transformer import beam_search, greedy_search, sample


class OneRow:
    """The same logits for every row and step."""

    def __init__(self, logits):
        self.logits = np.array(logits, "float32")

    def step(self, tokens, cache, index):
        shape = (tokens.shape[0], len(self.logits))
        return ops.broadcast_to(self.logits, shape), cache


LOGITS = [0.3, -1.0, 1.7, 0.9, 1.2]
DRAWS = 20_000


def frequencies(logits=LOGITS, **arguments):
    ids, _ = sample(
        OneRow(logits).step,
        {},
        [2] * DRAWS,
        seed=1,
        end_id=-2,  # never
        **arguments,
    )
    return np.bincount(np.asarray(ids)[:, 0], minlength=len(logits)) / DRAWS


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_as_often_as_they_are_probable(temperature):
    expected = paper.softmax(np.array(LOGITS) / temperature)
    found = frequencies(temperature=temperature)
    # Five standard deviations.
    np.testing.assert_allclose(found, expected, atol=5 * 0.5 / DRAWS**0.5)


def test_top_k_and_top_p_draw_only_the_most_probable_tokens():
    expected = np.zeros(5)
    best = np.argsort(LOGITS)[-3:]
    expected[best] = paper.softmax(np.array(LOGITS)[best])
    np.testing.assert_allclose(frequencies(top_k=3), expected, atol=0.02)
    # The smallest set of the most probable that reaches top_p.
    probable = paper.softmax(np.array(LOGITS))
    reached = np.sort(probable)[::-1].cumsum()
    for count in (1, 2, 3, 4, 5):
        found = frequencies(top_p=float(reached[count - 1]) - 1e-3)
        kept = np.argsort(LOGITS)[-count:]
        assert set(np.flatnonzero(found)) == set(kept)
        np.testing.assert_allclose(
            found[kept], probable[kept] / probable[kept].sum(), atol=0.02
        )


@pytest.mark.parametrize("arguments", [{}, {"top_p": 0.9}, {"top_k": 300}])
def test_only_probable_tokens_of_a_large_vocabulary_are_drawn(arguments):
    logits = np.zeros(6000)
    logits[[7, 4999]] = 20
    ids, _ = sample(
        OneRow(logits).step, {}, [31] * 17, seed=1, end_id=5, **arguments
    )
    assert set(np.asarray(ids)[:, :-1].ravel()) == {7, 4999}


def test_the_end_token_is_drawn_early_if_nothing_else_is_possible():
    logits = [-np.inf] * 5
    logits[END] = 1.0
    for arguments in ({}, {"top_k": 2}):
        ids, scores = sample(
            OneRow(logits).step, {}, [4], min_lengths=[3], seed=1, **arguments
        )
        assert np.asarray(ids)[0].tolist() == [END, 0, 0, 0]
        assert float(scores[0]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"temperature": 1e-4},
        {"temperature": 1e-39},
        {"top_k": 1},
        {"top_p": 1e-6},
    ],
)
def test_sampling_at_its_limits_equals_greedy_search(arguments):
    model = TableModel(3, 5, vocab_size=13)
    limits = [2, 3, 5, 7, 11]
    expected = greedy_search(model.step, model.start(1), limits)
    found = sample(model.step, model.start(1), limits, seed=1, **arguments)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)


def test_a_score_is_the_models_own_log_probability():
    model = TableModel(3, 4, vocab_size=7)
    ids, scores = sample(
        model.step, model.start(1), [9] * 4, temperature=2.0, top_k=5, seed=4
    )
    for b, row in enumerate(np.asarray(ids)):
        tokens = row[: np.argmax(row == END) + 1]
        assert float(scores[b]) == pytest.approx(
            model.log_probability(b, tokens), abs=1e-4
        )


def test_equal_seeds_draw_the_same_and_steps_and_rows_differ():
    def draws(seed):
        return np.asarray(
            sample(OneRow([0.0] * 97).step, {}, [31] * 17, seed=seed)[0]
        )

    first = draws(1)
    np.testing.assert_array_equal(draws(1), first)
    assert (draws(2) != first).any()
    assert len({tuple(row) for row in first}) == 17
    assert len(set(first[:, 0])) > 5
    assert len(set(first[0])) > 5


@pytest.mark.parametrize("arguments", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_the_vocabulary_may_have_no_static_size(arguments):
    """As in a graph whose logits are a list of likely tokens."""
    logits = np.random.default_rng(5).normal(size=(3, 7)).astype("float32")

    @tf.function(input_signature=[tf.TensorSpec([None, None])], autograph=False)
    def drawn(logits):
        def step(tokens, cache, index):
            return logits, cache

        return sample(step, {}, [9] * 3, seed=2, **arguments)[0]

    expected = sample(
        lambda tokens, cache, index: (logits, cache),
        {},
        [9] * 3,
        seed=2,
        **arguments,
    )[0]
    np.testing.assert_array_equal(drawn(logits), expected)


@pytest.mark.parametrize("floatx", ["float64", "float16", "bfloat16"])
def test_searches_run_in_graphs_whatever_the_default_dtype(floatx):
    logits = np.array([0.0, -2.0, 1.0, 3.0, 2.0], "float32")

    def step(tokens, cache, index):
        shape = (ops.shape(tokens)[0], len(logits))
        return ops.broadcast_to(logits, shape), cache

    limits = tf.constant([5, 3])
    min_lengths, prefix = tf.constant([2, 2]), tf.constant([[4], [-1]])

    def found():
        return [
            *beam_search(
                step, {}, limits, 2, min_lengths=min_lengths, prefix=prefix
            ),
            *greedy_search(
                step, {}, limits, min_lengths=min_lengths, prefix=prefix
            ),
            *sample(
                step, {}, limits, min_lengths=min_lengths, prefix=prefix, seed=3
            ),
        ]

    expected = found()
    keras.config.set_floatx(floatx)
    try:
        again = tf.function(found)()
    finally:
        keras.config.set_floatx("float32")
    for one, other in zip(again, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_errors_name_what_was_received():
    for arguments, received in (
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 1.5}, "top_p=1.5"),
    ):
        with pytest.raises(ValueError, match=received):
            sample(None, None, [1], **arguments)


def test_an_infinite_temperature_draws_all_tokens_alike():
    ids, _ = sample(
        OneRow(LOGITS).step,
        {},
        [3] * DRAWS,
        temperature=float("inf"),
        min_lengths=[3] * DRAWS,
        seed=1,
    )
    first = np.bincount(np.asarray(ids)[:, 0], minlength=5) / DRAWS
    np.testing.assert_allclose(first, [0.25, 0.25, 0.25, 0, 0.25], atol=0.02)
