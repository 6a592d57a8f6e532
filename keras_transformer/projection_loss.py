"""The loss behind the pre-softmax projection, without keeping the logits.

With a vocabulary of size V the logits are by far the largest tensor of a
training step. Here some tokens at a time are projected, their loss and both
gradients taken, and their logits forgotten.

Shapes: N tokens, D d_model, V vocabulary, C tokens of a chunk.
"""

import tensorflow as tf

CHUNK = 1024


def projection_loss(
    features, table, labels, weights, label_smoothing=0.0, gradients=True
):
    """Smoothed cross-entropy (section 5.4) of the logits features · tableᵀ.

    Smoothing never touches the logits: smoothed = nll + ε · (logit of the
    label − mean of the logits), and both terms are products with rows of the
    table, or with their mean.

    Args:
        features: `(N, D)`, what the decoder gives; any float dtype.
        table: `(V, D)`, the embeddings, in the dtype of `features`.
        labels: int32 `(N,)`.
        weights: float32 `(N,)`, of each token in the sum whose gradients are
            taken.
        label_smoothing: ε. Defaults to 0.
        gradients: whether to compute them. Defaults to True.

    Returns:
        A dictionary of float32 tensors: `loss` and `nll`, `(N,)`, smoothed
        and not; and the gradients of Σ weights · loss: `d_features` `(N, D)`
        in the dtype of `features`, `d_table` `(V, D)`.
    """
    tokens = tf.shape(features)[0]
    weighted = features * tf.cast(weights, features.dtype)[:, None]

    def chunk(start, nll, d_features, d_table):
        end = tf.minimum(start + CHUNK, tokens)
        logits = tf.matmul(features[start:end], table, transpose_b=True)
        nll_here, d_logits = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
            features=tf.cast(logits, tf.float32), labels=labels[start:end]
        )  # d_logits [C, V] is softmax − one-hot
        i = start // CHUNK
        nll = nll.write(i, nll_here)
        if gradients:
            d_logits = tf.cast(d_logits, features.dtype)
            d_features = d_features.write(i, tf.matmul(d_logits, table))
            product = tf.matmul(d_logits, weighted[start:end], transpose_a=True)
            d_table += tf.cast(product, tf.float32)
        return end, nll, d_features, d_table

    # An array of no chunks cannot be joined: no tokens are one empty chunk.
    chunks = tf.maximum(1, -(-tokens // CHUNK))
    width = features.shape[-1]
    _, nll, d_features, d_table = tf.while_loop(
        lambda start, nll, *_: (start < tokens) | tf.equal(start, 0),
        chunk,
        (
            0,
            _array(tf.float32, chunks, (None,)),
            _array(features.dtype, chunks, (None, width)),
            tf.zeros(tf.shape(table) if gradients else ()),
        ),
        maximum_iterations=chunks,
        parallel_iterations=1,
    )
    nll = nll.concat()
    features = tf.cast(features, tf.float32)
    # The label's embedding less the mean of all, [N, D]: d smoothing / d x.
    contrast = tf.cast(tf.gather(table, labels), tf.float32)
    contrast -= tf.reduce_mean(tf.cast(table, tf.float32), axis=0)
    smoothing = tf.reduce_sum(features * contrast, axis=-1)
    results = {"nll": nll, "loss": nll + label_smoothing * smoothing}
    if not gradients:
        return results
    d_features = tf.cast(d_features.concat(), tf.float32)
    d_features = weights[:, None] * (d_features + label_smoothing * contrast)
    if label_smoothing:
        pull = label_smoothing * features * weights[:, None]
        classes = tf.cast(tf.shape(table)[0], tf.float32)
        d_table -= tf.reduce_sum(pull, axis=0) / classes
        d_table = tf.tensor_scatter_nd_add(d_table, labels[:, None], pull)
    return {
        **results,
        "d_features": tf.cast(d_features, weighted.dtype),
        "d_table": d_table,
    }


def _array(dtype, size, shape):
    return tf.TensorArray(dtype, size, infer_shape=False, element_shape=shape)
