"""Masks: which position may attend to which. True = may attend.

Shapes: B batch, T query length, S key length.
"""

from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_transformer.layers.arguments import (
    before_axes,
    int32_index,
    known_values,
)

# A finite stand-in for minus infinity: half of float32's lowest value, so
# that neither a subtraction nor a fully masked row can produce NaN.
LOWEST = -1.7e38


def padding_mask(token_ids: KerasTensor, pad_id: int = 0) -> KerasTensor:
    """Returns a mask that is True at real tokens and False at padding.

    Example:

    >>> from keras import ops
    >>> mask = padding_mask(ops.convert_to_tensor([[7, 5, 3, 0, 0]]))
    >>> print(ops.convert_to_numpy(mask))
    [[ True  True  True False False]]

    Args:
        token_ids: integer tensor of shape `(B, S)`.
        pad_id: the id of padding. Defaults to 0.

    Returns:
        Boolean tensor of shape `(B, S)`.
    """
    return ops.not_equal(token_ids, pad_id)


def causal_mask(
    query_length: int | KerasTensor,
    key_length: int | KerasTensor | None = None,
    offset: int | KerasTensor = 0,
) -> KerasTensor:
    """Returns a mask that hides later positions: section 3.1, "prevent
    positions from attending to subsequent positions".

    Example:

    >>> from keras import ops
    >>> print(ops.convert_to_numpy(causal_mask(3))[0].astype(int))
    [[1 0 0]
     [1 1 0]
     [1 1 1]]
    >>> print(ops.convert_to_numpy(causal_mask(2, 5, offset=2))[0].astype(int))
    [[1 1 1 0 0]
     [1 1 1 1 0]]

    Args:
        query_length: T, an integer or scalar tensor.
        key_length: S. Defaults to `query_length`.
        offset: the position of the first query among the keys, a scalar, or
            `(B,)` for rows that differ. A decoder that works step by step
            passes the number of tokens produced so far.

    Returns:
        Boolean tensor of shape `(1, T, S)`, or `(B, T, S)`.
    """
    key_length = query_length if key_length is None else key_length
    offset = before_axes(int32_index(offset), 2)
    queries = ops.arange(query_length, dtype="int32")[None, :, None] + offset
    keys = ops.arange(key_length, dtype="int32")[None, None]  # [1, 1, S]
    return ops.less_equal(keys, queries)


def combine_masks(*masks: KerasTensor | None) -> KerasTensor | None:
    """Returns the logical "and" of the masks that are not `None`.

    Example:

    >>> import numpy as np
    >>> padding = np.array([[[True, True, False]]])  # (B, 1, S)
    >>> print(np.asarray(combine_masks(padding, causal_mask(3), None)))
    [[[ True False False]
      [ True  True False]
      [ True  True False]]]

    Returns `None` if all of them are. The masks must be broadcastable to one
    shape; in a numeric mask 1 means True, 0 False, and anything else is an
    error.
    """
    combined = None
    for mask in masks:
        if mask is None:
            continue
        mask = as_mask(mask)
        combined = mask if combined is None else combined & mask
    return combined


def as_mask(mask: Any) -> KerasTensor:
    """Returns a mask, which may be a list or numeric, as booleans.

    Raises:
        ValueError: if a number in it, as far as is known before the program
            runs, is neither 0 nor 1.
    """
    if isinstance(mask, list | tuple):
        mask = ops.convert_to_tensor(mask)
    if keras.backend.standardize_dtype(mask.dtype) == "bool":
        return mask
    values = known_values(mask)
    if values is not None:
        other = values[(values != 0) & (values != 1)]
        if other.size:
            raise ValueError(
                "A mask must be True, or 1, where a position may be attended "
                f"to. Received: a mask with the value {other.flat[0]}. Of one "
                "that is added to the scores, pass `mask == 0`."
            )
    return ops.cast(mask, "bool")


def check_padding_masks(**masks: tuple[Any, Any]) -> None:
    """Checks that padding masks have shape `(B, T)`.

    Args:
        masks: for each name the mask, and the sequence `(B, T, D)` that it is
            of. Either may be `None`.

    Raises:
        ValueError: if a mask has another shape; the message names it.
    """
    for name, (mask, sequence) in masks.items():
        if mask is None:
            continue
        shape: Any
        shape = np.shape(mask) if isinstance(mask, list | tuple) else mask.shape
        if len(shape) != 2:
            raise ValueError(
                f"`{name}` marks the real positions and must have shape "
                f"(batch, length). Received: {name}.shape={tuple(shape)}. Pass "
                "a mask of queries and keys as `attention_mask`."
            )
        length: Any = None if sequence is None else sequence.shape[1]
        if None not in (length, shape[1]) and shape[1] != length:
            raise ValueError(
                f"`{name}` must have a value for each of the {length} "
                f"positions. Received: {name}.shape={tuple(shape)}."
            )


def check_pair_mask(mask: Any, query: Any, value: Any) -> None:
    """Checks that a mask has a value for each pair of a query and a key, or
    one for all along an axis.

    Raises:
        ValueError: if it has another number of them.
    """
    if mask is None or value is None:
        return
    shape: Any
    shape = np.shape(mask) if isinstance(mask, list | tuple) else mask.shape
    lengths = query.shape[1], value.shape[1]
    for size, length in zip(shape[-2:], lengths, strict=False):
        if None not in (size, length) and size not in (1, length):
            raise ValueError(
                "`attention_mask` must have a value for each of the "
                f"{lengths[0]} queries and {lengths[1]} keys, or 1 along an "
                f"axis. Received: attention_mask.shape={tuple(shape)}."
            )


def pair_masks(
    query_mask: KerasTensor | None,
    value_mask: KerasTensor | None,
    key_mask: KerasTensor | None,
) -> list[KerasTensor]:
    """Returns the padding masks that are not `None` as masks of pairs of a
    query and a key, broadcastable to `(B, T, S)`."""
    masks = []
    if query_mask is not None:
        masks.append(ops.expand_dims(as_mask(query_mask), -1))  # [B, T, 1]
    for mask in (value_mask, key_mask):
        if mask is not None:
            masks.append(ops.expand_dims(as_mask(mask), -2))  # [B, 1, S]
    return masks


def with_head_axis(mask: KerasTensor | None) -> KerasTensor | None:
    """Returns a mask `(B, T, S)` or `(T, S)` as `(B, 1, T, S)`, and `None` or
    a mask that has an axis of heads as it is."""
    if mask is None:
        return None
    mask = as_mask(mask)
    if len(mask.shape) == 4:
        return mask
    mask = ops.expand_dims(mask, -3)
    return mask if len(mask.shape) == 4 else mask[None]
