"""Compares embeddings and positional encodings with the paper."""

import keras
import numpy as np
import paper
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer import PositionalEmbedding
from keras_transformer.layers import positional_encoding

# Some values of section 3.5, computed by hand.
KNOWN = [
    (4, 0, 0, [0, 1, 0, 1]),
    (4, 1, 0, [0.84147098, 0.54030231, 0.00999983, 0.99995000]),
    (4, 2, 0, [0.90929743, -0.41614684, 0.01999867, 0.99980001]),
    (512, 1, 0, [0.84147098, 0.54030231, 0.82185619, 0.56969501]),
    (512, 50, 2, [-0.89533875, -0.44538582]),
    (512, 100, 510, [0.01036614]),
]


@pytest.mark.parametrize(("d_model", "position", "start", "values"), KNOWN)
def test_positional_encoding_has_known_values(d_model, position, start, values):
    row = positional_encoding(ops.convert_to_tensor([position]), d_model)[0]
    np.testing.assert_allclose(
        row[start : start + len(values)], values, atol=5e-6
    )


@pytest.mark.parametrize("d_model", [1, 7, 22])
def test_positional_encoding_is_section_3_5(d_model):
    found = positional_encoding(ops.arange(53), d_model)
    expected = paper.positional_encoding(53, d_model)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("d_model", [1, 7, 22])
def test_halves_are_all_sines_before_all_cosines(d_model):
    found = positional_encoding(ops.arange(53), d_model, halves=True)
    table = paper.positional_encoding(53, d_model)
    expected = np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_shift_is_a_rotation():
    """ "for any fixed offset k, PE(pos+k) can be represented as a linear
    function of PE(pos)" """
    table = np.asarray(positional_encoding(ops.arange(40), 22))
    pairs = table.reshape(40, 11, 2)
    np.testing.assert_allclose((pairs**2).sum(-1), 1, atol=1e-5)
    cosines = (pairs[:-7] * pairs[7:]).sum(-1)  # of the angle, for each pair
    np.testing.assert_allclose(
        cosines, np.tile(cosines[:1], (33, 1)), atol=1e-4
    )


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_embedding_is_scaled_and_positions_are_added(policy):
    layer = PositionalEmbedding(31, 22, dropout_rate=0, dtype=policy)
    ids = np.array([[5, 7, 0], [30, 1, 2]])
    found = ops.convert_to_numpy(ops.cast(layer(ids), "float32"))
    table = ops.convert_to_numpy(layer.embeddings.value)
    expected = table[ids] * 22**0.5 + paper.positional_encoding(3, 22)
    tolerance = 1e-5 if policy == "float32" else 0.03
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_projection_of_its_own_bias_and_no_scale():
    layer = PositionalEmbedding(
        31,
        22,
        positions=None,
        dropout_rate=0,
        scale_embeddings=False,
        tie_projection=False,
        use_logits_bias=True,
    )
    ids = np.array([[5, 7, 0], [30, 1, 2]])
    x = layer(ids)
    table, projection, _ = layer.get_weights()
    np.testing.assert_array_equal(x, table[ids])
    assert not np.allclose(table, projection)
    bias = np.random.default_rng(1).normal(size=31)
    layer.logits_bias.assign(bias)
    expected = table[ids] @ projection.T + bias
    np.testing.assert_allclose(layer(x, reverse=True), expected, atol=1e-5)


def test_neighbouring_positions_differ_in_bfloat16():
    layer = PositionalEmbedding(5, 22, dropout_rate=0, dtype="mixed_bfloat16")
    layer(np.ones((1, 1), int))
    layer.embeddings.assign(np.zeros((5, 22)))
    rows = ops.convert_to_numpy(
        ops.cast(layer(np.ones((1, 2), int), offset=256), "float32")
    )
    expected = paper.positional_encoding(258, 22)[256:]
    np.testing.assert_allclose(rows[0], expected, atol=0.01)


@pytest.mark.parametrize(
    "positions", ["sinusoidal", "sinusoidal_halves", "learned"]
)
def test_steps_with_an_offset_equal_the_full_pass(positions):
    layer = PositionalEmbedding(31, 22, positions=positions, max_length=9)
    ids = np.arange(9)[None]
    whole = layer(ids)
    for t in range(9):
        step = layer(ids[:, t : t + 1], offset=ops.convert_to_tensor(t))
        np.testing.assert_allclose(step[0, 0], whole[0, t], atol=1e-6)


def test_sinusoids_have_no_maximum_length():
    layer = PositionalEmbedding(3, 4, dropout_rate=0)
    assert layer(np.ones((1, 20_011), int)).shape == (1, 20_011, 4)


def test_learned_positions_refuse_a_longer_sequence():
    layer = PositionalEmbedding(3, 4, positions="learned", max_length=5)
    with pytest.raises(ValueError, match="length=7, max_length=5"):
        layer(np.ones((1, 7), int))
    layer(np.ones((1, 2), int), offset=3)
    with pytest.raises(ValueError, match="offset=4, length=2, max_length=5"):
        layer(np.ones((1, 2), int), offset=4)


def test_logits_are_the_tied_projection():
    layer = PositionalEmbedding(31, 22)
    layer(np.ones((1, 1), int))
    x = np.random.default_rng(1).normal(size=(2, 3, 22)).astype("float32")
    expected = x @ ops.convert_to_numpy(layer.embeddings).T
    np.testing.assert_allclose(layer(x, reverse=True), expected, atol=1e-5)


def test_id_zero_is_masked_unless_mask_zero_is_false():
    ids = np.array([[5, 0, 3, 0]])
    np.testing.assert_array_equal(
        PositionalEmbedding(7, 4)(ids)._keras_mask, ids != 0
    )
    plain = PositionalEmbedding(7, 4, mask_zero=False)(ids)
    assert getattr(plain, "_keras_mask", None) is None


def test_inputs_of_another_rank_are_refused():
    layer = PositionalEmbedding(7, 4)
    for ids in (np.ones((1, 1, 3)), np.ones(3), keras.Input((2, 3))):
        with pytest.raises(ValueError, match="TimeDistributed"):
            layer(ids)
    with pytest.raises(ValueError, match="vectors"):
        layer(np.ones((2, 3)), reverse=True)
    nested = keras.layers.TimeDistributed(layer)(np.ones((2, 3, 5)))
    np.testing.assert_array_equal(nested[1], layer(np.ones((3, 5))))


def test_ragged_ids_are_refused():
    """As `Tokenizer.encode` returns them."""
    ids = tf.ragged.constant([[5, 1], [3]])
    with pytest.raises(ValueError, match=r"`x\.to_tensor\(\)`"):
        PositionalEmbedding(7, 4)(ids)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 0, "d_model": 4}, "vocab_size=0"),
        ({"vocab_size": 5, "d_model": 4, "positions": "cubic"}, "'cubic'"),
        ({"vocab_size": 5, "d_model": 4, "positions": "learned"}, "max_length"),
    ],
)
def test_errors_name_what_was_received(arguments, message):
    with pytest.raises(ValueError, match=message):
        PositionalEmbedding(**arguments)


def test_embeddings_and_positions_are_dropped_together():
    """Section 5.4: "dropout to the sums of the embeddings and the positional
    encodings"."""
    layer = PositionalEmbedding(7, 14, dropout_rate=0.5, seed=1)
    ids = np.array([[5, 3, 1], [4, 2, 6]])
    expected = np.asarray(layer(ids))
    found = np.asarray(layer(ids, training=True))
    kept = found != 0
    assert 10 < kept.sum() < kept.size - 10
    np.testing.assert_allclose(found[kept], 2 * expected[kept], rtol=1e-5)
