"""Positions of a sequence: section 3.5 of the paper.

Shapes: B batch, T length, D d_model.
"""

from typing import Any

import keras
from keras import KerasTensor, ops

from keras_transformer.layers.arguments import (
    exact_dtype,
    int32_index,
    known_index,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.types import Shape

SINUSOIDAL = ("sinusoidal", "sinusoidal_halves")


def positional_encoding(
    positions: KerasTensor,
    d_model: int,
    dtype: str = "float32",
    halves: bool = False,
) -> KerasTensor:
    """Returns the positional encoding of section 3.5.

    Even dimensions are sines, odd ones cosines.

    Example:

    >>> from keras import ops
    >>> print(ops.convert_to_numpy(positional_encoding(ops.arange(2), 4)))
    [[0.         1.         0.         1.        ]
     [0.84147096 0.5403023  0.00999983 0.99995   ]]

    PE(pos, 2i)   = sin(pos / 10000^(2i / d_model))
    PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model))

    With `halves`, as in Marian and in the paper's own program, the same
    numbers are in another order: first all sines, then all cosines.

    Lower dtypes are not allowed: bfloat16 cannot tell position 256 from 257.

    Args:
        positions: tensor of shape `(T,)`.
        d_model: D, any positive integer.
        dtype: "float32" (default) or "float64".
        halves: whether all sines come first. Defaults to False.

    Returns:
        Tensor of shape `(T, D)`.
    """
    pairs = (d_model + 1) // 2
    rates = [10000.0 ** (-2 * i / d_model) for i in range(pairs)]
    rates = ops.convert_to_tensor(rates, dtype=dtype)
    angles = ops.cast(positions, dtype)[:, None] * rates  # [T, D/2]
    if halves:
        cosines = ops.cos(angles[:, : d_model // 2])
        return ops.concatenate([ops.sin(angles), cosines], axis=-1)
    waves = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    return ops.reshape(waves, (-1, 2 * pairs))[:, :d_model]


class PositionedLayer(keras.layers.Layer):
    """Adds positions and dropout to vectors that a subclass makes.

    The arguments are described in `PositionalEmbedding`.
    """

    def __init__(
        self,
        d_model: int,
        positions: str | None,
        max_length: int | None,
        dropout_rate: float,
        seed: int | None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if positions not in (*SINUSOIDAL, "learned", None):
            raise ValueError(
                '`positions` must be "sinusoidal", "sinusoidal_halves", '
                f'"learned" or None. Received: positions={positions!r}'
            )
        if positions == "learned" and not max_length:
            raise ValueError(
                "Learned positions need `max_length`, the number of positions "
                f"to learn. Received: max_length={max_length}"
            )
        self.supports_masking = True
        self.d_model = d_model
        self.positions = positions
        self.max_length = max_length
        self.dropout_rate = dropout_rate
        self.seed = seed
        self.dropout = Dropout(
            dropout_rate, seed=seed, dtype=self.dtype_policy, name="dropout"
        )

    def _build_positions(self, input_shape):
        if self.positions == "learned":
            self.position_embeddings = self.add_weight(
                shape=(self.max_length, self.d_model),
                initializer=keras.initializers.RandomNormal(
                    stddev=self.d_model**-0.5
                ),
                name="position_embeddings",
            )
        self.dropout.build((*input_shape[:2], self.d_model))

    def _with_positions(self, x, offset, training):
        """Returns Dropout(x + PE) of vectors `(B, T, D)`."""
        if self.positions is not None:
            x = x + self._position_vectors(ops.shape(x)[1], offset)
        x = ops.cast(x, self.compute_dtype)
        return self.dropout(x, training=training)

    def _position_vectors(self, length, offset):
        offset = int32_index(offset)
        positions = ops.arange(length, dtype="int32") + offset
        if self.positions in SINUSOIDAL:
            return positional_encoding(
                positions,
                self.d_model,
                self._exact_dtype,
                halves=self.positions == "sinusoidal_halves",
            )  # [T, D]
        longest = self.position_embeddings.shape[0]
        offset = known_index(offset)
        is_known = isinstance(length, int) and offset is not None
        if is_known and offset + length > longest:
            raise ValueError(
                "A sequence may not be longer than the learned positions. "
                f"Received: {offset=}, {length=}, max_length={longest}. "
                'Cut the sequence, or use positions="sinusoidal".'
            )
        table = ops.cast(self.position_embeddings, self._exact_dtype)
        return ops.take(table, positions, axis=0)

    @property
    def _exact_dtype(self):
        return exact_dtype(self.compute_dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:2], self.d_model)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "d_model": self.d_model,
            "positions": self.positions,
            "max_length": self.max_length,
            "dropout_rate": self.dropout_rate,
            "seed": self.seed,
        }
