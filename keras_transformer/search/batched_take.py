"""Indexing by row, with a faster implementation on TensorFlow."""

import keras
from keras import KerasTensor, ops


def batched_take(values: KerasTensor, indices: KerasTensor) -> KerasTensor:
    """Takes elements of each row by the row's own indices.

    Args:
        values: `(B, n, …)`.
        indices: integers `(B, m)` in [0, n).

    Returns:
        `(B, m, …)`, in the dtype of `values`.
    """
    if keras.backend.backend() == "tensorflow":
        # One operation. `take_along_axis` is 25 operations on TensorFlow, a
        # third of all operations in a step of a small model.
        import tensorflow as tf

        return tf.gather(values, indices, batch_dims=1)
    width = [1] * (len(values.shape) - 2)
    indices = ops.reshape(indices, (*ops.shape(indices), *width))
    return ops.take_along_axis(values, indices, axis=1)
