"""Arguments of a search, which may be numbers or tensors of a graph."""

import tensorflow as tf

from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.search.next_token import python_number


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
        ValueError: if a number is out of range, or a tensor has another dtype.
            If a tensor is out of range, the graph raises a
            `tf.errors.InvalidArgumentError`.
    """
    checks, values = [], []
    for name, value, dtype, low, high in (
        ("beam_size", beam_size, tf.int32, 1, settings.max_beam_size),
        ("alpha", alpha, tf.float32, 0.0, float("inf")),
        ("max_length", max_length, tf.int32, 1, tf.int32.max),
    ):
        value = python_number(value)
        message = f"`{name}` must be at least {low}, at most {high}."
        if not tf.is_tensor(value):
            if not low <= value <= high:
                raise ValueError(f"{message} Received: {name}={value}")
            values.append(value)
            continue
        if dtype.is_integer and not value.dtype.is_integer:
            raise ValueError(
                f"`{name}` must be an integer. Received: {name}={value}"
            )
        # Compared in the widest dtype: a cast to the narrow one would wrap a
        # number that is too large.
        wide = tf.cast(value, tf.int64 if dtype.is_integer else tf.float64)
        holds = (wide >= low) & (wide <= high)
        checks.append(tf.debugging.Assert(holds, [message, value]))
        values.append(tf.cast(value, dtype))
    with tf.control_dependencies(checks):
        return [tf.identity(x) if tf.is_tensor(x) else x for x in values]
