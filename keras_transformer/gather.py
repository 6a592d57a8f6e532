"""The one operation of a search that is written for a backend."""

import keras
from keras import ops


def gather(values, indices):
    """Values `(B, n, …)` at integers `(B, m)`, none of them negative:
    `(B, m, …)`, of the type of the values."""
    if keras.backend.backend() == "tensorflow":
        # One operation. `take_along_axis` is 25 there, and they were a third
        # of all in a step of a small model.
        import tensorflow as tf

        return tf.gather(values, indices, batch_dims=1)
    width = [1] * (len(values.shape) - 2)
    indices = ops.reshape(indices, (*ops.shape(indices), *width))
    return ops.take_along_axis(values, indices, axis=1)
