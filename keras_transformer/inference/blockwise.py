"""Blockwise parallel decoding on the fast forward pass (Stern et al., 2018).

Shapes: B batch, k block size, T positions read so far, S source length, H
heads, D d_model, V vocabulary.
"""

from typing import Any

import tensorflow as tf

from keras_transformer.inference.fast_attention import MASKED_SCORE
from keras_transformer.inference.fast_layers import linear
from keras_transformer.inference.fast_model import InferenceModel

REJECTED = tf.int32.max  # the position of tokens that no other may see


class BlockwiseModel(InferenceModel):
    """Runs the decoder over blocks of tokens, for `blockwise_search`.

    The caches only grow: keys and values of rejected tokens stay, but get a
    position that comes after all others, so that no token sees them.

    Args:
        config: a `TransformerConfig`.
        weights: from `inference_weights`, and `proposals`, see `_propose`.
    """

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
        size = tokens.shape[1]
        own = positions[:, None] + tf.range(size)  # [B, k]
        seen = tf.concat([cache["positions"], own], axis=1)  # [B, T + k]
        distance = own[:, :, None] - seen[:, None]
        is_seen = distance >= 0
        if self.config.attention_window is not None:
            is_seen &= distance <= self.config.attention_window // 2
        attention_bias = tf.where(is_seen, 0.0, MASKED_SCORE)[:, None]
        if self.config.positions == "learned":
            own = tf.minimum(own, self.config.max_length - 1)
        x = self._embedded(
            tf.reshape(tokens, [1, -1]),
            self.weights["target"],
            tf.reshape(own, [-1]),
        )
        x, heads, _ = self._decode(
            x, cache["memory"], attention_bias, cache["heads"]
        )
        logits = self._logits(x, cache["memory"])
        logits = tf.reshape(logits, [-1, size, logits.shape[1]])
        features = tf.reshape(x, [-1, size, self.config.d_model])
        cache = {**cache, "heads": heads, "positions": seen}
        return logits, {**cache, "features": features}

    def propose(
        self, cache: dict[str, Any], accepted: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Proposes the tokens of the next blocks but for the first.

        Args:
            cache: from `verify`.
            accepted: `(B,)`, the number of accepted proposals of the block.

        Returns:
            ids `(B, k - 1)`, and the cache without the rejected tokens.
        """
        cache = dict(cache)
        features = cache.pop("features")  # [B, k, D]
        x = tf.gather(features, accepted, batch_dims=1)  # [B, D]
        size = features.shape[1]
        seen = cache["positions"]
        is_rejected = tf.range(size) > accepted[:, None]
        last = tf.where(is_rejected, REJECTED, seen[:, -size:])
        cache["positions"] = tf.concat([seen[:, :-size], last], axis=1)
        return self._propose(x, cache["memory"]), cache
