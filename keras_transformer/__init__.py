"""The Transformer of "Attention Is All You Need" for Keras 3.

Importing this package needs Keras alone, on any backend. What needs TensorFlow
is in `keras_transformer.data`, `.training`, `.inference` and `.export`.

The public names are listed in `__init__.pyi`, for editors and for the loader
alike. Without Keras nothing is imported before a name is used, so that the
command shows its help at once.
"""

import sys
from typing import Any

import lazy_loader

__version__ = "0.1.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        _import_all()
    return _load(name)


def _import_all():
    globals().update({public: _load(public) for public in __all__})


# Keras finds a class of a saved model only if it was imported.
if "keras" in sys.modules:
    _import_all()
