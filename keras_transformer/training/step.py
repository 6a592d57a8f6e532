"""One update of the weights, the same however its batch is cut.

A batch may lie on several replicas, on several machines, and in several parts
that each replica works off one after the other. What is minimised is always
the sum over all real target tokens of the whole batch, divided by their
number: parts carry weights of 1 / that number, so that losses and gradients
are simply added.

Shapes: A parts, B rows of a part, S source length, T target length, D d_model,
N real tokens.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_transformer.ids import PAD
from keras_transformer.layers import PositionalEmbedding
from keras_transformer.model import Transformer
from keras_transformer.training.chunked_loss import (
    TeacherTokens,
    add_in_place,
    projection_loss,
    token_losses,
)


def make_training_step(
    model: Transformer,
    label_smoothing: float,
    strategy: tf.distribute.Strategy,
    teacher: Transformer | None = None,
    teacher_weight: float = 0.0,
) -> Callable:
    """Returns the function `step(iterator, stop_requests)` that updates a
    compiled model.

    Args:
        model: a `Transformer` with an optimizer, built under `strategy`.
        label_smoothing: ε, section 5.4.
        strategy: a `tf.distribute` strategy.
        teacher: a `Transformer` with the same vocabularies, whose predictions
            are learned besides the labels, or `None` (default).
        teacher_weight: of these predictions, see `TeacherTokens`.

    Returns:
        A function that takes the next batch, see `data.batches`, and returns
        sums over all replicas: `loss`, which is minimised and has the part of
        the teacher; `nll` of the real target tokens; `tokens`, their number;
        and `stop_requests`, the vectors that the workers passed.
    """

    def update(batch, stop_requests):
        gradients, sums = _over_parts(
            lambda part: _gradients(
                model, part, label_smoothing, teacher, teacher_weight
            ),
            batch,
        )
        model.optimizer.apply(gradients, model.trainable_variables)
        return {**sums, "stop_requests": tf.identity(stop_requests)}

    @tf.function(autograph=False)
    def step(iterator, stop_requests):
        sums = strategy.run(update, (next(iterator), stop_requests))
        return _summed(sums, strategy)

    return step


def make_evaluation_step(
    model: Transformer, label_smoothing: float, strategy: tf.distribute.Strategy
) -> Callable:
    """Returns the function `step(iterator)`: the same sums, no update."""

    def evaluate(batch):
        return _over_parts(
            lambda part: _losses(model, part, label_smoothing), batch
        )

    @tf.function(autograph=False)
    def step(iterator):
        return _summed(strategy.run(evaluate, (next(iterator),)), strategy)

    return step


def make_sum_over_replicas(
    strategy: tf.distribute.Strategy,
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function that sums a vector over all replicas."""

    # One signature, one trace.
    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.float64)], autograph=False
    )
    def sum_over_replicas(x):
        return _summed({"x": strategy.run(tf.identity, (x,))}, strategy)["x"]

    return sum_over_replicas


def _summed(sums, strategy):
    return {
        name: strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)
        for name, value in sums.items()
    }


def _over_parts(function, batch):
    """Returns the sum of what `function` returns for each part."""
    parts = batch["source"].shape[0]
    sums = function({name: x[0] for name, x in batch.items()})
    if parts == 1:
        return sums

    def add(i, sums):
        more = function({name: x[i] for name, x in batch.items()})
        return i + 1, tf.nest.map_structure(tf.add, sums, more)

    _, sums = tf.while_loop(
        lambda i, _: i < parts, add, (1, sums), parallel_iterations=1
    )
    return sums


def _gradients(model, part, label_smoothing, teacher=None, teacher_weight=0.0):
    """Returns dense gradients of every trainable variable, and the sums."""
    predicted = teacher and _predictions(teacher, part, teacher_weight)
    variables = [v.value for v in model.trainable_variables]
    inputs = {name: part[name] for name in ("source", "target")}
    # Not the variable: the gradients of its two uses, as embeddings and as
    # projection, are added in place below, which takes 4% off a step.
    layer = model.target_embedding
    projection = layer.projection  # LoRA does not train it
    table = tf.convert_to_tensor(projection)
    with tf.GradientTape() as tape:
        tape.watch(table)
        features = model.decoder_output(inputs, training=True)  # [B, T, D]
        features, labels, weights = _real_tokens(features, part)
        features, rows = with_bias(layer, features, table)
        total, loss, nll = projection_loss(
            features,
            rows,
            labels,
            weights,
            label_smoothing,
            projection.trainable,
            predicted,
        )
    *gradients, d_table = tape.gradient(
        total,
        [*variables, table],
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    gradients = [
        _add_in_place(d_table, gradient)
        if variable is projection
        else tf.convert_to_tensor(gradient)
        for variable, gradient in zip(
            model.trainable_variables, gradients, strict=True
        )
    ]
    return gradients, _sums(loss, nll)


def _add_in_place(dense, gradient):
    """Adds a gradient, which may be sparse, to a dense one."""
    if isinstance(gradient, tf.IndexedSlices):
        return add_in_place(dense, gradient.indices[:, None], gradient.values)
    return dense + gradient


def _losses(model, part, label_smoothing):
    """Returns the sums over the real tokens of a part, without dropout."""
    features, table, labels, weights = _without_dropout(model, part)
    result = token_losses(features, table, labels, weights, label_smoothing)
    return _sums(result["loss"], result["nll"])


def _predictions(teacher, part, weight):
    features, table, *_ = _without_dropout(teacher, part)
    return TeacherTokens(features, tf.cast(table, features.dtype), weight)


def _without_dropout(model, part):
    """Returns features `(N, D)`, table, labels and weights of the tokens
    that are not padding."""
    features = model.decoder_output(part, training=False)
    features, labels, weights = _real_tokens(features, part)
    table = tf.convert_to_tensor(model.target_embedding.projection)
    features, table = with_bias(model.target_embedding, features, table)
    return features, table, labels, weights


def _real_tokens(features, part):
    """Returns features `(N, D)`, labels and weights `(N,)` of the tokens that
    are not padding."""
    labels = tf.reshape(part["labels"], (-1,))
    real = tf.where(tf.not_equal(labels, PAD))[:, 0]  # [N]
    return (
        tf.gather(tf.reshape(features, (-1, features.shape[-1])), real),
        tf.gather(labels, real),
        tf.gather(tf.reshape(part["weights"], (-1,)), real),
    )


def with_bias(
    layer: PositionalEmbedding, features: tf.Tensor, table: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns features and table of logits with their bias, if they have one:
    it is a column of the table, and features are 1 there."""
    if not layer.use_logits_bias:
        return features, table
    ones = tf.ones_like(features[..., :1])
    bias = tf.convert_to_tensor(layer.logits_bias)[:, None]
    return (
        tf.concat([features, ones], axis=-1),
        tf.concat([table, bias], axis=-1),
    )


def _sums(loss, nll):
    return {
        "loss": tf.reduce_sum(loss),
        "nll": tf.reduce_sum(nll),
        "tokens": tf.cast(tf.size(loss), tf.float32),
    }
