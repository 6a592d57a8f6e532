"""Inference: a trained model translates text."""

from keras_transformer.lazy_names import lazy_names

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
