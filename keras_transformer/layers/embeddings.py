"""Embeddings of ids and vectors, and positions: sections 3.4 and 3.5.

Shapes: B batch, T length, D d_model, V vocabulary.
"""

import math
from typing import Any

import keras
from keras import KerasTensor, ops

from keras_transformer.layers.arguments import (
    Initializer,
    Layer,
    Shape,
    before_axes,
    clone_initializer,
    exact_dtype,
    int32_index,
    known_range,
    says_its_shape,
)
from keras_transformer.layers.normalization import Dropout
from keras_transformer.validation import checked_integer

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
        positions: tensor of shape `(T,)`, or `(B, T)`.
        d_model: D, any positive integer.
        dtype: "float32" (default) or "float64".
        halves: whether all sines come first. Defaults to False.

    Returns:
        Tensor of shape `(T, D)`, or `(B, T, D)`.
    """
    pairs = (d_model + 1) // 2
    rates = [10000.0 ** (-2 * i / d_model) for i in range(pairs)]
    rates = ops.convert_to_tensor(rates, dtype=dtype)
    angles = ops.cast(positions, dtype)[..., None] * rates  # [..., T, D/2]
    if halves:
        cosines = ops.cos(angles[..., : d_model // 2])
        return ops.concatenate([ops.sin(angles), cosines], axis=-1)
    waves = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    shape = (*ops.shape(angles)[:-1], 2 * pairs)
    return ops.reshape(waves, shape)[..., :d_model]


def rotary_angles(
    positions: KerasTensor, width: int, dtype: str = "float32"
) -> tuple[KerasTensor, KerasTensor]:
    """Returns the cosines and the sines by which `rotate` rotates.

    The angles are those of section 3.5: pos / 10000^(2i / width).

    Args:
        positions: tensor of shape `(T,)`, or `(…, T)`.
        width: K, an even number.
        dtype: "float32" (default) or "float64".

    Returns:
        Two tensors of shape `(…, T, K/2)`.
    """
    rates = [10000.0 ** (-2 * i / width) for i in range(width // 2)]
    rates = ops.convert_to_tensor(rates, dtype=dtype)
    angles = ops.cast(positions, dtype)[..., None] * rates
    return ops.cos(angles), ops.sin(angles)


def rotate(
    heads: KerasTensor, cosines: KerasTensor, sines: KerasTensor
) -> KerasTensor:
    """Rotates each dimension of the first half together with that of the second
    (Su et al., 2021): the scores of rotated queries and keys depend on the
    distance of their positions.

    Example:

    >>> from keras import ops
    >>> query = ops.convert_to_tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> rotated = rotate(query, *rotary_angles(ops.arange(2), width=2))
    >>> print(ops.convert_to_numpy(rotated))
    [[1.         0.        ]
     [0.5403023  0.84147096]]

    Args:
        heads: queries or keys `(…, T, K)`.
        cosines, sines: from `rotary_angles`, broadcastable to `(…, T, K/2)`.

    Returns:
        Tensor of the shape and dtype of `heads`.
    """
    x, y = ops.split(ops.cast(heads, cosines.dtype), 2, axis=-1)
    rotated = [x * cosines - y * sines, x * sines + y * cosines]
    return ops.cast(ops.concatenate(rotated, axis=-1), heads.dtype)


def check_head_positions(positions: str | None, key_dim: int) -> None:
    """Checks the `positions` of an attention layer.

    Raises:
        ValueError: if there is no such value, or if heads have an odd width,
            whose dimensions do not form pairs.
    """
    if positions not in ("rotary", None):
        raise ValueError(
            'The `positions` of attention must be "rotary" or None. Received: '
            f"positions={positions!r}. Others are for `PositionalEmbedding`."
        )
    if positions == "rotary" and key_dim % 2:
        raise ValueError(
            "Rotary positions rotate pairs of dimensions: d_k must be even. "
            f"Received: key_dim={key_dim}. Pass another `key_dim`."
        )


class PositionedLayer(Layer):
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
        self.d_model = checked_integer("d_model", d_model)
        self.positions = positions
        if max_length is not None:
            max_length = checked_integer("max_length", max_length)
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
        positions = ops.arange(length, dtype="int32") + before_axes(offset, 1)
        if self.positions in SINUSOIDAL:
            return positional_encoding(
                positions,
                self.d_model,
                self._exact_dtype,
                halves=self.positions == "sinusoidal_halves",
            )  # [T, D] or [B, T, D]
        longest = self.position_embeddings.shape[0]
        known = known_range(offset)
        if isinstance(length, int) and known and known[1] + length > longest:
            raise ValueError(
                "A sequence may not be longer than the learned positions. "
                f"Received: offset={known[1]}, {length=}, "
                f"max_length={longest}. "
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


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEmbedding(PositionedLayer):
    """Embeds ids and adds their positions: sections 3.4 and 3.5.

    Returns Dropout(E[ids] · √d_model + PE). With `reverse=True` the same table
    E of shape `(V, D)` is the pre-softmax projection x Eᵀ ("we share the same
    weight matrix", section 3.4). E starts normal with standard deviation
    D^-0.5, so that scaled embeddings and logits both have unit variance. Models
    of others may leave out the scale, project by another matrix than E, and add
    a bias to the logits.

    Example:

    >>> import numpy as np
    >>> layer = PositionalEmbedding(vocab_size=100, d_model=16)
    >>> x = layer(np.array([[5, 7, 9], [4, 3, 0]]))  # id 0 is padding
    >>> tuple(x.shape), tuple(layer(x, reverse=True).shape)
    ((2, 3, 16), (2, 3, 100))

    Args:
        vocab_size: V, the number of ids.
        d_model: D, the width of the output.
        positions: "sinusoidal" (section 3.5, any length), "sinusoidal_halves"
            (see `positional_encoding`), "learned" (table 3, row E) or `None`.
        max_length: number of learned positions; required for "learned".
        dropout_rate: rate of dropout on the sum, section 5.4. Defaults to 0.1.
        mask_zero: whether id 0 is padding, which an implicit Keras mask marks
            for the following layers. Defaults to True.
        embeddings_initializer: initialiser of E. Defaults to normal, see
            above.
        scale_embeddings: whether E[ids] is multiplied by √d_model. Defaults to
            True.
        tie_projection: whether the projection is by E. Otherwise it is by a
            matrix of its own, `(V, D)`. Defaults to True.
        use_logits_bias: whether a bias `(V,)` is added to the logits. Defaults
            to False.
        seed: seed of the dropout.

    Call arguments:
        x: integer ids `(B, T)`; with `reverse=True`, `(B, T, D)`.
        offset: position of the first token, a scalar, or `(B,)` for rows that
            differ. Defaults to 0; a decoder that works step by step passes the
            step.
        reverse: whether to project to logits instead. Defaults to False.
        training: whether dropout is applied.

    Returns:
        `(B, T, D)`, or with `reverse=True` logits `(B, T, V)` in float32, or
        float64 if that is the dtype of the layer.

    Raises:
        ValueError: if `positions` is unknown, if learned positions have no
            `max_length`, if a sequence is longer than `max_length`, or if the
            input has another rank or is ragged.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        positions: str | None = "sinusoidal",
        max_length: int | None = None,
        dropout_rate: float = 0.1,
        mask_zero: bool = True,
        embeddings_initializer: Initializer | None = None,
        scale_embeddings: bool = True,
        tie_projection: bool = True,
        use_logits_bias: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ):
        # No autocast: ids may be floats, which bfloat16 would round.
        super().__init__(
            d_model,
            positions,
            max_length,
            dropout_rate,
            seed,
            autocast=False,
            **kwargs,
        )
        self.vocab_size = checked_integer("vocab_size", vocab_size)
        self.mask_zero = mask_zero
        self.embeddings_initializer = keras.initializers.get(
            embeddings_initializer
            or keras.initializers.RandomNormal(stddev=d_model**-0.5)
        )
        self.scale_embeddings = scale_embeddings
        self.tie_projection = tie_projection
        self.use_logits_bias = use_logits_bias

    def build(self, input_shape: Shape) -> None:
        self.embeddings = self.add_weight(
            shape=(self.vocab_size, self.d_model),
            initializer=self.embeddings_initializer,
            name="embeddings",
        )
        self._build_positions(input_shape)
        if not self.tie_projection:
            self._own_projection = self.add_weight(
                shape=(self.vocab_size, self.d_model),
                initializer=clone_initializer(self.embeddings_initializer),
                name="projection",
            )
        if self.use_logits_bias:
            self.logits_bias = self.add_weight(
                shape=(self.vocab_size,),
                initializer="zeros",
                name="logits_bias",
            )

    @property
    def projection(self) -> keras.Variable:
        """The matrix `(V, D)` of the projection: E, or one of its own."""
        return self.embeddings if self.tie_projection else self._own_projection

    def call(
        self,
        x: KerasTensor,
        offset: int | KerasTensor = 0,
        reverse: bool = False,
        training: bool | None = None,
    ) -> KerasTensor:
        _check_input(x, reverse)
        if reverse:
            return self._logits(x)
        # A strategy that builds the model from averaged ids passes floats.
        ids = ops.cast(x, "int32")
        tokens = ops.take(self.embeddings, ids, axis=0)  # [B, T, D]
        tokens = ops.cast(tokens, self._exact_dtype)
        if self.scale_embeddings:
            tokens = tokens * math.sqrt(self.d_model)
        return self._with_positions(tokens, offset, training)

    def _logits(self, x):
        x = ops.cast(x, self.compute_dtype)
        table = ops.transpose(ops.cast(self.projection, x.dtype))  # [D, V]
        logits = ops.cast(ops.matmul(x, table), self._exact_dtype)
        if self.use_logits_bias:
            logits = logits + ops.cast(self.logits_bias, logits.dtype)
        return logits

    def compute_mask(
        self, inputs: KerasTensor, previous_mask: KerasTensor | None = None
    ) -> KerasTensor | None:
        is_ids = len(inputs.shape) == 2  # the inputs of `reverse` have 3 axes
        if self.mask_zero and is_ids:
            return ops.not_equal(inputs, 0)
        return previous_mask

    def compute_output_spec(
        self,
        x: KerasTensor,
        offset: int | KerasTensor = 0,
        reverse: bool = False,
        training: bool | None = None,
    ) -> KerasTensor:
        _check_input(x, reverse)
        if not says_its_shape(self):
            return keras.Operation.compute_output_spec(
                self, x, offset, reverse, training
            )
        if not reverse:
            shape = self.compute_output_shape(x.shape)
            return KerasTensor(shape, dtype=self.compute_dtype)
        shape = (*x.shape[:2], self.vocab_size)
        return KerasTensor(shape, dtype=self._exact_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "mask_zero": self.mask_zero,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "scale_embeddings": self.scale_embeddings,
            "tie_projection": self.tie_projection,
            "use_logits_bias": self.use_logits_bias,
        }


def _check_input(x, reverse):
    if hasattr(x, "row_splits"):  # of TensorFlow, which may be absent
        raise ValueError(
            "The input of a PositionalEmbedding must be a dense tensor. "
            f"Received: x={x!r}. Fill its rows with 0: `x.to_tensor()`."
        )
    if len(x.shape) != (3 if reverse else 2):
        expected = "ids (batch, length)"
        if reverse:
            expected = "vectors (batch, length, d_model)"
        raise ValueError(
            f"The input of a PositionalEmbedding must be {expected}. Received: "
            f"x.shape={tuple(x.shape)}, {reverse=}. For one axis more, wrap "
            "the layer and those after it in one `TimeDistributed(keras."
            "Sequential([…]))`: it passes no mask on."
        )


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
        offset: position of the first vector, a scalar or `(B,)`. Defaults to 0.
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
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.projection = keras.layers.Dense(
            self.d_model,
            use_bias=use_bias,
            kernel_initializer=clone_initializer(self.kernel_initializer),
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
