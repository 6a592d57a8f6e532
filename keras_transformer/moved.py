"""Keeps the module names of earlier versions importable.

Saved models name the module of a class, and programs import names from it.
An old module can still be imported: it looks up its names in the new modules.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

# Old module: the modules that define its names now.
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


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads the modules of `MOVED`."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, old = fullname.partition(".")
        if package != PACKAGE or old not in MOVED:
            return None
        is_package = any(name.startswith(f"{old}.") for name in MOVED)
        return importlib.machinery.ModuleSpec(
            fullname, self, is_package=is_package
        )

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__.partition(".")[2]

        def get_name(name):
            for new in MOVED[old]:
                found = importlib.import_module(f"{PACKAGE}.{new}")
                if hasattr(found, name):
                    return getattr(found, name)
            modules = ", ".join(f"`{PACKAGE}.{new}`" for new in MOVED[old])
            raise AttributeError(
                f"`{module.__name__}` has moved to {modules}, which has no "
                f"{name!r}."
            )

        module.__getattr__ = get_name  # type: ignore[method-assign]


def install() -> None:
    """Makes the old modules importable."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
