"""Scaled dot-product attention, section 3.2.1, as functions without weights.

Shapes: B batch, T query length, S key length, H heads, K d_k or d_v.
"""

import math

from keras import ops

from keras_transformer.layers.masks import LOWEST


def scaled_dot_product_attention(query, key, value, mask=None, dropout=None):
    """Equation 1: Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V.

    Scores and softmax are computed in float32 whatever the inputs are.

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
    query = ops.cast(query, "float32") / math.sqrt(query.shape[-1])
    key = ops.cast(key, "float32")
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


def fused_attention(query, key, value, mask=None):
    """Equation 1 by the backend's own kernel, which keeps no weights.

    Takes and gives what `scaled_dot_product_attention` does, less the weights.
    """
    inputs = [ops.swapaxes(x, 1, 2) for x in (query, key, value)]
    if mask is None:
        output = ops.dot_product_attention(*inputs)
        return ops.swapaxes(output, 1, 2)
    # Kernels disagree on rows with nothing to attend to (NaN, or the mean
    # of all values), so these rows see everything and are zeroed after.
    somewhere = ops.any(mask, axis=-1, keepdims=True)
    shape = (ops.shape(query)[0], 1, ops.shape(query)[2], ops.shape(key)[2])
    visible = ops.broadcast_to(mask | ~somewhere, shape)
    output = ops.dot_product_attention(*inputs, mask=visible)
    output = ops.swapaxes(output, 1, 2)
    return output * _attends_somewhere(mask, output.dtype)


def _attends_somewhere(mask, dtype):
    return ops.cast(ops.any(mask, axis=-1, keepdims=True), dtype)


def write_cache(cache, new, index):
    """`cache` with `new` at position `index`, in plain operations that every
    backend and server knows."""
    room = ops.shape(cache["key"])[2]
    length = ops.shape(new["key"])[2]
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
