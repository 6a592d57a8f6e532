"""Blockwise parallel decoding on the fast forward pass (Stern et al., 2018).

Shapes: B batch, k block size, L length limit, T positions read so far, D
d_model, F width of the proposals' hidden layer, V vocabulary.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import END
from keras_transformer.inference.fast_attention import MASKED_SCORE
from keras_transformer.inference.fast_layers import linear
from keras_transformer.inference.fast_model import InferenceModel
from keras_transformer.search.blockwise_search import blockwise_search
from keras_transformer.search.length_penalty import length_penalty

REJECTED = tf.int32.max  # the position of tokens that no other may see


@dataclasses.dataclass(frozen=True, eq=False)
class Proposals:
    """Holds the layers that propose the tokens after the next one.

    They are those of section 4 of Stern et al. (2018): one hidden layer that
    all proposals share, and for each of them an output that is added to the
    decoder's own, before the projection to logits. `learn_proposals` of
    `keras_transformer.training` makes them.

    Example:

    >>> import numpy as np
    >>> shapes = {"inner_kernel": (8, 16), "inner_bias": (16,)}
    >>> shapes |= {"outer_kernel": (16, 24), "outer_bias": (24,)}
    >>> arrays = {name: np.zeros(shape) for name, shape in shapes.items()}
    >>> Proposals(**arrays).block_size  # the next token, and three proposals
    4

    Args:
        inner_kernel, inner_bias: the hidden layer, float32 `(D, F)` and `(F,)`.
        outer_kernel, outer_bias: the outputs, side by side, float32
            `(F, (k - 1)·D)` and `((k - 1)·D,)`.
    """

    inner_kernel: np.ndarray
    inner_bias: np.ndarray
    outer_kernel: np.ndarray
    outer_bias: np.ndarray

    @property
    def block_size(self) -> int:
        """Returns k, the number of tokens of a block."""
        return 1 + self.outer_kernel.shape[1] // self.inner_kernel.shape[0]

    def weights(self, dtype: str = "float32") -> dict[str, Any]:
        """Returns both layers as `InferenceModel` needs them."""
        return {
            name: {
                part: tf.cast(getattr(self, f"{name}_{part}"), dtype)
                for part in ("kernel", "bias")
            }
            for name in ("inner", "outer")
        }


class BlockwiseModel(InferenceModel):
    """Runs the decoder over blocks of tokens, for `blockwise_search`.

    The caches only grow: keys and values of rejected tokens stay, but get a
    position that comes after all others, so that no token sees them.

    Its weights are from `inference_weights`, and `proposals`, from `Proposals`.
    """

    @property
    def block_size(self) -> int:
        """Returns k, the number of tokens of a block."""
        width = self.weights["proposals"]["outer"]["kernel"].shape[1]
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
        x = self._embedded(
            tf.reshape(tokens, [1, -1]),
            self.weights["target"],
            tf.reshape(own, [-1]),
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
        self, cache: dict[str, Any], accepted: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Proposes the tokens of the next block but for its first.

        Args:
            cache: from `verify`.
            accepted: `(B,)`, the number of accepted proposals of the block.

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
        logits = self._logits(self._changed(x), cache["memory"])
        tokens = tf.argmax(logits, axis=1, output_type=tf.int32)
        return tf.reshape(tokens, [-1, size - 1]), cache

    def _changed(self, x):
        """Returns the features of all proposals, `(B·(k - 1), D)`, for the
        decoder's output `(B, D)`."""
        layers = self.weights["proposals"]
        hidden = tf.nn.relu(linear(x, layers["inner"]))
        changes = tf.cast(linear(hidden, layers["outer"]), tf.float32)
        shape = [-1, self.block_size - 1, self.config.d_model]
        x = x[:, None] + tf.reshape(changes, shape)
        return tf.reshape(x, [-1, self.config.d_model])
