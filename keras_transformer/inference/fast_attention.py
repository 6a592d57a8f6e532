"""Equation 1 in plain TensorFlow, by the kernels that are fast for its size.

Shapes: B batch, H heads, n queries, T keys, K width of a head.
"""

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.layers.blocks import Blocks

MASKED_SCORE = -1e9  # added to the scores of masked positions
ONE_THREAD = 2**18  # number of multiplications for which one thread is enough


def attend(
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    attention_bias: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes attention: the output `(B, H, n, K)` and float32 weights
    `(B, H, n, T)`.

    Args:
        queries: `(B, H, n, K)`, with the factor 1 / √d_k; or `(B, H, …, n, K)`.
        keys, values: `(B, H, T, K)`, or with the same further axes.
        attention_bias: float32, added to the scores `(B, H, n, T)`.
    """
    arguments = queries, keys, values, attention_bias
    # In 64 bits, since there may be 2³¹ multiplications and more.
    multiplications = tf.size(queries, tf.int64) * tf.shape(keys, tf.int64)[-2]
    return tf.cond(
        multiplications <= ONE_THREAD,
        lambda: _attend_small(*arguments),
        lambda: _attend_large(*arguments),
    )


def window_blocks(
    window: int,
    length: tf.Tensor,
    masks: Sequence[tf.Tensor] = (),
    causal: bool = False,
) -> tuple[Blocks, tf.Tensor]:
    """Returns the `Blocks` of whole sequences, and their attention bias,
    broadcastable to `(B, H, N, W, 3W)`."""
    blocks = Blocks(length, window, causal)
    return blocks, tf.where(blocks.mask(masks), 0.0, MASKED_SCORE)


def swap_axes(x: tf.Tensor) -> tf.Tensor:
    """Swaps axes 1 and 2, as integers: oneDNN transposes floats in another
    thread, which takes ten times as long for few numbers."""
    dtype = {2: tf.int16, 4: tf.int32, 8: tf.int64}[x.dtype.size]
    return tf.bitcast(tf.transpose(tf.bitcast(x, dtype), [0, 2, 1, 3]), x.dtype)


def _attend_small(queries, keys, values, attention_bias):
    """Computes attention with TensorFlow's own kernels, in one thread. The
    kernels of oneDNN take several times as long for so few numbers, but it has
    none for `BatchMatMulV3`."""
    scores = tf.raw_ops.BatchMatMulV3(
        x=queries, y=keys, adj_y=True, Tout=keys.dtype
    )
    scores = tf.cast(scores, tf.float32) + attention_bias
    weights = tf.exp(scores - tf.reduce_max(scores, axis=-1, keepdims=True))
    weights /= tf.reduce_sum(weights, axis=-1, keepdims=True)
    x = tf.raw_ops.BatchMatMulV3(
        x=tf.cast(weights, values.dtype), y=values, Tout=values.dtype
    )
    return x, weights


def _attend_large(queries, keys, values, attention_bias):
    """Computes attention with the kernels that TensorFlow chooses."""
    scores = tf.matmul(queries, keys, transpose_b=True)
    weights = tf.nn.softmax(tf.cast(scores, tf.float32) + attention_bias)
    return tf.matmul(tf.cast(weights, values.dtype), values), weights
