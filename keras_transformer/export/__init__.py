"""Export: writes a trained model as a SavedModel or for CTranslate2."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
