"""Checks calls of layers as other code makes them, on any Keras backend."""

import keras
import numpy as np
import paper
import pytest
from conformance import assert_close, numpy_of, random
from keras import ops

from keras_transformer import (
    DecoderLayer,
    EncoderLayer,
    FeatureEmbedding,
    FeedForward,
    MultiHeadAttention,
    PositionalEmbedding,
    causal_mask,
)
from keras_transformer.layers.embeddings import positional_encoding

BACKEND = keras.backend.backend()
B, T, S, D, H, F = 2, 3, 5, 14, 2, 17
MASK = np.array([[True, True, False], [True, False, False]])


def test_every_input_may_be_given_by_its_name():
    x, memory = random(B, T, D), random(B, S, D)
    for layer, inputs in (
        (EncoderLayer(D, H, F), {"x": x}),
        (DecoderLayer(D, H, F), {"x": x, "memory": memory}),
        (MultiHeadAttention(H, 3), {"query": x, "value": memory}),
        (PositionalEmbedding(7, D), {"x": np.ones((B, T))}),
    ):
        expected = layer(*inputs.values())
        assert_close(layer(**inputs), expected)
        symbols = {
            name: keras.Input(value.shape[1:], name=name)
            for name, value in inputs.items()
        }
        model = keras.Model(symbols, layer(**symbols))
        assert_close(model(inputs), expected)


class Narrower(DecoderLayer):
    """Takes less than its base class."""

    def call(self, x, memory, x_mask=None, training=None):
        return super().call(x, memory, x_mask=x_mask, training=training)


def test_the_call_of_a_subclass_may_take_no_mask():
    x, memory = random(B, T, D), random(B, S, D)
    layer, plain = Narrower(D, H, F), DecoderLayer(D, H, F)
    layer(x, memory)
    plain(x, memory)
    plain.set_weights(layer.get_weights())
    found = layer(x, memory, x_mask=MASK)
    assert_close(found, plain(x, memory, x_mask=MASK))


def test_a_mask_of_pairs_may_be_a_list():
    x = random(B, T, D)
    layer = MultiHeadAttention(H, 3)
    mask = np.tri(T, dtype=bool)[None]
    found = layer(x, x, attention_mask=mask.tolist())
    assert_close(found, layer(x, x, attention_mask=mask))


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("kind", ["int64", "uint8", "tensor"])
def test_a_position_may_be_any_integer(kind, window):
    x = random(B, T, D)
    layer = EncoderLayer(D, H, F, attention_window=window)
    embedding = PositionalEmbedding(7, D, positions="learned", max_length=T)
    ids = np.array([[5, 3, 1], [2, 4, 6]])

    def number(i):
        if kind == "tensor":
            return ops.cast(i, "uint8")
        return np.dtype(kind).type(i)

    cache = layer.empty_cache(B, T)
    steps, vectors = [], []
    for i in range(T):
        y, cache = layer(x[:, i : i + 1], cache=cache, cache_index=number(i))
        steps.append(numpy_of(y))
        vectors.append(numpy_of(embedding(ids[:, i : i + 1], number(i))))
    at_once = layer(x, use_causal_mask=True)
    assert_close(np.concatenate(steps, axis=1), at_once)
    assert_close(np.concatenate(vectors, axis=1), embedding(ids))
    np.testing.assert_array_equal(
        numpy_of(causal_mask(1, T, number(1))), [[[True, True, False]]]
    )


def test_positions_are_right_where_numbers_have_16_bits():
    """Keras then counts in int16, which ends at 32,767."""
    length = 33_000
    embedding = PositionalEmbedding(7, 4, dtype="float32")
    keras.config.set_floatx("bfloat16")
    try:
        found = numpy_of(embedding(np.ones((1, length))))[0, -1]
        mask = numpy_of(causal_mask(1, length, length - 2))[0, 0]
        layer = MultiHeadAttention(H, 3, dtype="float32")
        x = random(B, T, D)
        steps = layer(x, x, use_causal_mask=True)
    finally:
        keras.config.set_floatx("float32")
    position = np.array([length - 1])
    scaled = numpy_of(embedding.embeddings)[1] * 2.0
    expected = numpy_of(positional_encoding(position, 4))[0]
    np.testing.assert_allclose(found - scaled, expected, atol=1e-5)
    assert mask[:-1].all()
    assert not mask[-1]
    assert_close(steps, layer(x, x, use_causal_mask=True))


def test_a_batch_may_be_empty():
    layer = DecoderLayer(D, H, F)
    layer.build((None, None, D), (None, None, D))
    x, memory = np.ones((0, T, D), "float32"), np.ones((0, S, D), "float32")
    found, weights = layer(
        x,
        memory_cache=layer.project_memory(ops.convert_to_tensor(memory)),
        return_attention_scores=True,
    )
    assert tuple(found.shape) == (0, T, D)
    assert tuple(weights.shape) == (0, H, T, S)


def twos(shape, dtype=None):
    return 2 * ops.ones(shape, dtype)


def test_an_initializer_may_be_a_function():
    x = random(B, T, D)
    for layer in (
        FeedForward(D, F, kernel_initializer=twos),
        FeatureEmbedding(D, kernel_initializer=twos),
        EncoderLayer(D, H, F, kernel_initializer=twos),
        MultiHeadAttention(H, 3, kernel_initializer=twos),
    ):
        layer(x, x) if isinstance(layer, MultiHeadAttention) else layer(x)
        kernels = [w for w in layer.weights if w.path.endswith("kernel")]
        assert kernels
        for kernel in kernels:
            assert (numpy_of(kernel) == 2).all()
    embedding = PositionalEmbedding(
        7, D, tie_projection=False, embeddings_initializer=twos
    )
    embedding(np.ones((B, T)))
    assert (numpy_of(embedding.projection) == 2).all()


def test_one_axis_more_is_masked_where_layers_are_wrapped_together():
    """As the error of `PositionalEmbedding` advises."""
    ids = np.array([[[1, 2, 3], [4, 5, 6]]])
    padded = np.pad(ids, ((0, 0), (0, 0), (0, 2)))
    layers = [PositionalEmbedding(7, D), EncoderLayer(D, H, F)]
    wrapped = keras.layers.TimeDistributed(keras.Sequential(layers))
    assert_close(wrapped(padded)[:, :, :3], wrapped(ids))


if BACKEND != "jax":  # which has no float64 unless it is asked for

    def test_float64_embeddings_are_exact():
        embedding = PositionalEmbedding(7, D, dtype="float64")
        ids = np.array([[5, 3, 1]])
        found = numpy_of(embedding(ids))
        table = numpy_of(embedding.embeddings)
        positions = paper.positional_encoding(3, D)
        expected = table[ids] * D**0.5 + positions
        np.testing.assert_allclose(found, expected, atol=1e-12, rtol=0)


if BACKEND == "tensorflow":  # on PyTorch, Keras multiplies in float32

    def test_float64_products_are_exact():
        layer = MultiHeadAttention(H, 3, 5, dtype="float64")
        x, memory = random(B, T, D) / 3, random(B, S, D) / 3
        layer(x, memory)
        weights = [numpy_of(w) for w in layer.weights]
        expected = paper.multi_head_attention(x, memory, memory, weights, H)
        found = layer(x, memory)
        np.testing.assert_allclose(found, expected, atol=1e-12, rtol=0)

        embedding = PositionalEmbedding(7, D, dtype="float64")
        logits = embedding(x, reverse=True)
        table = numpy_of(embedding.embeddings)
        np.testing.assert_allclose(logits, x @ table.T, atol=1e-12, rtol=0)


if BACKEND == "jax":

    @pytest.mark.parametrize("causal", [False, True])
    def test_a_window_can_be_exported_for_any_length(causal):
        import jax

        layer = EncoderLayer(D, H, F, attention_window=4)
        layer.build((None, None, D))

        def call(x):
            return layer(x, use_causal_mask=causal)

        shape = jax.export.symbolic_shape(f"b, t, {D}")
        exported = jax.export.export(jax.jit(call))(
            jax.ShapeDtypeStruct(shape, "float32")
        )
        for length in (1, 2, 3, 11):
            x = random(B, length, D).astype("float32")
            assert_close(exported.call(x), call(x))
