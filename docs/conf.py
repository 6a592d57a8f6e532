"""Settings of the documentation, for `make docs`."""

import inspect
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

project = "keras_transformer"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "keras_transformer"
# Names and formulas in docstrings stand between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
# Keras' own options (`name`, `dtype`, …) come as keyword arguments.
autodoc_default_options = {
    "members": True,
    "exclude-members": "from_config, get_config",
}
autodoc_inherit_docstrings = False
napoleon_custom_sections = [("Call arguments", "params_style")]
myst_heading_anchors = 3


def signature_of_init(app, what, name, obj, options, signature, returns):
    """Shows the arguments of `__init__`: Keras' layers have a `__new__`, too,
    which takes any."""
    if what == "class" and "__init__" in vars(obj):
        parameters = list(inspect.signature(obj.__init__).parameters.values())
        signature = str(inspect.Signature(parameters[1:]))
    return signature, returns


def setup(app):
    app.connect("autodoc-process-signature", signature_of_init)
