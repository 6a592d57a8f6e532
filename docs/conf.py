"""Settings of the documentation, for `make docs`."""

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
autodoc_default_options = {"members": True, "undoc-members": False}
autodoc_mock_imports = []
nitpicky = False
myst_heading_anchors = 3
