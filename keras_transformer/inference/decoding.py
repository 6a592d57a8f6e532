"""How a translator decodes: with which weights, model and search."""

from collections.abc import Sequence
from typing import Any

from keras_transformer.config import TransformerConfig
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.model import Transformer


class Decoding:
    """Decodes by beam search among all target pieces: section 6.1.

    It is the default of a `Translator`. Subclasses such as `BlockwiseDecoding`,
    `EnsembleDecoding` and `ShortlistDecoding` have a model with another
    `search` or `step`, and the weights that it needs.

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

    Attributes:
        model_class: the class of the model, an `InferenceModel`.
    """

    model_class: type[InferenceModel] = InferenceModel

    def make_model(
        self, config: TransformerConfig, weights: dict[str, Any]
    ) -> InferenceModel:
        """Returns the model of a config and of weights for it."""
        return self.model_class(config, weights)

    def own_weights(
        self, model: Transformer, dtype: str, suppressed_ids: Sequence[int]
    ) -> dict[str, Any]:
        """Returns what the model needs besides the `inference_weights`, whose
        arguments these are: nested dictionaries of tensors."""
        return {}
