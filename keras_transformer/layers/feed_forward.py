"""Position-wise feed-forward network: section 3.3 of the paper."""

from typing import Any

import keras
from keras import KerasTensor

from keras_transformer.layers.arguments import (
    Activation,
    Initializer,
    Layer,
    Shape,
    clone_initializer,
)
from keras_transformer.layers.normalization import Dropout
from keras_transformer.validation import checked_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(Layer):
    """Applies two dense layers to each position: section 3.3.

    Equation 2: FFN(x) = max(0, x W_1 + b_1) W_2 + b_2. W_1 has shape
    `(D, d_ff)`, W_2 `(d_ff, D)`. The residual and the normalisation belong to
    the encoder or decoder layer. With `use_gate` it is a gated linear unit
    (Shazeer, 2020): activation(x W_g + b_g) ⊗ (x W_1 + b_1), before W_2.

    Example:

    >>> import numpy as np
    >>> layer = FeedForward(d_model=16, d_ff=32)
    >>> tuple(layer(np.ones((3, 5, 16))).shape)
    (3, 5, 16)

    Args:
        d_model: D, width of the output.
        d_ff: width of the inner layer.
        activation: activation of the inner layer. Defaults to "relu".
        dropout_rate: rate of dropout on the inner layer's output. The paper
            has no dropout here, so the default is 0.
        use_bias: whether b_1 and b_2 exist. Defaults to True.
        kernel_initializer: initialiser of the matrices.
        seed: seed of the dropout.
        use_gate: whether the activation is that of a gate, by which the inner
            layer is multiplied: with "silu" SwiGLU, with "gelu" GEGLU. Defaults
            to False.

    Call arguments:
        x: `(..., D)`.
        training: whether dropout is applied.

    Raises:
        ValueError: if a width is not positive.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: Activation = "relu",
        dropout_rate: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        use_gate: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.d_model = d_model = checked_integer("d_model", d_model)
        self.d_ff = d_ff = checked_integer("d_ff", d_ff)
        self.activation = keras.activations.get(activation)
        self.dropout_rate = dropout_rate
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self.use_gate = use_gate
        inner_activation = None if use_gate else self.activation
        self.inner = self._dense(d_ff, "inner", inner_activation)
        if use_gate:
            self.gate = self._dense(d_ff, "gate", self.activation)
        self.outer = self._dense(d_model, "outer", None)
        self.dropout = Dropout(
            dropout_rate, seed=seed, dtype=self.dtype_policy, name="dropout"
        )

    def _dense(self, units, name, activation):
        return keras.layers.Dense(
            units,
            activation=activation,
            use_bias=self.use_bias,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape: Shape) -> None:
        inner_shape = (*input_shape[:-1], self.d_ff)
        self.inner.build(input_shape)
        if self.use_gate:
            self.gate.build(input_shape)
        self.dropout.build(inner_shape)
        self.outer.build(inner_shape)

    def call(self, x: KerasTensor, training: bool | None = None) -> KerasTensor:
        h = self.inner(x)  # [..., d_ff]
        x = self.gate(x) * h if self.use_gate else h
        if self.dropout_rate:
            x = self.dropout(x, training=training)
        return self.outer(x)  # [..., D]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.d_model)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "d_model": self.d_model,
            "d_ff": self.d_ff,
            "activation": keras.activations.serialize(self.activation),
            "dropout_rate": self.dropout_rate,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "seed": self.seed,
            "use_gate": self.use_gate,
        }
