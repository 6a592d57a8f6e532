"""Masks: which position may attend to which. True = may attend.

Shapes: B batch, T query length, S key length.
"""

from keras import ops

# A finite stand-in for minus infinity: half of float32's lowest value, so
# that neither a subtraction nor a fully masked row can produce NaN.
LOWEST = -1.7e38


def padding_mask(token_ids, pad_id=0):
    """Marks the real tokens.

    Example:

    >>> from keras import ops
    >>> mask = padding_mask(ops.convert_to_tensor([[7, 5, 3, 0, 0]]))
    >>> print(ops.convert_to_numpy(mask))
    [[ True  True  True False False]]

    Args:
        token_ids: integer tensor of shape `(B, S)`.
        pad_id: the id that stands for "nothing here". Defaults to 0.

    Returns:
        Boolean tensor of shape `(B, S)`.
    """
    return ops.not_equal(token_ids, pad_id)


def causal_mask(query_length, key_length=None, offset=0):
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
            works step by step passes the number of tokens it has produced.

    Returns:
        Boolean tensor of shape `(1, T, S)`.
    """
    key_length = query_length if key_length is None else key_length
    queries = ops.expand_dims(ops.arange(query_length), 1) + offset  # [T, 1]
    keys = ops.expand_dims(ops.arange(key_length), 0)  # [1, S]
    return ops.expand_dims(ops.less_equal(keys, queries), 0)


def combine_masks(*masks):
    """The conjunction of the masks that are not `None`, or `None`.

    Each mask is broadcastable to `(B, T, S)`; numbers count as true where
    they are not zero.
    """
    combined = None
    for mask in masks:
        if mask is None:
            continue
        mask = ops.cast(mask, "bool")
        combined = mask if combined is None else combined & mask
    return combined


def check_padding_masks(**masks):
    """Checks that masks of padding have shape `(B, T)`.

    Raises:
        ValueError: names the mask that has not.
    """
    for name, mask in masks.items():
        if mask is not None and len(ops.shape(mask)) != 2:
            raise ValueError(
                f"`{name}` marks the real positions and must have shape "
                "(batch, length). Received: "
                f"{name}.shape={tuple(ops.shape(mask))}. A mask of queries and "
                "keys goes by `attention_mask`."
            )


def of_queries(mask):
    """Returns a mask of queries `(B, T)` as `(B, T, 1)`, or `None`."""
    return None if mask is None else ops.expand_dims(mask, -1)


def of_keys(mask):
    """Returns a mask of keys `(B, S)` as `(B, 1, S)`, or `None`."""
    return None if mask is None else ops.expand_dims(mask, -2)


def per_head(mask):
    """Returns a mask `(B, T, S)` as `(B, 1, T, S)`, or `None`. A mask that has
    an axis of heads stays."""
    if mask is None or len(mask.shape) == 4:
        return mask
    return ops.expand_dims(mask, -3)
