"""The decoder layer: section 3.1 and figure 1, right.

Shapes: B batch, T target length, S source length, H heads, D d_model.
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
class DecoderLayer(ResidualLayer):
    """Applies self-attention, attention to the memory and the feed-forward
    network: section 3.1.

    x = LayerNorm(x + Dropout(CausalSelfAttention(x)))

    x = LayerNorm(x + Dropout(CrossAttention(x, memory)))

    x = LayerNorm(x + Dropout(FFN(x)))

    Constructor arguments are those of `EncoderLayer`, and so is
    `self_attention_class`.

    Example:

    >>> import numpy as np
    >>> layer = DecoderLayer(d_model=16, num_heads=2, d_ff=32)
    >>> target, memory = np.ones((3, 5, 16)), np.ones((3, 7, 16))
    >>> tuple(layer(target, memory).shape)
    (3, 5, 16)

    Call arguments:
        x: `(B, T, D)`, the target.
        memory: `(B, S, D)`, the encoder's output. May be `None` when
            `memory_cache` is given.
        x_mask: boolean `(B, T)`, True at real target positions. Defaults to
            the implicit Keras mask of `x`. With `cache_index` it is not read.
        memory_mask: boolean `(B, S)`, True at real *source* positions.
            Defaults to the implicit Keras mask of `memory`.
        return_attention_scores: whether to return the weights of the attention
            to the memory, `(B, H, T, S)`, too.
        cache, cache_index: for decoding step by step, see `empty_cache`.
        memory_cache: the memory's keys and values, see `project_memory`.
            `x` may then hold several rows (beams) for each row of memory.
        training: whether dropout is applied.
        attention_mask: boolean `(B, T, T)`, or with `cache_index` `(B, T, S)`
            for a cache of S positions: True where a target position may attend
            to another. Later positions are hidden anyway.
        mask: another name of `x_mask`, by which Keras masks the output.

    Returns:
        `(B, T, D)`, followed by the weights with `return_attention_scores` and
        by the updated cache with `cache_index`.

    Raises:
        ValueError: if `x` is not D wide, if D is not divisible by H, or if
            there is neither `memory` nor `memory_cache`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.self_attention = self._attention(
            "self_attention", 0, self.self_attention_class
        )
        self.self_attention_dropout = self._dropout("self_dropout", 1)
        self.self_attention_norm = self._norm("self_attention_norm")
        self.cross_attention = self._attention("cross_attention", 2)
        self.cross_attention_dropout = self._dropout("cross_dropout", 3)
        self.cross_attention_norm = self._norm("cross_attention_norm")
        self.feed_forward = self._feed_forward("feed_forward", 4)
        self.feed_forward_dropout = self._dropout("feed_forward_dropout", 5)
        self.feed_forward_norm = self._norm("feed_forward_norm")

    def build(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        self._check_width(x_shape)
        self.self_attention.build(x_shape)
        self.cross_attention.build(x_shape, memory_shape)
        self.feed_forward.build(x_shape)
        for layer in (
            self.self_attention_dropout,
            self.self_attention_norm,
            self.cross_attention_dropout,
            self.cross_attention_norm,
            self.feed_forward_dropout,
            self.feed_forward_norm,
        ):
            layer.build(x_shape)

    def project_memory(self, memory: KerasTensor) -> Cache:
        """Returns the memory's keys and values, which all steps share."""
        if not self.built:
            self.build((None, None, self.d_model), memory.shape)
        return self.cross_attention.project(memory)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Output:
        x, given = arguments_of_call(self, args, kwargs)
        if type(self).call is DecoderLayer.call:  # others may have their own
            _check_memory(given.get("memory"), given.get("memory_cache"))
        scores = given.get("return_attention_scores", False)
        own = attention_output_spec(
            self.self_attention,
            x,
            x,
            cache=given.get("cache"),
            cache_index=given.get("cache_index"),
        )
        output, *caches = own if isinstance(own, tuple) else (own,)
        if scores:
            _, *scores = attention_output_spec(
                self.cross_attention,
                x,
                given.get("memory"),
                return_attention_scores=True,
                cache=given.get("memory_cache"),
            )
        extras = (*(scores or ()), *caches)
        return (output, *extras) if extras else output

    def call(
        self,
        x: KerasTensor,
        memory: KerasTensor | None = None,
        x_mask: KerasTensor | None = None,
        memory_mask: KerasTensor | None = None,
        return_attention_scores: bool = False,
        cache: Cache | None = None,
        cache_index: int | KerasTensor | None = None,
        memory_cache: Cache | None = None,
        training: bool | None = None,
        mask: KerasTensor | None = None,
        attention_mask: KerasTensor | None = None,
    ) -> Output:
        _check_memory(memory, memory_cache)
        x_mask = x_mask if mask is None else mask
        check_padding_masks(x_mask=x_mask, memory_mask=memory_mask)

        def attend_to_itself(h):
            return self.self_attention(
                h,
                h,
                query_mask=x_mask,  # instead of the implicit mask of h
                value_mask=x_mask,
                attention_mask=attention_mask,
                use_causal_mask=True,
                cache=cache,
                cache_index=cache_index,
                attention_window=self.attention_window,
                training=training,
            )

        def attend_to_memory(h):
            return self.cross_attention(
                h,
                memory,
                value_mask=memory_mask,
                cache=memory_cache,
                return_attention_scores=return_attention_scores,
                training=training,
            )

        x, caches = self._residual(
            x,
            attend_to_itself,
            self.self_attention_norm,
            self.self_attention_dropout,
            training,
        )
        x, scores = self._residual(
            x,
            attend_to_memory,
            self.cross_attention_norm,
            self.cross_attention_dropout,
            training,
        )
        x = self._apply_feed_forward(x, training)
        extras = (*scores, *caches)
        return (x, *extras) if extras else x


def _check_memory(memory, memory_cache):
    if memory is None and memory_cache is None:
        raise ValueError(
            "A decoder layer attends to the encoder's output. Received: "
            "memory=None, memory_cache=None. Pass one of them. A decoder "
            "without an encoder is an `EncoderLayer` with `use_causal_mask`."
        )
