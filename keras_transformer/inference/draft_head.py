"""A layer that drafts the tokens after the next one.

Shapes: B batch, T target length, S source length, D d_model, N draft tokens.
"""

from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_transformer.config import LAYER_FIELDS, TransformerConfig
from keras_transformer.layers.arguments import Output, Shape
from keras_transformer.layers.transformer_layers import TransformerLayer
from keras_transformer.validation import checked_integer


class DraftHead(TransformerLayer):
    """Drafts the N tokens after the next one, for `blockwise_search`.

    At each position, the decoder's output and the embedding of the next token
    become N vectors, one for each token to draft. These attend to the
    source and pass through a feed-forward network, as in a decoder layer
    without self-attention; then the model projects them to logits. (Section 4
    of Stern et al., 2018, has the feed-forward network only.)

    `train_draft_head` of `keras_transformer.training` trains it.

    Example:

    >>> from keras import ops
    >>> layer = DraftHead(3, d_model=8, num_heads=2, d_ff=16)
    >>> features = next_tokens = ops.ones((2, 7, 8))
    >>> memory = ops.ones((2, 5, 8))
    >>> tuple(layer(features, next_tokens, memory).shape)
    (2, 21, 8)

    Args:
        draft_tokens: N, at least 1. A step reads one more token.
        **kwargs: those of `DecoderLayer`.

    Attributes:
        likely_pieces: int32 ids of the pieces that may be drafted, or `None`
            (default), any. `blockwise_search` finds the same with any of them,
            but rare pieces take longer to project to than they gain.

    Raises:
        ValueError: if `draft_tokens` is no integer of at least 1.
    """

    def __init__(self, draft_tokens: int, **kwargs: Any):
        draft_tokens = checked_integer("draft_tokens", draft_tokens)
        super().__init__(**kwargs)
        self.draft_tokens = draft_tokens
        self.likely_pieces: np.ndarray | None = None
        # The first guess of all drafts is the next token's vector.
        self.start = keras.layers.Dense(
            draft_tokens * self.d_model,
            kernel_initializer="zeros",
            dtype=self.dtype_policy,
            name="start",
        )
        self.cross_attention = self._attention("cross_attention", 0)
        self.cross_attention_dropout = self._dropout("cross_dropout", 1)
        self.cross_attention_norm = self._norm("cross_attention_norm")
        self.feed_forward = self._feed_forward("feed_forward", 2)
        self.feed_forward_dropout = self._dropout("feed_forward_dropout", 3)
        self.feed_forward_norm = self._norm("feed_forward_norm")

    @classmethod
    def for_model(
        cls, config: TransformerConfig, draft_tokens: int, **kwargs: Any
    ) -> "DraftHead":
        """Returns a built layer for a `Transformer` of a config.

        Args:
            config: the model's config.
            draft_tokens: N.
            **kwargs: other arguments of the layer, such as `dtype`.
        """
        same = {
            name: getattr(config, name)
            for name in LAYER_FIELDS
            if name != "sliding_window" and not name.endswith("dropout_rate")
        }
        layer = cls(draft_tokens, **same, **kwargs)
        layer.build(*[(None, None, config.d_model)] * 3)
        return layer

    def build(
        self, x_shape: Shape, next_tokens_shape: Shape, memory_shape: Shape
    ) -> None:
        self._check_width(x_shape)
        self.start.build((*x_shape[:-1], 2 * self.d_model))
        self.cross_attention.build(x_shape, memory_shape)
        for layer in (
            self.cross_attention_dropout,
            self.cross_attention_norm,
            self.feed_forward,
            self.feed_forward_dropout,
            self.feed_forward_norm,
        ):
            layer.build(x_shape)

    def call(
        self,
        x: KerasTensor,
        next_tokens: KerasTensor,
        memory: KerasTensor,
        memory_mask: KerasTensor | None = None,
        training: bool | None = None,
    ) -> Output:
        """Returns the vectors `(B, T·N, D)` of all drafts.

        Args:
            x: the decoder's output `(B, T, D)`.
            next_tokens: embeddings `(B, T, D)` of the tokens that follow.
            memory: the encoder's output `(B, S, D)`.
            memory_mask: boolean `(B, S)`, True at real source tokens.
        """
        batch, length = ops.shape(x)[:2]
        change = self.start(ops.concatenate([x, next_tokens], axis=-1))
        shape = (batch, length, self.draft_tokens, self.d_model)
        x = ops.expand_dims(x, 2) + ops.reshape(change, shape)
        x = ops.reshape(x, (batch, -1, self.d_model))

        h = self._norm_input(x, self.cross_attention_norm)
        h = self.cross_attention(
            h, memory, value_mask=memory_mask, training=training
        )
        x = self._add_and_norm(
            x,
            h,
            self.cross_attention_dropout,
            self.cross_attention_norm,
            training,
        )
        h = self._norm_input(x, self.feed_forward_norm)
        h = self.feed_forward(h, training=training)
        return self._add_and_norm(
            x, h, self.feed_forward_dropout, self.feed_forward_norm, training
        )

    def compute_mask(self, *_: Any, **__: Any) -> None:
        """Returns no mask: there are N vectors at each position."""

    def compute_output_shape(
        self, x_shape: Shape, memory_shape: Shape | None = None, **_: Shape
    ) -> Shape:
        batch, length, width = x_shape
        count = self.draft_tokens
        return (batch, None if length is None else length * count, width)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "draft_tokens": self.draft_tokens}
