"""Scaled dot-product attention, section 3.2.1, as functions without weights.

Shapes: B batch, T query length, S key length, H heads, K d_k or d_v.
"""

import math
from collections.abc import Callable, Sequence

import keras
from keras import KerasTensor, ops

from keras_transformer.layers.arguments import (
    Cache,
    before_axes,
    exact_dtype,
    known_range,
)
from keras_transformer.layers.masks import (
    LOWEST,
    causal_mask,
    combine_masks,
    with_head_axis,
)
from keras_transformer.validation import checked_integer


def scaled_dot_product_attention(
    query: KerasTensor,
    key: KerasTensor,
    value: KerasTensor,
    mask: KerasTensor | None = None,
    dropout: Callable[[KerasTensor], KerasTensor] | None = None,
) -> tuple[KerasTensor, KerasTensor]:
    """Computes equation 1: Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V.

    Example:

    >>> import numpy as np
    >>> query, key = np.zeros((1, 1, 1, 4)), np.zeros((1, 1, 2, 4))
    >>> value = np.array([[[[1.0, 2.0], [3.0, 6.0]]]], "float32")
    >>> output, weights = scaled_dot_product_attention(query, key, value)
    >>> print(np.asarray(weights), np.asarray(output))
    [[[[0.5 0.5]]]] [[[[2. 4.]]]]

    Scores and softmax are computed in float32, or in float64 if the inputs
    are.

    Args:
        query: tensor of shape `(B, H, T, K)`.
        key: tensor of shape `(B, H, S, K)`.
        value: tensor of shape `(B, H, S, K)`.
        mask: boolean, broadcastable to `(B, H, T, S)`; True where a query may
            attend to a key. Defaults to `None`: queries attend to all keys.
        dropout: function that drops some of the weights, or `None`.

    Returns:
        The weighted values `(B, H, T, K)` and the weights `(B, H, T, S)`, both
        in the dtype of `value`. A query that may attend to no key gets zeros.
    """
    dtype = exact_dtype(query.dtype)
    query = ops.cast(query, dtype) / math.sqrt(query.shape[-1])
    key = ops.cast(key, dtype)
    scores = ops.matmul(query, ops.swapaxes(key, -2, -1))  # [B, H, T, S]
    if mask is not None:
        scores = ops.where(mask, scores, LOWEST)
    # Keras warns about a softmax over a single key, where the weight is 1.
    single = scores.shape[-1] == 1
    weights = ops.ones_like(scores) if single else ops.softmax(scores)
    if mask is not None:
        weights = weights * _attends_somewhere(mask, weights.dtype)
    weights = ops.cast(weights, value.dtype)
    dropped = weights if dropout is None else dropout(weights)
    return ops.matmul(dropped, value), weights


def attend(
    query: KerasTensor,
    heads: Cache,
    masks: Sequence[KerasTensor | None] = (),
    causal: bool = False,
    position: int | KerasTensor = 0,
    dropout: Callable[[KerasTensor], KerasTensor] | None = None,
    return_weights: bool = False,
    flash: bool | None = None,
) -> tuple[KerasTensor, KerasTensor | None]:
    """Computes equation 1 under several masks, by the backend's fused kernel
    where that can.

    Args:
        query: `(B, H, T, K)`.
        heads: keys and values `(B, H, S, K)`.
        masks: boolean masks, broadcastable to `(B, T, S)` or `(B, H, T, S)`; a
            query attends where all of them are True. `None` is allowed among
            them, and masks nothing.
        causal: whether later keys are hidden from each query.
        position: of the first query among the keys, a scalar or `(B,)`.
        dropout: function that drops some of the weights, or `None`.
        return_weights: whether the weights are needed.
        flash: whether the kernel is that of flash attention, see
            `fused_attention`. True makes the call fail where there is none.

    Returns:
        The weighted values `(B, H, T, K)` and the weights `(B, H, T, S)`,
        which may be `None` without `return_weights`.
    """
    key, value = heads["key"], heads["value"]
    if causal:
        queries, keys = ops.shape(query)[2], ops.shape(key)[2]
        masks = [*masks, causal_mask(queries, keys, position)]
    mask = combine_masks(*map(with_head_axis, masks))
    if flash or (
        has_fused_attention(keras.backend.standardize_dtype(query.dtype))
        and not return_weights
        and dropout is None
        and key.shape[-1] == value.shape[-1]
    ):
        return fused_attention(query, key, value, mask, flash), None
    return scaled_dot_product_attention(query, key, value, mask, dropout)


def has_fused_attention(dtype: str) -> bool:
    """Returns whether the backend has a fused attention kernel for this dtype.

    TensorFlow has none: there `keras.ops.dot_product_attention` computes
    equation 1 in separate operations, without the guarantees of
    `scaled_dot_product_attention`. JAX's kernel cannot be compiled for a CPU
    in float16.
    """
    backend = keras.backend.backend()
    return backend != "tensorflow" and (backend, dtype) != ("jax", "float16")


def fused_attention(
    query: KerasTensor,
    key: KerasTensor,
    value: KerasTensor,
    mask: KerasTensor | None = None,
    flash: bool | None = None,
) -> KerasTensor:
    """Computes equation 1 by the backend's fused kernel.

    The kernel does not return the weights. Same arguments as
    `scaled_dot_product_attention`, without `dropout`; returns only the
    weighted values. Whether the kernel is that of flash attention is said by
    `flash`, else by `keras.config.is_flash_attention_enabled()`, else by Keras.
    """
    inputs = [ops.swapaxes(x, 1, 2) for x in (query, key, value)]
    if flash is None:  # only Keras' layers read this setting
        flash = keras.config.is_flash_attention_enabled()
    options = {"flash_attention": flash}
    if mask is None:
        output = ops.dot_product_attention(*inputs, **options)
        return ops.swapaxes(output, 1, 2)
    # Kernels disagree on queries that may attend to no key: they return NaN, or
    # the mean of all values. So these queries attend to all keys here, and
    # their output is set to zero afterwards.
    somewhere = ops.any(mask, axis=-1, keepdims=True)
    batch, _, length, _ = ops.shape(query)
    shape = (batch, ops.shape(mask)[1], length, ops.shape(key)[2])
    visible = ops.broadcast_to(mask | ~somewhere, shape)
    output = ops.dot_product_attention(*inputs, mask=visible, **options)
    output = ops.swapaxes(output, 1, 2)
    return output * _attends_somewhere(mask, output.dtype)


def _attends_somewhere(mask, dtype):
    return ops.cast(ops.any(mask, axis=-1, keepdims=True), dtype)


def split_heads(
    x: KerasTensor, num_heads: int, source: KerasTensor
) -> KerasTensor:
    """Returns `(B, H, T, K)` from `(B, T, H·K)`, which is the projection of
    `source` `(B, T, D)`."""
    # The converter to ONNX confuses the shape of x with that of x in two
    # dimensions, `(B·T, H·K)`, as which it is multiplied.
    batch, length, _ = ops.shape(source)
    x = ops.reshape(x, (batch, length, num_heads, x.shape[-1] // num_heads))
    return ops.swapaxes(x, 1, 2)


def merge_heads(
    x: KerasTensor, batch: int | KerasTensor, length: int | KerasTensor
) -> KerasTensor:
    """Returns `(batch, length, H·K)` from `(B, H, T, K)`, where rows may have
    been merged by `fold_beams`."""
    _, heads, _, width = ops.shape(x)
    return ops.reshape(ops.swapaxes(x, 1, 2), (batch, length, heads * width))


def fold_beams(
    queries: KerasTensor, mask: KerasTensor | None, heads: Cache
) -> tuple[KerasTensor, KerasTensor | None]:
    """Returns queries `(B, n·T, D)` and their mask `(B, n·T)`, where n beams
    of T queries share the keys of a row.

    Args:
        queries: `(B·n, T, D)`.
        mask: `(B·n, T)`, or `None`.
        heads: the keys and values of B rows.
    """
    rows = ops.shape(heads["key"])[0]
    if isinstance(rows, int) and rows == 0:  # -1 would be any number
        return queries, mask
    queries = ops.reshape(queries, (rows, -1, queries.shape[-1]))
    return queries, None if mask is None else ops.reshape(mask, (rows, -1))


def unfold_beams(
    weights: KerasTensor, length: int | KerasTensor
) -> KerasTensor:
    """Returns weights `(B·n, H, T, S)` of beams that `fold_beams` folded, from
    `(B, H, n·T, S)`."""
    batch, heads, _, keys = ops.shape(weights)
    if isinstance(batch, int) and batch == 0:
        return weights
    weights = ops.reshape(weights, (batch, heads, -1, length, keys))
    weights = ops.swapaxes(weights, 1, 2)  # [B, n, H, T, S]
    return ops.reshape(weights, (-1, heads, length, keys))


def checked_groups(num_heads: int, groups: int | None) -> int:
    """Returns the number of heads of keys and values, H if it is `None`.

    Raises:
        ValueError: if it does not divide H.
    """
    if groups is None:
        return num_heads
    groups = checked_integer("num_key_value_heads", groups)
    if num_heads % groups:
        raise ValueError(
            "`num_heads` must be a multiple of `num_key_value_heads`. "
            f"Received: num_heads={num_heads}, num_key_value_heads={groups}."
        )
    return groups


def repeat_heads(heads: Cache, num_heads: int) -> Cache:
    """Returns keys and values of `num_heads` heads, each of those in `heads`
    for as many neighbouring heads of queries."""
    times = num_heads // heads["key"].shape[1]
    if times == 1:
        return heads
    return {k: ops.repeat(x, times, axis=1) for k, x in heads.items()}


def write_cache(cache: Cache, new: Cache, index: int | KerasTensor) -> Cache:
    """Returns `cache` with `new` written from position `index` on, which is
    a scalar, or `(B,)` for rows that differ.

    Only plain operations are used, which every backend and server supports.

    Raises:
        ValueError: if the cache is too short. Where `index` is not known
            before the program runs, as in a compiled loop, positions beyond
            the end of the cache are dropped instead.
    """
    capacity = ops.shape(cache["key"])[2]
    length = ops.shape(new["key"])[2]
    check_capacity(index, length, capacity)
    places = ops.arange(capacity, dtype="int32")
    positions = places - before_axes(index, 1)  # [S] or [B, S]
    is_row_wise = len(positions.shape) == 2
    if isinstance(length, int) and length == 1:
        is_written = ops.equal(positions, 0)
        written = new
    else:
        is_written = (positions >= 0) & (positions < length)
        source = ops.clip(positions, 0, length - 1)
        if is_row_wise:
            source = source[:, None, :, None]
            written = {
                k: ops.take_along_axis(x, source, axis=2)
                for k, x in new.items()
            }
        else:
            written = {k: ops.take(x, source, axis=2) for k, x in new.items()}
    is_written = is_written[..., None]  # [S, 1] or [B, S, 1]
    if is_row_wise:
        is_written = is_written[:, None]  # [B, 1, S, 1]
    return {k: ops.where(is_written, written[k], cache[k]) for k in cache}


def check_capacity(
    index: int | KerasTensor,
    length: int | KerasTensor,
    capacity: int | KerasTensor,
) -> None:
    """Checks that a cache has a position for every new key.

    Raises:
        ValueError: if it has not. Numbers that are not known before the
            program runs are not checked.
    """
    known = known_range(index)
    if (
        known is None
        or not isinstance(capacity, int)
        or not isinstance(length, int)
        or (known[0] >= 0 and known[1] <= capacity - length)
    ):
        return
    index = known[0] if known[0] < 0 else known[1]
    raise ValueError(
        "The cache must have a position for every new key. Received: "
        f"cache_index={index}, {length} new positions, a cache of {capacity}. "
        "Make a longer cache with `empty_cache(batch_size, length)`."
    )
