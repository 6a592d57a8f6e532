"""Settings of the documentation, for `make docs`."""

import inspect
import json
import os
import pathlib
import re
import sys

from docutils import nodes
from sphinx import addnodes

sys.path.insert(0, str(pathlib.Path(__file__).parent / "_extensions"))
from source_code import with_code

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

project = "keras_transformer"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxarg.ext",
    "formulas",
    "source_code",
]
html_theme = "furo"
html_title = "keras_transformer"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_show_copyright = False
# Options such as --resume keep their two hyphens.
smartquotes_action = "qe"
# Names and formulas in docstrings stand between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
# Keras' own options (`name`, `dtype`, …) come as keyword arguments.
autodoc_default_options = {
    "members": True,
    "exclude-members": "from_config, get_config, model_class",
}
autodoc_inherit_docstrings = False
autodoc_typehints = "none"  # types stand in the descriptions of arguments
napoleon_custom_sections = [("Call arguments", "params_style")]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"  # no script is loaded to typeset formulas
# The guides are programs, in jupytext's percent format.
exclude_patterns = ["conf.py", "_extensions", "figures"]
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_output_stderr = "remove"
nb_merge_streams = True
HIDDEN = {"remove-cell", "remove-output"}  # tags of cells without outputs


def signature_of_class(app, what, name, obj, options, signature, returns):
    """Shows the names and defaults of `inspect.signature` of a class.

    autodoc would take the signature of `__new__` of Keras' layers instead:
    `(*args, **kwargs)`.
    """
    if what == "class":
        plain = [
            x.replace(annotation=x.empty)
            for x in inspect.signature(obj).parameters.values()
        ]
        signature = str(inspect.Signature(plain))
    return signature, returns


def add_summaries(app, doctree):
    """Adds a table of names and first sentences to each section of the API.

    A formula at the end of an entry moves up, below its first sentence, and
    replaces the paragraph that spells it out.
    """
    if app.env.docname != "api":
        return
    for section in list(doctree.findall(nodes.section)):
        entries = [x for x in section.children if isinstance(x, addnodes.desc)]
        body = nodes.tbody()
        for signature, content in entries:
            formulas = [x for x in content if isinstance(x, nodes.math_block)]
            for formula in formulas:
                content.remove(formula)
                content.insert(1, formula)
                for text in list(content.findall(nodes.paragraph)):
                    if re.match(r"\w+\(.*?\) += ", text.astext()):
                        text.parent.remove(text)
            name = nodes.literal("", signature["fullname"])
            link = nodes.reference("", "", name, refid=signature["ids"][0])
            cells = [nodes.paragraph("", "", link), content[0].deepcopy()]
            body += nodes.row("", *[nodes.entry("", cell) for cell in cells])
        if entries:
            group = nodes.tgroup("", cols=2)
            group += [nodes.colspec(colwidth=width) for width in (1, 2)]
            group += body
            table = nodes.table("", group, classes=["summary"])
            section.insert(section.index(entries[0]) - 1, table)


def add_download_link(app, doctree):
    """Adds a link to the notebook of a guide below its title."""
    name = pathlib.PurePath(app.env.docname)
    if name.parent.name != "guides":
        return
    link = nodes.reference("", "as a notebook", refuri=f"{name.name}.ipynb")
    link["classes"].append("download")
    paragraph = nodes.paragraph()
    paragraph += [
        nodes.Text("This page is a program. Download it "),
        link,
        nodes.Text("."),
    ]
    title = next(iter(doctree.findall(nodes.title)))
    title.parent.insert(title.parent.index(title) + 1, paragraph)


def shown_outputs(cell):
    """Returns what the page of a guide shows of a cell's outputs.

    myst-nb has merged all that a cell printed into the first output, and has
    left the others as they were.
    """
    if HIDDEN & set(cell["metadata"].get("tags", [])):
        return []
    outputs = [x for x in cell["outputs"] if x.get("name") != "stderr"]
    printed = [i for i, x in enumerate(outputs) if x.get("name") == "stdout"]
    return [x for i, x in enumerate(outputs) if i not in printed[1:]]


def write_notebooks(app, exception):
    """Copies the executed notebooks of the guides next to their pages."""
    if exception or app.builder.format != "html":
        return
    executed = pathlib.Path(app.outdir).parent / "jupyter_execute/guides"
    for path in sorted(executed.glob("*.ipynb")):
        text = path.read_text("utf-8")
        text = re.sub(r"\]\((\w+)\.py\)", r"](\1.ipynb)", text)
        text = re.sub(r"\]\(\.\./(\w+)\.md\b", r"](../\1.html", text)
        text = text.replace("](../figures/", "](../_images/")
        files = r"\]\(\.\./\.\./(keras_transformer/[\w/]+)\.py\)"
        text = re.sub(files, r"](../_modules/\1.html)", text)
        notebook = json.loads(text)
        notebook["metadata"]["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        for cell in notebook["cells"]:
            if "outputs" in cell:
                cell["outputs"] = shown_outputs(cell)
            elif cell["cell_type"] == "markdown":
                source = "".join(cell["source"])
                cell["source"] = with_code(source)
        path = pathlib.Path(app.outdir, "guides", path.name)
        path.write_text(json.dumps(notebook, indent=1), "utf-8")


def setup(app):
    app.connect("autodoc-process-signature", signature_of_class)
    app.connect("doctree-read", add_download_link)
    app.connect("doctree-read", add_summaries)
    app.connect("build-finished", write_notebooks)
