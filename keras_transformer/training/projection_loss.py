"""The loss behind the pre-softmax projection, without keeping the logits.

With a vocabulary of size V the logits are by far the largest tensor of a
training step. Here some tokens at a time are projected, their loss and both
gradients taken, and their logits forgotten.

Shapes: N tokens, D d_model, V vocabulary, C tokens of a chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import KerasTensor, ops

from keras_transformer.losses import smoothed

CHUNK = 512
CHUNK_OF_ACCELERATOR = 4096  # whose products need more rows to be fast


class TeacherTokens(NamedTuple):
    """Says what one teacher predicts in the place of each label, for word-level
    distillation (Kim and Rush, 2016, section 3.1).

    Args:
        features: `(N, D′)`, the output of the teacher's decoder.
        table: `(V, D′)`, the teacher's embeddings, in the dtype of `features`.
        weight: w in [0, 1]. What is learned is w times the distribution of each
            teacher, and the rest the smoothed label.
    """

    features: KerasTensor
    table: KerasTensor
    weight: float


def token_losses(
    features: KerasTensor,
    table: KerasTensor,
    labels: KerasTensor,
    weights: KerasTensor,
    label_smoothing: float = 0.0,
    gradients: bool = False,
    train_table: bool = True,
    teachers: Sequence[TeacherTokens] = (),
) -> dict[str, KerasTensor]:
    """Computes the smoothed cross-entropy (section 5.4) of the logits
    features · tableᵀ for each token, and the gradients of its weighted sum.

    Smoothing takes no further tensor of the logits' size: smoothed = nll + ε ·
    (logit of the label − mean of the logits), and that mean is a product with
    the mean row of the table. A teacher with weight w and distribution p leaves
    (1 − w) · ε of that, and adds w · (logit of the label − Σ p · logits). The
    weights of several teachers add up to w.

    Args:
        features: `(N, D)`, the decoder's output; any float dtype.
        table: float32 `(V, D)`, the embeddings.
        labels: int32 `(N,)`.
        weights: float32 `(N,)`, of each token in the sum.
        label_smoothing: ε. Defaults to 0.
        gradients: whether to compute them. Defaults to False.
        train_table: whether the table gets a gradient, a third of the work.
            Defaults to True.
        teachers: `TeacherTokens` of each teacher, the distributions to learn
            besides the labels. Defaults to none.

    Returns:
        A dictionary of float32 tensors: `loss` and `nll`, its unsmoothed part,
        `(N,)`; and with `gradients`, those of Σ weights · loss: `d_features`
        `(N, D)` and, with `train_table`, `d_table` `(V, D)`.
    """
    exact_table, table = table, ops.cast(table, features.dtype)
    of_teachers = sum(teacher.weight for teacher in teachers)
    label_smoothing *= 1 - of_teachers
    of_label = 1 - of_teachers - label_smoothing
    exact = ops.cast(features, "float32")
    weighted = weights[:, None] * exact
    # Smoothing needs the label's logit, which the chunks have, and the mean of
    # all, which is x · the mean embedding and so needs no chunk.
    mean = ops.mean(exact_table, axis=0)  # [D]
    tokens = {
        "features": features,
        "labels": labels,
        "mean_logits": ops.sum(exact * mean, axis=-1),
        "weighted": ops.cast(weighted, features.dtype),
    }
    for i, teacher in enumerate(teachers):
        tokens[f"of_teacher_{i}"] = teacher.features
    d_table = ()
    if gradients and train_table:
        size = ops.shape(table)
        d_row = ops.sum(weighted, axis=0) / ops.cast(size[0], "float32")
        d_table = ops.broadcast_to(-label_smoothing * d_row, size)

    def losses_of(chunk, d_table):
        logits = _product(chunk["features"], table, transpose_b=True)
        logits = ops.cast(logits, "float32")  # [C, V]
        nll, gold, d_logits = _cross_entropy(logits, chunk["labels"], of_label)
        loss = smoothed(nll, gold, chunk["mean_logits"], label_smoothing)
        for i, teacher in enumerate(teachers):
            others = chunk[f"of_teacher_{i}"]
            others = _product(others, teacher.table, False, True)
            expected = ops.softmax(ops.cast(others, "float32"))
            means = ops.sum(expected * logits, axis=-1)
            loss = loss + teacher.weight * (gold - means)
            d_logits = d_logits - teacher.weight * expected
        found = {"nll": nll, "loss": loss}
        if gradients:
            d_logits = ops.cast(d_logits, features.dtype)
            found["d_features"] = ops.matmul(d_logits, table)
        if gradients and train_table:
            product = _product(d_logits, chunk["weighted"], transpose_a=True)
            d_table = d_table + ops.cast(product, "float32")
        return found, d_table

    names = ["nll", "loss"] + ["d_features"] * gradients
    in_chunks = {
        "jax": _in_chunks_on_jax,
        "tensorflow": _in_chunks_on_tensorflow,
    }[keras.backend.backend()]
    results, d_table = in_chunks(losses_of, tokens, d_table, names)
    if not gradients:
        return results
    d_features = ops.cast(results["d_features"], "float32")
    d_features = weights[:, None] * (d_features - label_smoothing * mean)
    return {**results, "d_features": d_features, "d_table": d_table}


def projection_loss(
    features: KerasTensor,
    table: KerasTensor,
    labels: KerasTensor,
    weights: KerasTensor,
    label_smoothing: float = 0.0,
) -> KerasTensor:
    """Returns Σ weights · loss, a float32 scalar that can be differentiated
    with respect to features and table: for `compute_loss` of your own model.

    The arguments are those of `token_losses`. The gradients are computed along
    with the loss and kept for the backward pass.
    """

    @ops.custom_gradient
    def weighted_sum(features, table):
        found = token_losses(
            features, table, labels, weights, label_smoothing, gradients=True
        )

        def backward(*args, upstream=None):
            # It may be the scale of a loss in float16.
            d_total = args[0] if upstream is None else upstream
            d_features = d_total * found["d_features"]
            d_features = ops.cast(d_features, features.dtype)
            return d_features, d_total * found["d_table"]

        return ops.sum(weights * found["loss"]), backward

    return weighted_sum(features, table)


def _cross_entropy(logits, labels, of_label):
    """Returns the loss and the label's logit, `(C,)`, and softmax − `of_label`
    · one-hot, `(C, V)`, the gradient where the label has that probability.

    oneDNN's softmax is several times as fast as TensorFlow's operation for
    loss and gradient. Its greatest value is at least 1 / V, so that the
    normaliser is exact even where the label's own probability is rounded to 0.
    """
    softmax = ops.softmax(logits)
    greatest = ops.max(logits, axis=-1)
    normaliser = greatest - ops.log(ops.max(softmax, axis=-1))
    if keras.backend.backend() != "tensorflow":
        gold = ops.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        is_label = ops.arange(logits.shape[-1]) == labels[:, None]
        d_logits = softmax - ops.where(is_label, of_label, 0.0)
        return normaliser - gold, gold, d_logits
    import tensorflow as tf

    gold = tf.gather(logits, labels, batch_dims=1)
    places = tf.stack([tf.range(tf.shape(labels)[0]), labels], axis=1)
    with tf.control_dependencies([normaliser]):  # the softmax has been read
        d_logits = add_in_place(softmax, places, -of_label * tf.ones_like(gold))
    return normaliser - gold, gold, d_logits


def add_in_place(tensor: Any, indices: Any, updates: Any) -> Any:
    """Adds updates to a tensor of TensorFlow as `tf.tensor_scatter_nd_add`
    does, which on a CPU always copies it; this does so only if another
    operation is still to read it."""
    import tensorflow as tf

    return tf.raw_ops.ScatterNdNonAliasingAdd(
        input=tensor, indices=indices, updates=updates
    )


def _product(a, b, transpose_a=False, transpose_b=False):
    """Returns a matrix product; TensorFlow would copy a transposed matrix."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.matmul(a, b, transpose_a, transpose_b)
    a = ops.transpose(a) if transpose_a else a
    return ops.matmul(a, ops.transpose(b) if transpose_b else b)


Losses = Callable[[dict[str, Any], Any], tuple[dict[str, Any], Any]]


def _in_chunks_on_jax(losses_of: Losses, tokens, d_table, names):
    """Runs `losses_of` for chunks of equal size."""
    import jax

    on_cpu = jax.default_backend() == "cpu"
    count = len(tokens["labels"])
    chunks = -(-count // (CHUNK if on_cpu else CHUNK_OF_ACCELERATOR)) or 1

    def divided(x):
        # Chunk i has every `chunks`th token, so that devices that hold
        # consecutive rows share each chunk.
        x = ops.pad(x, [(0, -count % chunks), *[(0, 0)] * (x.ndim - 1)])
        return x.reshape(-1, chunks, *x.shape[1:]).swapaxes(0, 1)

    def step(d_table, chunk):
        return losses_of(chunk, d_table)[::-1]

    tokens = {name: divided(x) for name, x in tokens.items()}
    d_table, results = jax.lax.scan(step, d_table, tokens)
    results = {
        name: results[name]
        .swapaxes(0, 1)
        .reshape(-1, *results[name].shape[2:])[:count]
        for name in names
    }
    return results, d_table


def _in_chunks_on_tensorflow(losses_of: Losses, tokens, d_table, names):
    """Runs `losses_of` for chunks, of which the last one is smaller."""
    import tensorflow as tf

    features = tokens["features"]
    count = tf.shape(features)[0]
    # An array of no chunks cannot be joined: no tokens are one empty chunk.
    chunks = tf.maximum(1, -(-count // CHUNK))

    def array(name):
        like = features if name == "d_features" else tokens["mean_logits"]
        shape = [None, *like.shape[1:]]
        return tf.TensorArray(
            like.dtype, chunks, infer_shape=False, element_shape=shape
        )

    def step(start, arrays, d_table):
        here = slice(start, tf.minimum(start + CHUNK, count))
        chunk = {name: x[here] for name, x in tokens.items()}
        found, d_table = losses_of(chunk, d_table)
        arrays = [
            x.write(start // CHUNK, found[name])
            for name, x in zip(names, arrays, strict=True)
        ]
        return start + CHUNK, arrays, d_table

    _, arrays, d_table = tf.while_loop(
        lambda start, *_: (start < count) | tf.equal(start, 0),
        step,
        (0, [array(name) for name in names], d_table),
        maximum_iterations=chunks,
        parallel_iterations=1,
    )
    results = [x.concat() for x in arrays]
    return dict(zip(names, results, strict=True)), d_table


def with_bias(
    features: KerasTensor, table: KerasTensor, bias: KerasTensor | None
) -> tuple[KerasTensor, KerasTensor]:
    """Returns features and table of logits with their bias, if they have one:
    it is a column of the table, and features are 1 there."""
    if bias is None:
        return features, table
    ones = ops.ones_like(features[..., :1])
    return (
        ops.concatenate([features, ones], axis=-1),
        ops.concatenate([table, bias[:, None]], axis=-1),
    )


def without_bias(
    d_features: KerasTensor, d_table: KerasTensor | None
) -> tuple[KerasTensor, KerasTensor | None, KerasTensor | None]:
    """Returns the gradients of features, table and bias from those of what
    `with_bias` returns."""
    d_features = d_features[:, :-1]
    if d_table is None:
        return d_features, None, None
    return d_features, d_table[:, :-1], d_table[:, -1]
