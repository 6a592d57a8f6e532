"""Compares the loss and the metrics with the paper and their definitions."""

import keras
import numpy as np
import paper
import pytest

from keras_transformer import (
    LabelSmoothedCrossEntropy,
    Perplexity,
    TokenAccuracy,
    TokenLoss,
)
from keras_transformer.losses import smoothed_cross_entropy

V = 7


def some_batch():
    rng = np.random.default_rng(3)
    labels = np.array([[5, 3, 2, 0, 0], [4, 6, 1, 2, 0], [1, 0, 0, 0, 0]])
    return labels, rng.normal(size=(3, 5, V)).astype("float32")


def test_the_loss_of_section_5_4_is_as_computed_by_hand():
    """Logits [2, 1, 0, -1], label 0, ε = 0.1, divided by K, not by K - 1."""
    logits = np.array([[[2.0, 1.0, 0.0, -1.0]]], "float32")
    label = np.array([[0]])
    hard = float(smoothed_cross_entropy(label, logits)[0, 0])
    soft = float(smoothed_cross_entropy(label, logits, 0.1)[0, 0])
    assert hard == pytest.approx(0.44018970, abs=1e-6)
    assert soft == pytest.approx(0.59018970, abs=1e-6)


def test_the_loss_of_each_token_is_that_of_the_paper():
    labels, logits = some_batch()
    found = np.asarray(smoothed_cross_entropy(labels, logits, 0.1))
    for place in np.ndindex(labels.shape):
        expected = paper.smoothed_cross_entropy(
            labels[place], logits[place], 0.1
        )
        assert found[place] == pytest.approx(expected, abs=1e-5)


def test_mean_is_over_real_tokens():
    labels, logits = some_batch()
    tokens = np.asarray(smoothed_cross_entropy(labels, logits, 0.1))
    found = float(LabelSmoothedCrossEntropy()(labels, logits))
    assert found == pytest.approx(tokens[labels != 0].mean(), rel=1e-5)


def test_the_loss_of_padding_alone_is_zero():
    labels, logits = some_batch()
    assert float(LabelSmoothedCrossEntropy()(0 * labels, logits)) == 0.0


def test_a_weighted_sum_over_parts_is_the_mean_over_all():
    labels, logits = some_batch()
    weights = (labels != 0) / (labels != 0).sum()
    loss = LabelSmoothedCrossEntropy(reduction="sum")
    total = sum(
        float(loss(labels[i], logits[i], weights[i]))
        for i in (slice(0, 1), slice(1, 3))  # with unequal numbers of tokens
    )
    whole = float(LabelSmoothedCrossEntropy()(labels, logits))
    assert total == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("pad_id", [-1, -100, 99])
def test_the_padding_id_may_be_outside_the_vocabulary(pad_id):
    labels, logits = some_batch()
    other = np.where(labels == 0, pad_id, labels)
    assert float(LabelSmoothedCrossEntropy(pad_id=pad_id)(other, logits)) == (
        pytest.approx(float(LabelSmoothedCrossEntropy()(labels, logits)))
    )
    for metric in (TokenLoss, TokenAccuracy):
        one, two = metric(), metric(pad_id=pad_id)
        one.update_state(labels, logits)
        two.update_state(other, logits)
        assert float(one.result()) == float(two.result())


@pytest.mark.parametrize("shape", [(3, 1), (3,)])
@pytest.mark.parametrize("length", [3, 2])
def test_sequences_have_sample_weights(shape, length):
    """Also where there are as many positions as sequences."""
    labels, logits = (x[:, :length] for x in some_batch())
    weights = np.array([1.0, 0.0, 0.0]).reshape(shape)
    metric, first = TokenLoss(), TokenLoss()
    metric.update_state(labels, logits, weights)
    first.update_state(labels[:1], logits[:1])
    assert float(metric.result()) == pytest.approx(float(first.result()))
    loss = LabelSmoothedCrossEntropy()
    assert float(loss(labels, logits, weights)) == pytest.approx(
        float(loss(labels[:1], logits[:1]))
    )


def test_a_last_axis_of_one_is_dropped_as_in_keras():
    """Labels `(B, 1)` of classes, and weights with an axis more."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(5, V)).astype("float32")
    labels = np.array([[3], [1], [6], [2], [4]])
    weights = np.array([[0.0], [1.0], [2.0], [0.5], [0.0]])
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    entropy = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    for metric, theirs in (
        (TokenAccuracy(pad_id=-1), accuracy),
        (TokenLoss(pad_id=-1), entropy),
    ):
        for shape in ((5, 1), (5,)):
            metric.reset_state()
            theirs.reset_state()
            metric.update_state(labels.reshape(shape), logits, weights)
            theirs.update_state(labels, logits, weights[:, 0])
            expected = float(theirs.result())
            assert float(metric.result()) == pytest.approx(expected, abs=1e-6)
    loss = LabelSmoothedCrossEntropy(0.1)
    assert float(loss(labels, logits, weights)) == float(
        loss(labels[:, 0], logits, weights[:, 0])
    )
    tokens, logits = some_batch()
    assert float(loss(tokens[..., None], logits)) == float(loss(tokens, logits))


@pytest.mark.parametrize("thing", [LabelSmoothedCrossEntropy(), TokenLoss()])
@pytest.mark.parametrize(
    ("labels", "weights", "name"),
    [
        ((3, 5, V), None, "y_true"),
        ((3,), None, "y_true"),
        ((3, 5), (3, 5, 2), "sample_weight"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(thing, labels, weights, name):
    update = getattr(thing, "update_state", thing)
    weights = None if weights is None else np.ones(weights)
    with pytest.raises(ValueError, match=f"`{name}` must have 2 axes"):
        update(np.ones(labels, "int32"), np.ones((3, 5, V), "float32"), weights)


def test_loss_and_metrics_leave_out_what_the_mask_hides():
    """Where 0 is a class, padding is known by the implicit mask alone."""
    ids = np.array([[5, 3, 2, 0, 0], [4, 6, 0, 0, 0]])
    labels = np.array([[0, 2, 1, 0, 0], [1, 0, 0, 0, 0]])
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(7, 4, mask_zero=True)(tokens)
    model = keras.Model(tokens, keras.layers.Dense(3)(x))
    metrics = [TokenLoss(pad_id=-1), TokenAccuracy("share", pad_id=-1)]
    model.compile(
        "sgd", LabelSmoothedCrossEntropy(0.0, pad_id=-1), metrics=metrics
    )
    found = model.evaluate(ids, labels, verbose=0, return_dict=True)
    logits = np.asarray(model(ids))
    real = ids != 0
    right = (logits.argmax(-1) == labels)[real].mean()
    nll = np.asarray(smoothed_cross_entropy(labels, logits))[real].mean()
    assert found["nll"] == pytest.approx(nll, rel=1e-5)
    assert found["loss"] == pytest.approx(nll, rel=1e-5)
    assert found["share"] == pytest.approx(right, rel=1e-5)


def test_metrics_of_16_bit_logits_are_computed_in_float32():
    metric = Perplexity()
    logits = keras.ops.zeros((1, 3, 8000), "bfloat16")
    metric.update_state(np.array([[5, 3, 0]]), logits)
    assert float(metric.result()) == pytest.approx(8000, rel=1e-4)


def test_metrics_do_not_depend_on_the_batch_size():
    labels, logits = some_batch()
    for metric in (TokenLoss(), TokenAccuracy(), Perplexity()):
        metric.update_state(labels, logits)
        whole = float(metric.result())
        metric.reset_state()
        for row in range(3):
            metric.update_state(labels[row : row + 1], logits[row : row + 1])
        assert float(metric.result()) == pytest.approx(whole, rel=1e-5)


def test_metrics_follow_their_definitions():
    labels, logits = some_batch()
    real = labels != 0
    nll = np.asarray(smoothed_cross_entropy(labels, logits))[real].mean()
    right = (logits.argmax(-1) == labels)[real].mean()
    for metric, expected in (
        (TokenLoss(), nll),
        (Perplexity(), np.exp(nll)),
        (TokenAccuracy(), right),
    ):
        metric.update_state(labels, logits)
        assert float(metric.result()) == pytest.approx(expected, rel=1e-5)


def test_metrics_are_zero_without_tokens_and_ignore_nan_at_padding():
    labels, logits = some_batch()
    metric = TokenLoss()
    assert float(metric.result()) == 0.0
    metric.update_state(0 * labels, logits)
    assert float(metric.result()) == 0.0
    metric.update_state(
        labels, np.where((labels == 0)[..., None], np.nan, logits)
    )
    assert np.isfinite(float(metric.result()))
    metric.update_state(labels, np.full_like(logits, np.nan), 0.0 * labels)
    assert np.isfinite(float(metric.result()))


def test_errors_name_what_was_received():
    with pytest.raises(ValueError, match=r"label_smoothing=1\.5"):
        LabelSmoothedCrossEntropy(1.5)
    with pytest.raises(ValueError, match=r"label_smoothing=2\.0"):
        TokenLoss(label_smoothing=2.0)
