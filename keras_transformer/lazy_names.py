"""Packages whose public names are imported when they are first used."""

import importlib


def lazy_names(package: str, modules: dict[str, str]):
    """Returns `__all__`, `__getattr__` and `__dir__` for a package's
    `__init__.py`.

    The command and `import keras_transformer` stay fast: a package can be
    imported without TensorFlow until one of its names is used.

    Args:
        package: name of the package.
        modules: the module of the package that defines each public name.
    """

    def get_name(name):
        if name not in modules:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        module = importlib.import_module(f"{package}.{modules[name]}")
        return getattr(module, name)

    return sorted(modules), get_name, lambda: sorted(modules)
