"""Scaled dot-product attention, section 3.2.1, as functions without weights.

Shapes: B batch, T query length, S key length, H heads, K d_k or d_v.
"""

import math
from collections.abc import Callable

import keras
from keras import KerasTensor, ops

from keras_transformer.layers.masks import LOWEST
from keras_transformer.layers.types import Cache


def scaled_dot_product_attention(
    query: KerasTensor,
    key: KerasTensor,
    value: KerasTensor,
    mask: KerasTensor | None = None,
    dropout: Callable[[KerasTensor], KerasTensor] | None = None,
) -> tuple[KerasTensor, KerasTensor]:
    """Computes equation 1: Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V.

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
    dtype = keras.backend.result_type(query.dtype, "float32")
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
) -> KerasTensor:
    """Computes equation 1 by the backend's fused kernel.

    The kernel does not return the weights. Same arguments as
    `scaled_dot_product_attention`, without `dropout`; returns only the
    weighted values.
    """
    inputs = [ops.swapaxes(x, 1, 2) for x in (query, key, value)]
    if mask is None:
        output = ops.dot_product_attention(*inputs)
        return ops.swapaxes(output, 1, 2)
    # Kernels disagree on queries that may attend to no key: they return NaN, or
    # the mean of all values. So these queries attend to all keys here, and
    # their output is set to zero afterwards.
    somewhere = ops.any(mask, axis=-1, keepdims=True)
    batch, _, length, _ = ops.shape(query)
    shape = (batch, ops.shape(mask)[1], length, ops.shape(key)[2])
    visible = ops.broadcast_to(mask | ~somewhere, shape)
    output = ops.dot_product_attention(*inputs, mask=visible)
    output = ops.swapaxes(output, 1, 2)
    return output * _attends_somewhere(mask, output.dtype)


def _attends_somewhere(mask, dtype):
    return ops.cast(ops.any(mask, axis=-1, keepdims=True), dtype)


def write_cache(cache: Cache, new: Cache, index: int | KerasTensor) -> Cache:
    """Returns `cache` with `new` written from position `index` on.

    Only plain operations are used, which every backend and server supports.

    Raises:
        ValueError: if the cache is too short. Where `index` is not known
            before the program runs, as in a compiled loop, positions beyond
            the end of the cache are dropped instead.
    """
    capacity = ops.shape(cache["key"])[2]
    length = ops.shape(new["key"])[2]
    _check_capacity(_known_index(index), length, capacity)
    if isinstance(length, int) and length == 1:
        is_written = ops.equal(ops.arange(capacity), index)[:, None]  # [S, 1]
        return {k: ops.where(is_written, new[k], cache[k]) for k in cache}
    positions = ops.arange(capacity) - index
    source = ops.clip(positions, 0, length - 1)
    is_written = ((positions >= 0) & (positions < length))[:, None]
    return {
        k: ops.where(is_written, ops.take(new[k], source, axis=2), cache[k])
        for k in cache
    }


def _check_capacity(index, length, capacity):
    known = isinstance(capacity, int) and isinstance(length, int)
    if index is None or not known or 0 <= index <= capacity - length:
        return
    raise ValueError(
        "The cache must have a position for every new key. Received: "
        f"cache_index={index}, {length} new positions, a cache of {capacity}. "
        "Make a longer cache with `empty_cache(batch_size, length)`."
    )


def _known_index(index):
    """Returns an index as an integer, or `None` inside a compiled function."""
    try:
        return int(index)
    except (TypeError, ValueError):
        return None
