"""Shows code of the package in pages, and links to it."""

import ast
import inspect
import os
import pathlib
import pkgutil
import re
import textwrap

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

import keras_transformer

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
NOT_FOUND = (AttributeError, ImportError, TypeError, ValueError)
CODE_OF = re.compile(r"^```\{code-of\} (\S+)\n```$", re.MULTILINE)


def code_of(name):
    """Returns the code of a function or class, without docstrings, and the
    name of its module."""
    public = inspect.unwrap(pkgutil.resolve_name(name))
    code = textwrap.dedent(inspect.getsource(public))
    lines = code.splitlines()
    blocks = [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and ast.get_docstring(node) is not None
    ]
    for node in sorted(blocks, key=lambda node: -node.lineno):
        docstring, *others = node.body
        start, end = docstring.lineno - 1, docstring.end_lineno
        while others and not lines[end].strip():
            end += 1
        rest = [] if others else [" " * docstring.col_offset + "..."]
        lines[start:end] = rest
    return "\n".join(lines), public.__module__


def module_of(path):
    """Returns the name of the module in a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def source_page(docname, module):
    """Returns the address of viewcode's page of a module, from a page."""
    up = "../" * docname.count("/")
    return f"{up}_modules/{module.replace('.', '/')}.html"


class CodeOf(SphinxDirective):
    """Shows the code of a function, method or class of the package."""

    required_arguments = 1

    def run(self):
        (name,) = self.arguments
        try:
            code, module = code_of(name)
        except NOT_FOUND as error:
            raise self.error(f"There is no code of {name}: {error}") from error
        container = nodes.container(
            "", literal_block=True, classes=["literal-block-wrapper"]
        )
        anchor = name.removeprefix(f"{module}.").split(".")[0]
        address = f"{source_page(self.env.docname, module)}#{anchor}"
        link = nodes.reference("", refuri=address, internal=True)
        link += nodes.literal("", name)
        container += nodes.caption("", "", link)
        container += nodes.literal_block(code, code, language="python")
        return [container]


def add_source_pages(app):
    """Adds a page of source for every module, for links of other pages."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = module_of(path)
        entry = (path.read_text("utf-8"), {}, {}, module)
        app.env._viewcode_modules.setdefault(module, entry)
    return []


def link_to_files(app, doctree):
    """Links to files of the repository: those of the package to the pages of
    their source, others to downloads.

    Markdown's links to Python files are links to guides otherwise.
    """
    for node in list(doctree.findall(addnodes.pending_xref)):
        path = pathlib.Path(f"{node['reftarget']}.py")
        if not path.is_absolute() or not path.is_file():
            continue
        if PACKAGE in path.parents:
            address = source_page(app.env.docname, module_of(path))
            link = nodes.reference("", refuri=address, internal=True)
        else:
            link = addnodes.download_reference(
                "", reftarget=f"/{os.path.relpath(path, app.srcdir)}"
            )
        link += node.children
        node.replace_self(link)


def as_markdown(found):
    """Returns what a directive shows; the directive, if the name is wrong."""
    try:
        code, _ = code_of(found[1])
    except NOT_FOUND:  # reported when the page was read
        return found[0]
    return f"`{found[1]}`:\n\n```python\n{code}\n```"


def with_code(markdown):
    """Replaces each `code-of` by what it shows."""
    return CODE_OF.sub(as_markdown, markdown)


def setup(app):
    app.add_directive("code-of", CodeOf)
    app.connect("doctree-read", link_to_files, priority=400)
    app.connect("html-collect-pages", add_source_pages, priority=400)
