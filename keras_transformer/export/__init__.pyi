from .language_model import export_language_model as export_language_model
from .saved_model import export as export
from .saved_translator import SavedTranslator as SavedTranslator
