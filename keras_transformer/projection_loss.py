"""The loss behind the pre-softmax projection, without keeping the logits.

With a vocabulary of size V the logits are by far the largest tensor of a
training step. Here some tokens at a time are projected, their loss and both
gradients taken, and their logits forgotten.

Shapes: R passes of the model over the same tokens, N tokens, D d_model,
V vocabulary, C tokens of a chunk.
"""

import tensorflow as tf

CHUNK = 1024


def projection_loss(
    features,
    table,
    labels,
    weights,
    label_smoothing=0.0,
    gradients=True,
    r_drop=0.0,
):
    """Smoothed cross-entropy (section 5.4) of the logits features · tableᵀ.

    Smoothing never touches the logits: smoothed = nll + ε · (logit of the
    label − mean of the logits), and both terms are products with rows of the
    table, or with their mean.

    Args:
        features: `(R, N, D)`, what the decoder gives; any float dtype. With
            `r_drop` R is 2: the same tokens under two masks of dropout.
        table: `(V, D)`, the embeddings, in the dtype of `features`.
        labels: int32 `(N,)`.
        weights: float32 `(N,)`, of each token in the sum whose gradients are
            taken.
        label_smoothing: ε. Defaults to 0.
        gradients: whether to compute them. Defaults to True.
        r_drop: α of R-Drop (Liang et al. 2021, equation 4, of which this is
            half): α / 2 · `disagreement` of the two passes is added to the
            mean of their losses. Defaults to 0.

    Returns:
        A dictionary of float32 tensors: `loss` and `nll`, `(N,)`, smoothed
        and not, means over the passes; and the gradients of Σ weights · loss:
        `d_features` `(R, N, D)` in the dtype of `features`, `d_table`
        `(V, D)`.
    """
    passes, tokens = features.shape[0], tf.shape(features)[1]
    size = CHUNK // 4 if r_drop else CHUNK  # there it takes more room
    weights = weights / passes
    weighted = features * tf.cast(weights, features.dtype)[:, None]

    def chunk(start, nll, loss, d_features, d_table):
        end = tf.minimum(start + size, tokens)
        i = start // size
        views = features[:, start:end]
        logits = [
            tf.cast(tf.matmul(x, table, transpose_b=True), tf.float32)
            for x in tf.unstack(views)
        ]
        nlls, d_logits = zip(
            *[_cross_entropy(x, labels[start:end]) for x in logits], strict=True
        )
        nll_here = loss_here = tf.add_n(nlls) / passes
        if r_drop:
            apart, d_apart = disagreement(*logits)
            loss_here += r_drop / 2 * apart
            # Each pass has half the weight of its token: α for α / 2.
            d_logits = [
                d + r_drop * more
                for d, more in zip(d_logits, d_apart, strict=True)
            ]
        nll, loss = nll.write(i, nll_here), loss.write(i, loss_here)
        if gradients:
            d_logits = [tf.cast(d, features.dtype) for d in d_logits]
            products = [tf.matmul(d, table) for d in d_logits]
            d_features = d_features.write(i, tf.stack(products, axis=1))
            for d, x in zip(
                d_logits, tf.unstack(weighted[:, start:end]), strict=True
            ):
                product = tf.matmul(d, x, transpose_a=True)
                d_table += tf.cast(product, tf.float32)
        return end, nll, loss, d_features, d_table

    # An array of no chunks cannot be joined: no tokens are one empty chunk.
    chunks = tf.maximum(1, -(-tokens // size))
    width = features.shape[-1]
    _, nll, loss, d_features, d_table = tf.while_loop(
        lambda start, nll, *_: (start < tokens) | tf.equal(start, 0),
        chunk,
        (
            0,
            _array(tf.float32, chunks, (None,)),
            _array(tf.float32, chunks, (None,)),
            _array(features.dtype, chunks, (None, passes, width)),
            tf.zeros(tf.shape(table) if gradients else ()),
        ),
        maximum_iterations=chunks,
        parallel_iterations=1,
    )
    features = tf.cast(features, tf.float32)
    # The label's embedding less the mean of all, [N, D]: d smoothing / d x.
    contrast = tf.cast(tf.gather(table, labels), tf.float32)
    contrast -= tf.reduce_mean(tf.cast(table, tf.float32), axis=0)
    smoothing = tf.reduce_sum(
        tf.reduce_mean(features, axis=0) * contrast, axis=-1
    )
    results = {
        "nll": nll.concat(),
        "loss": loss.concat() + label_smoothing * smoothing,
    }
    if not gradients:
        return results
    d_features = tf.cast(d_features.concat(), tf.float32)
    d_features = tf.transpose(d_features, (1, 0, 2))  # [R, N, D]
    d_features = weights[:, None] * (d_features + label_smoothing * contrast)
    if label_smoothing:
        pull = label_smoothing * tf.reduce_sum(features, axis=0)
        pull *= weights[:, None]
        classes = tf.cast(tf.shape(table)[0], tf.float32)
        d_table -= tf.reduce_sum(pull, axis=0) / classes
        d_table = tf.tensor_scatter_nd_add(d_table, labels[:, None], pull)
    return {
        **results,
        "d_features": tf.cast(d_features, weighted.dtype),
        "d_table": d_table,
    }


def disagreement(first, second):
    """How far two predictions are apart: ½ · (KL(p‖q) + KL(q‖p)), equation 2
    of R-Drop, of p and q, the softmax of `first` and `second`, `(N, V)`.

    Returns:
        The distance, `(N,)`, and its gradients with respect to the two.
    """
    log_p, log_q = tf.nn.log_softmax(first), tf.nn.log_softmax(second)
    p, q = tf.exp(log_p), tf.exp(log_q)
    gap = log_p - log_q
    forward = tf.reduce_sum(p * gap, axis=-1, keepdims=True)
    backward = -tf.reduce_sum(q * gap, axis=-1, keepdims=True)
    d_first = p * (gap - forward + 1) - q
    d_second = q * (1 - gap - backward) - p
    apart = (forward + backward)[:, 0] / 2
    return apart, (d_first / 2, d_second / 2)


def _cross_entropy(logits, labels):
    """The loss, `(C,)`, and its gradient softmax − one-hot, `(C, V)`."""
    return tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
        features=logits, labels=labels
    )


def _array(dtype, size, shape):
    return tf.TensorArray(dtype, size, infer_shape=False, element_shape=shape)
