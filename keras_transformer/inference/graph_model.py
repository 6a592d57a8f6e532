"""The forward pass of a trained model in plain TensorFlow, made for speed.

Inference has its own forward pass, separate from the Keras layers: it
translates several times as fast. Projections that share an input are one
matrix, the scales of the paper are multiplied into the weights, and the beams
of a sentence are one row whose caches are never reordered: each beam attends
to its own ancestors among all cached positions. Layers with these matrices
could not be trained as the paper describes. The function is the same as that
of `Transformer`, for sources with at least one real position.

`graph_weights` arranges the weights, `graph_layers` has the operations.

Shapes: B batch, K beam size, S source length, T steps so far, H heads, G heads
of keys and values, D d_model, V vocabulary.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import TransformerConfig
from keras_transformer.ids import PAD, START
from keras_transformer.inference.graph_layers import (
    MASKED_SCORE,
    attend_in_groups,
    cross_entropy,
    embed,
    linear,
    normalize,
    normalize_heads,
    swap_axes,
    window_blocks,
)
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.layers.embeddings import rotary_angles, rotate
from keras_transformer.layers.windowed_attention import window_mask
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.terms import wide_beam


class InferenceModel:
    """Runs encoder and decoder on `inference_weights`.

    Args:
        config: a `TransformerConfig`.
        weights: from `inference_weights`, or variables of the same structure.
    """

    def __init__(self, config: TransformerConfig, weights: dict[str, Any]):
        self.config = config
        self.weights = weights
        self.key_dim = config.key_dim or config.d_model // config.num_heads
        self.value_dim = config.value_dim or self.key_dim
        self.key_heads = config.num_key_value_heads or config.num_heads

    def encode(
        self,
        source: tf.Tensor,
        source_mask: tf.Tensor | None = None,
        with_attention: bool = False,
    ) -> dict[str, Any]:
        """Encodes the source for the decoder.

        Args:
            source: ids `(B, S)`, or vectors `(B, S, F)` for a model with
                `source_features`.
            source_mask: boolean `(B, S)`, True at real vectors. Defaults to
                all vectors; the mask of ids is where they are not padding.
            with_attention: whether to return the weights of the encoder, too.
                A sliding window is then a mask, not blocks, and takes memory
                of S². Defaults to False.

        Returns:
            A dictionary of `heads`, the keys and values `(B, G, S, ·)` for
            each layer of the decoder, and `attention_bias` `(B, 1, 1, S)`,
            added to the scores of source positions. With the weights also
            `encoder_attention`, float32 `(B, H, S, S)` for each layer of the
            encoder. Rows of padding have weights, too.

        Raises:
            ValueError: if the source has another rank.
        """
        rank = 2 if self.config.source_features is None else 3
        if len(source.shape) != rank:
            raise ValueError(
                f"The source must have {rank} axes: (batch, length) of ids, or "
                "(batch, length, features) of vectors. Received: "
                f"source.shape={tuple(source.shape)}"
            )
        batch, length = tf.unstack(tf.shape(source)[:2])
        if rank == 2:
            source_mask = tf.not_equal(source, PAD)
        elif source_mask is None:
            source_mask = tf.fill([batch, length], True)
        attention_bias = tf.where(source_mask, 0.0, MASKED_SCORE)
        attention_bias = attention_bias[:, None, None]
        blocks, own_bias = None, attention_bias
        window = self.config.sliding_window
        if window is not None and with_attention:
            near = window_mask(length, length, window)[:, None]
            own_bias += tf.where(near, 0.0, MASKED_SCORE)  # [B, 1, S, S]
        elif window is not None:
            blocks, own_bias = window_blocks(
                window, length, [source_mask[:, None]]
            )
        embedding = self.weights.get("source", self.weights["target"])
        positions = tf.range(length)
        x = embed(source, embedding, positions, self.config)  # [B·S, D]
        rotation = self._rotation(positions)
        attention = []
        for layer in self.weights["encoder"]:
            h = self._norm_first(x, layer["self_norm"])
            queries, keys, values = self._self_heads(h, layer, batch, rotation)
            h, weights = self._attend(queries, keys, values, own_bias, blocks)
            attention.append(weights)
            h = linear(h, layer["self_output"], self.config.d_model)
            x = self._add_and_norm(x, h, layer["self_norm"])
            x = self._feed_forward(x, layer)
        if self.config.norm_first:
            x = self._norm(x, self.weights["encoder_norm"])
        memory = {
            "heads": [
                self._memory_heads(x, layer, batch)
                for layer in self._layers_with_memory()
            ],
            "attention_bias": attention_bias,
        }
        if with_attention:
            memory["encoder_attention"] = attention
        return memory

    def search(
        self,
        memory: dict[str, Any],
        max_lengths: tf.Tensor,
        settings: SearchSettings,
        beam_size: int | tf.Tensor,
        alpha: float | tf.Tensor,
        rules: dict[str, Any] | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Searches the translations of encoded sources: section 6.1.

        Args:
            memory: from `encode`.
            max_lengths: int32 `(B,)`, the maximum number of tokens of each
                translation.
            settings: settings of the search; beam size and α are given apart.
            beam_size: K, an integer or scalar tensor.
            alpha: α of the length penalty, a number or scalar tensor.
            rules: arguments of `beam_search` that say what a translation must
                be like. Defaults to `settings.rules`.

        Returns:
            Target ids `(B, K, T)`, best first, and float32 scores `(B, K)`.
        """

        rules = settings.rules if rules is None else rules
        prefixes = beam_size
        if "terms" in rules:
            rules = {**rules, "hypotheses": beam_size}
            prefixes = wide_beam(rules["terms"], beam_size)

        def step(tokens, cache, index):
            return self.step(tf.reshape(tokens, [-1, prefixes]), cache, index)

        return beam_search(
            step,
            self.empty_cache(memory, prefixes),
            max_lengths,
            prefixes,
            alpha,
            reorder_cache=self.reorder_cache,
            select_rows=self.select_rows,
            length_penalty=settings.length_penalty,
            early_stopping=settings.early_stopping,
            **rules,
        )

    def _layers_with_memory(self):
        """Returns the layers that attend to the memory."""
        return self.weights["decoder"]

    def empty_cache(
        self, memory: dict[str, Any], beams: int | tf.Tensor
    ) -> dict[str, Any]:
        """Returns the cache before the first step; each step extends it.

        Args:
            memory: from `encode`.
            beams: K, the number of beams of each sentence.
        """
        batch = tf.shape(memory["attention_bias"])[0]
        # A zero that is not static, since static shapes of a loop are fixed.
        length = batch - batch
        heads = self.key_heads

        def empty_heads(width):
            shape = tf.stack([batch, heads, length, width])
            empty = tf.zeros(shape, self.weights["projection"]["kernel"].dtype)
            return tf.ensure_shape(empty, [None, heads, None, width])

        return {
            "heads": [
                (empty_heads(self.key_dim), empty_heads(self.value_dim))
                for _ in self.weights["decoder"]
            ],
            # For each beam, the number of its ancestor at each step.
            "ancestors": tf.zeros(tf.stack([batch, beams, length]), tf.int32),
            "memory": memory,
        }

    def step(
        self, tokens: tf.Tensor, cache: dict[str, Any], index: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Runs one step of the decoder.

        Args:
            tokens: ids `(B, K)` at position `index`.
            cache: from `empty_cache` or the previous step.
            index: scalar, the position.

        Returns:
            float32 logits `(B·K, V)` of the next tokens, and the new cache.
        """
        batch, beams = tf.unstack(tf.shape(tokens))
        position = index[None]
        x = embed(tokens, self.weights["target"], position, self.config)
        own = tf.broadcast_to(tf.range(beams)[:, None], [batch, beams, 1])
        ancestors = tf.concat([cache["ancestors"], own], axis=2)
        attention_bias = tf.one_hot(ancestors, beams, 0.0, MASKED_SCORE)
        attention_bias = tf.reshape(
            attention_bias, [batch, 1, beams, -1]
        )  # [B, 1, K, (T + 1)·K]
        x, heads, _ = self._decode(
            x, cache["memory"], attention_bias, position, cache["heads"]
        )
        logits = self._logits(x, cache["memory"])
        if self.config.sliding_window is not None:
            # Which of the positions so far the next token may see.
            last = self.config.sliding_window - 1
            first = tf.maximum(tf.shape(ancestors)[2] - last, 0)
            ancestors = ancestors[:, :, first:]
            heads = [
                (k[:, :, first * beams :], v[:, :, first * beams :])
                for k, v in heads
            ]
        return logits, {**cache, "heads": heads, "ancestors": ancestors}

    def read(
        self, target: tf.Tensor, memory: dict[str, Any]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Runs the decoder over a known target.

        Args:
            target: ids `(B, T)`, each row with its end token, padded with 0.
            memory: from `encode`.

        Returns:
            float32 log-probabilities of the ids `(B, T)`, 0 at padding, and
            the attention of each layer to the memory, `(B, H, T, S)`.
        """
        batch, length = tf.unstack(tf.shape(target))
        before = tf.concat([tf.fill([batch, 1], START), target[:, :-1]], axis=1)
        positions = tf.range(length)
        x = embed(before, self.weights["target"], positions, self.config)
        window = self.config.sliding_window
        if window is None:
            blocks, is_later = None, positions[:, None] < positions
            attention_bias = tf.where(is_later, MASKED_SCORE, 0.0)[None, None]
        else:
            blocks, attention_bias = window_blocks(window, length, causal=True)
        x, _, attention = self._decode(
            x, memory, attention_bias, positions, blocks=blocks
        )
        x = tf.reshape(x, [batch, length, self.config.d_model])
        # Here no id is suppressed, since the target is given.
        losses = cross_entropy(
            x, target, self.weights["projection"], self.config.vocab_size
        )
        real = tf.cast(tf.not_equal(target, PAD), tf.float32)
        return -losses * real, attention

    @staticmethod
    def reorder_cache(
        cache: dict[str, Any], beams: tf.Tensor
    ) -> dict[str, Any]:
        """Returns the cache of beams that continue beams `(B, K)`.

        Only the ancestors change.
        """
        ancestors = tf.gather(cache["ancestors"], beams, batch_dims=1)
        return {**cache, "ancestors": ancestors}

    @staticmethod
    def select_rows(
        cache: dict[str, Any], sentences: tf.Tensor
    ) -> dict[str, Any]:
        """Returns the cache of some sentences `(n,)` only."""
        return tf.nest.map_structure(lambda x: tf.gather(x, sentences), cache)

    def _decode(
        self, x, memory, attention_bias, positions, cache=None, blocks=None
    ):
        """Applies the decoder's layers to n rows of each sentence.

        Args:
            x: `(B·n, D)`.
            memory: from `encode`.
            attention_bias: `(B, 1, n, T)`, added to the scores of
                self-attention.
            positions: those of the rows, `(n,)`, `(1,)` or `(B, 1, n)`.
            cache: keys and values of earlier positions for each layer, or
                `None`.
            blocks: those of whole targets, see `window_blocks`, or `None`.

        Returns:
            `(B·n, D)`, the new keys and values of each layer, and the
            attention of each layer to the memory.
        """
        batch = tf.shape(memory["attention_bias"])[0]
        rotation = self._rotation(positions)
        heads, attention = [], []
        for i, layer in enumerate(self.weights["decoder"]):
            h = self._norm_first(x, layer["self_norm"])
            queries, keys, values = self._self_heads(h, layer, batch, rotation)
            if cache is not None:
                keys = tf.concat([cache[i][0], keys], axis=2)
                values = tf.concat([cache[i][1], values], axis=2)
            heads.append((keys, values))
            h, _ = self._attend(queries, keys, values, attention_bias, blocks)
            h = linear(h, layer["self_output"], self.config.d_model)
            x = self._add_and_norm(x, h, layer["self_norm"])
            x, weights = self._attend_to_memory(x, layer, memory, i)
            attention.append(weights)
            x = self._feed_forward(x, layer)
        if self.config.norm_first:
            x = self._norm(x, self.weights["decoder_norm"])
        return x, heads, attention

    def _attend_to_memory(self, x, layer, memory, i):
        """Applies the sub-layer that attends to keys and values number i.

        Returns:
            `(B·n, D)`, and the weights `(B, H, n, S)`.
        """
        attention_bias = memory["attention_bias"]
        batch = tf.shape(attention_bias)[0]
        h = self._norm_first(x, layer["cross_norm"])
        h = linear(h, layer["query"], self.config.num_heads * self.key_dim)
        queries = self._split_heads(h, batch, self.key_dim)
        queries = self._norm_heads(queries, layer, "memory_query_norm")
        keys, values = memory["heads"][i]
        h, weights = self._attend(queries, keys, values, attention_bias)
        h = linear(h, layer["cross_output"], self.config.d_model)
        return self._add_and_norm(x, h, layer["cross_norm"]), weights

    def _feed_forward(self, x, layer):
        h = self._norm_first(x, layer["feed_forward_norm"])
        if self.config.feed_forward == "swiglu":
            h = linear(h, layer["inner"], 2 * self.config.d_ff)
            gate, h = tf.split(h, 2, axis=1)
            h = tf.nn.silu(gate) * h
        else:
            activation = keras.activations.get(self.config.activation)
            h = activation(linear(h, layer["inner"], self.config.d_ff))
        h = linear(h, layer["outer"], self.config.d_model)
        return self._add_and_norm(x, h, layer["feed_forward_norm"])

    def _logits(self, x, memory):
        """Returns float32 logits `(B·K, V)` of rows `(B·K, D)`."""
        x = linear(x, self.weights["projection"], self.config.vocab_size)
        return tf.cast(x, tf.float32)

    def _rotation(self, positions):
        """Returns the cosines and sines of rotary positions, or `None`."""
        if self.config.positions != "rotary":
            return None
        return rotary_angles(positions, self.key_dim)

    def _self_heads(self, x, layer, batch, rotation):
        """Returns the queries, keys and values of self-attention, by head."""
        queries, keys, values = self._project(x, layer["self"], batch, 1)
        queries = self._norm_heads(queries, layer, "self_query_norm")
        keys = self._norm_heads(keys, layer, "self_key_norm")
        if rotation is not None:
            queries, keys = rotate(queries, *rotation), rotate(keys, *rotation)
        return queries, keys, values

    def _memory_heads(self, x, layer, batch):
        """Returns a layer's keys and values of the memory, by head."""
        keys, values = self._project(x, layer["memory"], batch, 0)
        return self._norm_heads(keys, layer, "memory_key_norm"), values

    def _norm_heads(self, heads, layer, name):
        return normalize_heads(heads, layer[name]) if name in layer else heads

    def _project(self, x, weights, batch, num_queries):
        """Projects to queries (0 or 1 tensor), keys and values, by head."""
        widths = [self.key_dim] * (num_queries + 1) + [self.value_dim]
        heads = [self.config.num_heads] * num_queries + [self.key_heads] * 2
        sizes = [n * width for n, width in zip(heads, widths, strict=True)]
        x = linear(x, weights, sum(sizes))
        if self.key_dim == self.value_dim:  # all heads at once
            x = self._split_heads(x, batch, self.key_dim)
            is_even = len(set(heads)) == 1
            return tuple(tf.split(x, len(heads) if is_even else heads, axis=1))
        parts = tf.split(x, sizes, axis=1)
        return tuple(
            self._split_heads(part, batch, width)
            for part, width in zip(parts, widths, strict=True)
        )

    def _split_heads(self, x, batch, width):
        """Reshapes `(B·n, G·K)`, of G heads, to `(B, G, n, K)`."""
        x = tf.reshape(x, [batch, -1, x.shape[-1] // width, width])
        return swap_axes(x)

    def _attend(self, queries, keys, values, attention_bias, blocks=None):
        """Computes equation 1 of the paper, block by block if there are any.

        Args:
            queries: `(B, H, n, K)`.
            keys, values: `(B, G, T, K)`.
            attention_bias: float32, added to the scores `(B, H, n, T)`.
            blocks: from `window_blocks`, or `None`.

        Returns:
            The heads side by side, `(B·n, H·K)`, and the weights.
        """
        if blocks is not None:
            queries = blocks.of_queries(queries)
            keys, values = blocks.of_keys(keys), blocks.of_keys(values)
        x, weights = attend_in_groups(queries, keys, values, attention_bias)
        x = swap_axes(x if blocks is None else blocks.join(x))
        width = self.config.num_heads * self.value_dim
        return tf.reshape(x, [-1, width]), weights

    def _norm_first(self, x, norm):
        """Returns the input of a sub-layer."""
        return self._norm(x, norm) if self.config.norm_first else x

    def _add_and_norm(self, x, h, norm):
        """Adds the output `h` of a sub-layer to its input."""
        x = x + tf.cast(h, tf.float32)
        return x if self.config.norm_first else self._norm(x, norm)

    def _norm(self, x, norm):
        return normalize(x, norm, self.config.layer_norm_epsilon)
