"""Checks restricted self-attention, section 4, on any Keras backend."""

import functools

import keras
import numpy as np
import paper
import pytest
from conformance import compiled_on_jax, random, with_seeded_weights
from keras import ops

import keras_transformer as kt
from keras_transformer.layers.attention import scaled_dot_product_attention
from keras_transformer.layers.windowed_attention import windowed_attention

BACKEND = keras.backend.backend()
B, T, D, H = 2, 23, 14, 2
# JAX compiles a program for every shape.
CASES = range(200) if BACKEND != "jax" else range(0, 200, 10)


def numpy_of(x):
    return ops.convert_to_numpy(x)


def assert_close(found, expected, tolerance=1e-6):
    np.testing.assert_allclose(
        numpy_of(found), numpy_of(expected), rtol=tolerance, atol=tolerance
    )


def band(length, window, causal):
    """Returns the mask `(T, T)` of the window."""
    distance = np.arange(length)[:, None] - np.arange(length)
    after = 0 if causal else window // 2
    return (-after <= distance) & (distance <= window // 2)


def gradients(function, inputs):
    """Returns the gradients of the sum of sines of the function's output.

    A query that sees a single key has none, and gets zeros.
    """
    if BACKEND == "tensorflow":
        import tensorflow as tf

        inputs = [tf.constant(x) for x in inputs]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(tf.sin(function(*inputs)))
        return tape.gradient(total, inputs, unconnected_gradients="zero")
    if BACKEND == "jax":
        import jax

        def total(*inputs):
            return ops.sum(ops.sin(function(*inputs)))

        places = tuple(range(len(inputs)))
        return jax.jit(jax.grad(total, places))(*inputs)
    import torch

    inputs = [torch.tensor(x, requires_grad=True) for x in inputs]
    total = function(*inputs).sin().sum()
    return torch.autograd.grad(
        total, inputs, allow_unused=True, materialize_grads=True
    )


# === Equal to full attention ===


def random_case(seed):
    """Returns keys, values, a window and masks of random shapes."""
    rng = np.random.default_rng(seed)
    batch, heads = rng.integers(1, 4, size=2)
    length = int(rng.choice([1, 2, 3, 5, 7, 11, 13, 29, 31]))
    window = 2 * int(rng.choice([1, 2, 3, 4, 5, 7, 16]))
    shape = (batch, heads, length)
    widths = (3, 3, 5)
    inputs = [rng.normal(size=(*shape, w)).astype("float32") for w in widths]
    masks = [
        rng.random((batch, 1, length)) > 0.3,  # of keys
        rng.random((batch, length, 1)) > 0.2,  # of queries
        rng.random((batch, length, length)) > 0.3,
        rng.random((batch, heads, length, length)) > 0.3,
        rng.random((1, heads, 1, length)) > 0.3,
        rng.random((length, length)) > 0.3,
        rng.random((batch, 1, 1, 1)) > 0.3,
        None,
    ]
    count = rng.integers(0, 4)
    chosen = [masks[i] for i in rng.permutation(len(masks))[:count]]
    return inputs, window, bool(rng.integers(2)), chosen


@pytest.mark.parametrize("seed", CASES)
def test_blocks_equal_full_attention_under_the_mask_of_the_window(seed):
    inputs, window, causal, masks = random_case(seed)
    every = band(inputs[0].shape[2], window, causal)
    for mask in masks:
        if mask is not None:
            mask = mask[:, None] if mask.ndim == 3 else mask
            every = every & mask
    masks = [m if m is None else ops.convert_to_tensor(m) for m in masks]

    def blocks(*inputs):
        return windowed_attention(*inputs, window, causal, masks)

    def full(*inputs):
        mask = ops.convert_to_tensor(every)
        return scaled_dot_product_attention(*inputs, mask)[0]

    tensors = [ops.convert_to_tensor(x) for x in inputs]
    found = compiled_on_jax(blocks)(*tensors)
    assert_close(found, compiled_on_jax(full)(*tensors))
    if seed % 5 == 0:
        pairs = zip(
            gradients(blocks, inputs), gradients(full, inputs), strict=True
        )
        for one, other in pairs:
            assert_close(one, other)


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_are_the_definition_of_section_4(causal):
    q, k, v = random(B, H, T, 3), random(B, H, T, 3), random(B, H, T, 5)
    mask = np.random.default_rng(1).random((B, T)) > 0.3
    found = compiled_on_jax(
        functools.partial(windowed_attention, window=6, causal=causal)
    )(*map(ops.convert_to_tensor, (q, k, v)), masks=[mask[:, None]])
    expected = paper.restricted_attention(q, k, v, 6, mask, causal)
    assert_close(found, expected, 1e-5)


if BACKEND == "tensorflow":

    def test_float64_stays_exact():
        inputs = [random(B, H, T, 3).astype("float64") for _ in range(3)]
        found = windowed_attention(*map(ops.convert_to_tensor, inputs), 6)
        mask = np.ones((B, T), bool)
        expected = paper.restricted_attention(*inputs, 6, mask)
        assert_close(found, expected, 1e-13)
