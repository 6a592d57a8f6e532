"""Checks layers in other models: symbolic, wrapped, masked and cached calls."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance import random
from keras import ops

from keras_transformer import (
    DecoderLayer,
    EncoderLayer,
    MultiHeadAttention,
    PositionalEmbedding,
)
from keras_transformer.layers.attention import fused_attention

B, T, S, D, H, F = 2, 3, 5, 14, 2, 17


def scaled(layer, ids):
    return layer(ids) * D**0.5


def test_scaled_embeddings_can_be_inputs_and_memories():
    """Keras marks a symbolic `tensor * number` as sparse."""
    ids = keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(7, D)
    memory = EncoderLayer(D, H, F)(scaled(embedding, ids))
    x = MultiHeadAttention(H, 3)(scaled(embedding, ids), memory * 0.5)
    x = DecoderLayer(D, H, F)(x, memory * 2.0)
    found = keras.Model(ids, x)(np.array([[5, 3, 1], [4, 2, 6]]))
    assert found.shape == (2, 3, D)
    assert np.isfinite(found).all()


def symbolic(x):
    if isinstance(x, dict):
        return {name: symbolic(value) for name, value in x.items()}
    if not hasattr(x, "shape"):
        return x
    dtype = keras.backend.standardize_dtype(x.dtype)
    return keras.KerasTensor((None, *x.shape[1:]), dtype=dtype)


def calls(policy):
    """Yields built layers, each with the inputs and options of a call."""
    x, memory = random(B, T, D), random(B, S, D)
    for scores in (False, True):
        options = {"return_attention_scores": scores}
        attention = MultiHeadAttention(H, 3, 5, dtype=policy)
        attention.build(x.shape, memory.shape)
        encoder = EncoderLayer(D, H, F, dtype=policy)
        encoder.build(x.shape)
        decoder = DecoderLayer(D, H, F, dtype=policy)
        decoder.build(x.shape, memory.shape)
        cached = {"cache_index": 1}
        yield attention, (x, memory), options
        cache = {"cache": attention.empty_cache(B, 7), **cached}
        yield attention, (x, x), {**options, **cache}
        read_only = {"cache": attention.project(memory)}
        yield attention, (random(3 * B, T, D),), {**options, **read_only}
        yield encoder, (x,), options
        cache = {"cache": encoder.empty_cache(B, 7), **cached}
        yield encoder, (x,), {**options, **cache}
        yield decoder, (x, memory), options
        cache = {"cache": decoder.empty_cache(B, 7), **cached}
        read_only = {"memory_cache": decoder.project_memory(memory)}
        yield decoder, (x,), {**options, **cache, **read_only}


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_compute_output_spec_matches_every_output(policy):
    for layer, inputs, options in calls(policy):
        specified = layer.compute_output_spec(
            *map(symbolic, inputs),
            **{name: symbolic(value) for name, value in options.items()},
        )
        found = layer(*inputs, **options)
        keras.tree.assert_same_structure(specified, found)
        for a, f in zip(
            keras.tree.flatten(specified),
            keras.tree.flatten(found),
            strict=True,
        ):
            assert a.dtype == keras.backend.standardize_dtype(f.dtype)
            assert len(a.shape) == len(f.shape)
            for one, other in zip(a.shape, f.shape, strict=True):
                assert one in (None, other), (layer.name, options.keys())
        assert keras.tree.flatten(specified)[0].shape[-1] == D


MASK = np.array([[True, True, False], [True, False, False]])


@pytest.mark.parametrize(
    "call",
    [
        lambda x, memory: EncoderLayer(D, H, F)(x, mask=MASK),
        lambda x, memory: EncoderLayer(D, H, F)(x, tf.constant(MASK)),
        lambda x, memory: EncoderLayer(D, H, F)(x, x_mask=MASK),
        lambda x, memory: DecoderLayer(D, H, F)(x, memory, x_mask=MASK),
        lambda x, memory: DecoderLayer(D, H, F)(x, memory, tf.constant(MASK)),
    ],
    ids=["mask", "second place", "x_mask", "decoder", "third place"],
)
def test_an_explicit_mask_becomes_the_implicit_mask_of_the_output(call):
    output = call(random(B, T, D), random(B, S, D))
    np.testing.assert_array_equal(output._keras_mask, MASK)


def test_a_padding_mask_of_rank_3_is_refused():
    x, square = random(B, H, D), np.ones((B, H, H), bool)
    with pytest.raises(ValueError, match="`attention_mask`"):
        EncoderLayer(D, H, F)(x, mask=square)
    with pytest.raises(ValueError, match=r"x_mask.shape=\(2, 2, 2\)"):
        DecoderLayer(D, H, F)(x, x, x_mask=square)
    with pytest.raises(ValueError, match="value_mask"):
        MultiHeadAttention(H, 3)(x, x, value_mask=square)


def test_beams_may_have_a_query_mask():
    layer = MultiHeadAttention(H, 3)
    memory, x = random(B, S, D), random(3 * B, T, D)
    layer(x[:B], memory)
    mask = np.random.default_rng(1).random((3 * B, T)) > 0.5
    found = layer(x, query_mask=tf.constant(mask), cache=layer.project(memory))
    expected = layer(x, np.repeat(memory, 3, axis=0))
    np.testing.assert_allclose(found[mask], expected[mask], atol=1e-5)
    bias = layer.weights[-1]  # attention gives zeros there
    for row in ops.convert_to_numpy(found)[~mask]:
        np.testing.assert_allclose(row, bias, atol=1e-6)


@pytest.mark.parametrize("index", [5, np.int32(7), -1])
def test_a_cache_that_is_too_short_is_an_error(index):
    layer = EncoderLayer(D, H, F)
    cache = layer.empty_cache(B, 7)
    with pytest.raises(ValueError, match=f"cache_index={index}, 3 new"):
        layer(random(B, T, D), cache=cache, cache_index=index)
    layer(random(B, T, D), cache=cache, cache_index=4)


class Renamed(EncoderLayer):
    def call(self, h, mask=None, **kwargs):
        return super().call(h, mask=mask, **kwargs)


class Wrapped(DecoderLayer):
    def call(self, x, memory, *args, **kwargs):
        return super().call(x, memory, *args, **kwargs)


class Biased(EncoderLayer):
    def call(self, x, *args, bias=None, **kwargs):
        y = super().call(x, *args, **kwargs)
        return y if bias is None else y + bias


class Alone(DecoderLayer):
    """Has a memory of its own."""

    def build(self, x_shape):
        super().build(x_shape, (None, S, D))

    def call(self, x, mask=None):
        return super().call(x, ops.ones((B, S, D)), mask=mask)


def test_subclasses_may_have_arguments_of_their_own():
    layer, x = Biased(D, H, F), random(B, T, D)
    expected = layer(x, mask=MASK) + 2.0
    for found in (layer(x, MASK, bias=2.0), layer(x, mask=MASK, bias=2.0)):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert layer(keras.Input((T, D)), bias=1.0).shape == (None, T, D)
    for symbol in (x, keras.Input((T, D), batch_size=B)):
        assert Alone(D, H, F)(symbol).shape == (B, T, D)


def test_subclasses_may_write_call_in_other_words():
    x, memory = random(B, T, D), random(B, S, D)
    for wrapped, layer, inputs in (
        (Renamed(D, H, F), EncoderLayer(D, H, F), (x,)),
        (Wrapped(D, H, F), DecoderLayer(D, H, F), (x, memory)),
    ):
        expected = layer(*inputs, x_mask=MASK)
        wrapped(*inputs)
        wrapped.set_weights(layer.get_weights())
        found = wrapped(*inputs, x_mask=MASK, training=False)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_array_equal(found._keras_mask, MASK)
        symbols = [keras.Input(x.shape[1:]) for x in inputs]
        assert wrapped(*symbols).shape == (None, T, D)


def test_a_call_with_too_many_arguments_or_one_twice_is_an_error():
    layer, x = EncoderLayer(D, H, F), random(B, T, D)
    with pytest.raises(TypeError, match=r"multiple values .*'mask'"):
        layer(x, MASK, mask=MASK)
    with pytest.raises(TypeError, match="9 positional arguments: x, mask"):
        layer(x, *[None] * 9)


def test_a_decoder_without_a_memory_is_an_error():
    for x in (random(B, T, D), keras.Input((T, D))):
        with pytest.raises(ValueError, match=r"memory_cache=None.*Encoder"):
            DecoderLayer(D, H, F)(x)


def test_attention_without_a_value_is_an_error():
    with pytest.raises(ValueError, match="For self-attention pass the query"):
        MultiHeadAttention(H, 3)(random(B, T, D))


@pytest.mark.parametrize("masked", [False, True])
def test_fused_attention_follows_the_setting_of_keras(masked, monkeypatch):
    q, asked = random(B, H, T, 7), []
    original = ops.dot_product_attention

    def attention(*inputs, flash_attention=None, **options):
        asked.append(flash_attention)
        return original(*inputs, **options)

    monkeypatch.setattr(ops, "dot_product_attention", attention)
    mask = np.ones((B, 1, T, T), bool) if masked else None
    fused_attention(q, q, q, mask)
    keras.config.disable_flash_attention()
    try:
        fused_attention(q, q, q, mask)
    finally:
        keras.config.enable_flash_attention()
    assert asked == [None, False]


@pytest.mark.parametrize(
    "policy", ["float32", "mixed_bfloat16", "mixed_float16"]
)
def test_ids_may_come_as_floats(policy):
    """A strategy that averages a batch over replicas makes them floats.

    bfloat16 cannot represent 999, nor float16 2,049.
    """
    layer = PositionalEmbedding(4099, 4, dtype=policy)
    ids = np.array([[999, 2049, 4097, 0]])
    found = layer(ids.astype("float32"))
    np.testing.assert_array_equal(found, layer(ids))
    np.testing.assert_array_equal(found._keras_mask, ids != 0)
    assert found.dtype == policy.removeprefix("mixed_")
