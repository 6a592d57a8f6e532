"""Checks of the arguments of a search, in Python or in its graph."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.search.next_token import python_number


def checked_in_graph(
    limits: Sequence[tuple[str, Any, tf.DType, Any, Any]],
) -> list:
    """Checks the arguments of a search and returns them.

    Tensors depend on the checks in the graph, so that nothing is allocated
    before.

    Args:
        limits: the name of each argument, its value, dtype, minimum and
            maximum.

    Returns:
        The values: numbers, or tensors of that dtype.

    Raises:
        ValueError: if a number is out of range, or a tensor has another dtype.
            If a tensor is out of range, the graph raises a
            `tf.errors.InvalidArgumentError`.
    """
    checks, values = [], []
    for name, value, dtype, low, high in limits:
        value = python_number(value)
        message = f"`{name}` must be at least {low}, at most {high}."
        is_tensor = tf.is_tensor(value)
        if dtype.is_integer and not (
            value.dtype.is_integer if is_tensor else isinstance(value, int)
        ):
            raise ValueError(
                f"`{name}` must be an integer. Received: {name}={value}"
            )
        if not is_tensor:
            if not low <= value <= high:
                raise ValueError(f"{message} Received: {name}={value}")
            values.append(value)
            continue
        # Compared in the widest dtype: a cast to the narrow one would wrap a
        # number that is too large.
        wide = tf.cast(value, tf.int64 if dtype.is_integer else tf.float64)
        holds = (wide >= low) & (wide <= high)
        checks.append(tf.debugging.Assert(holds, [message, value]))
        values.append(tf.cast(value, dtype))
    with tf.control_dependencies(checks):
        return [tf.identity(x) if tf.is_tensor(x) else x for x in values]
