"""Several models that translate as one, by the mean of their probabilities.

Shapes: B batch, K beam size, T target length, V vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import TransformerConfig
from keras_transformer.inference.decoding import Decoding
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.inference.graph_weights import inference_weights
from keras_transformer.model import Transformer

VOCABULARY: tuple[str, ...] = (
    "vocab_size",
    "source_vocab_size",
    "source_features",
)


class EnsembleModel(InferenceModel):
    """Runs several models side by side, each with its memory and its cache.

    Args:
        config: of the first model, a `TransformerConfig`.
        weights: those of the first model, and `others`, a list with those of
            each other one; all are `inference_weights`.
        others: configs of the others.
    """

    def __init__(
        self,
        config: TransformerConfig,
        weights: dict[str, Any],
        others: Sequence[TransformerConfig],
    ):
        super().__init__(config, weights)
        self.models = [
            InferenceModel(config, weights),
            *map(InferenceModel, others, weights["others"]),
        ]

    def encode(
        self,
        source: tf.Tensor,
        source_mask: tf.Tensor | None = None,
        with_attention: bool = False,
    ) -> dict[str, Any]:
        """Encodes the source by each model; attention is the first one's."""
        memories = [
            model.encode(source, source_mask, with_attention and not i)
            for i, model in enumerate(self.models)
        ]
        memory = {"models": memories}
        if with_attention:
            memory["encoder_attention"] = memories[0].pop("encoder_attention")
        return memory

    def empty_cache(
        self, memory: dict[str, Any], beams: int | tf.Tensor
    ) -> dict[str, Any]:
        """Returns the caches of all models before the first step."""
        pairs = zip(self.models, memory["models"], strict=True)
        return {"models": [model.empty_cache(m, beams) for model, m in pairs]}

    def step(
        self, tokens: tf.Tensor, cache: dict[str, Any], index: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Runs one step of each decoder.

        Returns:
            float32 log-probabilities `(B·K, V)` of the next tokens, and the
            new caches.
        """
        found = [
            model.step(tokens, one, index)
            for model, one in zip(self.models, cache["models"], strict=True)
        ]
        log_probs = [tf.nn.log_softmax(logits) for logits, _ in found]
        return _log_mean(log_probs), {"models": [one for _, one in found]}

    def read(
        self, target: tf.Tensor, memory: dict[str, Any]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Runs each decoder over a known target.

        Returns:
            float32 log-probabilities of the ids `(B, T)`, 0 at padding, and
            the attention of the first model.
        """
        found = [
            model.read(target, one)
            for model, one in zip(self.models, memory["models"], strict=True)
        ]
        return _log_mean([log_probs for log_probs, _ in found]), found[0][1]

    @staticmethod
    def reorder_cache(
        cache: dict[str, Any], beams: tf.Tensor
    ) -> dict[str, Any]:
        """Returns the caches of beams that continue beams `(B, K)`."""
        reorder = InferenceModel.reorder_cache
        return {"models": [reorder(one, beams) for one in cache["models"]]}


def _log_mean(log_probs):
    """Returns the logarithm of the mean of probabilities."""
    # Not `reduce_logsumexp`, which has operations that servers lack.
    largest = functools.reduce(tf.maximum, log_probs)
    largest = tf.maximum(largest, tf.float32.min)  # where all are -inf
    odds = sum(tf.exp(x - largest) for x in log_probs)
    return largest + tf.math.log(odds / len(log_probs))


class EnsembleDecoding(Decoding):
    """Decodes by beam search with the mean of several models' probabilities.

    It is the next token's probability that is averaged, at each step. The
    models have one vocabulary, and may differ in everything else.

    Example:

    >>> from keras_transformer.inference import Translator
    >>> from keras_transformer.training import load_model, open_run
    >>> run = open_run("runs/demo")
    >>> others = [load_model(run)]  # stands for those of other runs
    >>> tokenizers = run.source_tokenizer, run.target_tokenizer
    >>> translator = Translator(
    ...     load_model(run), *tokenizers, decoding=EnsembleDecoding(others)
    ... )

    Args:
        others: the models besides that of the `Translator`, each a
            `Transformer` with its vocabulary.

    Raises:
        ValueError: if there is none.
    """

    def __init__(self, others: Sequence[Transformer]):
        self.others = list(others)
        if not self.others:
            raise ValueError(
                "An ensemble needs a second model. Received: others=[]. Leave "
                "out the decoding, or name another model."
            )

    def make_model(
        self, config: TransformerConfig, weights: dict[str, Any]
    ) -> InferenceModel:
        """Returns the model of all.

        Raises:
            ValueError: if a vocabulary differs in size, or the number of
                learned positions.
        """
        others = [model.config for model in self.others]
        for other in others:
            names = list(VOCABULARY)
            if "learned" in (config.positions, other.positions):
                names = [*VOCABULARY, "positions", "max_length"]
            for name in names:
                found = getattr(config, name), getattr(other, name)
                if found[0] != found[1]:
                    raise ValueError(
                        f"Models of an ensemble must agree in `{name}`. "
                        f"Received: {found[0]!r} and {found[1]!r}. Choose runs "
                        "that were trained with the same vocabulary."
                    )
        return EnsembleModel(config, weights, others)

    def own_weights(
        self, model: Transformer, dtype: str, suppressed_ids: Sequence[int]
    ) -> dict[str, Any]:
        """Returns the weights of the other models."""
        others = [
            inference_weights(other, dtype, suppressed_ids)
            for other in self.others
        ]
        return {"others": others}
