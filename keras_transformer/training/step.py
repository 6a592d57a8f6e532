"""One update of the weights, the same however its batch is cut.

A batch may lie on several replicas, on several machines, and in several parts
that each replica works off one after the other. What is minimised is always
the sum over all real target tokens of the whole batch, divided by their
number: parts carry weights of 1 / that number, so that losses and gradients
are simply added.

Shapes: A parts, R passes, B rows of a part, S source length, T target length,
D d_model, N real tokens.
"""

import tensorflow as tf

from keras_transformer.config import PAD
from keras_transformer.training.chunked_loss import (
    add_in_place,
    projection_loss,
)


def make_training_step(model, label_smoothing, strategy, r_drop=0.0):
    """Returns the function `step(iterator, stop_requests)` that updates a
    compiled model.

    Args:
        model: a `Transformer` with an optimizer, built under `strategy`.
        label_smoothing: ε, section 5.4.
        strategy: a `tf.distribute` strategy.
        r_drop: α of R-Drop, see `projection_loss`. Defaults to 0: one pass.

    Returns:
        A function that takes the next batch, see `data.batches`, and gives
        sums over all replicas: `loss`, which is what is minimised, R-Drop's
        part included, and `nll` over real target tokens,
        `tokens`, and the vector `stop_requests` that each worker passed.
    """

    def update(batch, stop_requests):
        gradients, sums = _over_parts(
            lambda part: _gradients(model, part, label_smoothing, r_drop),
            batch,
        )
        model.optimizer.apply(gradients, model.trainable_variables)
        return {**sums, "stop_requests": tf.identity(stop_requests)}

    @tf.function(autograph=False)
    def step(iterator, stop_requests):
        sums = strategy.run(update, (next(iterator), stop_requests))
        return _summed(sums, strategy)

    return step


def make_evaluation_step(model, label_smoothing, strategy):
    """The function `step(iterator)`: the same sums, weights left alone."""

    def evaluate(batch):
        return _over_parts(
            lambda part: _loss(
                model,
                model.features(part, training=False),
                part,
                label_smoothing,
                gradients=False,
            )[0],
            batch,
        )

    @tf.function(autograph=False)
    def step(iterator):
        return _summed(strategy.run(evaluate, (next(iterator),)), strategy)

    return step


def make_count(strategy):
    """The function `count(x)`: the sum of a vector over all replicas."""

    # One signature, one trace.
    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.float64)], autograph=False
    )
    def count(x):
        return _summed({"x": strategy.run(tf.identity, (x,))}, strategy)["x"]

    return count


def _summed(sums, strategy):
    return {
        name: strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)
        for name, value in sums.items()
    }


def _over_parts(function, batch):
    """The sum of what `function` gives for each part of a batch."""
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


def _gradients(model, part, label_smoothing, r_drop=0.0):
    """Dense gradients of every trainable variable, and the sums."""
    variables = [v.value for v in model.trainable_variables]
    passes = 2 if r_drop else 1
    inputs = {
        name: tf.concat([part[name]] * passes, axis=0)
        for name in ("source", "target")
    }
    with tf.GradientTape() as tape:
        features = model.features(inputs, training=True)  # [R·B, T, D]
    sums, d_features, d_table = _loss(
        model, features, part, label_smoothing, gradients=True, r_drop=r_drop
    )
    gradients = tape.gradient(
        features, variables, d_features, tf.UnconnectedGradients.ZERO
    )
    table = model.target_embedding.embeddings
    for i, variable in enumerate(model.trainable_variables):
        if variable is table:
            gradients[i] = _add_to(d_table, gradients[i])
        else:
            gradients[i] = tf.convert_to_tensor(gradients[i])
    return gradients, sums


def _loss(model, features, part, label_smoothing, gradients, r_drop=0.0):
    """Sums over the real tokens of a part, and the gradients with respect to
    the features and the table of the projection."""
    labels = tf.reshape(part["labels"], (-1,))
    real = tf.where(tf.not_equal(labels, PAD))[:, 0]  # [N]
    shape = tf.shape(features)
    passes = 2 if r_drop else 1
    features = tf.reshape(features, (passes, -1, features.shape[-1]))
    table = tf.cast(model.target_embedding.embeddings, features.dtype)
    result = projection_loss(
        tf.gather(features, real, axis=1),
        table,
        tf.gather(labels, real),
        tf.gather(tf.reshape(part["weights"], (-1,)), real),
        label_smoothing,
        gradients,
        r_drop,
    )
    sums = {
        "loss": tf.reduce_sum(result["loss"]),
        "nll": tf.reduce_sum(result["nll"]),
        "tokens": tf.cast(tf.shape(real)[0], tf.float32),
    }
    if not gradients:
        return sums, None, None
    place = tf.shape(features, tf.int64)[1:]
    d_features = [
        tf.scatter_nd(real[:, None], d, place)
        for d in tf.unstack(result["d_features"])
    ]
    return sums, tf.reshape(tf.stack(d_features), shape), result["d_table"]


def _add_to(dense, gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return add_in_place(dense, gradient.indices[:, None], gradient.values)
    return dense + gradient
