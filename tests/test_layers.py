"""Compares feed-forward network, encoder and decoder layer with the paper."""

import inspect

import keras
import numpy as np
import paper
import pytest
from conformance import random, with_seeded_weights
from keras import ops

from keras_transformer import (
    DecoderLayer,
    EncoderLayer,
    FeatureEmbedding,
    FeedForward,
    MultiHeadAttention,
    PositionalEmbedding,
)

B, T, S, D, H, F = 2, 3, 5, 14, 2, 17


def arrays(layer):
    return [ops.convert_to_numpy(w).astype("float64") for w in layer.weights]


def test_feed_forward_is_equation_2():
    layer = FeedForward(D, F)
    x = random(B, T, D)
    layer(x)
    with_seeded_weights(layer)
    np.testing.assert_allclose(
        layer(x), paper.feed_forward(x, *arrays(layer)), atol=1e-4
    )


def sublayers(layer, mask, causal, memory=None, memory_mask=None):
    """Returns the sublayers and norms in NumPy, with the layer's weights."""
    own = mask[:, None] & mask[:, :, None]  # padding attends to nothing
    if causal:
        own = own & np.tril(np.ones((T, T), bool))

    def attention(sub, memory, mask):
        def apply(x):
            value = x if memory is None else memory
            return paper.multi_head_attention(
                x, value, value, arrays(sub), H, mask
            )

        return apply

    def norm(sub):
        return lambda x: paper.layer_norm(x, *arrays(sub), 1e-6)

    steps = [
        (
            attention(layer.self_attention, None, own),
            norm(layer.self_attention_norm),
        )
    ]
    if memory is not None:
        steps.append(
            (
                attention(layer.cross_attention, memory, memory_mask[:, None]),
                norm(layer.cross_attention_norm),
            )
        )
    steps.append(
        (
            lambda x: paper.feed_forward(x, *arrays(layer.feed_forward)),
            norm(layer.feed_forward_norm),
        )
    )
    return steps


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_is_the_left_half_of_figure_1(norm_first, causal):
    layer = EncoderLayer(D, H, F, norm_first=norm_first)
    x, mask = random(B, T, D), np.array([[1, 1, 0], [1, 0, 0]], bool)
    layer(x)
    with_seeded_weights(layer)
    found = layer(x, mask=mask, use_causal_mask=causal)
    for sublayer, norm in sublayers(layer, mask, causal):
        x = x + sublayer(norm(x)) if norm_first else norm(x + sublayer(x))
    np.testing.assert_allclose(found, x, atol=1e-4)


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer_is_the_right_half_of_figure_1(norm_first):
    layer = DecoderLayer(D, H, F, norm_first=norm_first)
    x, memory = random(B, T, D), random(B, S, D)
    x_mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
    memory_mask = np.array([[1, 1, 1, 1, 0], [1, 0, 0, 0, 0]], bool)
    layer(x, memory)
    with_seeded_weights(layer)
    found = layer(x, memory, x_mask=x_mask, memory_mask=memory_mask)
    for sublayer, norm in sublayers(layer, x_mask, True, memory, memory_mask):
        x = x + sublayer(norm(x)) if norm_first else norm(x + sublayer(x))
    np.testing.assert_allclose(found, x, atol=1e-4)


def test_decoder_returns_its_attention_to_the_memory():
    layer = DecoderLayer(D, H, F)
    x, memory = random(B, T, D), random(B, S, D)
    mask = np.array([[1, 1, 1, 1, 0], [1, 0, 0, 0, 0]], bool)
    output, weights = layer(
        x, memory, memory_mask=mask, return_attention_scores=True
    )
    np.testing.assert_allclose(
        output, layer(x, memory, memory_mask=mask), atol=1e-5
    )
    assert weights.shape == (B, H, T, S)
    np.testing.assert_allclose(ops.sum(weights, axis=-1), 1, atol=1e-6)
    assert (np.asarray(weights)[0, ..., 4] == 0).all()
    np.testing.assert_allclose(weights[1, ..., 0], 1, atol=1e-6)


def test_a_decoder_begins_with_prompts_padded_at_the_left():
    """A cache takes no padding mask, but a mask of queries and keys."""
    layer = DecoderLayer(D, H, F)
    x, memory = random(B, T, D), random(B, S, D)
    real = np.array([[0, 1, 1], [1, 1, 1]], bool)
    expected = layer(x, memory, x_mask=real)
    mask = np.zeros((B, 1, 7), bool)
    mask[:, 0, :T] = real
    found, _ = layer(
        x,
        memory,
        attention_mask=mask,
        cache=layer.empty_cache(B, 7),
        cache_index=0,
    )
    np.testing.assert_allclose(
        ops.convert_to_numpy(found)[real],
        ops.convert_to_numpy(expected)[real],
        atol=1e-5,
    )


DROPOUT_RATES = [
    "dropout_rate",
    "attention_dropout_rate",
    "activation_dropout_rate",
]


@pytest.mark.parametrize("rate_name", DROPOUT_RATES)
@pytest.mark.parametrize("layer_class", [EncoderLayer, DecoderLayer])
def test_a_dropout_rate_applies_only_to_its_own_sublayers(
    layer_class, rate_name
):
    rates = dict.fromkeys(DROPOUT_RATES, 0.0) | {rate_name: 0.37}
    layer = layer_class(D, H, F, **rates)
    found = sorted(
        f"{sub.name} {sub.rate}"
        for sub in layer._flatten_layers()
        if isinstance(sub, keras.layers.Dropout) and sub.rate
    )
    decoder = layer_class is DecoderLayer
    expected = {
        "dropout_rate": 3 if decoder else 2,
        "attention_dropout_rate": 2 if decoder else 1,
        "activation_dropout_rate": 1,
    }[rate_name]
    assert len(found) == expected, found
    x = random(B, T, D)
    inputs = (x, x) if decoder else (x,)
    dropped = np.asarray(layer(*inputs, training=True))
    assert np.abs(dropped - np.asarray(layer(*inputs))).max() > 1e-3


def test_equal_seeds_drop_the_same_and_sublayers_drop_differently():
    x = np.ones((B, T, D), "float32")
    one, two = (EncoderLayer(D, H, F, 0.5, seed=5) for _ in range(2))
    one(x), two(x)
    two.set_weights(one.get_weights())
    np.testing.assert_array_equal(one(x, training=True), two(x, training=True))
    first = one.self_attention_dropout(x, training=True)
    second = one.feed_forward_dropout(x, training=True)
    assert np.any(np.asarray(first) != np.asarray(second))


def test_errors_name_what_was_received():
    with pytest.raises(ValueError, match="d_model=14, num_heads=3"):
        EncoderLayer(14, 3, 5)
    with pytest.raises(ValueError, match="num_heads=0"):
        EncoderLayer(14, 0, 5)
    with pytest.raises(ValueError, match="key_dim=0"):
        EncoderLayer(14, 2, 5, key_dim=0)
    with pytest.raises(ValueError, match=r"x.shape=\(2, 3, 4\), d_model=14"):
        EncoderLayer(14, 2, 5)(random(2, 3, 4))
    with pytest.raises(ValueError, match="d_ff=0"):
        FeedForward(3, 0)


class Deeper(EncoderLayer):
    """Has no constructor of its own."""


@pytest.mark.parametrize("layer_class", [EncoderLayer, DecoderLayer, Deeper])
def test_signatures_show_every_argument_with_its_default(layer_class):
    parameters = inspect.signature(layer_class).parameters
    assert list(parameters)[:3] == ["d_model", "num_heads", "d_ff"]
    assert parameters["dropout_rate"].default == 0.1
    assert parameters["sliding_window"].default is None
    assert "args" not in parameters


@pytest.mark.parametrize(
    ("layer_class", "arguments", "missing"),
    [
        (EncoderLayer, {"d_model": 64, "num_heads": 4, "dff": 128}, "d_ff"),
        (DecoderLayer, {"d_model": 64, "num_heads": 4, "dff": 128}, "d_ff"),
        (Deeper, {"d_model": 64, "num_heads": 4, "dff": 128}, "d_ff"),
        (FeedForward, {"d_model": 64, "dff": 128}, "d_ff"),
        (MultiHeadAttention, {"num_heads": 4, "keydim": 3}, "key_dim"),
        (PositionalEmbedding, {"vocab": 7, "d_model": 64}, "vocab_size"),
        (FeatureEmbedding, {"width": 64}, "d_model"),
    ],
)
def test_a_misspelt_argument_is_named_by_the_layer(
    layer_class, arguments, missing
):
    mistake = next(
        iter(arguments.keys() - inspect.signature(layer_class).parameters)
    )
    expected = (
        f"{layer_class.__name__} has no argument {mistake}. Expected: "
        f".*{missing}.*Received: {mistake}={arguments[mistake]}"
    )
    with pytest.raises(TypeError, match=expected):
        layer_class(**arguments)
    # Where none is missing, Keras names the layer and the mistake.
    arguments[missing] = arguments.get(missing, 8)
    with pytest.raises(ValueError, match=f"{layer_class.__name__}.*{mistake}"):
        layer_class(**arguments)
    del arguments[missing], arguments[mistake]
    expected = f"{layer_class.__name__}: missing a required argument"
    with pytest.raises(TypeError, match=expected):
        layer_class(**arguments, name="layer")


@pytest.mark.parametrize("layer_class", [EncoderLayer, DecoderLayer])
def test_dropout_leaves_the_residual_connections(layer_class):
    """Section 5.4: "dropout to the output of each sub-layer, before it is
    added to the sub-layer input"."""
    layer = layer_class(D, H, F, 0.5, norm_first=True)
    inputs = (random(B, T, D), random(B, S, D))
    inputs = inputs[: 1 + (layer_class is DecoderLayer)]
    layer(*inputs)
    for sub in layer._flatten_layers():
        if sub.name in ("output", "outer"):  # the last of each sub-layer
            sub.set_weights([0 * weight for weight in sub.get_weights()])
    np.testing.assert_array_equal(layer(*inputs, training=True), inputs[0])


def test_mask_is_another_name_of_x_mask():
    layer = DecoderLayer(D, H, F)
    memory = random(B, S, D)
    embedding = keras.layers.Embedding(7, D, mask_zero=True)
    x = embedding(np.array([[0, 3, 5], [4, 0, 0]]))  # has an implicit mask
    mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
    np.testing.assert_array_equal(
        layer(x, memory, mask=mask), layer(x, memory, x_mask=mask)
    )


def test_memory_that_is_projected_first_names_no_weight_otherwise():
    layer, other = DecoderLayer(D, H, F), DecoderLayer(D, H, F)
    layer.project_memory(random(B, S, D + 3))
    other(random(B, T, D), random(B, S, D + 3))
    names = [weight.path.partition("/")[2] for weight in layer.weights]
    assert names == [weight.path.partition("/")[2] for weight in other.weights]
