from .saved_model import export as export
from .saved_translator import SavedTranslator as SavedTranslator
