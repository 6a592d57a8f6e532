"""Normalisation and dropout as in Keras, faster on TensorFlow.

Section 3.1 of the paper and Ba et al. (2016), Zhang and Sennrich (2019);
section 5.4 and Srivastava et al. (2014).
"""

from typing import Any

import keras
from keras import KerasTensor, ops

from keras_transformer.layers.arguments import exact_dtype


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """Applies `keras.layers.LayerNormalization`, faster on TensorFlow.

    On TensorFlow the operations are in an order whose gradient takes fewer
    passes over the numbers.
    """

    def call(self, inputs: KerasTensor) -> KerasTensor:
        last_axis = list(self.axis) in ([-1], [len(inputs.shape) - 1])
        if (
            keras.backend.backend() != "tensorflow"
            or not last_axis
            or self.gamma is None
            or self.beta is None
        ):
            return super().call(inputs)
        dtype = exact_dtype(inputs.dtype)
        x = ops.cast(inputs, dtype)
        x = x - _mean(x)
        x = x * ops.rsqrt(_mean(ops.square(x)) + self.epsilon)
        x = x * ops.cast(self.gamma, dtype) + ops.cast(self.beta, dtype)
        return ops.cast(x, self.compute_dtype)


def _mean(x):
    return ops.mean(x, axis=-1, keepdims=True)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RMSNormalization(keras.layers.RMSNormalization):
    """Applies `keras.layers.RMSNormalization`, and passes masks on."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True


# Layers that normalise, by the names that `EncoderLayer` and
# `TransformerConfig` give them.
NORMALIZATIONS = {"layer": LayerNormalization, "rms": RMSNormalization}


class Dropout(keras.layers.Dropout):
    """Applies `keras.layers.Dropout`, faster on TensorFlow.

    On TensorFlow it draws 16 random bits for each number instead of 32, since
    drawing them takes a twentieth of a small model's step. The rate is then
    rounded to a multiple of 2⁻¹⁶, and each replica of a distribution strategy
    draws its own numbers.
    """

    def call(self, inputs: KerasTensor, training: bool = False) -> KerasTensor:
        threshold = round(self.rate * 2**16)
        if (
            keras.backend.backend() != "tensorflow"
            or not training
            or self.noise_shape is not None
            or not 0 < threshold < 2**16
        ):
            return super().call(inputs, training=training)
        bits = _random_bits_for(inputs, self.seed_generator.next())
        # The probability that a number is kept is exactly 1 / scale, so the
        # mean stays.
        scale = 2**16 / (2**16 - threshold)
        return ops.where(bits >= threshold, inputs * scale, 0)


def _random_bits_for(x, seed):
    """Returns random uint16 numbers of the shape of `x`."""
    import tensorflow as tf

    shape, size = tf.shape(x), tf.size(x)
    seed = tf.cast(seed, tf.int32)
    replica = tf.distribute.get_replica_context()
    if replica is not None and replica.num_replicas_in_sync > 1:
        # The generator's state is the same on all replicas.
        seed = tf.random.experimental.stateless_fold_in(
            seed, replica.replica_id_in_sync_group
        )
    pairs = tf.random.stateless_uniform(
        [(size + 1) // 2], seed, None, None, tf.uint32
    )
    bits = tf.reshape(tf.bitcast(pairs, tf.uint16), [-1])
    return tf.reshape(bits[:size], shape)
