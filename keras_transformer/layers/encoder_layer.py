"""The encoder layer: section 3.1 and figure 1, left.

Shapes: B batch, T length, H heads, D d_model.
"""

import keras

from keras_transformer.layers.masks import check_padding_masks
from keras_transformer.layers.output_spec import (
    arguments_of_call,
    attention_output_spec,
)
from keras_transformer.layers.residual_layer import ResidualLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ResidualLayer):
    """Applies self-attention, then the feed-forward network, each with a
    residual: section 3.1.

    x = LayerNorm(x + Dropout(SelfAttention(x)))

    x = LayerNorm(x + Dropout(FFN(x)))

    With `use_causal_mask` it is also the layer of a decoder-only model.

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
        dropout_rate: on the output of each sub-layer, section 5.4.
        attention_dropout_rate: on the attention weights; not in the paper.
        activation_dropout_rate: inside the feed-forward network; not in the
            paper.
        norm_first: normalise the input of each sub-layer instead of its
            residual sum (pre-norm; the paper's is post-norm). The caller then
            normalises the last layer's output.
        key_dim, value_dim: d_k and d_v. Default to `d_model / num_heads`.
        activation: of the feed-forward network. Defaults to "relu".
        use_bias: biases in all projections. Defaults to True.
        layer_norm_epsilon: defaults to 1e-6.
        kernel_initializer: of all matrices.
        seed: seed of the dropout.

    Call arguments:
        x: `(B, T, D)`.
        mask: boolean `(B, T)`, True at real positions. Defaults to the
            implicit Keras mask of `x`.
        x_mask: the same, under the name by which Keras hands over the
            implicit mask when `attention_mask` is given too.
        attention_mask: boolean `(B, T, T)`, further limits on who may attend
            to whom.
        use_causal_mask: hide later positions. Defaults to False.
        return_attention_scores: also return the weights `(B, H, T, T)`.
        cache, cache_index: for decoding step by step, see `empty_cache` and
            `MultiHeadAttention`.
        training: whether dropout is on.

    Returns:
        `(B, T, D)`, and if asked for the weights, and with `cache_index` the
        updated cache.

    Raises:
        ValueError: if `x` is not D wide, or D not divisible by H.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.self_attention = self._attention("self_attention", 0)
        self.self_attention_dropout = self._dropout("attention_dropout", 1)
        self.self_attention_norm = self._norm("self_attention_norm")
        self.feed_forward = self._feed_forward("feed_forward", 2)
        self.feed_forward_dropout = self._dropout("feed_forward_dropout", 3)
        self.feed_forward_norm = self._norm("feed_forward_norm")

    def build(self, x_shape):
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

    def empty_cache(self, batch_size, length):
        """Returns a cache for the keys and values of `length` positions."""
        return self.self_attention.empty_cache(batch_size, length)

    def compute_output_spec(self, *args, **kwargs):
        given = arguments_of_call(self, args, kwargs)
        x = given.pop("x")
        return attention_output_spec(self.self_attention, x, x, **given)

    def call(
        self,
        x,
        mask=None,
        x_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        return_attention_scores=False,
        cache=None,
        cache_index=None,
        training=None,
    ):
        mask = x_mask if mask is None else mask
        check_padding_masks(mask=mask)

        def attend(h):
            return self.self_attention(
                h,
                h,
                value_mask=mask,
                attention_mask=attention_mask,
                use_causal_mask=use_causal_mask,
                return_attention_scores=return_attention_scores,
                cache=cache,
                cache_index=cache_index,
                training=training,
            )

        x, extras = self._residual(
            x,
            attend,
            self.self_attention_norm,
            self.self_attention_dropout,
            training,
        )
        x, _ = self._residual(
            x,
            lambda h: self.feed_forward(h, training=training),
            self.feed_forward_norm,
            self.feed_forward_dropout,
            training,
        )
        return (x, *extras) if extras else x
