"""A shortlist: the search of a sentence knows only its likely target pieces.

The projection to logits (section 3.4) and the softmax are computed for every
piece of the vocabulary at every step. With a shortlist they are computed for
some hundred pieces of each sentence instead (Jean et al., 2015, section 3.3).

Shapes: B batch, K beam size, S source length, D d_model, V vocabulary, N pieces
for each source piece, C common pieces, L pieces of a sentence's list.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import TransformerConfig
from keras_transformer.data.batches import TrainingPairs, take_slices
from keras_transformer.ids import END, PAD
from keras_transformer.inference.decoding import Decoding
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.model import Transformer
from keras_transformer.validation import checked_integer

COMMON = 100  # the most frequent target pieces are in every list
ROWS_AT_ONCE = 4096
MAX_LINKS = 10_000_000  # pairs of a source and a target piece to learn from
ROUNDS = 5  # rounds of expectation maximisation


@dataclasses.dataclass(frozen=True, eq=False)
class Shortlist:
    """Holds the target pieces that are likely beside each source piece.

    Example:

    >>> from keras_transformer.data.prepared_corpus import PreparedCorpus
    >>> pairs = PreparedCorpus("runs/demo/data")
    >>> shortlist = Shortlist.learn(pairs, 300, 300, size=10)
    >>> shortlist.likely.shape, shortlist.common.shape
    ((300, 10), (100,))

    Args:
        likely: int32 `(V, N)`, for each source piece the likely target pieces,
            padded with 0.
        common: int32 `(C,)`, target pieces that every list has, ascending from
            the special pieces 0, 1, 2, 3 on.
    """

    likely: np.ndarray
    common: np.ndarray

    @classmethod
    def learn(
        cls,
        pairs: TrainingPairs,
        source_vocab_size: int,
        target_vocab_size: int,
        size: int,
        seed: int = 1,
    ) -> "Shortlist":
        """Learns which pieces translate which from sentence pairs.

        The probabilities are those of Model 1 of Brown et al. (1993).

        Args:
            pairs: encoded pairs, such as a `PreparedCorpus`; of a large corpus,
                a random part is taken.
            source_vocab_size, target_vocab_size: sizes of the vocabularies.
            size: N, the number of target pieces for each source piece.
            seed: seed of the choice of the pairs. Defaults to 1.

        Raises:
            ValueError: if `size` is no integer of at least 1.
        """
        size = min(checked_integer("size", size), target_vocab_size)
        rows = np.random.default_rng(seed).permutation(len(pairs))
        sample = pairs.read(rows[: _affordable(pairs, rows)], epoch=0)
        counts = np.bincount(sample.target.values, minlength=target_vocab_size)
        counts[: END + 1] = sample.target_tokens  # the special pieces
        common = np.sort(np.argsort(-counts, kind="stable")[:COMMON])
        source, target, probabilities = _model_1(sample, target_vocab_size)
        order = np.lexsort((target, -probabilities, source))
        source, target = source[order], target[order]
        ranks = np.arange(len(source)) - np.searchsorted(source, source)
        likely = np.full((source_vocab_size, size), PAD, np.int32)
        is_kept = ranks < size
        likely[source[is_kept], ranks[is_kept]] = target[is_kept]
        return cls(likely, common.astype(np.int32))


def _affordable(pairs, rows):
    """Returns how many of the rows have at most `MAX_LINKS` links."""
    links = 0
    for start in range(0, len(rows), ROWS_AT_ONCE):
        found = pairs.read(rows[start : start + ROWS_AT_ONCE], epoch=0)
        total = links + np.cumsum(np.prod(found.lengths, axis=1))
        if total[-1] > MAX_LINKS:
            return max(1, start + int(np.searchsorted(total, MAX_LINKS)))
        links = total[-1]
    return len(rows)


def _model_1(pairs, target_vocab_size):
    """Returns source pieces, target pieces, and the probabilities that one
    translates the other, for all that occur in one pair."""
    target = pairs.target
    # Each source token is linked with all target tokens of its pair.
    pair = np.repeat(np.arange(len(pairs)), pairs.source.lengths)
    starts = np.cumsum(target.lengths) - target.lengths
    places = take_slices(
        np.arange(len(target.values)), starts[pair], target.lengths[pair]
    ).values
    sources = np.repeat(pairs.source.values, target.lengths[pair])
    links = sources.astype(np.int64) * target_vocab_size + target.values[places]
    names, links = np.unique(links, return_inverse=True)
    sources, targets = np.divmod(names, target_vocab_size)
    probabilities = np.ones(len(names))
    for _ in range(ROUNDS):
        weights = probabilities[links]
        weights /= np.bincount(places, weights)[places]
        counts = np.bincount(links, weights)
        probabilities = counts / np.bincount(sources, counts)[sources]
    return sources, targets, probabilities


class ShortlistedModel(InferenceModel):
    """Runs encoder and decoder, the decoder's steps over shortlists.

    The tokens of `step` are numbers in a sentence's list; `pieces` returns
    their ids. The lists begin with the special pieces, whose numbers are
    therefore their ids.

    Args:
        config: a `TransformerConfig`.
        weights: from `inference_weights`, and `shortlist`, a dictionary of
            `likely` and `common` as in `Shortlist`.
    """

    def __init__(self, config: TransformerConfig, weights: dict[str, Any]):
        super().__init__(config, weights)
        self.likely = weights["shortlist"]["likely"]
        self.common = weights["shortlist"]["common"]

    def encode(
        self,
        source: tf.Tensor,
        source_mask: tf.Tensor | None = None,
        with_attention: bool = False,
    ) -> dict[str, Any]:
        """Encodes source ids `(B, S)` and looks up their lists."""
        memory = super().encode(source, source_mask, with_attention)
        lists = self.lists(source)  # [B, L]
        projection = self.weights["projection"]
        kernel = tf.gather(projection["kernel"], lists, axis=1)  # [D, B, L]
        bias = tf.gather(projection["bias"], lists)
        is_padding = tf.equal(lists, PAD)
        bias = tf.where(is_padding, tf.constant(-np.inf, bias.dtype), bias)
        return {
            **memory,
            "lists": lists,
            "kernel": tf.transpose(kernel, [1, 0, 2]),
            "bias": bias,
        }

    def lists(self, source: tf.Tensor) -> tf.Tensor:
        """Returns the target pieces `(B, L)` for source ids `(B, S)`,
        ascending, each once, padded with 0.

        A list depends on its own sentence only.
        """
        batch = tf.shape(source)[0]
        likely = tf.reshape(tf.gather(self.likely, source), [batch, -1])
        common = tf.tile(self.common[None], [batch, 1])
        every = tf.sort(tf.concat([common, likely], axis=1), axis=1)
        is_first = tf.ones_like(every[:, :1], tf.bool)
        is_new = tf.not_equal(every[:, 1:], every[:, :-1])
        is_new = tf.concat([is_first, is_new], axis=1)
        return tf.ragged.boolean_mask(every, is_new).to_tensor(PAD)

    def search(
        self,
        memory: dict[str, Any],
        max_lengths: tf.Tensor,
        settings: SearchSettings,
        beam_size: int | tf.Tensor,
        alpha: float | tf.Tensor,
        rules: dict[str, Any] | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Searches among the pieces of the lists, and returns their ids."""
        if rules and "prefix" in rules:
            raise ValueError(
                "A shortlist may lack the pieces of a wanted beginning. "
                "Received: a target prefix. Translate without a shortlist."
            )
        numbers, scores = super().search(
            memory, max_lengths, settings, beam_size, alpha, rules
        )
        return self.pieces(numbers, memory), scores

    def step(
        self, tokens: tf.Tensor, cache: dict[str, Any], index: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Runs one step; tokens and logits are of the sentences' lists."""
        ids = self.pieces(tokens, cache["memory"])
        return super().step(ids, cache, index)

    def pieces(self, tokens: tf.Tensor, memory: dict[str, Any]) -> tf.Tensor:
        """Returns the ids of numbers `(B, …)` in the sentences' lists."""
        return tf.gather(memory["lists"], tokens, batch_dims=1)

    def _logits(self, x, memory):
        """Returns float32 logits `(B·K, L)` of rows `(B·K, D)`."""
        kernel = memory["kernel"]
        batch, width = tf.shape(kernel)[0], kernel.shape[1]
        x = tf.reshape(tf.cast(x, kernel.dtype), [batch, -1, width])
        logits = tf.matmul(x, kernel) + memory["bias"][:, None]
        length = tf.shape(kernel)[2]
        return tf.cast(tf.reshape(logits, [-1, length]), tf.float32)


@dataclasses.dataclass(frozen=True)
class ShortlistDecoding(Decoding):
    """Decodes by beam search among the likely pieces of each sentence.

    Example:

    >>> from keras_transformer.data import PreparedCorpus
    >>> from keras_transformer.inference import Shortlist
    >>> pairs = PreparedCorpus("runs/demo/data")
    >>> decoding = ShortlistDecoding(Shortlist.learn(pairs, 300, 300, size=10))

    Args:
        shortlist: a `Shortlist`.
    """

    shortlist: Shortlist
    model_class = ShortlistedModel

    def own_weights(
        self, model: Transformer, dtype: str, suppressed_ids: Sequence[int]
    ) -> dict[str, Any]:
        """Returns the arrays of the shortlist."""
        arrays = vars(self.shortlist).items()
        return {"shortlist": {name: tf.constant(x) for name, x in arrays}}
