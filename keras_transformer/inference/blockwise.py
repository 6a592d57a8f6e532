"""Blockwise parallel decoding on the fast forward pass (Stern et al., 2018).

Shapes: B batch, k block size, L length limit, T positions read so far, D
d_model, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.ids import END
from keras_transformer.inference.decoding import Decoding
from keras_transformer.inference.draft_head import DraftHead
from keras_transformer.inference.graph_layers import MASKED_SCORE, embed, linear
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.inference.graph_weights import draft_head_weights
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.model import Transformer
from keras_transformer.search.blockwise_search import blockwise_search
from keras_transformer.search.constraints import length_penalty

REJECTED = tf.int32.max  # the position of tokens that no other may see


class BlockwiseModel(InferenceModel):
    """Runs the decoder over blocks of tokens, for `blockwise_search`.

    The caches only grow: keys and values of rejected tokens stay, but get a
    position that comes after all others, so that no token sees them.

    Its weights are those of `BlockwiseDecoding`.
    """

    @property
    def draft_tokens(self) -> int:
        """Returns k - 1, the number of tokens that are drafted at a step."""
        # Columns that `widened` adds are fewer than D, which is 128 or more.
        width = self.weights["draft_head"]["start"]["kernel"].shape[1]
        return width // self.config.d_model

    def search(
        self,
        memory: dict[str, Any],
        max_lengths: tf.Tensor,
        settings: SearchSettings,
        beam_size: int | tf.Tensor,
        alpha: float | tf.Tensor,
        rules: dict[str, Any] | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Searches by blocks if the search is greedy."""
        if not isinstance(beam_size, int) or beam_size > 1 or rules:
            return super().search(
                memory, max_lengths, settings, beam_size, alpha, rules
            )
        ids, scores, _ = blockwise_search(
            self.verify,
            self.draft,
            self.empty_block_cache(memory),
            max_lengths,
            1 + self.draft_tokens,
        )
        lengths = tf.argmax(tf.equal(ids, END), axis=1, output_type=tf.int32)
        scores /= length_penalty(lengths + 1, alpha, settings.length_penalty)
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
            cache: from `empty_block_cache` or `draft`.
            positions: `(B,)`, the position of each sentence's first token.

        Returns:
            float32 logits `(B, k, V)` of the token after each of them, and the
            new cache.
        """
        size, config = 1 + self.draft_tokens, self.config
        own = positions[:, None] + tf.range(size)  # [B, k]
        seen = tf.concat([cache["positions"], own], axis=1)  # [B, T + k]
        distance = own[:, :, None] - seen[:, None]
        is_seen = distance >= 0
        if config.sliding_window is not None:
            is_seen &= distance < config.sliding_window
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
            x, cache["memory"], attention_bias, own[:, None], cache["heads"]
        )
        logits = self._logits(x, cache["memory"])
        return tf.reshape(logits, [-1, size, config.vocab_size]), {
            **cache,
            "heads": heads,
            "positions": seen,
            "features": tf.reshape(x, [-1, size, config.d_model]),
        }

    def draft(
        self, cache: dict[str, Any], accepted: tf.Tensor, certain: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Drafts the tokens of the next block, except for its first.

        Args:
            cache: from `verify`.
            accepted: `(B,)`, the number of accepted drafts of the block.
            certain: ids `(B,)`, the first tokens of the next block.

        Returns:
            ids `(B, k - 1)`, and the cache without the rejected tokens.
        """
        cache = dict(cache)
        features = cache.pop("features")
        size, seen = 1 + self.draft_tokens, cache["positions"]
        is_rejected = tf.range(size) > accepted[:, None]
        block = tf.where(is_rejected, REJECTED, seen[:, -size:])
        cache["positions"] = tf.concat([seen[:, :-size], block], axis=1)

        x = tf.gather(features, accepted, batch_dims=1)  # [B, D]
        x = self._draft_features(x, certain, cache["memory"])
        layer = self.weights["draft_head"]
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
        return [*super()._layers_with_memory(), self.weights["draft_head"]]

    def _draft_features(self, x, tokens, memory):
        """Computes what `DraftHead` does.

        Args:
            x: the decoder's output `(B, D)`.
            tokens: ids `(B,)` that follow.
            memory: from `encode`.

        Returns:
            `(B·(k - 1), D)`.
        """
        layer = self.weights["draft_head"]
        following = tf.gather(self.weights["target"]["table"], tokens)
        shape = [-1, self.draft_tokens, self.config.d_model]
        both = tf.concat([x, following], axis=1)
        change = linear(both, layer["start"], shape[1] * shape[2])
        x = x[:, None] + tf.reshape(tf.cast(change, tf.float32), shape)
        x = tf.reshape(x, [-1, self.config.d_model])
        x, _ = self._attend_to_memory(x, layer, memory, -1)
        return self._feed_forward(x, layer)


@dataclasses.dataclass(frozen=True)
class BlockwiseDecoding(Decoding):
    """Finds what greedy search finds, except for rounding, in fewer steps.

    With another beam size it is beam search, without drafts.

    Example:

    >>> from keras_transformer.inference import DraftHead
    >>> from keras_transformer.training import open_run
    >>> head = DraftHead.for_model(open_run("runs/demo").config, draft_tokens=3)
    >>> decoding = BlockwiseDecoding(head)  # once the head is trained

    Args:
        draft_head: a trained `DraftHead`.
    """

    draft_head: DraftHead
    model_class = BlockwiseModel

    def own_weights(
        self, model: Transformer, dtype: str, suppressed_ids: Sequence[int]
    ) -> dict[str, Any]:
        """Returns the weights of the draft head."""
        weights = draft_head_weights(
            self.draft_head, model, dtype, suppressed_ids
        )
        return {"draft_head": weights}
