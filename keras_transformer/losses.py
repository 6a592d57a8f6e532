"""Loss and metrics over the real tokens of a batch: section 5.4.

Shapes: B batch, T target length, V vocabulary.
"""

from typing import Any

import keras
from keras import KerasTensor, ops

from keras_transformer.ids import PAD


def smoothed_cross_entropy(
    labels: KerasTensor, logits: KerasTensor, label_smoothing: float = 0.0
) -> KerasTensor:
    """Returns the label-smoothed cross-entropy of each token.

    The smoothed label is (1 − ε) · one-hot(label) + ε / V. The loss is computed
    as nll + ε · (logit of the label − mean of the logits), as in training,
    which is equal and needs no smoothed target of size V.

    Args:
        labels: integer ids `(B, T)`.
        logits: float32 `(B, T, V)`.
        label_smoothing: ε. Defaults to 0, plain cross-entropy.

    Returns:
        float32 `(B, T)`.
    """
    labels = ops.cast(labels, "int32")
    gold = None
    if label_smoothing or keras.backend.backend() != "tensorflow":
        gold = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    if keras.backend.backend() == "tensorflow":  # one fused operation
        loss = ops.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )
    else:  # on JAX, Keras' loss is NaN where another class has -inf
        loss = ops.logsumexp(logits, axis=-1) - gold
    if not label_smoothing:
        return loss
    return smoothed(loss, gold, ops.mean(logits, axis=-1), label_smoothing)


def smoothed(
    nll: KerasTensor,
    gold: KerasTensor,
    mean_logits: KerasTensor,
    label_smoothing: float,
) -> KerasTensor:
    """Returns the label-smoothed cross-entropy of tokens.

    Args:
        nll: the cross-entropy without smoothing.
        gold: the logit of the label.
        mean_logits: the mean of all logits.
        label_smoothing: ε.
    """
    return nll + label_smoothing * (gold - mean_logits)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Computes the label-smoothed cross-entropy of section 5.4.

    It is averaged over real tokens.

    Example:

    >>> import numpy as np
    >>> labels = np.array([[5, 3, 0]])  # id 0 is padding
    >>> logits = np.zeros((1, 3, 8), "float32")
    >>> print(f"{float(LabelSmoothedCrossEntropy()(labels, logits)):.4f}")
    2.0794

    Padding has no loss and no smoothing; the loss of a batch of padding only
    is 0. Under a distribution strategy, the mean over one replica's tokens is
    not the mean over the batch. There, pass `reduction="sum"` and sample
    weights of 1 / (real tokens of the whole batch), as
    `keras_transformer.training` does.

    Args:
        label_smoothing: ε, spread over all V classes. Defaults to 0.1.
        pad_id: label of padding, which has no loss. Defaults to 0.
        reduction: "mean_with_sample_weight" (default), the mean over real
            tokens, "sum" or "none". Keras' other means divide by B·T, padding
            included.

    Raises:
        ValueError: if `label_smoothing` is out of range.
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        pad_id: int = PAD,
        reduction: str = "mean_with_sample_weight",
        name: str = "label_smoothed_cross_entropy",
        **kwargs: Any,
    ):
        # Keras casts labels to the dtype of the loss, and half precision
        # cannot tell id 777 from 776.
        dtype = kwargs.pop("dtype", None) or keras.config.floatx()
        dtype = keras.dtype_policies.get(dtype).compute_dtype
        dtype = "float64" if dtype == "float64" else "float32"
        super().__init__(name=name, reduction=reduction, dtype=dtype, **kwargs)
        self.label_smoothing = _checked_smoothing(label_smoothing)
        self.pad_id = pad_id

    def __call__(
        self,
        y_true: KerasTensor,
        y_pred: KerasTensor,
        sample_weight: KerasTensor | None = None,
    ) -> KerasTensor:
        labels = labels_of(y_true, y_pred)
        weights = token_weights(labels, self.pad_id, sample_weight)
        return super().__call__(labels, y_pred, weights)

    def call(self, y_true: KerasTensor, y_pred: KerasTensor) -> KerasTensor:
        labels = legal_labels(y_true, self.pad_id)
        return smoothed_cross_entropy(labels, y_pred, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
        }


def labels_of(y_true: KerasTensor, y_pred: KerasTensor) -> KerasTensor:
    """Returns labels with one axis less than the logits: `(B, T, 1)` becomes
    `(B, T)`, as in Keras' losses.

    Raises:
        ValueError: if they have another number of axes.
    """
    return with_axes(y_true, len(ops.shape(y_pred)) - 1, "y_true")


def with_axes(x: KerasTensor, axes: int, name: str) -> KerasTensor:
    """Returns a tensor of as many axes, without a last axis of size 1."""
    x = ops.convert_to_tensor(x)
    if len(x.shape) == axes + 1 and x.shape[-1] in (1, None):
        x = ops.squeeze(x, axis=-1)
    if len(x.shape) != axes:
        raise ValueError(
            f"`{name}` must have {axes} axes, one less than the logits. "
            f"Received: {name}.shape={tuple(x.shape)}. Pass ids, or weights of "
            "ids, without an axis of classes."
        )
    return x


def token_weights(
    labels: KerasTensor, pad_id: int, sample_weight: KerasTensor | None = None
) -> KerasTensor:
    """Returns the weight of each token, float32 `(B, T)`: 0 at padding.

    Args:
        labels: ids `(B, T)`.
        pad_id: label of padding.
        sample_weight: weights of tokens `(B, T)` or of sequences `(B,)`.
            Defaults to `None`, 1 for each token.
    """
    real = ops.cast(ops.not_equal(labels, pad_id), "float32")
    if sample_weight is None:
        return real
    weights = ops.cast(sample_weight, real.dtype)
    while 0 < len(weights.shape) < len(real.shape):
        weights = weights[..., None]
    if len(weights.shape):
        weights = with_axes(weights, len(real.shape), "sample_weight")
    return real * weights


class MaskedSum(keras.losses.Loss):
    """Sums a quantity of tokens, without those that the mask of the
    predictions hides, as Keras' losses leave them out.

    Args:
        values: `(B, T)`.
    """

    def __init__(self, values: KerasTensor):
        super().__init__("masked_sum", reduction="sum", dtype="float32")
        self.values = values

    def call(self, y_true: KerasTensor, y_pred: KerasTensor) -> KerasTensor:
        return self.values


def _checked_smoothing(label_smoothing):
    if not 0 <= label_smoothing < 1:
        raise ValueError(
            "`label_smoothing` must be in [0, 1). "
            f"Received: label_smoothing={label_smoothing}"
        )
    return label_smoothing


def legal_labels(labels: KerasTensor, pad_id: int) -> KerasTensor:
    """Replaces padding by class 0: the id of padding, such as -1, may be no
    class."""
    return ops.where(ops.equal(labels, pad_id), 0, labels)


class TokenMetric(keras.metrics.Metric):
    """Averages a quantity over real tokens.

    Each token has the same weight, so the result does not depend on how the
    data is divided into batches.

    Args:
        name: name of the metric.
        pad_id: label of padding, which is not counted. Defaults to 0.
    """

    def __init__(self, name: str, pad_id: int = PAD, **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.pad_id = pad_id
        self.total = self.add_variable((), "zeros", name="total")
        self.tokens = self.add_variable((), "zeros", name="tokens")

    def values(self, y_true: KerasTensor, y_pred: KerasTensor) -> KerasTensor:
        """Returns the quantity for each token, `(B, T)`."""
        raise TypeError(
            f"{type(self).__name__} must define `values(y_true, y_pred)`."
        )

    def update_state(
        self,
        y_true: KerasTensor,
        y_pred: KerasTensor,
        sample_weight: KerasTensor | None = None,
    ) -> None:
        labels = labels_of(y_true, y_pred)
        weights = token_weights(labels, self.pad_id, sample_weight)
        logits = ops.cast(y_pred, "float32")
        values = ops.cast(self.values(labels, logits), "float32")
        # Values without weight may be anything, even NaN.
        values = ops.where(ops.equal(weights, 0), 0.0, values)
        for total, summed in ((self.total, values), (self.tokens, 1.0)):
            summed = MaskedSum(summed * ops.ones_like(weights))
            # Not the logits in float32, which have no mask.
            total.assign_add(summed(labels, y_pred, weights))

    def result(self) -> KerasTensor:
        return ops.divide_no_nan(self.total, self.tokens)

    def get_config(self) -> dict[str, Any]:
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
        name: name of the metric. Defaults to "nll".
        label_smoothing: ε, section 5.4. Defaults to 0.
        pad_id: label of padding, which is not counted. Defaults to 0.
    """

    def __init__(
        self, name: str = "nll", label_smoothing: float = 0.0, **kwargs: Any
    ):
        super().__init__(name=name, **kwargs)
        self.label_smoothing = _checked_smoothing(label_smoothing)

    def values(self, y_true: KerasTensor, y_pred: KerasTensor) -> KerasTensor:
        labels = legal_labels(y_true, self.pad_id)
        return smoothed_cross_entropy(labels, y_pred, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenLoss):
    """Computes exp of the cross-entropy per real token, as in table 3.

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

    def __init__(self, name: str = "perplexity", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def result(self) -> KerasTensor:
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
        name: name of the metric. Defaults to "accuracy".
        pad_id: label of padding, which is not counted. Defaults to 0.
    """

    def __init__(self, name: str = "accuracy", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def values(self, y_true: KerasTensor, y_pred: KerasTensor) -> KerasTensor:
        guesses = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        return ops.equal(guesses, ops.cast(y_true, "int32"))
