"""Checks which part of the package imports which, however long the chain."""

import ast
import functools
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "keras_transformer"
SOURCES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 600  # lines: one idea a file

# A part of the package is a folder or a module of the root. Whatever its files
# import, and what that imports in turn, belongs to itself or to these parts.
CHECKS = {"ids", "validation"}
MODEL = {*CHECKS, "config", "configured_model", "layers", "losses", "model"}
MODEL |= {"language_model", "schedule", "search", "text_classifier"}
FILES = {"archives", "atomic_files", "hardware", "lock", "stop_signals"}
MAY_REACH = {
    "__init__": MODEL,
    "__main__": {*MODEL, *FILES, "data", "inference", "training", "export"}
    | {"export.files", "serve", "cli"},
    "ids": set(),
    "validation": set(),
    "archives": set(),
    "atomic_files": {"lock"},
    "hardware": set(),
    "lock": set(),
    "stop_signals": set(),
    "config": CHECKS,
    "layers": CHECKS,
    "losses": {*CHECKS, "config"},
    "schedule": CHECKS,
    "configured_model": {*CHECKS, "config", "layers"},
    "model": {*CHECKS, "config", "configured_model", "layers"},
    "language_model": {*CHECKS, "config", "configured_model", "layers"}
    | {"search"},
    "text_classifier": {*CHECKS, "config", "configured_model", "layers"},
    "search": CHECKS,
    "testing": CHECKS,
    "data": {*CHECKS, *FILES},
    "inference": {*MODEL, *FILES, "data"},
    "training": {*MODEL, *FILES, "data", "inference"},
    "export.files": set(),
    "export": {*MODEL, *FILES, "data", "inference", "training", "export.files"},
    # Not `training`: what serves an export needs nothing that trains.
    "serve": {*MODEL, *FILES, "data", "inference", "export", "export.files"},
    "cli": {*MODEL, *FILES, "data", "inference", "training", "export"}
    | {"export.files", "serve"},
    # It may import everything, and nothing above imports it.
    "integrations": {*MODEL, *FILES, "data", "inference", "training", "export"}
    | {"export.files", "serve", "cli"},
}
# These parts run on any backend: they import Keras, NumPy and the standard
# library only.
ANY_BACKEND = {*MODEL, "__init__", "atomic_files", "testing"}
ALLOWED = sys.stdlib_module_names | {"keras", "numpy", "lazy_loader"}
# These files have a faster path that runs on TensorFlow only.
FASTER_ON_TENSORFLOW = {"layers/normalization.py", "search/next_token.py"}
FASTER_ON_TENSORFLOW |= {"language_model.py"}  # compiled by the backend
# A corpus becomes batches on any backend, and TensorFlow or JAX trains a model.
# These files import them, and others inside functions.
BACKENDS = {
    "tensorflow": {"training/tensorflow_trainer", "training/draft_head"}
    | {"training/run_translators"},
    "jax": {"training/jax_trainer"},
}
IN_FUNCTIONS = {
    "tensorflow": {"hardware", "training/projection_loss", "training/adam"},
    "jax": {"hardware", "training/projection_loss", "language_model"}
    | {"inference/layer_translator"},
}


def name_of(path):
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def part_of(name):
    return "export.files" if name == "export/files" else name.split("/")[0]


def source_of(module, name):
    """Returns the file that `from module import name` reads, if it is ours."""
    folder = ROOT / module.replace(".", "/")
    for path in (folder / f"{name}.py", folder / name / "__init__.py"):
        if path.exists():
            return path
    stub = folder / "__init__.pyi"
    for node in ast.parse(stub.read_text()).body if stub.exists() else ():
        if isinstance(node, ast.ImportFrom) and name in (
            alias.name for alias in node.names
        ):
            return source_of(f"{module}.{node.module}", name)
    path = folder.with_suffix(".py")
    return path if path.exists() else folder / "__init__.py"


@functools.cache
def imports(path):
    """Returns line, module and file of every import, also in functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package, _, rest = alias.name.rpartition(".")
                ours = alias.name.startswith("keras_transformer.")
                file = source_of(package, rest) if ours else None
                found.append((node.lineno, alias.name, file))
        elif isinstance(node, ast.ImportFrom):
            module = node.module
            if node.level:  # in an `__init__.py` only
                assert path.stem == "__init__", f"{path}: write imports in full"
                folder = path.parent.relative_to(ROOT).as_posix()
                module = f"{folder.replace('/', '.')}.{module}"
            for alias in node.names:
                ours = module.split(".")[0] == "keras_transformer"
                file = source_of(module, alias.name) if ours else None
                found.append((node.lineno, module, file))
    return found


def chains(path):
    """Returns, for each of our files that this one reaches, the shortest chain
    of imports."""
    found, pending = {path: [name_of(path)]}, [path]
    for reached in pending:
        for _, _, file in imports(reached):
            if file is not None and file not in found:
                found[file] = [*found[reached], name_of(file)]
                pending.append(file)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_reaches_only_what_its_part_may_reach(path):
    part = part_of(name_of(path))
    allowed = MAY_REACH[part] | {part}
    for file, chain in chains(path).items():
        reached = part_of(name_of(file))
        assert reached in allowed or reached == "__init__", (
            f"{' → '.join(chain)}: `{part}` may not reach `{reached}`, only "
            f"{', '.join(sorted(allowed))}. Move the code to a part that may "
            "import it, or pass in what it needs."
        )


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_imports_only_public_and_portable_packages(path):
    file = path.relative_to(PACKAGE).as_posix()
    portable = part_of(name_of(path)) in ANY_BACKEND
    for line, module, ours in imports(path):
        where = f"{file}:{line} imports {module}"
        assert not module.startswith("keras.src"), (
            f"{where}, a part of Keras that is not public; use `keras.*`."
        )
        if ours is None and portable and file not in FASTER_ON_TENSORFLOW:
            assert module.split(".")[0] in ALLOWED, (
                f"{where}, but `{file}` works on any Keras backend. Move the "
                "code to `data`, `training`, `inference` or `export`."
            )


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_data_and_training_run_on_either_backend(path):
    name, nodes = name_of(path), ast.walk(ast.parse(path.read_text()))
    functions = [x for x in nodes if isinstance(x, ast.FunctionDef)]
    # `data` needs no more than it may reach.
    parts = {"data", "training", *MAY_REACH["data"]}
    for line, module, _ in imports(path):
        package = module.split(".")[0].removesuffix("_text")
        if package == "jax" or (
            package == "tensorflow" and part_of(name) in parts
        ):
            allowed = BACKENDS[package]
            if any(x.lineno < line <= x.end_lineno for x in functions):
                allowed = allowed | IN_FUNCTIONS[package]
            assert name in allowed, (
                f"{name}.py:{line} imports {package}, which only these may "
                f"here: {', '.join(sorted(allowed))}. Use NumPy or "
                "`keras.ops`, or move the code to a trainer."
            )


def loaded_by(code, **environment):
    """Returns the modules that a fresh process has loaded after some code."""
    code += "\nimport sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].split())


def test_importing_the_package_needs_keras_alone():
    found = loaded_by(
        "import sys; sys.modules.update(tensorflow=None, tensorflow_text=None)"
        "\nimport keras_transformer as kt; kt.Transformer",
        KERAS_BACKEND="jax",
    )
    assert "keras_transformer.losses" in found  # Keras finds all our classes


def test_the_worker_of_the_server_loads_nothing_that_trains():
    found = loaded_by(
        "import keras_transformer.serve.worker\n"
        "from keras_transformer.export import SavedTranslator"
    )
    assert not [name for name in found if "keras_transformer.training" in name]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_are_of_one_idea_and_have_docstrings(path):
    source = path.read_text()
    assert len(source.splitlines()) <= LONGEST, f"split {path.name}"
    assert ast.get_docstring(ast.parse(source)), f"{path.name} has no docstring"
    assert path.stem not in ("utils", "helpers", "common", "base", "misc")


def test_public_names_have_docstrings_and_are_sorted():
    import keras_transformer

    assert keras_transformer.__all__ == sorted(keras_transformer.__all__)
    for name in keras_transformer.__all__:
        assert getattr(keras_transformer, name).__doc__, name
