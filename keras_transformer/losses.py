"""Loss and metrics over the real tokens of a batch: section 5.4.

Shapes: B batch, T target length, V vocabulary.
"""

import keras
from keras import ops

from keras_transformer.config import PAD


def smoothed_cross_entropy(labels, logits, label_smoothing=0.0):
    """Returns the cross-entropy of each token to the smoothed label,
    (1 − ε) · one-hot(label) + ε / V.

    It is computed as nll + ε · (logit of the label − mean of the logits), which
    is the same and needs no smoothed target of size V.

    Args:
        labels: integer ids `(B, T)`.
        logits: float32 `(B, T, V)`.
        label_smoothing: ε. Defaults to 0, plain cross-entropy.

    Returns:
        float32 `(B, T)`.
    """
    labels = ops.cast(labels, "int32")
    loss = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    if not label_smoothing:
        return loss
    gold = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return loss + label_smoothing * (gold - ops.mean(logits, axis=-1))


@keras.saving.register_keras_serializable(package="keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Computes the label-smoothed cross-entropy, averaged over real tokens:
    section 5.4.

    Example:

    >>> import numpy as np
    >>> labels = np.array([[5, 3, 0]])  # id 0 is padding
    >>> logits = np.zeros((1, 3, 8), "float32")
    >>> print(f"{float(LabelSmoothedCrossEntropy()(labels, logits)):.4f}")
    2.0794

    Padding carries no loss and no smoothing; a batch of padding alone has
    loss 0. Under a distribution strategy the mean over one replica's tokens
    is not the mean over the batch: pass `reduction="sum"` and sample weights
    of 1 / (real tokens of the whole batch), as `keras_transformer.training`
    does.

    Args:
        label_smoothing: ε, spread over all V classes. Defaults to 0.1.
        pad_id: label that carries no loss. Defaults to 0.
        reduction: "mean_with_sample_weight" (default), "sum" or "none".
    """

    def __init__(
        self,
        label_smoothing=0.1,
        pad_id=PAD,
        reduction="mean_with_sample_weight",
        name="label_smoothed_cross_entropy",
        **kwargs,
    ):
        super().__init__(name=name, reduction=reduction, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` must be in [0, 1). "
                f"Received: label_smoothing={label_smoothing}"
            )
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def __call__(self, y_true, y_pred, sample_weight=None):
        real = real_tokens(y_true, self.pad_id)
        if sample_weight is not None:
            real = real * ops.cast(sample_weight, real.dtype)
        return super().__call__(y_true, y_pred, real)

    def call(self, y_true, y_pred):
        labels = legal_labels(y_true, self.pad_id)
        return smoothed_cross_entropy(labels, y_pred, self.label_smoothing)

    def get_config(self):
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
        }


def real_tokens(labels, pad_id=PAD):
    """Returns 1.0 at real labels, 0.0 at padding."""
    return ops.cast(ops.not_equal(labels, pad_id), "float32")


def legal_labels(labels, pad_id):
    """Replaces padding, which may be no class (such as -1), by class 0."""
    return ops.where(ops.equal(labels, pad_id), 0, labels)


class TokenMetric(keras.metrics.Metric):
    """Averages a quantity over real tokens.

    Batches count by their tokens, so the result does not depend on how the data
    is cut into batches.
    """

    def __init__(self, name, pad_id=PAD, **kwargs):
        super().__init__(name=name, **kwargs)
        self.pad_id = pad_id
        self.total = self.add_variable((), "zeros", name="total")
        self.tokens = self.add_variable((), "zeros", name="tokens")

    def values(self, y_true, y_pred):
        """Returns the quantity for each token, `(B, T)`."""
        raise TypeError(
            f"{type(self).__name__} must define `values(y_true, y_pred)`."
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        real = real_tokens(y_true, self.pad_id)
        if sample_weight is not None:
            real = real * ops.cast(sample_weight, "float32")
        values = ops.cast(self.values(y_true, y_pred), "float32")
        # What stands at padding may be anything, even NaN.
        values = ops.where(real > 0, values, 0.0)
        self.total.assign_add(ops.sum(real * values))
        self.tokens.assign_add(ops.sum(real))

    def result(self):
        return ops.divide_no_nan(self.total, self.tokens)

    def get_config(self):
        return {**super().get_config(), "pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenLoss(TokenMetric):
    """Averages the cross-entropy over real tokens.

    Example:

    >>> import numpy as np
    >>> labels = np.array([[5, 3, 0]])  # id 0 is padding
    >>> logits = np.zeros((1, 3, 8), "float32")
    >>> metric = TokenLoss()
    >>> metric.update_state(labels, logits)
    >>> print(f"{float(metric.result()):.4f}")
    2.0794

    Args:
        name: of the metric. Defaults to "nll".
        label_smoothing: ε, section 5.4. Defaults to 0.
        pad_id: label that is not counted. Defaults to 0.
    """

    def __init__(self, name="nll", label_smoothing=0.0, **kwargs):
        super().__init__(name=name, **kwargs)
        self.label_smoothing = label_smoothing

    def values(self, y_true, y_pred):
        labels = legal_labels(y_true, self.pad_id)
        return smoothed_cross_entropy(labels, y_pred, self.label_smoothing)

    def get_config(self):
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenLoss):
    """Returns exp of the cross-entropy per real token, as in table 3.

    Example:

    >>> import numpy as np
    >>> labels = np.array([[5, 3, 0]])  # id 0 is padding
    >>> logits = np.zeros((1, 3, 8), "float32")
    >>> metric = Perplexity()
    >>> metric.update_state(labels, logits)
    >>> print(f"{float(metric.result()):.2f}")
    8.00

    Arguments are those of `TokenLoss`; `name` defaults to "perplexity".
    """

    def __init__(self, name="perplexity", **kwargs):
        super().__init__(name=name, **kwargs)

    def result(self):
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(TokenMetric):
    """Computes the share of real tokens whose most probable class is the label.

    Example:

    >>> import numpy as np
    >>> labels = np.array([[5, 3, 0]])  # id 0 is padding
    >>> logits = np.zeros((1, 3, 8), "float32")
    >>> metric = TokenAccuracy()
    >>> metric.update_state(labels, logits)
    >>> float(metric.result())
    0.0

    Args:
        name: of the metric. Defaults to "accuracy".
        pad_id: label that is not counted. Defaults to 0.
    """

    def __init__(self, name="accuracy", **kwargs):
        super().__init__(name=name, **kwargs)

    def values(self, y_true, y_pred):
        guesses = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        return ops.equal(guesses, ops.cast(y_true, "int32"))
