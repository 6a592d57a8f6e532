"""The loss behind the pre-softmax projection, without keeping the logits.

With a vocabulary of size V the logits are by far the largest tensor of a
training step. Here some tokens at a time are projected, their loss and both
gradients taken, and their logits forgotten.

Shapes: N tokens, D d_model, V vocabulary, C tokens of a chunk.
"""

from typing import NamedTuple

import tensorflow as tf

CHUNK = 512


class TeacherTokens(NamedTuple):
    """Says what a teacher predicts in the place of each label, for word-level
    distillation (Kim and Rush, 2016, section 3.1).

    Args:
        features: `(N, D′)`, the output of the teacher's decoder.
        table: `(V, D′)`, the teacher's embeddings, in the dtype of `features`.
        weight: w in [0, 1]. What is learned is (1 − w) times the smoothed label
            and w times the teacher's distribution.
    """

    features: tf.Tensor
    table: tf.Tensor
    weight: float

    def probabilities(self, tokens: slice) -> tf.Tensor:
        """Returns float32 `(C, V)` for some of the tokens."""
        features = self.features[tokens]
        logits = tf.matmul(features, self.table, transpose_b=True)
        return tf.nn.softmax(tf.cast(logits, tf.float32))


def projection_loss(
    features: tf.Tensor,
    table: tf.Tensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
    label_smoothing: float = 0.0,
    train_table: bool = True,
    teacher: TeacherTokens | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes the smoothed cross-entropy (section 5.4) of the logits
    features · tableᵀ, differentiable with respect to features and table.

    The gradients are computed along with the loss, chunk by chunk, and kept
    for the backward pass. Without a gradient tape, call `token_losses`.

    Args:
        features: `(N, D)`, the decoder's output; any float dtype.
        table: float32 `(V, D)`, the embeddings.
        labels: int32 `(N,)`.
        weights: float32 `(N,)`, of each token in the sum.
        label_smoothing: ε. Defaults to 0.
        train_table: whether the table gets a gradient, a third of the work.
            Defaults to True.
        teacher: `TeacherTokens`, the distributions to learn besides the labels,
            or `None` (default).

    Returns:
        Σ weights · loss, a float32 scalar; and without gradient, float32
        `(N,)`, the loss of each token and its unsmoothed part.
    """

    @tf.custom_gradient
    def weighted_sum(features, table):
        result = token_losses(
            features,
            table,
            labels,
            weights,
            label_smoothing,
            True,
            train_table,
            teacher,
        )

        def backward(d_total, *_):
            # `d_total` may be the scale of a loss in float16.
            d_features = d_total * result["d_features"]
            d_features = tf.cast(d_features, features.dtype)
            d_table = d_total * result["d_table"] if train_table else None
            return d_features, d_table

        total = tf.reduce_sum(weights * result["loss"])
        return (total, result["loss"], result["nll"]), backward

    total, loss, nll = weighted_sum(features, table)
    return total, tf.stop_gradient(loss), tf.stop_gradient(nll)


def token_losses(
    features: tf.Tensor,
    table: tf.Tensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
    label_smoothing: float = 0.0,
    gradients: bool = False,
    train_table: bool = True,
    teacher: TeacherTokens | None = None,
) -> dict[str, tf.Tensor]:
    """Computes the loss of each token, and the gradients of their sum.

    Smoothing takes no further tensor of the logits' size: smoothed = nll + ε ·
    (logit of the label − mean of the logits), and that mean is a product with
    the mean row of the table. A teacher with weight w and distribution p leaves
    (1 − w) · ε of that, and adds w · (logit of the label − Σ p · logits).

    Args:
        features, table, labels, weights, label_smoothing, train_table, teacher:
            as in `projection_loss`.
        gradients: whether to compute them. Defaults to False.

    Returns:
        A dictionary of float32 tensors: `loss` and `nll`, `(N,)`; and with
        `gradients`, those of Σ weights · loss: `d_features` `(N, D)` and, with
        `train_table`, `d_table` `(V, D)`.
    """
    exact_table, table = table, tf.cast(table, features.dtype)
    tokens = tf.shape(features)[0]
    of_teacher = teacher.weight if teacher else 0.0
    label_smoothing *= 1 - of_teacher
    of_label = 1 - of_teacher - label_smoothing
    exact = tf.cast(features, tf.float32)
    weighted = weights[:, None] * exact
    # Smoothing needs the label's logit, which the chunks have, and the mean of
    # all, which is x · the mean embedding and so needs no chunk.
    mean = tf.reduce_mean(exact_table, axis=0)  # [D]
    mean_logits = tf.linalg.matvec(exact, mean)  # [N]
    d_table = ()
    if gradients and train_table:
        classes = tf.cast(tf.shape(table)[0], tf.float32)
        d_row = tf.reduce_sum(weighted, axis=0) / classes
        d_table = tf.broadcast_to(-label_smoothing * d_row, tf.shape(table))
    weighted = tf.cast(weighted, features.dtype)

    def chunk(start, nll, loss, d_features, d_table):
        here = slice(start, tf.minimum(start + CHUNK, tokens))
        i = start // CHUNK
        logits = tf.matmul(features[here], table, transpose_b=True)
        logits = tf.cast(logits, tf.float32)  # [C, V]
        nll_here, gold, d_logits = _cross_entropy(
            logits, labels[here], of_label
        )
        loss_here = nll_here + label_smoothing * (gold - mean_logits[here])
        if teacher:
            expected = teacher.probabilities(here)
            means = tf.reduce_sum(expected * logits, axis=-1)
            loss_here += of_teacher * (gold - means)
            d_logits -= of_teacher * expected
        nll, loss = nll.write(i, nll_here), loss.write(i, loss_here)
        if gradients:
            d_logits = tf.cast(d_logits, features.dtype)
            d_features = d_features.write(i, tf.matmul(d_logits, table))
        if gradients and train_table:
            product = tf.matmul(d_logits, weighted[here], transpose_a=True)
            d_table += tf.cast(product, tf.float32)
        return start + CHUNK, nll, loss, d_features, d_table

    # An array of no chunks cannot be joined: no tokens are one empty chunk.
    chunks = tf.maximum(1, -(-tokens // CHUNK))
    _, nll, loss, d_features, d_table = tf.while_loop(
        lambda start, nll, *_: (start < tokens) | tf.equal(start, 0),
        chunk,
        (
            0,
            _array(tf.float32, chunks, (None,)),
            _array(tf.float32, chunks, (None,)),
            _array(features.dtype, chunks, (None, features.shape[-1])),
            d_table,
        ),
        maximum_iterations=chunks,
        parallel_iterations=1,
    )
    results = {"nll": nll.concat(), "loss": loss.concat()}
    if not gradients:
        return results
    d_features = tf.cast(d_features.concat(), tf.float32)
    d_features = weights[:, None] * (d_features - label_smoothing * mean)
    return {**results, "d_features": d_features, "d_table": d_table}


def _cross_entropy(logits, labels, of_label):
    """Returns the loss and the label's logit, `(C,)`, and softmax − `of_label`
    · one-hot, `(C, V)`, the gradient where the label has that probability.

    oneDNN's softmax is several times as fast as TensorFlow's operation for
    loss and gradient. Its greatest value is at least 1 / V, so that the
    normaliser is exact even where the label's own probability is rounded to 0.
    """
    softmax = tf.nn.softmax(logits)
    greatest = tf.reduce_max(logits, axis=-1)
    normaliser = greatest - tf.math.log(tf.reduce_max(softmax, axis=-1))
    gold = tf.gather(logits, labels, batch_dims=1)
    places = tf.stack([tf.range(tf.shape(labels)[0]), labels], axis=1)
    with tf.control_dependencies([normaliser]):  # the softmax has been read
        d_logits = add_in_place(softmax, places, -of_label * tf.ones_like(gold))
    return normaliser - gold, gold, d_logits


def add_in_place(
    tensor: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor
) -> tf.Tensor:
    """Adds updates to a tensor as `tf.tensor_scatter_nd_add` does, which on a
    CPU always copies it; this does so only if another operation is still to
    read it."""
    return tf.raw_ops.ScatterNdNonAliasingAdd(
        input=tensor, indices=indices, updates=updates
    )


def _array(dtype, size, shape):
    return tf.TensorArray(dtype, size, infer_shape=False, element_shape=shape)
