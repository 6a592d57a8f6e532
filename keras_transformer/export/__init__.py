"""Export: a trained model becomes a SavedModel, or a model of CTranslate2."""

from keras_transformer.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {"SavedTranslator": "saved_translator", "export": "saved_model"},
)
