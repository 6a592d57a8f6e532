"""The layers of the encoder and the decoder: section 3.1 and figure 1.

Shapes: B batch, T target or query length, S source length, H heads, D d_model.
"""

import inspect
from typing import Any

import keras
from keras import KerasTensor

from keras_transformer.layers.arguments import (
    Activation,
    Cache,
    Initializer,
    Layer,
    Output,
    Shape,
    accepts,
    arguments_of_call,
    clone_initializer,
    mixed_seed,
    pack,
    says_its_shape,
    unpack,
)
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masks import check_padding_masks
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.normalization import NORMALIZATIONS, Dropout
from keras_transformer.validation import check_choice, checked_integer

FEED_FORWARDS = ("ffn", "swiglu")


class TransformerLayer(Layer):
    """Constructs the layers of encoder and decoder, and has "Add & Norm" of
    figure 1.

    A sub-layer is wrapped as `LayerNorm(x + Dropout(Sublayer(x)))`, or with
    `norm_first` as `x + Dropout(Sublayer(LayerNorm(x)))`. The constructor's
    arguments are described in `EncoderLayer`. A subclass makes its sub-layers
    in `_add_sublayers`.

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
        sliding_window: int | None = None,
        num_key_value_heads: int | None = None,
        normalization: str = "layer",
        feed_forward: str = "ffn",
        positions: str | None = None,
        qk_norm: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        d_model = checked_integer("d_model", d_model)
        num_heads = checked_integer("num_heads", num_heads)
        if key_dim is None and d_model % num_heads:
            raise ValueError(
                "`d_model` must be divisible by `num_heads`, so that every "
                "head has d_k = d_model / num_heads dimensions. "
                f"Received: d_model={d_model}, num_heads={num_heads}. "
                "Choose another number of heads, or pass `key_dim`."
            )
        self.supports_masking = True
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = checked_integer("d_ff", d_ff)
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.activation_dropout_rate = activation_dropout_rate
        self.norm_first = norm_first
        key_dim = d_model // num_heads if key_dim is None else key_dim
        value_dim = key_dim if value_dim is None else value_dim
        self.key_dim = checked_integer("key_dim", key_dim)
        self.value_dim = checked_integer("value_dim", value_dim)
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        if sliding_window is not None:
            sliding_window = checked_integer("sliding_window", sliding_window)
        self.sliding_window = sliding_window
        self.num_key_value_heads = num_key_value_heads
        check_choice("normalization", normalization, NORMALIZATIONS)
        self.normalization = normalization
        check_choice("feed_forward", feed_forward, FEED_FORWARDS)
        self.feed_forward_kind = feed_forward
        self.positions = positions
        self.qk_norm = qk_norm
        self._add_sublayers()

    def _add_sublayers(self):
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Output:
        # Keras masks the output by the keyword argument `mask`. It ignores an
        # explicit mask of another name, or one that is a positional argument.
        x, given = arguments_of_call(self, args, kwargs)
        x_mask = given.get("x_mask")
        is_alone = given.get("mask") is None and x_mask is not None
        if is_alone and accepts(self.call, "mask"):  # a subclass may not
            given["mask"] = x_mask
        return super().__call__(x, **given)

    def compute_output_shape(
        self, x_shape: Shape, memory_shape: Shape | None = None
    ) -> Shape:
        return (*x_shape[:-1], self.d_model)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Output:
        if not says_its_shape(self):
            return keras.Operation.compute_output_spec(self, *args, **kwargs)
        x, given = arguments_of_call(self, args, kwargs)
        return self._output_spec(x, given)

    def _output_spec(self, x, given):
        return self._spec_of_output(x, given)

    def _spec_of_output(self, x, given):
        memory = given.get("memory")
        shapes = [x.shape] if memory is None else [x.shape, memory.shape]
        takes = len(inspect.signature(self.compute_output_shape).parameters)
        shape = self.compute_output_shape(*shapes[:takes])
        return KerasTensor(shape, dtype=self.compute_dtype)

    def empty_cache(self, batch_size: int, length: int) -> Cache:
        """Returns a cache for the keys and values of `length` positions.

        With `sliding_window` it has the last w of them, and does not fill.
        """
        return self.self_attention.empty_cache(batch_size, length)

    def _seed(self, site):
        """Returns a seed for one use of dropout; with a common seed, all uses
        would drop the same positions."""
        return mixed_seed(self.seed, site)

    def _attention(self, name, site, cls=MultiHeadAttention, **options):
        return cls(
            self.num_heads,
            self.key_dim,
            self.value_dim,
            dropout=self.attention_dropout_rate,
            use_bias=self.use_bias,
            output_shape=self.d_model,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            seed=self._seed(site),
            dtype=self.dtype_policy,
            name=name,
            num_key_value_heads=self.num_key_value_heads,
            qk_norm=self.qk_norm,
            **options,
        )

    def _self_attention(self, name, site):
        return self._attention(
            name,
            site,
            self.self_attention_class,
            sliding_window=self.sliding_window,
            positions=self.positions,
        )

    def _feed_forward(self, name, site):
        use_gate = self.feed_forward_kind == "swiglu"
        return FeedForward(
            self.d_model,
            self.d_ff,
            activation="silu" if use_gate else self.activation,
            use_gate=use_gate,
            dropout_rate=self.activation_dropout_rate,
            use_bias=self.use_bias,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            seed=self._seed(site),
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name):
        return NORMALIZATIONS[self.normalization](
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def _dropout(self, name, site):
        return Dropout(
            self.dropout_rate,
            seed=self._seed(site),
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm_input(self, x, norm):
        """Returns the input of a sub-layer: x, or its norm in pre-norm."""
        return norm(x) if self.norm_first else x

    def _add_and_norm(self, x, y, dropout, norm, training):
        """Adds the output y of a sub-layer to x; post-norm then normalises."""
        x = x + dropout(y, training=training)
        return x if self.norm_first else norm(x)

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
            "sliding_window": self.sliding_window,
            "num_key_value_heads": self.num_key_value_heads,
            "normalization": self.normalization,
            "feed_forward": self.feed_forward_kind,
            "positions": self.positions,
            "qk_norm": self.qk_norm,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(TransformerLayer):
    """Applies self-attention and the feed-forward network: section 3.1.

    x = LayerNorm(x + Dropout(SelfAttention(x)))

    x = LayerNorm(x + Dropout(FFN(x)))

    With `use_causal_mask` it is also the layer of a decoder-only model. A
    subclass may name a subclass of `MultiHeadAttention` as
    `self_attention_class`, for example for other positions.

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
        sliding_window: w, a positive integer: in self-attention a position
            sees itself and w - 1 positions before and after it, or before it
            alone where later ones are hidden. Defaults to `None`, all
            positions. See `MultiHeadAttention`.
        num_key_value_heads: G, the number of heads of keys and values, see
            `MultiHeadAttention`. Defaults to `None`, H.
        normalization: "layer" (default), or "rms", which divides by the root
            mean square alone (Zhang and Sennrich, 2019).
        feed_forward: "ffn" (default), equation 2 with `activation`, or
            "swiglu", (silu(x W_g) ⊗ x W_1) W_2 (Shazeer, 2020), which does not
            read `activation`. With two thirds of `d_ff` it has as many weights.
        positions: "rotary" rotates the queries and keys of self-attention, see
            `MultiHeadAttention`; the embedding then has `positions=None`.
            Defaults to `None`.
        qk_norm: whether queries and keys are normalised, see
            `MultiHeadAttention`. Defaults to False.

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
        ValueError: if `x` is not D wide, D is not divisible by H, a dimension
            or the window is not positive, or an option is unknown.
    """

    def _add_sublayers(self):
        self.self_attention = self._self_attention("self_attention", 0)
        self.self_attention_dropout = self._dropout("attention_dropout", 1)
        self.self_attention_norm = self._norm("self_attention_norm")
        self.feed_forward = self._feed_forward("feed_forward", 2)
        self.feed_forward_dropout = self._dropout("feed_forward_dropout", 3)
        self.feed_forward_norm = self._norm("feed_forward_norm")

    def build(self, x_shape: Shape) -> None:
        self._check_width(x_shape)
        for layer in (
            self.self_attention,
            self.self_attention_dropout,
            self.self_attention_norm,
            self.feed_forward,
            self.feed_forward_dropout,
            self.feed_forward_norm,
        ):
            layer.build(x_shape)

    def _output_spec(self, x, given):
        """Returns the specs of what `call` returns."""
        _, *extras = unpack(
            self.self_attention.compute_output_spec(x, x, **given)
        )
        return pack(self._spec_of_output(x, given), *extras)

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
        check_padding_masks(mask=(mask, x))

        h = self._norm_input(x, self.self_attention_norm)
        h, *extras = unpack(
            self.self_attention(
                h,
                h,
                query_mask=mask,  # instead of the implicit mask of h
                value_mask=mask,
                attention_mask=attention_mask,
                use_causal_mask=use_causal_mask,
                return_attention_scores=return_attention_scores,
                cache=cache,
                cache_index=cache_index,
                training=training,
            )
        )
        x = self._add_and_norm(
            x,
            h,
            self.self_attention_dropout,
            self.self_attention_norm,
            training,
        )

        h = self._norm_input(x, self.feed_forward_norm)
        h = self.feed_forward(h, training=training)
        x = self._add_and_norm(
            x, h, self.feed_forward_dropout, self.feed_forward_norm, training
        )
        return pack(x, *extras)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(TransformerLayer):
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

    def _add_sublayers(self):
        self.self_attention = self._self_attention("self_attention", 0)
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
        for layer in (
            self.self_attention_dropout,
            self.self_attention_norm,
            self.cross_attention_dropout,
            self.cross_attention_norm,
            self.feed_forward,
            self.feed_forward_dropout,
            self.feed_forward_norm,
        ):
            layer.build(x_shape)

    def project_memory(self, memory: KerasTensor) -> Cache:
        """Returns the memory's keys and values, which all steps share."""
        if not self.built:
            self.build((None, None, self.d_model), memory.shape)
        return self.cross_attention.project(memory)

    def _output_spec(self, x, given):
        """Returns the specs of what `call` returns."""
        if type(self).call is DecoderLayer.call:  # others may have their own
            _check_memory(given.get("memory"), given.get("memory_cache"))
        _, *caches = unpack(
            self.self_attention.compute_output_spec(
                x,
                x,
                cache=given.get("cache"),
                cache_index=given.get("cache_index"),
            )
        )
        _, *scores = unpack(
            self.cross_attention.compute_output_spec(
                x,
                given.get("memory"),
                cache=given.get("memory_cache"),
                return_attention_scores=given.get("return_attention_scores"),
            )
        )
        return pack(self._spec_of_output(x, given), *scores, *caches)

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
        check_padding_masks(
            x_mask=(x_mask, x), memory_mask=(memory_mask, memory)
        )

        h = self._norm_input(x, self.self_attention_norm)
        h, *caches = unpack(
            self.self_attention(
                h,
                h,
                query_mask=x_mask,  # instead of the implicit mask of h
                value_mask=x_mask,
                attention_mask=attention_mask,
                use_causal_mask=True,
                cache=cache,
                cache_index=cache_index,
                training=training,
            )
        )
        x = self._add_and_norm(
            x,
            h,
            self.self_attention_dropout,
            self.self_attention_norm,
            training,
        )

        h = self._norm_input(x, self.cross_attention_norm)
        h, *scores = unpack(
            self.cross_attention(
                h,
                memory,
                value_mask=memory_mask,
                cache=memory_cache,
                return_attention_scores=return_attention_scores,
                training=training,
            )
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
        x = self._add_and_norm(
            x, h, self.feed_forward_dropout, self.feed_forward_norm, training
        )
        return pack(x, *scores, *caches)


def _check_memory(memory, memory_cache):
    if memory is None and memory_cache is None:
        raise ValueError(
            "A decoder layer attends to the encoder's output. Received: "
            "memory=None, memory_cache=None. Pass one of them. A decoder "
            "without an encoder is an `EncoderLayer` with `use_causal_mask`."
        )
