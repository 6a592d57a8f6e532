"""Embeds vectors instead of ids: inputs other than text.

Shapes: B batch, T length, F features, D d_model.
"""

from typing import Any

import keras
from keras import KerasTensor, ops

from keras_transformer.layers.arguments import copy_of
from keras_transformer.layers.positions import PositionedLayer
from keras_transformer.layers.types import Initializer, Shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeatureEmbedding(PositionedLayer):
    """Projects feature vectors to `d_model` and adds their positions.

    For sequences of vectors, such as frames of speech or patches of an image:
    "input and output modalities other than text" (section 7). Returns
    Dropout(x W + b + PE).

    Example:

    >>> import numpy as np
    >>> layer = FeatureEmbedding(d_model=16)
    >>> tuple(layer(np.ones((2, 5, 12))).shape)  # 12 features a frame
    (2, 5, 16)

    Sequences of different length are padded, and a mask says which positions
    are real. An implicit mask of Keras is passed on; an explicit one goes to
    the layers that follow.

    Args:
        d_model: D, the width of the output.
        positions: as in `PositionalEmbedding`. Defaults to "sinusoidal".
        max_length: number of learned positions; required for "learned".
        dropout_rate: rate of dropout on the sum, section 5.4. Defaults to 0.1.
        use_bias: whether b exists. Defaults to True.
        kernel_initializer: initialiser of W. Defaults to "glorot_uniform".
        seed: seed of the dropout.

    Call arguments:
        x: `(B, T, F)`.
        offset: scalar, position of the first vector. Defaults to 0.
        training: whether dropout is applied.

    Returns:
        `(B, T, D)`.

    Raises:
        ValueError: if `d_model` is not positive, if `positions` is unknown or
            lacks its `max_length`, if `x` has another rank or an unknown
            number of features, or if a sequence is longer than `max_length`.
    """

    def __init__(
        self,
        d_model: int,
        positions: str | None = "sinusoidal",
        max_length: int | None = None,
        dropout_rate: float = 0.1,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            d_model, positions, max_length, dropout_rate, seed, **kwargs
        )
        if d_model < 1:
            raise ValueError(
                f"`d_model` must be positive. Received: d_model={d_model}"
            )
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.projection = keras.layers.Dense(
            d_model,
            use_bias=use_bias,
            kernel_initializer=copy_of(self.kernel_initializer),
            dtype=self.dtype_policy,
            name="projection",
        )

    def build(self, input_shape: Shape) -> None:
        if len(input_shape) != 3 or input_shape[-1] is None:
            raise ValueError(
                "The input of a FeatureEmbedding must have the shape (batch, "
                "length, features), with a known number of features. "
                f"Received: x.shape={tuple(input_shape)}"
            )
        self.projection.build(input_shape)
        self._build_positions(input_shape)

    def call(
        self,
        x: KerasTensor,
        offset: int | KerasTensor = 0,
        training: bool | None = None,
    ) -> KerasTensor:
        x = ops.cast(self.projection(x), self._exact_dtype)  # [B, T, D]
        return self._with_positions(x, offset, training)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
        }
