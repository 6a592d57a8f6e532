"""Arguments of a search, which may be numbers or tensors of a graph."""

import tensorflow as tf

from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.search.next_token import number


def checked(
    settings: SearchSettings,
    beam_size: int | tf.Tensor,
    alpha: float | tf.Tensor,
    max_length: int | tf.Tensor,
) -> list:
    """Checks the arguments and returns them.

    Tensors depend on the checks in the graph, so that nothing is allocated
    before.

    Raises:
        ValueError: if a number is out of range. If it is a tensor, the graph
            raises a `tf.errors.InvalidArgumentError`.
    """
    checks, values = [], []
    for name, value, dtype, low, high in (
        ("beam_size", beam_size, tf.int32, 1, settings.max_beam_size),
        ("alpha", alpha, tf.float32, 0.0, float("inf")),
        ("max_length", max_length, tf.int32, 1, tf.int32.max),
    ):
        value = tf.cast(value, dtype) if tf.is_tensor(value) else number(value)
        values.append(value)
        holds = (value >= low) & (value <= high)
        message = f"`{name}` must be at least {low}, at most {high}."
        if tf.is_tensor(value):
            checks.append(tf.debugging.Assert(holds, [message, value]))
        elif not holds:
            raise ValueError(f"{message} Received: {name}={value}")
    with tf.control_dependencies(checks):
        return [tf.identity(x) if tf.is_tensor(x) else x for x in values]
