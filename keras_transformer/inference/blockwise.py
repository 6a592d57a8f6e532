"""Blockwise parallel decoding on the fast forward pass (Stern et al., 2018).

Shapes: B batch, k block size, L length limit, T positions read so far, D
d_model, V vocabulary.
"""

from typing import Any

import tensorflow as tf

from keras_transformer.ids import END
from keras_transformer.inference.graph_layers import MASKED_SCORE, embed, linear
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.search.blockwise_search import blockwise_search
from keras_transformer.search.constraints import length_penalty

REJECTED = tf.int32.max  # the position of tokens that no other may see


class BlockwiseModel(InferenceModel):
    """Runs the decoder over blocks of tokens, for `blockwise_search`.

    The caches only grow: keys and values of rejected tokens stay, but get a
    position that comes after all others, so that no token sees them.

    Its weights are from `inference_weights`, with a `ProposalLayer`.
    """

    @property
    def block_size(self) -> int:
        """Returns k, the number of tokens of a block."""
        # Columns that `widened` adds are fewer than D, which is 128 or more.
        width = self.weights["proposals"]["start"]["kernel"].shape[1]
        return 1 + width // self.config.d_model

    def search(
        self,
        memory: dict[str, Any],
        limits: tf.Tensor,
        alpha: float | tf.Tensor,
        formula: str,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what greedy search finds, as `beam_search` does.

        Args:
            memory: from `encode`.
            limits: int32 `(B,)`, the maximum number of tokens of each row.
            alpha: α of the length penalty, a number or scalar tensor.
            formula: formula of the length penalty.

        Returns:
            ids `(B, 1, L)` and float32 scores `(B, 1)`.
        """
        ids, scores, _ = blockwise_search(
            self.verify,
            self.propose,
            self.empty_block_cache(memory),
            limits,
            self.block_size,
        )
        lengths = tf.argmax(tf.equal(ids, END), axis=1, output_type=tf.int32)
        scores /= length_penalty(lengths + 1, alpha, formula)
        return ids[:, None], scores[:, None]

    def empty_block_cache(self, memory: dict[str, Any]) -> dict[str, Any]:
        """Returns the cache before the first block.

        Args:
            memory: from `encode`.
        """
        cache = self.empty_cache(memory, 1)
        positions = cache.pop("ancestors")[:, 0]  # [B, 0]
        return {**cache, "positions": positions}

    def verify(
        self, tokens: tf.Tensor, cache: dict[str, Any], positions: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Runs the decoder over a block of each sentence.

        Args:
            tokens: ids `(B, k)`.
            cache: from `empty_block_cache` or `propose`.
            positions: `(B,)`, the position of each sentence's first token.

        Returns:
            float32 logits `(B, k, V)` of the token after each of them, and the
            new cache.
        """
        size, config = self.block_size, self.config
        own = positions[:, None] + tf.range(size)  # [B, k]
        seen = tf.concat([cache["positions"], own], axis=1)  # [B, T + k]
        distance = own[:, :, None] - seen[:, None]
        is_seen = distance >= 0
        if config.attention_window is not None:
            is_seen &= distance <= config.attention_window // 2
        attention_bias = tf.where(is_seen, 0.0, MASKED_SCORE)[:, None]
        if config.positions == "learned":
            longest = self.weights["target"]["positions"].shape[0]
            own = tf.minimum(own, longest - 1)
        x = embed(
            tf.reshape(tokens, [1, -1]),
            self.weights["target"],
            tf.reshape(own, [-1]),
            config,
        )
        x, heads, _ = self._decode(
            x, cache["memory"], attention_bias, cache["heads"]
        )
        logits = self._logits(x, cache["memory"])
        return tf.reshape(logits, [-1, size, config.vocab_size]), {
            **cache,
            "heads": heads,
            "positions": seen,
            "features": tf.reshape(x, [-1, size, config.d_model]),
        }

    def propose(
        self, cache: dict[str, Any], accepted: tf.Tensor, certain: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Proposes the tokens of the next block but for its first.

        Args:
            cache: from `verify`.
            accepted: `(B,)`, the number of accepted proposals of the block.
            certain: ids `(B,)`, the first tokens of the next block.

        Returns:
            ids `(B, k - 1)`, and the cache without the rejected tokens.
        """
        cache = dict(cache)
        features = cache.pop("features")
        size, seen = self.block_size, cache["positions"]
        is_rejected = tf.range(size) > accepted[:, None]
        block = tf.where(is_rejected, REJECTED, seen[:, -size:])
        cache["positions"] = tf.concat([seen[:, :-size], block], axis=1)

        x = tf.gather(features, accepted, batch_dims=1)  # [B, D]
        x = self._proposed(x, certain, cache["memory"])
        layer = self.weights["proposals"]
        if "likely" in layer:
            pieces = tf.convert_to_tensor(layer["likely_pieces"])
            logits = linear(x, layer["likely"], pieces.shape[0])
            best = tf.argmax(logits, axis=1, output_type=tf.int32)
            tokens = tf.gather(pieces, best)
        else:
            logits = self._logits(x, cache["memory"])
            tokens = tf.argmax(logits, axis=1, output_type=tf.int32)
        return tf.reshape(tokens, [-1, size - 1]), cache

    def _layers_with_memory(self):
        return [*super()._layers_with_memory(), self.weights["proposals"]]

    def _proposed(self, x, tokens, memory):
        """Computes what `ProposalLayer` does.

        Args:
            x: the decoder's output `(B, D)`.
            tokens: ids `(B,)` that follow.
            memory: from `encode`.

        Returns:
            `(B·(k - 1), D)`.
        """
        layer = self.weights["proposals"]
        following = tf.gather(self.weights["target"]["table"], tokens)
        shape = [-1, self.block_size - 1, self.config.d_model]
        both = tf.concat([x, following], axis=1)
        change = linear(both, layer["start"], shape[1] * shape[2])
        x = x[:, None] + tf.reshape(tf.cast(change, tf.float32), shape)
        x = tf.reshape(x, [-1, self.config.d_model])
        x = self._sublayer(
            x,
            layer,
            "cross_norm",
            "cross_output",
            lambda h: self._attend_to_memory(h, layer, memory, -1)[0],
        )
        return self._feed_forward(x, layer)
