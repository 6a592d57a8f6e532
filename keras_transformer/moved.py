"""Modules of earlier versions: their names can still be imported.

Saved models name the module of a class, and people's programs import names
from it. Importing an old module gives one whose names are those of the new
modules.
"""

import importlib
import importlib.machinery
import sys

# Old module: the modules that have its names now.
MOVED = {
    "averaging": ["training.weights_choice"],
    "callbacks": ["training.callbacks", "training.curves"],
    "checkpoints": ["training.checkpoints"],
    "data.grammar": ["data.builtin.grammar"],
    "data.lexicon": ["data.builtin.lexicon"],
    "decoding": ["search.beam_search", "search.length_penalty"],
    "distribution": ["training.distribution"],
    "evaluation": ["inference.evaluation"],
    "interop": [],
    "interop.ctranslate2": ["export.ctranslate2"],
    "lines": ["inference.text_lines"],
    "optimizer": ["training.adam"],
    "plots": ["training.curves", "inference.attention_plot"],
    "recipe": ["training.recipe"],
    "run": ["training.run", "training.new_run", "training.recipe"],
    "sampling": ["search.sampling"],
    "saved_model": ["export.saved_model", "export.saved_translator"],
    "serving": ["export.tensorflow_serving"],
    "training_loop": ["training.loop"],
    "translator": ["inference.translator", "inference.search_settings"],
}
PACKAGE = "keras_transformer"


class _Finder:
    """Finds the modules of `MOVED`."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        package, _, old = fullname.partition(".")
        if package != PACKAGE or old not in MOVED:
            return None
        is_package = any(name.startswith(f"{old}.") for name in MOVED)
        return importlib.machinery.ModuleSpec(
            fullname, _Finder, is_package=is_package
        )

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        old = module.__name__.partition(".")[2]

        def get_name(name):
            for new in MOVED[old]:
                found = importlib.import_module(f"{PACKAGE}.{new}")
                if hasattr(found, name):
                    return getattr(found, name)
            places = ", ".join(f"`{PACKAGE}.{new}`" for new in MOVED[old])
            raise AttributeError(
                f"`{module.__name__}` has moved to {places}, which has no "
                f"{name!r}."
            )

        module.__getattr__ = get_name


def install():
    """Makes the old modules importable."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
