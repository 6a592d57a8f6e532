"""Scaled dot-product attention, section 3.2.1, as functions without weights.

Shapes: B batch, T query length, S key length, H heads, K d_k or d_v.
"""

import math

import keras
from keras import ops

from keras_transformer.layers.masks import LOWEST


def scaled_dot_product_attention(query, key, value, mask=None, dropout=None):
    """Equation 1: Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V.

    Scores and softmax are computed in float32, or in float64 if the inputs
    are.

    Args:
        query: tensor of shape `(B, H, T, K)`.
        key: tensor of shape `(B, H, S, K)`.
        value: tensor of shape `(B, H, S, K)`.
        mask: boolean, broadcastable to `(B, H, T, S)`; True where a query may
            attend to a key. Defaults to attending everywhere.
        dropout: a function applied to the weights, or `None`.

    Returns:
        The weighted values `(B, H, T, K)` and the weights `(B, H, T, S)`, both
        in the dtype of `value`. A query that may attend to nothing gets zeros.
    """
    dtype = keras.backend.result_type(query.dtype, "float32")
    query = ops.cast(query, dtype) / math.sqrt(query.shape[-1])
    key = ops.cast(key, dtype)
    scores = ops.matmul(query, ops.swapaxes(key, -2, -1))  # [B, H, T, S]
    if mask is not None:
        scores = ops.where(mask, scores, LOWEST)
    # Keras warns of a softmax over a single key, where it is 1.
    single = scores.shape[-1] == 1
    weights = ops.ones_like(scores) if single else ops.softmax(scores)
    if mask is not None:
        weights = weights * _attends_somewhere(mask, weights.dtype)
    weights = ops.cast(weights, value.dtype)
    dropped = weights if dropout is None else dropout(weights)
    return ops.matmul(dropped, value), weights


def has_fused_attention(dtype):
    """Whether the backend has a kernel of its own for this dtype.

    TensorFlow has none: there Keras' function is equation 1 again, without
    the guarantees of ours. JAX's cannot be compiled for a CPU in float16.
    """
    backend = keras.backend.backend()
    return backend != "tensorflow" and (backend, dtype) != ("jax", "float16")


def fused_attention(query, key, value, mask=None):
    """Equation 1 by the backend's own kernel, which keeps no weights.

    Same arguments as `scaled_dot_product_attention`, without `dropout`; returns
    only the weighted values.
    """
    inputs = [ops.swapaxes(x, 1, 2) for x in (query, key, value)]
    if mask is None:
        output = ops.dot_product_attention(*inputs)
        return ops.swapaxes(output, 1, 2)
    # Kernels disagree on rows with nothing to attend to (NaN, or the mean
    # of all values), so these rows see everything and are zeroed after.
    somewhere = ops.any(mask, axis=-1, keepdims=True)
    batch, _, length, _ = ops.shape(query)
    shape = (batch, ops.shape(mask)[1], length, ops.shape(key)[2])
    visible = ops.broadcast_to(mask | ~somewhere, shape)
    output = ops.dot_product_attention(*inputs, mask=visible)
    output = ops.swapaxes(output, 1, 2)
    return output * _attends_somewhere(mask, output.dtype)


def _attends_somewhere(mask, dtype):
    return ops.cast(ops.any(mask, axis=-1, keepdims=True), dtype)


def write_cache(cache, new, index):
    """Returns `cache` with `new` at position `index`, in plain operations that
    every backend and server knows.

    Raises:
        ValueError: if the cache has no room there. Where `index` is not known
            before the program runs, as in a compiled loop, positions beyond
            the cache's room are dropped instead.
    """
    room = ops.shape(cache["key"])[2]
    length = ops.shape(new["key"])[2]
    _check_room(_known(index), length, room)
    if isinstance(length, int) and length == 1:
        here = ops.equal(ops.arange(room), index)[:, None]  # [S, 1]
        return {k: ops.where(here, new[k], cache[k]) for k in cache}
    positions = ops.arange(room) - index
    source = ops.clip(positions, 0, length - 1)
    here = ((positions >= 0) & (positions < length))[:, None]
    return {
        k: ops.where(here, ops.take(new[k], source, axis=2), cache[k])
        for k in cache
    }


def _check_room(index, length, room):
    known = isinstance(room, int) and isinstance(length, int)
    if index is None or not known or 0 <= index <= room - length:
        return
    raise ValueError(
        "The cache must have room for every new position. Received: "
        f"cache_index={index}, {length} new positions, room for {room}. Make "
        "it longer by `empty_cache(batch_size, length)`."
    )


def _known(index):
    """Returns an index as an integer, or `None` inside a compiled function."""
    try:
        return int(index)
    except (TypeError, ValueError):
        return None
