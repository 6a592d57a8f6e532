"""Checks that every public function has complete annotations."""

import ast
import pathlib

import pytest

import keras_transformer

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def is_public(name):
    return not name.startswith("_") or name in ("__init__", "__call__")


def public_functions(body):
    """Yields the public functions of a module and of its public classes."""
    for node in body:
        if isinstance(node, ast.ClassDef) and is_public(node.name):
            yield from public_functions(node.body)
        elif isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef
        ) and is_public(node.name):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from public_functions(node.body)


def returns_something(function):
    """Returns whether the function itself returns or yields a value."""
    pending = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if isinstance(node, ast.Return) and node.value is not None:
            return True
        if not isinstance(
            node,
            ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda,
        ):
            pending.extend(ast.iter_child_nodes(node))
    return False


def missing_annotations(function):
    """Returns the names of arguments without annotation, and "return"."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += filter(None, (arguments.vararg, arguments.kwarg))
    missing = [
        argument.arg
        for argument in named
        if argument.annotation is None and argument.arg not in ("self", "cls")
    ]
    if function.returns is None and returns_something(function):
        missing.append("return")
    return missing


@pytest.mark.parametrize(
    "path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_public_functions_are_annotated(path):
    found = {
        f"{path.name}:{function.lineno} {function.name}": missing
        for function in public_functions(ast.parse(path.read_text()).body)
        if (missing := missing_annotations(function))
    }
    assert not found


def test_a_missing_annotation_is_found():
    code = "def f(x, *, y: int = 0, **rest):\n    return lambda: x\n"
    code += "def g():\n    def h():\n        return 1\n    h()"
    one, other = public_functions(ast.parse(code).body)
    assert missing_annotations(one) == ["x", "rest", "return"]
    assert missing_annotations(other) == []
