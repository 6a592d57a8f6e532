"""Export: writes a trained model as a SavedModel or for CTranslate2."""

from typing import TYPE_CHECKING

from keras_transformer.lazy_names import lazy_names

if TYPE_CHECKING:
    from keras_transformer.export.saved_model import export as export
    from keras_transformer.export.saved_translator import (
        SavedTranslator as SavedTranslator,
    )

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {"SavedTranslator": "saved_translator", "export": "saved_model"},
)
