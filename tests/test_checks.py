"""Checks that `assert_no_leak` finds leaks that were made on purpose."""

import keras
import numpy as np
import pytest

from keras_transformer import EncoderLayer, PositionalEmbedding
from keras_transformer.testing import assert_no_leak

IDS = np.array([[5, 3, 2, 4, 1], [4, 6, 0, 0, 0], [1, 2, 3, 0, 0]])


def composed(leak=None, causal=False, pooled=False):
    """Returns a model composed of three layers, with a leak if asked for."""
    ids = keras.Input((None,), dtype="int32")
    x = PositionalEmbedding(7, 14, mask_zero=leak != "padding")(ids)
    for _ in range(3):
        x = EncoderLayer(14, 2, 17)(
            x, use_causal_mask=causal and leak != "future"
        )
    if pooled:
        x = keras.layers.GlobalAveragePooling1D()(x)
    if leak == "batch":
        x = x + keras.ops.mean(x, axis=0, keepdims=True)
    return keras.Model(ids, x)


@pytest.mark.parametrize("causal", [False, True])
def test_implicit_masks_do_not_leak(causal):
    assert_no_leak(composed(causal=causal), IDS, causal=causal)


def test_a_pooled_output_does_not_leak():
    assert_no_leak(composed(pooled=True), IDS)


@pytest.mark.parametrize(
    ("leak", "message"),
    [
        ("padding", "More padding of 'inputs' changes the output of row"),
        ("future", "A token of 'inputs' at position . or later changes"),
        ("batch", "Another row's input changes"),
    ],
)
def test_a_leak_is_found_and_named(leak, message):
    with pytest.raises(AssertionError, match=message):
        assert_no_leak(
            composed(leak, causal=leak == "future"),
            IDS,
            causal=leak == "future",
        )


def test_the_tolerance_and_the_id_of_padding_may_be_others():
    def at_padding(ids):  # a little more where padding 9 is, or longer
        return np.asarray(ids)[..., None] + 1e-3 * (np.asarray(ids) == 9).sum()

    ids = np.where(IDS == 0, 9, IDS)
    assert_no_leak(at_padding, ids, pad_id=9, tolerance=0.1)
    with pytest.raises(AssertionError, match="More padding"):
        assert_no_leak(at_padding, ids, pad_id=9)
    assert_no_leak(at_padding, IDS)  # here 9 is no padding


def test_the_leak_of_stacked_keras_attention_is_found():
    """`keras.layers.MultiHeadAttention` removes the masks of its inputs.

    So a memory that is read twice is unmasked the second time.
    """

    def build(layer_class):
        ids = keras.Input((None,), dtype="int32")
        memory = PositionalEmbedding(7, 14)(ids)
        x = memory
        for _ in range(2):
            x = x + layer_class(2, 7)(x, memory)
        return keras.Model(ids, x)

    from keras_transformer import MultiHeadAttention

    assert_no_leak(build(MultiHeadAttention), IDS)
    with pytest.raises(AssertionError, match="More padding"):
        assert_no_leak(build(keras.layers.MultiHeadAttention), IDS)


def test_a_leak_is_found_where_all_ids_are_equal():
    def future(ids):  # looks at the next position
        real = np.asarray(ids) != 0
        later = np.roll(ids, -1, axis=1) * real
        later[:, -1] = 0
        return (ids + later)[..., None] * real[..., None]

    with pytest.raises(AssertionError, match="at position"):
        assert_no_leak(future, np.full((2, 4), 5), causal=True)
    with pytest.raises(ValueError, match="two different ids"):
        assert_no_leak(future, np.ones((2, 4), int), causal=True)


def test_outputs_without_a_feature_axis_are_checked():
    """An output `(B, T)` has a number, such as a probability, per position."""
    assert_no_leak(lambda ids: np.cumsum(ids, axis=1), IDS, causal=True)
    assert_no_leak(lambda ids: np.asarray(ids) * 2.0, IDS)
    assert_no_leak(lambda ids: np.zeros((len(ids), 5)), IDS)  # for each row
    with pytest.raises(AssertionError, match="position"):
        assert_no_leak(
            lambda ids: np.asarray(ids) + np.max(ids, axis=1, keepdims=True),
            IDS,
            causal=True,
        )


def test_names_of_inputs_are_checked():
    both = {"source": IDS, "target": IDS}
    with pytest.raises(ValueError, match="must name one of several inputs"):
        assert_no_leak(lambda ids: ids["target"], both, causal=True)
    with pytest.raises(ValueError, match="'memory' for inputs"):
        assert_no_leak(lambda ids: ids["target"], both, padded="memory")


def test_a_number_of_later_tokens_that_changes_outputs_is_found():
    def counted(ids):
        real = np.asarray(ids) != 0
        return np.repeat(real.sum(axis=1)[:, None], ids.shape[1], 1)[..., None]

    with pytest.raises(
        AssertionError, match="The number of tokens of 'inputs'"
    ):
        assert_no_leak(counted, IDS, causal=True)


def test_equal_infinities_are_no_leak():
    def barred(ids):
        logits = np.zeros((*np.shape(ids), 3))
        logits[..., 1] = -np.inf
        return logits

    assert_no_leak(barred, IDS, causal=True)


def test_booleans_are_outputs():
    assert_no_leak(lambda ids: np.asarray(ids)[..., None] > 2, IDS, causal=True)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.array([["a", "b"]]), "integer ids.*<U1"),
        (IDS > 2, "integer ids.*bool"),
        (IDS * 0.5, "integer ids.*float64"),
        (IDS[0], r"integer ids.*\(5,\)"),
        ((IDS, IDS), r"integer ids.*\(2, 3, 5\)"),
        ({"a": IDS, "b": "text"}, "integer ids.*b of"),
    ],
)
def test_other_inputs_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        assert_no_leak(lambda ids: np.zeros((3, 5, 1)), inputs)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ((np.zeros((3, 5)), np.zeros(3)), r"one tensor.*tuple.*\[0\]"),
        (np.array(["a", "b", "c"]), "must return numbers.*<U1"),
        (np.zeros((2, 5, 1)), r"numbers.*\(2, 5, 1\) for 3 rows"),
    ],
)
def test_other_outputs_are_refused(output, message):
    with pytest.raises(ValueError, match=message):
        assert_no_leak(lambda ids: output, IDS)
