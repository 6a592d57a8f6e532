"""Inference: translates text with a trained model."""

from typing import TYPE_CHECKING

from keras_transformer.lazy_names import lazy_names

if TYPE_CHECKING:
    from keras_transformer.inference.attention_plot import (
        plot_attention as plot_attention,
    )
    from keras_transformer.inference.evaluation import score as score
    from keras_transformer.inference.search_settings import (
        SearchSettings as SearchSettings,
    )
    from keras_transformer.inference.text_lines import (
        translate_lines as translate_lines,
    )
    from keras_transformer.inference.translator import Translator as Translator

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "SearchSettings": "search_settings",
        "Translator": "translator",
        "plot_attention": "attention_plot",
        "score": "evaluation",
        "translate_lines": "text_lines",
    },
)
