"""Public names of a package that are imported when they are first used."""

import importlib
from collections.abc import Callable
from typing import Any


def lazy_names(
    package: str, modules: dict[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__all__`, `__getattr__` and `__dir__` for a package's
    `__init__.py`.

    Importing the package does not import TensorFlow; using one of its names
    does. So the command and `import keras_transformer` stay fast.

    Args:
        package: name of the package.
        modules: for each public name, the module that defines it.
    """

    def get_name(name):
        if name not in modules:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        module = importlib.import_module(f"{package}.{modules[name]}")
        return getattr(module, name)

    return sorted(modules), get_name, lambda: sorted(modules)
