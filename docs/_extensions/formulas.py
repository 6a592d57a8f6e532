"""Writes formulas as MathML, which browsers typeset without a script."""

import html
import re

import latex2mathml.converter
from docutils import nodes
from sphinx.util.logging import getLogger
from sphinx.util.math import get_node_equation_number

# After names of functions: no space before parentheses, some before letters.
SPACING = {
    r"<mo>(\w\w+)</mo>(?=(<mrow>)?<mo[^>]*>&#x00028;)": r"<mi>\1</mi>",
    r"(<mi>(exp|log)</mi>)(?=<m(i|sub|sup)>)": r'\1<mspace width="0.2em"/>',
}


def write_formula(translator, node):
    """Writes a formula, in a line or as a block, in place of its node."""
    block = isinstance(node, nodes.math_block)
    # latex2mathml knows this environment by another name.
    latex = re.sub(r"(begin|end){aligned}", r"\1{split}", node.astext())
    try:
        formula = latex2mathml.converter.convert(
            latex, display="block" if block else "inline"
        )
    except Exception as error:
        getLogger(__name__).warning("%r in %s", error, latex, location=node)
        formula = html.escape(latex)
    for pattern, replacement in SPACING.items():
        formula = re.sub(pattern, replacement, formula)
    if block:
        number = ""
        if node["number"]:
            number = get_node_equation_number(translator, node)
            number = f'<span class="eqno">({number})</span>'
        start = translator.starttag(node, "div", CLASS="math")
        formula = f"{start}{number}{formula}</div>\n"
    translator.body.append(formula)
    raise nodes.SkipNode


def setup(app):
    renderers = (write_formula, None)
    app.add_html_math_renderer("mathml", renderers, renderers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
