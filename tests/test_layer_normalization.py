"""Compares layer normalisation and its gradients with Keras' own layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.layers.normalization import LayerNormalization


def pair(shape, **kwargs):
    """Returns our layer and Keras' with the same random weights."""
    layers = (
        LayerNormalization(**kwargs),
        keras.layers.LayerNormalization(**kwargs),
    )
    rng = np.random.default_rng(1)
    for layer in layers:
        layer.build(shape)
    weights = [rng.normal(size=w.shape) for w in layers[0].get_weights()]
    for layer in layers:
        layer.set_weights(weights)
    return layers


def numbers(*shape):
    return np.random.default_rng(2).normal(3.0, 5.0, size=shape)


def with_gradients(layer, x):
    x = tf.Variable(tf.cast(x, layer.compute_dtype))
    factors = numbers(*x.shape)
    with tf.GradientTape() as tape:
        y = layer(x)
        total = tf.reduce_sum(tf.cast(y, tf.float64) * factors)
    variables = [x, *(w.value for w in layer.trainable_weights)]
    return [y, *tape.gradient(total, variables)]


@pytest.mark.parametrize("shape", [(7, 11), (2, 3, 11), (2, 0, 11)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float64", 1e-10), ("float32", 2e-5), ("mixed_bfloat16", 0.02)],
)
def test_values_and_gradients_are_those_of_keras(shape, dtype, tolerance):
    ours, theirs = pair(shape, epsilon=1e-3, dtype=dtype)
    x = numbers(*shape)
    for one, other in zip(
        with_gradients(ours, x), with_gradients(theirs, x), strict=True
    ):
        assert one.dtype == other.dtype
        one, other = tf.cast(one, tf.float64), tf.cast(other, tf.float64)
        scale = np.max(np.abs(other), initial=1.0)
        np.testing.assert_allclose(one, other, atol=tolerance * scale)


@pytest.mark.parametrize(
    "kwargs", [{"axis": 1}, {"axis": (1, 2)}, {"center": False, "scale": False}]
)
def test_other_axes_and_missing_weights_give_the_values_of_keras(kwargs):
    ours, theirs = pair((2, 3, 5), **kwargs)
    x = numbers(2, 3, 5).astype("float32")
    np.testing.assert_array_equal(ours(x), theirs(x))


def test_a_model_with_the_layer_can_be_saved_and_exported(tmp_path):
    inputs = keras.Input((None, 5))
    model = keras.Model(inputs, LayerNormalization()(inputs))
    x = numbers(2, 3, 5).astype("float32")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model(x), loaded(x))
    model.export(tmp_path / "1", verbose=False)
    served = tf.saved_model.load(tmp_path / "1")
    np.testing.assert_allclose(model(x), served.serve(x), atol=1e-6)
