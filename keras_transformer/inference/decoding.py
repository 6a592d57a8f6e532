"""How a translator decodes: with which weights, which model, which search.

Shapes: B batch, K beam size, T target length.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import TransformerConfig
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.inference.graph_weights import inference_weights
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.model import Transformer
from keras_transformer.search.beam_search import beam_search


class Decoding:
    """Decodes by beam search among all target pieces: section 6.1.

    It is the default of a `Translator`. Subclasses such as `BlockwiseDecoding`
    and `ShortlistDecoding` override what they do in another way.

    Example:

    >>> from keras_transformer.inference import Translator
    >>> from keras_transformer.training import load_model, open_run
    >>> run = open_run("runs/demo")
    >>> translator = Translator(
    ...     load_model(run),
    ...     run.source_tokenizer,
    ...     run.target_tokenizer,
    ...     decoding=Decoding(),
    ... )
    """

    def weights(
        self, model: Transformer, dtype: str, suppressed_ids: Sequence[int]
    ) -> dict[str, Any]:
        """Returns nested dictionaries of tensors, see `inference_weights`."""
        return inference_weights(model, dtype, suppressed_ids)

    def model(
        self, config: TransformerConfig, weights: dict[str, Any]
    ) -> InferenceModel:
        """Returns the model that runs on `weights`, or on variables of the
        same structure."""
        return InferenceModel(config, weights)

    def search(
        self,
        model: Any,
        memory: dict[str, Any],
        max_lengths: tf.Tensor,
        settings: SearchSettings,
        beam_size: int | tf.Tensor,
        alpha: float | tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Searches the translations of encoded sources.

        Args:
            model: from `model`.
            memory: from the model's `encode`.
            max_lengths: int32 `(B,)`, the maximum number of tokens of each
                translation.
            settings: settings of the search; beam size and α are given apart.
            beam_size: K, an integer or scalar tensor.
            alpha: α of the length penalty, a number or scalar tensor.

        Returns:
            Target ids `(B, K, T)`, best first, and float32 scores `(B, K)`.
        """

        def step(tokens, cache, index):
            return model.step(tf.reshape(tokens, [-1, beam_size]), cache, index)

        return beam_search(
            step,
            model.empty_cache(memory, beam_size),
            max_lengths,
            beam_size,
            alpha,
            reorder=model.reorder_cache,
            keep=model.select_rows,
            formula=settings.length_penalty,
            early_stopping=settings.early_stopping,
        )
