"""Multi-head attention: section 3.2 and figure 2 of the paper.

Shapes: B batch, T query length, S key length, H heads, G heads of keys and
values, D d_model, K d_k or d_v.
"""

from typing import Any

import keras
from keras import KerasTensor, ops

from keras_transformer.layers.arguments import (
    Cache,
    Constraint,
    Initializer,
    Layer,
    Output,
    Regularizer,
    Shape,
    arguments_of_call,
    before_axes,
    clone_initializer,
    exact_dtype,
    int32_index,
    pack,
    says_its_shape,
)
from keras_transformer.layers.attention import (
    attend,
    checked_groups,
    fold_beams,
    merge_heads,
    repeat_heads,
    split_heads,
    unfold_beams,
    write_cache,
)
from keras_transformer.layers.embeddings import (
    check_head_positions,
    rotary_angles,
    rotate,
)
from keras_transformer.layers.masks import (
    check_padding_masks,
    check_pair_mask,
    pair_masks,
)
from keras_transformer.layers.normalization import Dropout, RMSNormalization
from keras_transformer.layers.windowed_attention import (
    attend_in_window,
    cache_length,
    is_self_attention,
    slide_cache,
)
from keras_transformer.validation import checked_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(Layer):
    """Attends with several heads at once: section 3.2.2.

    MultiHead(Q, K, V) = Concat(head_1, …, head_h) W^O with
    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    Example:

    >>> layer = MultiHeadAttention(num_heads=2, key_dim=8)
    >>> query, memory = keras.ops.ones((3, 5, 16)), keras.ops.ones((3, 7, 16))
    >>> tuple(layer(query, memory).shape)
    (3, 5, 16)

    The weights are W^Q and W^K of shape `(D, H·d_k)`, W^V `(D, H·d_v)` and W^O
    `(H·d_v, D)`, with a bias each. Arguments have the names, the order and the
    meaning of `keras.layers.MultiHeadAttention`, and three more follow, so one
    import replaces that layer; `from_keras` takes over its weights, and
    `replace_attention` those of a whole model. There are five differences: a
    query that may attend to no key has weights of zero; masks are read and
    never removed from the inputs; scores and softmax are in float32; kernels
    are matrices, so that Glorot initialisation uses the true fan-in; inputs
    have rank 3, so that `attention_axes` has nothing to choose from.

    Args:
        num_heads: H, the number of heads.
        key_dim: d_k, the width of each head's queries and keys.
        value_dim: d_v, the width of each head's values. Defaults to `key_dim`.
        dropout: rate of dropout on the attention weights. Defaults to 0.
        use_bias: whether the four projections have a bias. Defaults to True.
        output_shape: width of the output. Defaults to the query's width.
        attention_axes: `None` or `(1,)`, the axis of the positions.
        sliding_window: w, a positive integer: each position sees itself, w - 1
            positions before and, without `use_causal_mask` and cache, w - 1
            after. Section 4 has r = 2 (w - 1). In self-attention time and
            memory grow with T · w; the weights are returned from full attention
            under a mask. A cache has the last w positions. Defaults to `None`,
            all positions.
        flash_attention: True demands the backend's kernel of flash attention:
            the call fails where it has none, as on TensorFlow, and there is no
            dropout and there are no scores. False rules it out. Defaults to
            `None`, the choice of the backend and of `keras.config`.
        kernel_initializer, bias_initializer: as in `Dense`.
        kernel_regularizer, bias_regularizer: as in `Dense`.
        kernel_constraint, bias_constraint, activity_regularizer: as in `Dense`.
        use_gate: whether the heads' outputs are multiplied by
            sigmoid(Q W^G + b^G), of as many values, before W^O. Defaults to
            False.
        seed: seed of the dropout.
        num_key_value_heads: G, the number of heads of keys and values, which
            those of queries share (Ainslie et al., 2023). Defaults to H.
        positions: "rotary" rotates queries and keys, each from position 0 on,
            by angles pos / 10000^(2i / d_k) (Su et al., 2021), see `rotate`.
            Defaults to `None`.
        qk_norm: whether each head's queries and keys are divided by their root
            mean square, with ε = 1e-6, and multiplied by a learned scale (Henry
            et al., 2020). Defaults to False.

    Call arguments:
        query: `(B, T, D)`.
        value: `(B, S, D)`. Needed unless `cache` holds projected keys.
        key: `(B, S, D)`. Defaults to `value`.
        query_mask, value_mask, key_mask: boolean `(B, T)` or `(B, S)`. Default
            to the implicit Keras masks.
        attention_mask: boolean `(B, T, S)` or `(B, H, T, S)`, or broadcastable
            to one of these; True where a query may attend.
        return_attention_scores: whether to return the weights `(B, H, T, S)`.
        use_causal_mask: whether to hide later keys from each query.
        cache: a dictionary of `key` `(B, G, S, d_k)` and `value`
            `(B, G, S, d_v)`. With `cache_index` the new keys and values are
            written there, queries attend to positions up to their own (padding
            masks are not read), and the new cache is returned last. Without
            `cache_index` the cache is only read, see `project`; `query` may
            then have several rows (beams) for each row of the cache;
            `attention_mask` and the causal mask are not for these.
        cache_index: position of the first query in the cache, a scalar, or
            `(B,)` for rows that differ.
        training: whether dropout is applied.

    Returns:
        `(B, T, D)`, followed by the weights with `return_attention_scores` and
        by the updated cache with `cache_index`.

    Raises:
        ValueError: if a dimension or the window is not positive, G does not
            divide H, an input or a mask has another rank, `value` is missing,
            the cache is full, or what is asked for does not go together, as
            flash attention with dropout, or a window or rotary positions with
            a cache that is only read.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | tuple[int] | None = None,
        attention_axes: int | tuple[int] | None = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        use_gate: bool = False,
        seed: int | None = None,
        num_key_value_heads: int | None = None,
        positions: str | None = None,
        qk_norm: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        _check_axes(attention_axes)
        if flash_attention and dropout:
            raise ValueError(
                "Flash attention has no dropout of weights. Received: "
                f"flash_attention={flash_attention}, dropout={dropout}. Leave "
                "one out."
            )
        value_dim = key_dim if value_dim is None else value_dim
        self.supports_masking = True
        self.num_heads = num_heads = checked_integer("num_heads", num_heads)
        self.key_dim = key_dim = checked_integer("key_dim", key_dim)
        self.value_dim = value_dim = checked_integer("value_dim", value_dim)
        self.dropout = dropout
        self.use_bias = use_bias
        self.output_dim = _single_output_dim(output_shape)
        if sliding_window is not None:
            sliding_window = checked_integer("sliding_window", sliding_window)
        self.sliding_window = sliding_window
        self.flash_attention = flash_attention
        self.use_gate = use_gate
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self._activity_regularizer = keras.regularizers.get(
            activity_regularizer
        )
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed = seed
        groups = checked_groups(num_heads, num_key_value_heads)
        self.num_key_value_heads = groups
        check_head_positions(positions, key_dim)
        self.positions = positions
        self.qk_norm = qk_norm

        self.query_projection = self._dense(num_heads * key_dim, "query")
        self.key_projection = self._dense(groups * key_dim, "key")
        self.value_projection = self._dense(groups * value_dim, "value")
        if qk_norm:
            named = {"dtype": self.dtype_policy}
            self.query_norm = RMSNormalization(name="query_norm", **named)
            self.key_norm = RMSNormalization(name="key_norm", **named)
        if use_gate:
            self.gate_projection = self._dense(
                num_heads * value_dim, "gate", "sigmoid"
            )
        self.weight_dropout = Dropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
        )

    @classmethod
    def from_keras(
        cls, layer: keras.layers.MultiHeadAttention
    ) -> "MultiHeadAttention":
        """Returns a layer with the arguments and weights of Keras' layer.

        Raises:
            ValueError: if it is not built, or has unsupported arguments.
        """
        return _copy_keras_weights(cls, layer)

    def _dense(self, units, name, activation=None):
        return keras.layers.Dense(
            units,
            activation,
            use_bias=self.use_bias,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            bias_initializer=clone_initializer(self.bias_initializer),
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            activity_regularizer=self._activity_regularizer,
            kernel_constraint=self.kernel_constraint,
            bias_constraint=self.bias_constraint,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:
        if len(query_shape) != 3:
            raise ValueError(
                "`query` must have shape (batch, length, features). "
                f"Received: query.shape={tuple(query_shape)}"
            )
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        _check_lengths(value_shape, key_shape)
        self.output_projection = self._dense(
            self.output_dim or query_shape[-1], "output"
        )
        self.output_projection.trainable = self.trainable
        parts = [
            (self.query_projection, query_shape),
            (self.key_projection, key_shape),
            (self.value_projection, value_shape),
            (self.output_projection, (self.num_heads * self.value_dim,)),
        ]
        if self.use_gate:
            parts.append((self.gate_projection, query_shape))
        if self.qk_norm:
            norms = self.query_norm, self.key_norm
            parts += [(norm, (self.key_dim,)) for norm in norms]
        for part, shape in parts:
            if not part.built:  # `project` builds some
                part.build(shape)
        self.weight_dropout.build(query_shape)
        self.freeze_parts_that_were_built()

    def project(
        self, value: KerasTensor, key: KerasTensor | None = None
    ) -> Cache:
        """Projects keys and values once, for a cache that is only read."""
        key = value if key is None else key
        keys, values = self.key_projection(key), self.value_projection(value)
        keys = split_heads(keys, self.num_key_value_heads, key)
        return {
            "key": self.key_norm(keys) if self.qk_norm else keys,
            "value": split_heads(values, self.num_key_value_heads, value),
        }

    def _query_heads(self, queries, source):
        """Returns `(B, H, T, d_k)` from queries `(B, T, H·d_k)` of a source."""
        queries = split_heads(queries, self.num_heads, source)
        return self.query_norm(queries) if self.qk_norm else queries

    def encode_positions(
        self, heads: KerasTensor, first: int | KerasTensor
    ) -> KerasTensor:
        """Returns queries `(B, H, T, d_k)` or keys `(B, G, T, d_k)`, the first
        at position `first`, a scalar or `(B,)`, with their positions. A
        subclass may override this. What `project` returns has none."""
        if self.positions is None:
            return heads
        positions = ops.arange(ops.shape(heads)[2], dtype="int32")
        positions = positions + before_axes(first, 2)  # [T] or [B, 1, T]
        dtype = exact_dtype(self.compute_dtype)
        return rotate(heads, *rotary_angles(positions, self.key_dim, dtype))

    def empty_cache(self, batch_size: int, length: int) -> Cache:
        """Returns zeros for `length` positions, or for those of the window."""
        places = cache_length(length, self.sliding_window)

        def zeros(width):
            shape = (batch_size, self.num_key_value_heads, places, width)
            return ops.zeros(shape, self.compute_dtype)

        return {"key": zeros(self.key_dim), "value": zeros(self.value_dim)}

    def call(
        self,
        query: KerasTensor,
        value: KerasTensor | None = None,
        key: KerasTensor | None = None,
        query_mask: KerasTensor | None = None,
        value_mask: KerasTensor | None = None,
        key_mask: KerasTensor | None = None,
        attention_mask: KerasTensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        cache: Cache | None = None,
        cache_index: int | KerasTensor | None = None,
    ) -> Output:
        check_padding_masks(
            query_mask=(query_mask, query),
            value_mask=(value_mask, value),
            key_mask=(key_mask, value if key is None else key),
        )
        if cache is None:
            check_pair_mask(attention_mask, query, value)
        self._check_inputs(
            query, value, cache, cache_index, return_attention_scores
        )
        if key is not None and value is not None:
            _check_lengths(value.shape, key.shape)
        batch, length = ops.shape(query)[:2]
        position = int32_index(cache_index)
        is_step = position is not None

        # Only whole sequences, and queries and keys at the same positions.
        in_blocks = cache is None and is_self_attention(query, value)
        gate = self.gate_projection(query) if self.use_gate else None
        queries = self.query_projection(query)  # [B, T, H·d_k]
        if cache is None or is_step:
            first = position if is_step else 0
            queries = self._query_heads(queries, query)  # [B, H, T, d_k]
            queries = self.encode_positions(queries, first)
            heads = self.project(value, key)
            heads["key"] = self.encode_positions(heads["key"], first)
        else:  # the cache has the keys of a memory, which beams share
            heads = cache
            queries, query_mask = fold_beams(queries, query_mask, heads)
            queries = self._query_heads(queries, queries)
        masks = [*pair_masks(query_mask, value_mask, key_mask), attention_mask]
        if is_step:
            heads, cache = self._extend_cache(cache, heads, position)
            masks, use_causal_mask = [attention_mask], True

        output, weights = self._attend(
            queries,
            heads,
            masks,
            use_causal_mask,
            position,
            in_blocks,
            dropout=self._drop if self.dropout and training else None,
            return_weights=return_attention_scores,
            flash=self.flash_attention,
        )
        output = merge_heads(output, batch, length)  # [B, T, H·d_v]
        output = output if gate is None else output * gate
        extras = []
        if return_attention_scores:
            is_read = cache is not None and not is_step
            extras.append(unfold_beams(weights, length) if is_read else weights)
        if is_step:
            extras.append(cache)
        return pack(self.output_projection(output), *extras)

    def _attend(
        self, queries, heads, masks, causal, position, in_blocks, **options
    ):
        """Returns the outputs and the weights of all heads: equation 1."""
        heads = repeat_heads(heads, self.num_heads)
        if self.sliding_window is None:
            first = 0 if position is None else position
            return attend(queries, heads, masks, causal, first, **options)
        return attend_in_window(
            queries,
            heads,
            self.sliding_window,
            masks,
            causal,
            position,
            # Neither returns weights nor is the backend's kernel.
            in_blocks and not (options["return_weights"] or options["flash"]),
            **options,
        )

    def _extend_cache(self, cache, new, position):
        """Returns the keys and values that a step may attend to, and the cache
        after it."""
        if self.sliding_window is not None:
            return slide_cache(cache, new, position, self.sliding_window)
        cache = write_cache(cache, new, position)
        return cache, cache

    def _drop(self, weights):
        return self.weight_dropout(weights, training=True)

    def _check_inputs(self, query, value, cache, cache_index, return_scores):
        is_read = cache is not None and cache_index is None
        if value is None and not is_read:
            raise ValueError(
                "`value` is needed unless `cache` holds projected keys and "
                "values. Received: value=None. For self-attention pass the "
                "query twice."
            )
        if cache is None and cache_index is not None:
            raise ValueError(
                "`cache_index` is a position in a cache. Received: cache=None, "
                f"cache_index={cache_index}. Pass a cache too, see "
                "`empty_cache`, or leave out `cache_index`."
            )
        if is_read and (self.sliding_window or self.positions):
            raise ValueError(
                "A cache that is only read has no positions. Received: "
                f"sliding_window={self.sliding_window}, positions="
                f"{self.positions!r}. Leave them out, or pass `cache_index`."
            )
        if return_scores and self.flash_attention:
            raise ValueError(
                "Flash attention does not return the attention weights. "
                "Received: return_attention_scores=True, flash_attention="
                f"{self.flash_attention}. Leave one out."
            )

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape = (), key_shape: Shape = ()
    ) -> Shape:
        _check_lengths(value_shape, key_shape or value_shape)
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Output:
        if not says_its_shape(self):
            return keras.Operation.compute_output_spec(self, *args, **kwargs)
        query, given = arguments_of_call(self, args, kwargs)
        cache: Any = given.get("cache")
        is_step = cache is not None and given.get("cache_index") is not None
        extras: list[Any] = []
        if given.get("return_attention_scores"):
            batch, length = query.shape[:2]
            attended: Any = (
                given.get("value") if cache is None else cache["key"]
            )
            keys = attended.shape[-2]  # `(B, S, D)` or `(B, H, S, d_k)`
            if is_step and self.sliding_window is not None:
                # The last positions and, for the later queries, the new ones.
                known = None not in (keys, length)
                keys = keys + length - 1 if known else None
            extras.append(self._spec((batch, self.num_heads, length, keys)))
        if is_step:
            extras.append({k: self._spec(x.shape) for k, x in cache.items()})
        output = self._spec(self.compute_output_shape(query.shape))
        return pack(output, *extras)

    def _spec(self, shape):
        return KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "output_shape": self.output_dim,
            "sliding_window": self.sliding_window,
            "flash_attention": self.flash_attention,
            "use_gate": self.use_gate,
            "seed": self.seed,
            "num_key_value_heads": self.num_key_value_heads,
            "positions": self.positions,
            "qk_norm": self.qk_norm,
            **_serialized_objects(self),
        }


# What follows is for compatibility with `keras.layers.MultiHeadAttention`.
# Arguments that are objects of Keras: the modules that serialise them, and the
# attributes that have them.
SERIALIZED = {
    "kernel_initializer": (keras.initializers, "kernel_initializer"),
    "bias_initializer": (keras.initializers, "bias_initializer"),
    "kernel_regularizer": (keras.regularizers, "kernel_regularizer"),
    "bias_regularizer": (keras.regularizers, "bias_regularizer"),
    # Keras would apply it to the whole layer, too, if it were public.
    "activity_regularizer": (keras.regularizers, "_activity_regularizer"),
    "kernel_constraint": (keras.constraints, "kernel_constraint"),
    "bias_constraint": (keras.constraints, "bias_constraint"),
}


def _check_axes(attention_axes):
    if attention_axes in (None, 1, (1,), [1]):  # Keras' layer fills in (1,)
        return
    raise ValueError(
        "Inputs have rank 3, and `attention_axes` can only be 1, the axis of "
        f"their positions. Received: attention_axes={attention_axes!r}. Leave "
        "it out and move other axes into the batch, or use "
        "`keras.layers.MultiHeadAttention`."
    )


def _check_lengths(value_shape, key_shape):
    values, keys = tuple(value_shape[1:-1]), tuple(key_shape[1:-1])
    if values != keys and None not in values + keys:
        raise ValueError(
            "The lengths of `value` and `key` must be equal. Received: "
            f"value.shape={tuple(value_shape)}, key.shape={tuple(key_shape)}"
        )


def _single_output_dim(output_shape):
    """Returns the width that `output_shape` gives, or `None`."""
    if output_shape is None:
        return None
    is_sequence = isinstance(output_shape, tuple | list)
    if is_sequence and len(output_shape) != 1:
        raise ValueError(
            "`output_shape` must be one width. Received: "
            f"output_shape={output_shape}"
        )
    width = output_shape[0] if is_sequence else output_shape
    return checked_integer("output_shape", width)


def _serialized_objects(layer):
    """Returns the arguments of `SERIALIZED` for the layer's config."""
    return {
        name: module.serialize(getattr(layer, attribute))
        for name, (module, attribute) in SERIALIZED.items()
    }


def _copy_keras_weights(layer_class, layer):
    """Returns a `layer_class` with the arguments and weights of Keras' layer.

    Args:
        layer_class: `MultiHeadAttention` of this package, or a subclass.
        layer: a built `keras.layers.MultiHeadAttention`.
    """
    if not layer.built:
        raise ValueError(
            "A layer must be built before its weights can be taken over. "
            f"Received: {layer.name!r}, which is not built. Call it first."
        )
    names = ["query", "key", "value", "output"]
    if getattr(layer, "_use_gate", False):
        names.append("gate")
    projections = {name: getattr(layer, f"_{name}_dense") for name in names}
    if any(x.lora_enabled for x in projections.values()):
        raise ValueError(
            "The weights of a layer with LoRA are not those that it computes "
            f"with. Received: {layer.name!r}. Merge them first: load what "
            "`layer.save_own_variables` stores into a layer without LoRA."
        )
    flash_attention = getattr(layer, "_flash_attention", None) or None
    new_layer = layer_class.from_config(
        layer.get_config() | {"flash_attention": flash_attention}
    )
    query, key, value = (
        (None, None, projections[name].kernel.shape[0]) for name in names[:3]
    )
    new_layer.build(query, value, key)
    for name, projection in projections.items():
        weights = getattr(new_layer, f"{name}_projection").weights
        for weight, other in zip(weights, projection.weights, strict=True):
            weight.assign(ops.reshape(other, weight.shape))
    return new_layer
