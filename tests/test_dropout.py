"""Checks what dropout keeps and how often, and that seeds determine it."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.layers.normalization import Dropout


def dropped(rate, shape, seed=1, **kwargs):
    layer = Dropout(rate, seed=seed, **kwargs)
    return ops.convert_to_numpy(layer(np.ones(shape), training=True))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_a_number_is_dropped_with_its_probability(rate):
    found = dropped(rate, (997, 1009))
    share, size = np.mean(found == 0), found.size
    assert abs(share - rate) < 5 * np.sqrt(rate * (1 - rate) / size)
    kept = found[found != 0]
    np.testing.assert_allclose(kept, 1 / (1 - rate), rtol=2e-5)


def test_neighbours_are_dropped_independently():
    """Two neighbours share one random number of 32 bits."""
    dropped_at = dropped(0.5, (10**6,)) == 0
    for apart in (1, 2, 3):
        both = np.mean(dropped_at[:-apart] & dropped_at[apart:])
        assert abs(both - 0.25) < 5 * np.sqrt(0.25 * 0.75 / len(dropped_at))


@pytest.mark.parametrize("shape", [(), (1,), (7, 5, 3), (2, 0, 3)])
def test_any_shape_is_kept(shape):
    assert dropped(0.2, shape).shape == shape


def test_equal_seeds_draw_the_same_mask_and_each_call_a_new_one():
    layer, twin = Dropout(0.5, seed=3), Dropout(0.5, seed=3)
    x = np.ones((7, 11))
    first, second = (layer(x, training=True) for _ in range(2))
    np.testing.assert_array_equal(first, twin(x, training=True))
    assert np.any(np.asarray(first) != np.asarray(second))
    assert np.any(np.asarray(first) != dropped(0.5, (7, 11), seed=4))


def test_each_replica_draws_its_own_mask():
    """Both have one seed, with which a second layer draws both masks again."""
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])

    def drawn():
        with strategy.scope():
            layer = Dropout(0.5, seed=3)
        found = strategy.run(
            tf.function(lambda: layer(tf.ones(9973), training=True))
        )
        return np.array(strategy.experimental_local_results(found)) == 0

    one, other = drawn()
    both = np.mean(one & other)  # a quarter, where they are independent
    assert abs(both - 0.25) < 5 * np.sqrt(0.25 * 0.75 / len(one))
    np.testing.assert_array_equal(drawn(), [one, other])


def test_rates_zero_and_one_inference_and_noise_shape_are_obeyed():
    x = np.ones((7, 11), "float32")
    np.testing.assert_array_equal(Dropout(0.0)(x, training=True), x)
    np.testing.assert_array_equal(Dropout(1.0)(x, training=True), 0 * x)
    np.testing.assert_array_equal(Dropout(0.9)(x), x)
    found = dropped(0.5, (7, 11), noise_shape=(7, 1))
    np.testing.assert_array_equal(found, found[:, :1] * x)


def test_xla_can_compile_the_layer():
    layer = Dropout(0.5, seed=1)
    found = tf.function(lambda x: layer(x, training=True), jit_compile=True)(
        np.ones((97, 101), "float32")
    )
    assert set(np.unique(found)) == {0, 2}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_gradient_is_dropped_where_the_value_was(dtype):
    layer = Dropout(0.3, seed=1, dtype=dtype)
    x = tf.Variable(tf.ones((7, 11), dtype))

    @tf.function
    def both():
        with tf.GradientTape() as tape:
            y = layer(x, training=True)
        return y, tape.gradient(y, x)

    y, gradient = both()
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, gradient)
