"""Compares the losses, gradients and Adam of a training step with Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data.batches import (
    EncodedPairs,
    Rows,
    Sharding,
    make_batch,
)
from keras_transformer.losses import LabelSmoothedCrossEntropy, TokenLoss
from keras_transformer.training.adam import Adam
from keras_transformer.training.projection_loss import (
    CHUNK,
    TeacherTokens,
    projection_loss,
    token_losses,
)
from keras_transformer.training.tensorflow_trainer import _gradients


def small_model(source_vocab_size=None, **kwargs):
    shape = {"num_layers": 1, "d_model": 22, "num_heads": 2, "d_ff": 17}
    shape |= {"dropout_rate": 0.0, **kwargs}
    config = TransformerConfig(31, source_vocab_size, **shape)
    return Transformer(config, seed=1)


def some_pairs(rows=13, seed=1):
    rng = np.random.default_rng(seed)
    sides = [
        [[*rng.integers(4, 31, rng.integers(1, 11)), 3] for _ in range(rows)]
        for _ in range(2)
    ]
    return EncodedPairs(*map(Rows.of, sides))


def one_part(**cut):
    batch = make_batch(some_pairs(), Sharding(**cut))
    return {k: tf.constant(x[0]) for k, x in batch.items()}


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights_of_teachers", [[], [1.0], [0.1, 0.3]])
def test_the_projection_loss_equals_the_loss_of_the_logits(
    label_smoothing, weights_of_teachers
):
    """For no tokens, for less than a chunk, and for several chunks."""

    def oracle(x, table, labels, weights, features, *others):
        logits = tf.matmul(x, table, transpose_b=True)
        log_p = tf.nn.log_softmax(logits)  # [N, V]
        target = (1 - label_smoothing) * tf.one_hot(labels, 31)
        target += label_smoothing / 31
        target *= 1 - sum(weights_of_teachers)
        for weight, other in zip(weights_of_teachers, others, strict=False):
            predicted = tf.nn.softmax(tf.matmul(features, other, False, True))
            target += weight * predicted
        loss = -tf.reduce_sum(target * log_p, axis=-1)
        nll = -tf.gather(log_p, labels, batch_dims=1)
        return tf.reduce_sum(weights * loss), loss, nll

    @tf.function(autograph=False, reduce_retracing=True)
    def found(x, table, labels, weights, features, *others):
        teachers = [
            TeacherTokens(features, other, weight)
            for weight, other in zip(weights_of_teachers, others, strict=False)
        ]
        return token_losses(
            x, table, labels, weights, label_smoothing, True, True, teachers
        )

    @tf.function(autograph=False, reduce_retracing=True)
    def expected(x, table, *rest):
        with tf.GradientTape() as tape:
            tape.watch([x, table])
            total, loss, nll = oracle(x, table, *rest)
        return loss, nll, *tape.gradient(total, [x, table])

    rng = np.random.default_rng(1)
    for tokens in (2 * CHUNK + 5, 0, 1, 7, CHUNK, CHUNK + 1):
        arguments = [
            rng.normal(size=(tokens, 7)),
            rng.normal(size=(31, 7)),
            rng.integers(0, 31, tokens),
            rng.uniform(size=tokens),
            rng.normal(size=(tokens, 5)),
            rng.normal(size=(31, 5)),
            rng.normal(size=(31, 5)),
        ]
        arguments = [
            tf.constant(x, tf.int32 if i == 2 else tf.float32)
            for i, x in enumerate(arguments)
        ]
        ours = found(*arguments)
        for name, other, atol in zip(
            ("loss", "nll", "d_features", "d_table"),
            expected(*arguments),
            (2e-5, 1e-5, 2e-5, 4e-4),
            strict=True,
        ):
            np.testing.assert_allclose(
                ours[name], other, rtol=1e-5, atol=atol, err_msg=name
            )


def test_a_scaled_loss_has_gradients_in_float16():
    """Keras' scale of the loss may exceed the largest number of float16."""
    rng = np.random.default_rng(2)
    x = tf.constant(rng.normal(size=(37, 7)), tf.float32)
    table = tf.constant(rng.normal(size=(31, 7)), tf.float32)
    labels = tf.constant(rng.integers(0, 31, 37), tf.int32)
    weights = tf.fill([37], 2.0**-20)
    found = []
    for dtype in ("float32", "float16"):
        features = tf.cast(x, dtype)
        with tf.GradientTape() as tape:
            tape.watch(features)
            total = 2.0**17 * projection_loss(features, table, labels, weights)
        found.append(tf.cast(tape.gradient(total, features), tf.float32))
    np.testing.assert_allclose(found[1], found[0], rtol=0.02, atol=1e-4)


def test_the_loss_is_right_where_a_probability_rounds_to_zero():
    x = tf.constant([[700.0], [-90.0], [0.0], [np.nan]])
    table = tf.constant([[1.0], [0.5], [-1.0]])
    labels = tf.constant([2, 0, 1, 1])
    found = token_losses(x, table, labels, tf.ones(4), gradients=True)
    nll = [1400.0, 180.0, np.log(3), np.nan]
    np.testing.assert_allclose(found["nll"], nll, rtol=1e-5)
    d_x = [2.0, -2.0, -1 / 3, np.nan]  # Σ softmax · table − the label's row
    np.testing.assert_allclose(found["d_features"][:, 0], d_x, rtol=1e-5)


@pytest.mark.parametrize(
    ("source_vocab_size", "shape"),
    [
        (None, {}),
        (29, {"norm_first": True}),
        (None, {"use_logits_bias": True}),
        (29, {"use_logits_bias": True, "tie_projection": False}),
    ],
    ids=str,
)
def test_gradients_equal_those_of_the_public_loss(source_vocab_size, shape):
    model = small_model(source_vocab_size, **shape)
    if "use_logits_bias" in shape:
        bias = np.random.default_rng(1).normal(size=31)
        model.target_embedding.logits_bias.assign(bias)
    part = {k: x[0] for k, x in one_part().items()}
    if source_vocab_size:
        part["source"] = tf.minimum(part["source"], source_vocab_size - 1)
    loss = LabelSmoothedCrossEntropy(0.1)
    with tf.GradientTape() as tape:
        inputs = {k: part[k] for k in ("source", "target")}
        logits = model(inputs, training=True)
        value = loss(part["labels"], logits)
    variables = model.trainable_variables
    expected = tape.gradient(value, [v.value for v in variables])
    found, sums = _gradients(model, part, 0.1)
    np.testing.assert_allclose(sums["loss"] / sums["tokens"], value, rtol=1e-5)
    metric = TokenLoss()
    metric.update_state(part["labels"], logits)
    np.testing.assert_allclose(
        sums["nll"] / sums["tokens"], metric.result(), rtol=1e-5
    )
    for variable, one, other in zip(variables, expected, found, strict=True):
        np.testing.assert_allclose(
            tf.convert_to_tensor(one), other, atol=1e-6, err_msg=variable.path
        )


@pytest.mark.parametrize("use_logits_bias", [False, True])
def test_gradients_with_teachers_equal_those_of_their_mean_distribution(
    use_logits_bias,
):
    model = small_model(use_logits_bias=use_logits_bias)
    shape = {"d_model": 10, "use_logits_bias": use_logits_bias}
    teachers = [
        small_model(**shape, num_layers=layers, dropout_rate=0.5)
        for layers in (1, 2)
    ]
    for i, one in enumerate([model, *teachers] if use_logits_bias else ()):
        bias = np.random.default_rng(i).normal(size=31)
        one.target_embedding.logits_bias.assign(bias)
    part = {k: x[0] for k, x in one_part().items()}
    inputs = {k: part[k] for k in ("source", "target")}
    expected = sum(
        tf.nn.softmax(teacher(inputs, training=False)) / 2
        for teacher in teachers
    )
    smoothed = 0.9 * tf.one_hot(part["labels"], 31) + 0.1 / 31
    with tf.GradientTape() as tape:
        log_p = tf.nn.log_softmax(model(inputs, training=True))
        target = 0.7 * smoothed + 0.3 * expected
        loss = -tf.reduce_sum(target * log_p, axis=-1)
        value = tf.reduce_mean(loss[part["labels"] != 0])
    variables = model.trainable_variables
    gradients = tape.gradient(value, [v.value for v in variables])
    found, sums = _gradients(model, part, 0.1, teachers, 0.3)
    np.testing.assert_allclose(sums["loss"] / sums["tokens"], value, rtol=1e-5)
    for variable, one, other in zip(variables, gradients, found, strict=True):
        np.testing.assert_allclose(
            tf.convert_to_tensor(one), other, atol=1e-6, err_msg=variable.path
        )


def test_a_model_learns_nothing_from_itself():
    model, part = small_model(), {k: x[0] for k, x in one_part().items()}
    found, _ = _gradients(model, part, 0.1, [model], 1.0)
    for gradient in found:
        np.testing.assert_allclose(gradient, 0, atol=1e-6)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_adam_equals_keras_adam(clip):
    rng = np.random.default_rng(1)
    shapes = (7, 5), (3,)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    results = []
    gradients = [
        [tf.constant(rng.normal(size=s), tf.float32) for s in shapes]
        for _ in range(5)
    ]
    for kind in (Adam, keras.optimizers.Adam):
        keras.utils.set_random_seed(1)
        variables = [keras.Variable(np.ones(s, "float32")) for s in shapes]
        optimizer = kind(schedule, 0.9, 0.98, 1e-9, global_clipnorm=clip)
        for some in gradients:
            optimizer.apply(some, variables)
        results.append([v.numpy() for v in (*variables, *optimizer.variables)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_an_id_that_occurs_often_takes_one_step_of_adam():
    """A sparse gradient has a row for each occurrence."""
    results = []
    for is_sparse in (True, False):
        table = keras.Variable(np.ones((5, 3), "float32"))
        gradient = tf.IndexedSlices(
            tf.ones((4, 3)), tf.constant([1, 1, 1, 4]), tf.constant([5, 3])
        )
        optimizer = Adam(0.1)
        optimizer.apply(
            [gradient if is_sparse else tf.convert_to_tensor(gradient)], [table]
        )
        results.append(table.numpy())
    np.testing.assert_array_equal(*results)
    assert (results[0] < 1)[[1, 4]].all()


def test_adam_refuses_amsgrad():
    with pytest.raises(ValueError, match="amsgrad=True"):
        Adam(amsgrad=True)
