"""Operations of the fast forward pass, over weights of `graph_weights`.

Shapes: B batch, n rows (of each sentence, in attention), T keys, H heads, K
width of a head, D d_model, V vocabulary.
"""

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.config import TransformerConfig
from keras_transformer.layers import positional_encoding
from keras_transformer.layers.embeddings import SINUSOIDAL
from keras_transformer.layers.windowed_attention import Blocks

MASKED_SCORE = -1e9  # added to the scores of masked positions
# Smaller matrices are multiplied whole, see `product`.
HALVED_DEPTH = 256
HALVED_SIZE = 2**18
ONE_THREAD = 2**18  # number of multiplications for which one thread is enough


def embed(
    x: tf.Tensor,
    weights: dict[str, tf.Tensor],
    positions: tf.Tensor,
    config: TransformerConfig,
) -> tf.Tensor:
    """Embeds ids `(B, T)` or vectors `(B, T, F)` at positions `(T,)`.

    Returns:
        float32 rows `(B·T, D)`.
    """
    if "table" in weights:
        x = tf.gather(weights["table"], x)
    else:
        shape = tf.concat([tf.shape(x)[:2], [config.d_model]], 0)
        x = linear(tf.reshape(x, [-1, x.shape[-1]]), weights, config.d_model)
        x = tf.reshape(tf.cast(x, tf.float32), shape)
    if config.positions == "learned":
        x += tf.gather(weights["positions"], positions)
    elif config.positions in SINUSOIDAL:
        halves = config.positions == "sinusoidal_halves"
        x += positional_encoding(positions, config.d_model, halves=halves)
    return tf.reshape(x, [-1, config.d_model])


def linear(
    x: tf.Tensor, weights: dict[str, tf.Tensor], width: int
) -> tf.Tensor:
    """Applies a layer of `inference_weights` to rows `(n, D_in)`.

    Args:
        x: the rows.
        weights: `kernel` and, if there is one, `bias`.
        width: D_out; the matrix may have more columns.

    Returns:
        Rows `(n, D_out)`.
    """
    x = product(x, weights["kernel"])
    if "bias" in weights:
        x = tf.nn.bias_add(x, weights["bias"])
    return x if x.shape[-1] == width else x[:, :width]


def product(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Multiplies rows by a matrix, in the dtype of the matrix.

    A large float32 matrix is multiplied in two halves, which TensorFlow
    computes at the same time: it shares out the operations of a graph better
    than the work of one operation on a few rows. In bfloat16, whose matrices
    oneDNN lays out for itself, halves are slower.

    Args:
        x: rows `(n, D_in)`.
        kernel: `(D_in, D_out)`.

    Returns:
        Rows `(n, D_out)`.
    """
    x = tf.cast(x, kernel.dtype)
    depth, columns = kernel.shape
    is_large = depth >= HALVED_DEPTH and depth * columns >= HALVED_SIZE
    if kernel.dtype != tf.float32 or not is_large:
        return tf.matmul(x, kernel)
    # 16 rows are a multiple of 64 bytes: TensorFlow does not copy the halves.
    first = depth // 32 * 16
    sizes = [first, depth - first]
    left, right = tf.split(x, sizes, axis=1)
    upper, lower = tf.split(kernel, sizes)
    # A bias has to come after the sum. With oneDNN, TensorFlow would turn a
    # product, its bias and a sum into one operation, after the other product.
    return left @ upper + right @ lower


def normalize(
    x: tf.Tensor, weights: dict[str, tf.Tensor], epsilon: float
) -> tf.Tensor:
    """Applies layer normalisation to float32 rows `(n, D)`, or by the root mean
    square if there is no `beta`."""
    if "beta" not in weights:
        return normalize_heads(x, weights["gamma"], epsilon)
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    x = x - mean
    variance = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
    scale = tf.math.rsqrt(variance + epsilon)
    return x * scale * weights["gamma"] + weights["beta"]


def normalize_heads(
    x: tf.Tensor, gamma: tf.Tensor, epsilon: float = 1e-6
) -> tf.Tensor:
    """Divides rows `(…, K)` by their root mean square, in float32, and
    multiplies them by `gamma` `(K,)`."""
    rows = tf.cast(x, tf.float32)
    square = tf.reduce_mean(tf.square(rows), axis=-1, keepdims=True)
    return tf.cast(rows * tf.math.rsqrt(square + epsilon) * gamma, x.dtype)


def attend_in_groups(
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    attention_bias: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes `attend` where H heads of queries share G of keys and values.

    The bias is the same for all heads: its axis of heads has size 1, or it has
    none and is the same for all sentences, too.
    """
    heads, groups = queries.shape[1], keys.shape[1]
    if heads == groups:
        return attend(queries, keys, values, attention_bias)
    if len(attention_bias.shape) == len(queries.shape):
        attention_bias = attention_bias[:, None]
    x, weights = attend(
        # [B, G, H / G, …, n, K], so that neighbouring heads share.
        _split_axis(queries, [groups, heads // groups]),
        keys[:, :, None],
        values[:, :, None],
        attention_bias,
    )
    return _join_axes(x, heads), _join_axes(weights, heads)


def _split_axis(x, sizes):
    shape = tf.shape(x)
    return tf.reshape(x, tf.concat([shape[:1], sizes, shape[2:]], 0))


def _join_axes(x, heads):
    shape = tf.shape(x)
    return tf.reshape(x, tf.concat([shape[:1], [heads], shape[3:]], 0))


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


def cross_entropy(
    x: tf.Tensor,
    target: tf.Tensor,
    projection: dict[str, tf.Tensor],
    vocab_size: int,
) -> tf.Tensor:
    """Returns the cross-entropy `(B, T)` of ids, float32.

    One row at a time: the logits of all rows would fill the memory.

    Args:
        x: the decoder's output `(B, T, D)`.
        target: ids `(B, T)`.
        projection: `kernel` `(D, V)` and, if there is one, `logits_bias`.
        vocab_size: V; the matrix may have more columns.
    """
    # The bias of the projection suppresses ids that a target may contain.
    layer = {"kernel": projection["kernel"]}
    if "logits_bias" in projection:
        layer["bias"] = projection["logits_bias"]

    def add_row(i, losses):
        logits = linear(x[i], layer, vocab_size)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
            target[i], tf.cast(logits, tf.float32)
        )
        return i + 1, tf.concat([losses, loss[None]], axis=0)

    batch, length = tf.unstack(tf.shape(target))
    _, losses = tf.while_loop(
        lambda i, _: i < batch,
        add_row,
        (0, tf.zeros([0, length])),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None])),
        parallel_iterations=1,
    )
    return losses
