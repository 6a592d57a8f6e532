"""The base class of encoder and decoder layer: figure 1, "Add & Norm"."""

from typing import Any

import keras

from keras_transformer.layers.arguments import (
    arguments_of_call,
    copy_of,
    takes,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.types import (
    Activation,
    Cache,
    Initializer,
    Output,
    Shape,
)
from keras_transformer.layers.windowed_attention import check_window


class ResidualLayer(keras.layers.Layer):
    """Builds and wraps the sub-layers of the encoder and the decoder layer.

    A sub-layer is wrapped as `LayerNorm(x + Dropout(Sublayer(x)))`, or with
    `norm_first` as `x + Dropout(Sublayer(LayerNorm(x)))`. The constructor's
    arguments are those of `EncoderLayer`.

    `self_attention_class` makes the self-attention. A subclass may name a
    subclass of `MultiHeadAttention`; attention to a memory stays as it is.
    """

    self_attention_class: type[MultiHeadAttention] = MultiHeadAttention

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.0,
        activation_dropout_rate: float = 0.0,
        norm_first: bool = False,
        key_dim: int | None = None,
        value_dim: int | None = None,
        activation: Activation = "relu",
        use_bias: bool = True,
        layer_norm_epsilon: float = 1e-6,
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        attention_window: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if key_dim is None and (num_heads < 1 or d_model % num_heads):
            raise ValueError(
                "`d_model` must be divisible by `num_heads`, so that every "
                "head has d_k = d_model / num_heads dimensions. "
                f"Received: d_model={d_model}, num_heads={num_heads}. "
                "Choose another number of heads, or pass `key_dim`."
            )
        check_window(attention_window)
        self.supports_masking = True
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.activation_dropout_rate = activation_dropout_rate
        self.norm_first = norm_first
        self.key_dim = d_model // num_heads if key_dim is None else key_dim
        self.value_dim = self.key_dim if value_dim is None else value_dim
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self.attention_window = attention_window

    def __call__(self, *args: Any, **kwargs: Any) -> Output:
        # Keras masks the output by the keyword argument `mask`. It ignores an
        # explicit mask of another name, or one that is a positional argument.
        x, given = arguments_of_call(self, args, kwargs)
        x_mask = given.get("x_mask")
        is_alone = given.get("mask") is None and x_mask is not None
        if is_alone and takes(self.call, "mask"):  # a subclass may not
            given["mask"] = x_mask
        return super().__call__(x, **given)

    def compute_output_shape(
        self, x_shape: Shape, memory_shape: Shape | None = None
    ) -> Shape:
        return (*x_shape[:-1], self.d_model)

    def empty_cache(self, batch_size: int, length: int) -> Cache:
        """Returns a cache for the keys and values of `length` positions.

        With `attention_window` it has the last r / 2 + 1 of them, and does not
        fill.
        """
        return self.self_attention.empty_cache(
            batch_size, length, self.attention_window
        )

    def _seed(self, site):
        """Returns a seed for one use of dropout; with a common seed, all uses
        would drop the same positions."""
        return None if self.seed is None else self.seed + site

    def _attention(self, name, site, cls=MultiHeadAttention):
        return cls(
            self.num_heads,
            self.key_dim,
            self.value_dim,
            dropout=self.attention_dropout_rate,
            use_bias=self.use_bias,
            output_shape=self.d_model,
            kernel_initializer=copy_of(self.kernel_initializer),
            seed=self._seed(site),
            dtype=self.dtype_policy,
            name=name,
        )

    def _feed_forward(self, name, site):
        return FeedForward(
            self.d_model,
            self.d_ff,
            activation=self.activation,
            dropout_rate=self.activation_dropout_rate,
            use_bias=self.use_bias,
            kernel_initializer=copy_of(self.kernel_initializer),
            seed=self._seed(site),
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name):
        return LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def _dropout(self, name, site):
        return Dropout(
            self.dropout_rate,
            seed=self._seed(site),
            dtype=self.dtype_policy,
            name=name,
        )

    def _residual(self, x, sublayer, norm, dropout, training):
        """Applies one sub-layer with its residual connection.

        `sublayer` returns a tensor, or a tuple of a tensor and extras.

        Returns:
            The tensor after the residual connection, and a list of the extras.
        """
        y = sublayer(norm(x) if self.norm_first else x)
        y, *extras = y if isinstance(y, tuple) else (y,)
        y = x + dropout(y, training=training)
        return (y if self.norm_first else norm(y)), extras

    def _apply_feed_forward(self, x, training):
        """Applies the last sub-layer, which all subclasses have."""
        x, _ = self._residual(
            x,
            lambda h: self.feed_forward(h, training=training),
            self.feed_forward_norm,
            self.feed_forward_dropout,
            training,
        )
        return x

    def _check_width(self, shape):
        if shape[-1] != self.d_model:
            raise ValueError(
                f"The input of {self.name} must be d_model wide, because it "
                "is added to the output. Received: "
                f"x.shape={tuple(shape)}, d_model={self.d_model}. Project the "
                "input by `Dense(d_model)`, or choose another d_model."
            )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "activation_dropout_rate": self.activation_dropout_rate,
            "norm_first": self.norm_first,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "seed": self.seed,
            "attention_window": self.attention_window,
        }
