"""Checks in the source which part of the package imports which."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_transformer"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A part of the package is a folder, or a module of the root. Each part may
# import itself and the parts named here.
BELOW = {"atomic_files", "config", "lazy_names", "processor"}
MODEL = {"config", "layers", "losses", "model", "schedule", "search"}
MAY_IMPORT = {
    "atomic_files": set(),
    "config": set(),
    "lazy_names": set(),
    "moved": set(),
    "processor": set(),
    "layers": set(),
    "losses": {"config"},
    "schedule": {"config"},
    "model": {"config", "layers"},
    "search": {"config"},
    "checks": {"config"},
    "lock": set(),
    "data": {*BELOW, "lock"},
    "inference": {*BELOW, *MODEL, "data"},
    "training": {*BELOW, *MODEL, "data", "inference", "lock"},
    "export": {
        *BELOW,
        *MODEL,
        "data",
        "inference",
        "lock",
        "pretrained",
        "training",
    },
    "pretrained": {*BELOW, *MODEL, "data", "inference", "training"},
    "serve": {*BELOW, "export", "inference"},
    "cli": {
        *BELOW,
        *MODEL,
        "serve",
        "data",
        "inference",
        "training",
        "export",
        "pretrained",
    },
    "__main__": {"cli"},
    "__init__": {*MODEL, "cli", "moved"},
}
# These parts work on any backend: they import Keras, NumPy and the standard
# library only.
ANY_BACKEND = {
    "__init__",
    "atomic_files",
    "checks",
    "config",
    "layers",
    "lazy_names",
    "losses",
    "model",
    "moved",
    "schedule",
    "search",
}
# These files have a faster path that runs on TensorFlow only.
FASTER_ON_TENSORFLOW = {"layers/dropout.py", "search/batched_take.py"}
# These files are imported before the command has read its arguments.
STARTUP_FILES = {
    "cli/arguments.py",
    "cli/commands.py",
    "cli/main.py",
    "cli/quiet_stderr.py",
    "cli/serve.py",
    "cli/standard_streams.py",
    "atomic_files.py",
    "config.py",
    "data/settings.py",
    "inference/evaluation.py",
    "inference/search_settings.py",
    "lazy_names.py",
    "processor.py",
    "serve/settings.py",
    "training/recipe.py",
}


def imports(path, everywhere=False):
    """Yields line and module of the top-level imports, or of all imports."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            for alias in node.names:
                folder = PACKAGE.parent / node.module.replace(".", "/")
                names = (alias.name, f"{alias.name}.py")
                is_module = any((folder / name).exists() for name in names)
                rest = f".{alias.name}" if is_module else ""
                yield node.lineno, node.module + rest


def part_of(path):
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


@pytest.mark.parametrize(
    "path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_a_file_imports_only_what_its_part_may_import(path):
    file = path.relative_to(PACKAGE).as_posix()
    for line, module in imports(path, everywhere=True):
        where = f"{file}:{line} imports {module}"
        assert not module.startswith("keras.src"), (
            f"{where}, a part of Keras that is not public; use `keras.*`."
        )
        package, _, rest = module.partition(".")
        if package == "keras_transformer":
            if not rest:  # the package itself, for its version
                continue
            allowed = MAY_IMPORT[part_of(path)] | {part_of(path)}
            assert rest.split(".")[0] in allowed, (
                f"{where}. `{part_of(path)}` may import "
                f"{', '.join(sorted(allowed))}. Move the code to a part that "
                "may import it, or pass in what it needs."
            )
        elif part_of(path) in ANY_BACKEND and file not in FASTER_ON_TENSORFLOW:
            assert package in sys.stdlib_module_names | {"keras", "numpy"}, (
                f"{where}, but `{part_of(path)}` works on any Keras backend. "
                "Move the code to `data`, `training`, `inference` or `export`."
            )


@pytest.mark.parametrize("file", sorted(STARTUP_FILES))
def test_the_command_imports_tensorflow_lazily(file):
    """At the top they import only the standard library and each other."""
    for line, module in imports(PACKAGE / file):
        package, _, rest = module.partition(".")
        is_light = rest.replace(".", "/") + ".py" in STARTUP_FILES
        assert package in sys.stdlib_module_names or is_light, (
            f"{file}:{line} imports {module}: import it where it is used."
        )


def test_importing_the_package_needs_keras_alone():
    code = (
        "import sys; sys.modules.update(tensorflow=None, tensorflow_text=None)"
        "; import keras_transformer as kt; print(kt.Transformer.__name__)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "Transformer\n", result.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_files_are_short_and_have_docstrings(path):
    source = path.read_text()
    assert len(source.splitlines()) <= 350, f"split {path.name}"
    assert ast.get_docstring(ast.parse(source)), f"{path.name} has no docstring"
    assert path.stem not in ("utils", "helpers", "common", "base", "misc")


def test_public_names_have_docstrings_and_are_sorted():
    import keras_transformer

    assert keras_transformer.__all__ == sorted(keras_transformer.__all__)
    for name in keras_transformer.__all__:
        assert getattr(keras_transformer, name).__doc__, name
