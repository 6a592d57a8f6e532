"""Who may import whom, read from the source; and what no room may hold."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_transformer"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LAYERS = {"inspect", "math", "keras", "keras_transformer.layers"}
KERAS_ALONE = {*LAYERS, "keras_transformer.config"}
# Room: what its modules may import at their head. The standard library is
# open to all but the rooms that serve any backend.
RULES = {
    "layers": LAYERS,
    "layers/dropout.py": {*LAYERS, "tensorflow"},
    "config": {"dataclasses"},
    "model": KERAS_ALONE,
    "schedule": KERAS_ALONE,
    "losses": KERAS_ALONE,
    "gather": {"keras", "tensorflow"},
    "candidates": KERAS_ALONE | {"copy", "keras_transformer.gather"},
    "sampling": KERAS_ALONE | {"keras_transformer.candidates"},
    "decoding": KERAS_ALONE
    | {
        "collections.abc",
        "dataclasses",
        "keras_transformer.candidates",
        "keras_transformer.gather",
        "keras_transformer.sampling",
    },
    "checks": {*KERAS_ALONE, "numpy"},
}
OUTER = ("tensorflow", "tensorflow_text", "tensorflow_datasets", "sacrebleu")
REMEDY = (
    "{file}:{line} imports {module}, which the room `{room}` may not: it works "
    "on any Keras backend. Move the code to `data`, `training`, `evaluation` "
    "or `saved_model`, or the import into the function of `__main__`."
)


def imports(path, everywhere=False):
    """(line, module) of the imports at the head, or of all."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            yield node.lineno, node.module


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
    allowed = RULES.get(file, RULES.get(room(path)))
    for line, module in imports(path, everywhere=True):
        assert not module.startswith("keras.src"), (
            f"{path.name}:{line} imports Keras' internals; use `keras.*`."
        )
        if allowed is not None:
            assert inside(module, allowed), REMEDY.format(
                file=path.name, line=line, module=module, room=room(path)
            )


def test_the_command_imports_tensorflow_lazily():
    for line, module in imports(PACKAGE / "__main__.py"):
        assert not module.startswith(OUTER), f"__main__.py:{line}: {module}"
    for line, module in imports(PACKAGE / "__init__.py"):
        name = module.removeprefix("keras_transformer").strip(".")
        allowed = {*RULES, "chatter", "importlib", "typing", ""}
        assert name.split(".")[0] in allowed, (
            f"__init__.py:{line} imports {module}: `import keras_transformer` "
            "is to work with Keras alone."
        )


def test_inner_rooms_do_not_import_outer_ones():
    order = [
        "config",
        "layers",
        "model",
        "data",
        "translator",
        "run",
        "training",
        "__main__",
    ]
    for path in SOURCES:
        if room(path) not in order:
            continue
        for line, module in imports(path, everywhere=True):
            part = module.split(".")[1:2]
            if module.startswith("keras_transformer.") and part[0] in order:
                assert order.index(part[0]) <= order.index(room(path)), (
                    f"{path.name}:{line} imports {module}, which is built on it"
                )


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_rooms_stay_small_and_say_what_they_are(path):
    source = path.read_text()
    assert len(source.splitlines()) <= 350, f"split {path.name}"
    assert ast.get_docstring(ast.parse(source)), f"{path.name} has no docstring"
    assert path.stem not in ("utils", "helpers", "common", "base", "misc")


def test_public_names_have_docstrings_and_are_sorted():
    import keras_transformer

    assert keras_transformer.__all__ == sorted(keras_transformer.__all__)
    for name in keras_transformer.__all__:
        assert getattr(keras_transformer, name).__doc__, name
