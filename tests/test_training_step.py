"""Compares the losses, gradients and Adam of a training step with Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data.batches import Sharding, make_batch
from keras_transformer.losses import LabelSmoothedCrossEntropy, TokenLoss
from keras_transformer.training.adam import Adam
from keras_transformer.training.chunked_loss import (
    CHUNK,
    TeacherTokens,
    projection_loss,
    token_losses,
)
from keras_transformer.training.step import _gradients


def small_model(source_vocab_size=None, **kwargs):
    shape = {"num_layers": 2, "d_model": 22, "num_heads": 2, "d_ff": 17}
    shape |= {"dropout_rate": 0.0, **kwargs}
    config = TransformerConfig(31, source_vocab_size, **shape)
    return Transformer(config, seed=1)


def ragged_pairs(rows=13, seed=1):
    rng = np.random.default_rng(seed)
    return [
        tf.ragged.constant(
            [
                [*rng.integers(4, 31, rng.integers(1, 11)), 3]
                for _ in range(rows)
            ],
            dtype=tf.int32,
        )
        for _ in range(2)
    ]


def one_part(**cut):
    return {
        k: x[0] for k, x in make_batch(*ragged_pairs(), Sharding(**cut)).items()
    }


@pytest.mark.parametrize("tokens", [0, 1, 7, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("r_drop", [0.0, 3.0])
@pytest.mark.parametrize("teacher_weight", [0.0, 0.3, 1.0])
def test_the_projection_loss_equals_the_loss_of_the_logits(
    tokens, label_smoothing, r_drop, teacher_weight
):
    rng = np.random.default_rng(1)
    passes = 2 if r_drop else 1
    x = tf.constant(rng.normal(size=(passes, tokens, 7)), tf.float32)
    table = tf.constant(rng.normal(size=(31, 7)), tf.float32)
    labels = tf.constant(rng.integers(0, 31, tokens), tf.int32)
    weights = tf.constant(rng.uniform(size=tokens), tf.float32)
    teacher = None
    if teacher_weight:
        features = tf.constant(rng.normal(size=(tokens, 5)), tf.float32)
        others = tf.constant(rng.normal(size=(31, 5)), tf.float32)
        teacher = TeacherTokens(features, others, teacher_weight)
    with tf.GradientTape() as tape:
        tape.watch([x, table])
        logits = tf.matmul(x, table, transpose_b=True)
        log_p = tf.nn.log_softmax(logits)  # [R, N, V]
        target = (1 - label_smoothing) * tf.one_hot(labels, 31)
        target += label_smoothing / 31
        if teacher:
            predicted = tf.nn.softmax(tf.matmul(features, others, False, True))
            target *= 1 - teacher_weight
            target += teacher_weight * predicted
        loss = -tf.reduce_sum(target * log_p, axis=-1)
        loss = tf.reduce_mean(loss, axis=0)
        if r_drop:
            gap = log_p[0] - log_p[1]
            both = (tf.exp(log_p[0]) - tf.exp(log_p[1])) * gap
            loss += r_drop / 2 * tf.reduce_sum(both, axis=-1) / 2
        total = tf.reduce_sum(weights * loss)
    d_x, d_table = tape.gradient(total, [x, table])
    with tf.GradientTape() as tape:
        tape.watch([x, table])
        found, losses, nlls = tf.function(projection_loss)(
            x, table, labels, weights, label_smoothing, r_drop, True, teacher
        )
        doubled = 2 * found
    d_x_found, d_table_found = tape.gradient(doubled, [x, table])
    np.testing.assert_allclose(found, total, rtol=1e-4, atol=1e-5)
    nll = -tf.gather(tf.reduce_mean(log_p, axis=0), labels, batch_dims=1)
    np.testing.assert_allclose(losses, loss, atol=2e-5)
    np.testing.assert_allclose(nlls, nll, atol=1e-5)
    np.testing.assert_allclose(d_x_found, 2 * d_x, atol=2e-5)
    np.testing.assert_allclose(d_table_found, 2 * d_table, atol=4e-4)


def test_a_scaled_loss_has_gradients_in_float16():
    """Keras' scale of the loss may exceed the largest number of float16."""
    rng = np.random.default_rng(2)
    x = tf.constant(rng.normal(size=(1, 37, 7)), tf.float32)
    table = tf.constant(rng.normal(size=(31, 7)), tf.float32)
    labels = tf.constant(rng.integers(0, 31, 37), tf.int32)
    weights = tf.fill([37], 2.0**-20)
    found = []
    for dtype in ("float32", "float16"):
        features = tf.cast(x, dtype)
        with tf.GradientTape() as tape:
            tape.watch(features)
            total, *_ = projection_loss(features, table, labels, weights)
            total *= 2.0**17
        found.append(tf.cast(tape.gradient(total, features), tf.float32))
    np.testing.assert_allclose(found[1], found[0], rtol=0.02, atol=1e-4)


def test_the_loss_is_right_where_a_probability_rounds_to_zero():
    x = tf.constant([[[700.0], [-90.0], [0.0], [np.nan]]])
    table = tf.constant([[1.0], [0.5], [-1.0]])
    labels = tf.constant([2, 0, 1, 1])
    found = token_losses(x, table, labels, tf.ones(4), gradients=True)
    nll = [1400.0, 180.0, np.log(3), np.nan]
    np.testing.assert_allclose(found["nll"], nll, rtol=1e-5)
    d_x = [2.0, -2.0, -1 / 3, np.nan]  # Σ softmax · table − the label's row
    np.testing.assert_allclose(found["d_features"][0, :, 0], d_x, rtol=1e-5)


@pytest.mark.parametrize("source_vocab_size", [None, 29])
@pytest.mark.parametrize(
    ("shape", "r_drop"),
    [
        ({}, 0.0),
        ({"norm_first": True}, 0.0),
        ({}, 5.0),
        ({"use_logits_bias": True}, 0.0),
        ({"use_logits_bias": True, "tie_projection": False}, 5.0),
    ],
    ids=str,
)
def test_gradients_equal_those_of_the_public_loss(
    source_vocab_size, shape, r_drop
):
    """Without dropout the two passes of R-Drop agree and add nothing."""
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
    found, sums = _gradients(model, part, 0.1, r_drop)
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
@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_gradients_with_a_teacher_equal_those_of_its_distributions(
    use_logits_bias, r_drop
):
    model = small_model(use_logits_bias=use_logits_bias)
    shape = {"d_model": 10, "use_logits_bias": use_logits_bias}
    teacher = small_model(**shape, num_layers=1, dropout_rate=0.5)
    for one in (model, teacher) if use_logits_bias else ():
        bias = np.random.default_rng(1).normal(size=31)
        one.target_embedding.logits_bias.assign(bias)
    part = {k: x[0] for k, x in one_part().items()}
    inputs = {k: part[k] for k in ("source", "target")}
    expected = tf.nn.softmax(teacher(inputs, training=False))
    smoothed = 0.9 * tf.one_hot(part["labels"], 31) + 0.1 / 31
    with tf.GradientTape() as tape:
        log_p = tf.nn.log_softmax(model(inputs, training=True))
        target = 0.7 * smoothed + 0.3 * expected
        loss = -tf.reduce_sum(target * log_p, axis=-1)
        value = tf.reduce_mean(loss[part["labels"] != 0])
    variables = model.trainable_variables
    gradients = tape.gradient(value, [v.value for v in variables])
    found, sums = _gradients(model, part, 0.1, r_drop, teacher, 0.3)
    np.testing.assert_allclose(sums["loss"] / sums["tokens"], value, rtol=1e-5)
    for variable, one, other in zip(variables, gradients, found, strict=True):
        np.testing.assert_allclose(
            tf.convert_to_tensor(one), other, atol=1e-6, err_msg=variable.path
        )


def test_a_model_learns_nothing_from_itself():
    model, part = small_model(), {k: x[0] for k, x in one_part().items()}
    found, _ = _gradients(model, part, 0.1, 0.0, model, 1.0)
    for gradient in found:
        np.testing.assert_allclose(gradient, 0, atol=1e-6)


def test_keras_fit_can_train_with_the_projection_loss():
    """Three steps of `fit` give the same weights as with the loss of logits."""

    class WithoutLogits(keras.Model):
        def __init__(self, transformer):
            super().__init__()
            self.transformer = transformer

        def call(self, inputs, training=False):
            return self.transformer.decoder_output(inputs, training=training)

        def compute_loss(self, x, y, y_pred, sample_weight, training=True):
            real = tf.reshape(sample_weight, (-1,))
            total, _, _ = projection_loss(
                tf.reshape(y_pred, (1, -1, y_pred.shape[-1])),
                tf.convert_to_tensor(
                    self.transformer.target_embedding.embeddings
                ),
                tf.reshape(y, (-1,)),
                real / tf.reduce_sum(real),
                label_smoothing=0.1,
            )
            return total

    part = one_part()
    part = {name: rows[0].numpy() for name, rows in part.items()}
    inputs = {name: part[name] for name in ("source", "target")}
    real = (part["labels"] != 0).astype("float32")
    weights = []
    for wrap in (lambda model: model, WithoutLogits):
        keras.utils.set_random_seed(1)
        transformer = small_model()
        before = transformer.get_weights()
        model = wrap(transformer)
        model.compile(keras.optimizers.SGD(0.1), LabelSmoothedCrossEntropy(0.1))
        sizes = {"batch_size": len(real), "epochs": 3, "verbose": 0}
        model.fit(inputs, part["labels"], sample_weight=real, **sizes)
        weights.append(transformer.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert np.abs(before[0] - weights[0][0]).max() > 1e-3


def test_r_drop_compares_two_dropout_masks():
    part = {k: x[0] for k, x in one_part().items()}
    losses = []
    for r_drop in (0.0, 1e-9, 5.0):
        keras.utils.set_random_seed(1)
        model = small_model(dropout_rate=0.3)
        losses.append(_gradients(model, part, 0.1, r_drop)[1]["loss"])
    # One pass, two passes, and two passes whose disagreement counts.
    assert losses[0] != losses[1]
    assert losses[2] > losses[1] * 1.001


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
