"""Masks: which position may attend to which. True = may attend.

Shapes: B batch, T query length, S key length.
"""

from keras import KerasTensor, ops

from keras_transformer.layers.arguments import int32_index

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
        offset: the position of the first query among the keys. A decoder that
            works step by step passes the number of tokens produced so far.

    Returns:
        Boolean tensor of shape `(1, T, S)`.
    """
    key_length = query_length if key_length is None else key_length
    offset = int32_index(offset)
    queries = ops.arange(query_length, dtype="int32")[:, None] + offset
    keys = ops.arange(key_length, dtype="int32")[None]  # [1, S]
    return ops.expand_dims(ops.less_equal(keys, queries), 0)


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
    shape; in a numeric mask every number but zero means True.
    """
    combined = None
    for mask in masks:
        if mask is None:
            continue
        mask = ops.cast(mask, "bool")
        combined = mask if combined is None else combined & mask
    return combined


def check_padding_masks(**masks: KerasTensor | None) -> None:
    """Checks that padding masks have shape `(B, T)`.

    Raises:
        ValueError: if a mask has another shape; the message names it.
    """
    for name, mask in masks.items():
        if mask is not None and len(ops.shape(mask)) != 2:
            raise ValueError(
                f"`{name}` marks the real positions and must have shape "
                "(batch, length). Received: "
                f"{name}.shape={tuple(ops.shape(mask))}. Pass a mask of queries"
                " and keys as `attention_mask`."
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
        masks.append(ops.expand_dims(query_mask, -1))  # [B, T, 1]
    for mask in (value_mask, key_mask):
        if mask is not None:
            masks.append(ops.expand_dims(mask, -2))  # [B, 1, S]
    return masks


def with_head_axis(mask: KerasTensor | None) -> KerasTensor | None:
    """Returns a mask `(B, T, S)` or `(T, S)` as `(B, 1, T, S)`, and `None` or
    a mask that has an axis of heads as it is."""
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)  # it may be a list
    if len(mask.shape) == 4:
        return mask
    mask = ops.expand_dims(mask, -3)
    return mask if len(mask.shape) == 4 else mask[None]
