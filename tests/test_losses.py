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


def test_section_5_4_by_hand():
    """Logits [2, 1, 0, -1], gold 0, ε 0.1; the denominator is K."""
    logits = np.array([[[2.0, 1.0, 0.0, -1.0]]], "float32")
    gold = np.array([[0]])
    hard = float(smoothed_cross_entropy(gold, logits)[0, 0])
    soft = float(smoothed_cross_entropy(gold, logits, 0.1)[0, 0])
    assert hard == pytest.approx(0.44018970, abs=1e-6)
    assert soft == pytest.approx(0.59018970, abs=1e-6)


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary():
    found = smoothed_cross_entropy(np.array([[3]]), np.zeros((1, 1, V)), 0.1)
    assert float(found[0, 0]) == pytest.approx(np.log(V), rel=1e-5)


def test_each_token_as_in_the_paper():
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


def test_padding_may_hold_anything():
    labels, logits = some_batch()
    other = np.where((labels == 0)[..., None], 100.0, logits)
    loss = LabelSmoothedCrossEntropy()
    assert float(loss(labels, other)) == float(loss(labels, logits))


def test_only_padding_costs_nothing():
    labels, logits = some_batch()
    assert float(LabelSmoothedCrossEntropy()(0 * labels, logits)) == 0.0


def test_weighted_sum_over_shares_is_the_mean_over_all():
    labels, logits = some_batch()
    weights = (labels != 0) / (labels != 0).sum()
    loss = LabelSmoothedCrossEntropy(reduction="sum")
    shares = sum(
        float(loss(labels[i], logits[i], weights[i]))
        for i in (slice(0, 1), slice(1, 3))  # of unequal token counts
    )
    whole = float(LabelSmoothedCrossEntropy()(labels, logits))
    assert shares == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("pad_id", [-1, -100, 99])
def test_padding_may_be_no_class_at_all(pad_id):
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


def test_metrics_take_weights():
    labels, logits = some_batch()
    metric, first = TokenLoss(), TokenLoss()
    metric.update_state(labels, logits, np.array([[1.0], [0.0], [0.0]]))
    first.update_state(labels[:1], logits[:1])
    assert float(metric.result()) == pytest.approx(float(first.result()))


def test_metrics_do_not_depend_on_the_cut_into_batches():
    labels, logits = some_batch()
    for metric in (TokenLoss(), TokenAccuracy(), Perplexity()):
        metric.update_state(labels, logits)
        whole = float(metric.result())
        metric.reset_state()
        for row in range(3):
            metric.update_state(labels[row : row + 1], logits[row : row + 1])
        assert float(metric.result()) == pytest.approx(whole, rel=1e-5)


def test_what_the_metrics_are():
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


def test_metrics_of_nothing_and_of_not_a_number_at_padding():
    labels, logits = some_batch()
    metric = TokenLoss()
    assert float(metric.result()) == 0.0
    metric.update_state(0 * labels, logits)
    assert float(metric.result()) == 0.0
    metric.update_state(
        labels, np.where((labels == 0)[..., None], np.nan, logits)
    )
    assert np.isfinite(float(metric.result()))


@pytest.mark.parametrize(
    "thing",
    [
        LabelSmoothedCrossEntropy(0.3, pad_id=5, reduction="sum"),
        TokenLoss("x", label_smoothing=0.2, pad_id=5),
        Perplexity("y", label_smoothing=0.2),
        TokenAccuracy(pad_id=3),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_config_round_trips(thing):
    config = keras.saving.serialize_keras_object(thing)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == thing.get_config()


def test_errors_name_what_was_received():
    with pytest.raises(ValueError, match=r"label_smoothing=1\.5"):
        LabelSmoothedCrossEntropy(1.5)
