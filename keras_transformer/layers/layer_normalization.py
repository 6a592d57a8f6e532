"""Layer normalisation: section 3.1 of the paper, Ba et al. (2016)."""

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
