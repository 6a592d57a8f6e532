"""Compares multi-head attention with the paper and with Keras' own layer."""

import keras
import numpy as np
import paper
import pytest
from conformance import assert_close, numpy_of, random, with_seeded_weights
from keras import ops

from keras_transformer import MultiHeadAttention
from keras_transformer.layers import scaled_dot_product_attention
from keras_transformer.layers.attention import fused_attention

B, T, S, H, D, DK, DV = 2, 3, 5, 7, 11, 13, 17


def some_mask():
    mask = np.random.default_rng(5).random((B, T, S)) > 0.4
    mask[0, 1] = False  # a query that may attend to nothing
    return mask


def layer_and_inputs(**kwargs):
    layer = MultiHeadAttention(H, DK, DV, **kwargs)
    query, value, key = random(B, T, D), random(B, S, D), random(B, S, D + 2)
    layer(query, value, key)
    for weight in layer.weights:  # biases too
        weight.assign(0.3 * random(*weight.shape))
    return layer, (query, value, key)


@pytest.mark.parametrize("masked", [False, True])
def test_scaled_dot_product_attention_is_equation_1(masked):
    q, k, v = random(B, H, T, DK), random(B, H, S, DK), random(B, H, S, DV)
    mask = some_mask()[:, None] if masked else None
    found, weights = scaled_dot_product_attention(q, k, v, mask)
    np.testing.assert_allclose(found, paper.attention(q, k, v, mask), atol=1e-5)
    total = np.ones((B, H, T))
    if masked:
        assert (
            np.asarray(weights)[~np.broadcast_to(mask, (B, H, T, S))] == 0
        ).all()
        total[0, :, 1] = 0
    np.testing.assert_allclose(ops.sum(weights, axis=-1), total, atol=1e-6)


@pytest.mark.parametrize("heads", [None, 1, H])
def test_fused_attention_is_equation_1(heads):
    """Under no mask, one of all heads and one of each head."""
    q, k, v = random(B, H, T, DK), random(B, H, S, DK), random(B, H, S, DK)
    mask = heads
    if heads:
        mask = np.random.default_rng(5).random((B, heads, T, S)) > 0.4
        mask[0, 0, 1] = False  # a query that may attend to nothing
    found = fused_attention(q, k, v, mask)
    np.testing.assert_allclose(found, paper.attention(q, k, v, mask), atol=1e-5)


def test_multi_head_attention_is_section_3_2_2():
    layer, (query, value, key) = layer_and_inputs()
    mask = some_mask()
    weights = [ops.convert_to_numpy(w) for w in layer.weights]
    names = [w.path.split("/")[-2] for w in layer.weights[::2]]
    assert names == ["query", "key", "value", "output"]
    expected = paper.multi_head_attention(query, key, value, weights, H, mask)
    found = layer(query, value, key, attention_mask=mask)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"value_dim": DV, "use_bias": False},
        {"output_shape": 19, "dropout": 0.1, "seed": 3},
        {"activity_regularizer": "l2", "kernel_regularizer": "l1"},
    ],
    ids=str,
)
def test_from_keras_copies_the_layer_and_its_weights(arguments):
    theirs = keras.layers.MultiHeadAttention(H, DK, **arguments)
    with pytest.raises(ValueError, match="Call it first"):
        MultiHeadAttention.from_keras(theirs)
    query, value, key = (
        random(B, T, D),
        random(B, S, D + 1),
        random(B, S, D + 2),
    )
    theirs(query, value, key)
    for weight in theirs.weights:
        weight.assign(0.3 * random(*weight.shape))
    ours = MultiHeadAttention.from_keras(theirs)
    mask = some_mask()
    # With scores, so that a row without keys gives zeros there too.
    options = {"attention_mask": mask, "return_attention_scores": True}
    for mine, other in zip(
        ours(query, value, key, **options),
        theirs(query, value, key, **options),
        strict=True,
    ):
        np.testing.assert_allclose(mine, other, atol=1e-4)
    np.testing.assert_allclose(sum(ours.losses), sum(theirs.losses), rtol=1e-5)


REAL = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_grouped_queries_are_plain_ones_of_repeated_keys(groups):
    x, memory = random(B, T, D), random(B, S, D)
    grouped = MultiHeadAttention(6, DK, DV, num_key_value_heads=groups)
    plain = MultiHeadAttention(6, DK, DV)
    for layer in (grouped, plain):
        layer.build(x.shape, memory.shape)
    for weight, own in zip(
        plain.weights, with_seeded_weights(grouped).weights, strict=True
    ):
        own = numpy_of(ops.convert_to_tensor(own))
        if weight.shape != own.shape:
            heads = own.reshape(*own.shape[:-1], groups, -1)
            repeated = np.repeat(heads, 6 // groups, axis=-2)
            own = repeated.reshape(weight.shape)
        weight.assign(own)
    call = {"value_mask": REAL, "return_attention_scores": True}
    for found, expected in zip(
        grouped(x, memory, **call), plain(x, memory, **call), strict=True
    ):
        assert_close(found, expected)
    caches = [layer.empty_cache(B, T) for layer in (grouped, plain)]
    sizes = [sum(numpy_of(x).nbytes for x in c.values()) for c in caches]
    assert sizes[1] * groups == sizes[0] * 6


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_queries_are_those_of_keras(groups, causal):
    """`keras.layers.GroupQueryAttention` is another program."""
    x = random(B, S, D)
    theirs = keras.layers.GroupQueryAttention(DK, 6, groups)
    theirs.build(x.shape, x.shape)
    ours = MultiHeadAttention(6, DK, num_key_value_heads=groups)
    ours.build(x.shape)
    for weight, own in zip(
        theirs.weights, with_seeded_weights(ours).weights, strict=True
    ):
        weight.assign(ops.reshape(own, weight.shape))
    call = {"value_mask": REAL, "use_causal_mask": causal}
    assert_close(ours(x, x, **call), theirs(x, x, **call))


def test_normalised_queries_and_keys_have_no_length():
    """Only a bias would: multiplied by a number, they give the same."""
    x = random(B, S, D)
    layer = MultiHeadAttention(6, DK, qk_norm=True, use_bias=False)
    layer.build(x.shape)
    with_seeded_weights(layer)
    found = numpy_of(layer(x, x))
    for part in (layer.query_projection, layer.key_projection):
        part.kernel.assign(1000 * part.kernel)
    # An ε of 1e-6 is added to mean squares of about 1.
    assert_close(layer(x, x), found, 1e-4)


def test_arguments_have_the_names_and_order_of_keras():
    import inspect

    def names(function):
        return list(inspect.signature(function).parameters)

    ours, theirs = MultiHeadAttention, keras.layers.MultiHeadAttention
    shared = names(theirs.__init__)[:-1]  # before `kwargs`, ours follow
    assert names(ours.__init__)[: len(shared)] == shared
    # Positional arguments have the same order.
    shared = [n for n in names(theirs.call) if n in names(ours.call)]
    assert names(ours.call)[: len(shared)] == shared


def test_a_mask_may_differ_between_heads():
    _, (query, value, key) = layer_and_inputs()
    theirs = keras.layers.MultiHeadAttention(H, DK, DV)
    theirs(query, value, key)
    layer = MultiHeadAttention.from_keras(theirs)
    mask = np.random.default_rng(5).random((B, H, T, S)) > 0.3
    mask[..., 0] = True
    np.testing.assert_allclose(
        layer(query, value, key, attention_mask=mask),
        theirs(query, value, key, attention_mask=mask),
        atol=1e-4,
    )


def test_output_shape_may_be_a_tuple_of_one():
    layer = MultiHeadAttention(H, DK, output_shape=(19,))
    assert layer(random(B, T, D), random(B, S, D)).shape == (B, T, 19)
    with pytest.raises(ValueError, match=r"output_shape=\(2, 3\)"):
        MultiHeadAttention(H, DK, output_shape=(2, 3))


def test_a_query_without_keys_gives_the_output_bias_alone():
    layer, (query, value, key) = layer_and_inputs()
    found = layer(query, value, key, attention_mask=some_mask())
    np.testing.assert_array_equal(found[0, 1], layer.weights[-1])


def test_steps_with_a_cache_equal_the_full_pass():
    layer = MultiHeadAttention(H, DK, DV)
    x = random(B, 7, D)
    whole = layer(x, x, use_causal_mask=True)
    cache = layer.empty_cache(B, 11)
    pieces = []
    for start, end in ((0, 1), (1, 4), (4, 5), (5, 7)):
        part = x[:, start:end]
        piece, cache = layer(part, part, cache=cache, cache_index=start)
        pieces.append(ops.convert_to_numpy(piece))
    found = np.concatenate(pieces, axis=1)
    np.testing.assert_allclose(found, whole, atol=1e-5)


def test_several_rows_can_share_a_projected_memory():
    layer, (_, value, key) = layer_and_inputs()
    queries = random(3 * B, T, D)
    mask = np.random.default_rng(5).random((B, S)) > 0.3
    found = layer(
        queries,
        cache=layer.project(value, key),
        value_mask=mask,
        return_attention_scores=True,
    )
    expected = layer(
        queries,
        np.repeat(value, 3, axis=0),
        np.repeat(key, 3, axis=0),
        value_mask=np.repeat(mask, 3, axis=0),
        return_attention_scores=True,
    )
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_keys_may_be_projected_before_the_first_call():
    layer, (query, value, key) = layer_and_inputs()
    fresh = MultiHeadAttention.from_config(layer.get_config())
    fresh.project(value, key)
    fresh(query, cache=fresh.project(value, key))
    for mine, other in zip(fresh.weights, layer.weights, strict=True):
        mine.assign(other)
    np.testing.assert_allclose(
        fresh(query, cache=fresh.project(value, key)),
        layer(query, value, key),
        atol=1e-5,
    )


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_large_activations_stay_finite(policy):
    layer = MultiHeadAttention(2, 3, dtype=policy)
    x = 1000 * random(B, T, D)
    assert np.isfinite(
        ops.convert_to_numpy(ops.cast(layer(x, x), "float32"))
    ).all()


def test_errors_name_what_was_received():
    with pytest.raises(ValueError, match="Received: num_heads=0"):
        MultiHeadAttention(0, 3)
    with pytest.raises(ValueError, match=r"query.shape=\(2, 3\)"):
        MultiHeadAttention(2, 3)(random(2, 3), random(2, 3))


def test_an_index_needs_a_cache():
    layer, x = MultiHeadAttention(2, 4), random(2, 3, 5)
    with pytest.raises(ValueError, match=r"cache=None, cache_index=0"):
        layer(x, x, cache_index=0)


def test_output_shapes_are_computed_by_the_names_of_keras():
    for kind in (MultiHeadAttention, keras.layers.MultiHeadAttention):
        layer = kind(2, 4, output_shape=11)
        shapes = {"query_shape": (2, 3, 7), "value_shape": (2, 5, 13)}
        assert layer.compute_output_shape(**shapes) == (2, 3, 11)
