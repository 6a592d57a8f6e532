"""Which package may import which, read from the source."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_transformer"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Each room may import itself and the rooms named here. Modules of the root are
# rooms of their own.
BELOW = {"atomic_files", "config", "lazy_names", "processor"}
MODEL = {"config", "layers", "losses", "model", "schedule", "search"}
ROOMS = {
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
    "data": {*BELOW},
    "inference": {*BELOW, *MODEL, "data"},
    "training": {*BELOW, *MODEL, "data", "inference"},
    "export": {*BELOW, *MODEL, "data", "inference", "training"},
    "cli": {*BELOW, *MODEL, "data", "inference", "training", "export"},
    "__main__": {"cli"},
    "__init__": {*MODEL, "cli", "moved"},
}
# These work on any backend: nothing but Keras and the standard library.
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
# Where TensorFlow has a faster way, for itself alone.
OWN_WAY_ON_TENSORFLOW = {"layers/dropout.py", "search/batched_take.py"}
# Imported before the command knows what it is to do.
COMMAND = {
    "cli/arguments.py",
    "cli/commands.py",
    "cli/main.py",
    "cli/quiet_stderr.py",
    "cli/standard_streams.py",
    "atomic_files.py",
    "config.py",
    "inference/evaluation.py",
    "inference/search_settings.py",
    "lazy_names.py",
    "processor.py",
    "training/recipe.py",
}


def imports(path, everywhere=False):
    """Yields line and module of the imports at the head, or of all."""
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


def room(path):
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def inside(module, allowed):
    return any(module == a or module.startswith(a + ".") for a in allowed)


@pytest.mark.parametrize(
    "path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_imports_keep_to_the_plan(path):
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
            allowed = ROOMS[room(path)] | {room(path)}
            assert rest.split(".")[0] in allowed, (
                f"{where}. `{room(path)}` may import "
                f"{', '.join(sorted(allowed))}. Move the code to a room that "
                "may import it, or pass in what it needs."
            )
        elif room(path) in ANY_BACKEND and file not in OWN_WAY_ON_TENSORFLOW:
            assert package in sys.stdlib_module_names | {"keras", "numpy"}, (
                f"{where}, but `{room(path)}` works on any Keras backend. Move "
                "the code to `data`, `training`, `inference` or `export`."
            )


@pytest.mark.parametrize("file", sorted(COMMAND))
def test_the_command_imports_tensorflow_lazily(file):
    """The heads of these files import the standard library and each other."""
    for line, module in imports(PACKAGE / file):
        package, _, rest = module.partition(".")
        is_light = rest.replace(".", "/") + ".py" in COMMAND
        assert package in sys.stdlib_module_names or is_light, (
            f"{file}:{line} imports {module}: import it where it is used."
        )


def test_the_package_itself_needs_keras_alone():
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
