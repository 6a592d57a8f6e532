"""The encoder layer: section 3.1 and figure 1, left.

Shapes: B batch, T length, H heads, D d_model.
"""

from typing import Any

import keras
from keras import KerasTensor

from keras_transformer.layers.arguments import arguments_of_call
from keras_transformer.layers.masks import check_padding_masks
from keras_transformer.layers.output_spec import attention_output_spec
from keras_transformer.layers.residual_layer import ResidualLayer
from keras_transformer.layers.types import Cache, Output, Shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ResidualLayer):
    """Applies self-attention and the feed-forward network: section 3.1.

    x = LayerNorm(x + Dropout(SelfAttention(x)))

    x = LayerNorm(x + Dropout(FFN(x)))

    With `use_causal_mask` it is also the layer of a decoder-only model. A
    subclass may name a subclass of `MultiHeadAttention` as
    `self_attention_class`, for example for rotary positions.

    Example:

    >>> import numpy as np
    >>> layer = EncoderLayer(d_model=16, num_heads=2, d_ff=32)
    >>> mask = np.array([[True, True, True], [True, False, False]])
    >>> tuple(layer(np.ones((2, 3, 16)), mask=mask).shape)
    (2, 3, 16)

    Args:
        d_model: D, width of input and output.
        num_heads: H, the number of heads.
        d_ff: width inside the feed-forward network.
        dropout_rate: rate of dropout on the output of each sub-layer, section
            5.4. Defaults to 0.1.
        attention_dropout_rate: rate of dropout on the attention weights; not
            in the paper, so the default is 0.
        activation_dropout_rate: rate of dropout inside the feed-forward
            network; not in the paper, so the default is 0.
        norm_first: whether to normalise the input of each sub-layer (pre-norm)
            instead of its residual sum (post-norm, as in the paper). With
            pre-norm the caller normalises the last layer's output. Defaults to
            False.
        key_dim, value_dim: d_k and d_v. Default to `d_model / num_heads`.
        activation: activation of the feed-forward network. Defaults to "relu".
        use_bias: whether all projections have biases. Defaults to True.
        layer_norm_epsilon: added to the variance. Defaults to 1e-6.
        kernel_initializer: initialiser of all matrices.
        seed: seed of the dropout.
        attention_window: r of section 4, a positive even integer: in
            self-attention, a position sees r / 2 positions before and after
            itself, or before itself alone where later ones are hidden.
            Defaults to `None`, all positions. See `MultiHeadAttention`.

    Call arguments:
        x: `(B, T, D)`.
        mask: boolean `(B, T)`, True at real positions. Defaults to the
            implicit Keras mask of `x`. With `cache_index` it is not read.
        x_mask: another name of `mask`, under which Keras passes the implicit
            mask when `attention_mask` is given, too.
        attention_mask: boolean `(B, T, T)`, or with `cache_index` `(B, T, S)`
            for a cache of S positions: True where a query may attend to a key.
        use_causal_mask: whether to hide later positions. Defaults to False.
        return_attention_scores: whether to return the weights `(B, H, T, T)`,
            with a cache `(B, H, T, S)`, too.
        cache, cache_index: for decoding step by step, see `empty_cache` and
            `MultiHeadAttention`.
        training: whether dropout is applied.

    Returns:
        `(B, T, D)`, followed by the weights with `return_attention_scores` and
        by the updated cache with `cache_index`.

    Raises:
        ValueError: if `x` is not D wide, D is not divisible by H, or the
            window is odd.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.self_attention = self._attention(
            "self_attention", 0, self.self_attention_class
        )
        self.self_attention_dropout = self._dropout("attention_dropout", 1)
        self.self_attention_norm = self._norm("self_attention_norm")
        self.feed_forward = self._feed_forward("feed_forward", 2)
        self.feed_forward_dropout = self._dropout("feed_forward_dropout", 3)
        self.feed_forward_norm = self._norm("feed_forward_norm")

    def build(self, x_shape: Shape) -> None:
        self._check_width(x_shape)
        self.self_attention.build(x_shape)
        self.feed_forward.build(x_shape)
        for layer in (
            self.self_attention_dropout,
            self.self_attention_norm,
            self.feed_forward_dropout,
            self.feed_forward_norm,
        ):
            layer.build(x_shape)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Output:
        x, given = arguments_of_call(self, args, kwargs)
        window = self.attention_window
        return attention_output_spec(
            self.self_attention, x, x, attention_window=window, **given
        )

    def call(
        self,
        x: KerasTensor,
        mask: KerasTensor | None = None,
        x_mask: KerasTensor | None = None,
        attention_mask: KerasTensor | None = None,
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        cache: Cache | None = None,
        cache_index: int | KerasTensor | None = None,
        training: bool | None = None,
    ) -> Output:
        mask = x_mask if mask is None else mask
        check_padding_masks(mask=mask)

        def attend_to_itself(h):
            return self.self_attention(
                h,
                h,
                query_mask=mask,  # instead of the implicit mask of h
                value_mask=mask,
                attention_mask=attention_mask,
                use_causal_mask=use_causal_mask,
                return_attention_scores=return_attention_scores,
                cache=cache,
                cache_index=cache_index,
                attention_window=self.attention_window,
                training=training,
            )

        x, extras = self._residual(
            x,
            attend_to_itself,
            self.self_attention_norm,
            self.self_attention_dropout,
            training,
        )
        x = self._apply_feed_forward(x, training)
        return (x, *extras) if extras else x
