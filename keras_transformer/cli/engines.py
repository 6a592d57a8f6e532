"""Engines of the command `serve`, besides the process of this machine.

An engine is a module with two things: a dataclass of settings, whose fields are
options of the command, and a function of such settings that returns a context
manager of the `start_engine` of `keras_transformer.serve.server.serve`. To add
one, add a line to `ENGINES`. Its module is imported whenever `serve` may be
called, so it imports what it needs when it runs.
"""

import importlib
from typing import Any

LOCAL = "local"
# Module, settings and function, by the name of the engine.
ENGINES = {
    "ray": ("keras_transformer.integrations.ray", "RaySettings", "running_ray"),
}


def engine_parts(name: str) -> tuple[type, Any]:
    """Returns the settings and the function of an engine."""
    module_name, settings, running = ENGINES[name]
    module = importlib.import_module(module_name)
    return getattr(module, settings), getattr(module, running)
