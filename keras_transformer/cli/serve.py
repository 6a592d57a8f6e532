"""The command `serve`; TensorFlow is imported when it runs."""

import contextlib
from typing import Any

from keras_transformer.cli.command_line import integrated, load
from keras_transformer.cli.options import option_of, options_of, settings_of
from keras_transformer.serve.settings import ServeSettings

LOCAL = "local"  # the engine that needs no integration


def serve(given: dict[str, Any]) -> None:
    """Serves SavedModels until it is told to end."""
    from keras_transformer.serve.engine import LocalEngine
    from keras_transformer.serve.server import serve

    settings = ServeSettings(**settings_of(ServeSettings, given))
    engine = given.get("engine", LOCAL)
    _check_options_of_engines(given, engine)
    configs = _configs(given)
    running: Any = contextlib.nullcontext(LocalEngine.start)
    if engine != LOCAL:
        reference, run = integrated("ENGINES")[engine]
        arguments = []
        if reference is not None:
            engine_settings = load(reference)
            fields = settings_of(engine_settings, given)
            arguments.append(engine_settings(**fields))
        running = load(run)(*arguments)
    with running as start_engine:
        serve(configs, settings, start_engine)


def _configs(given):
    """Returns a function that returns the models to serve."""
    from keras_transformer.serve.model_config import (
        config_of_path,
        read_config_file,
    )

    if ("path" in given) == ("config" in given):
        received = "both" if "path" in given else "neither"
        raise ValueError(
            "`serve` takes a model or a config file. Received: "
            f"{received}. Give either MODEL or --config FILE."
        )
    if "config" in given:
        read_config_file(given["config"])  # errors are shown at once
        return lambda: read_config_file(given["config"])
    config = config_of_path(given["path"])
    return lambda: [config]


def _check_options_of_engines(given, engine):
    """Raises a `ValueError` for an option of an engine that is not used."""
    for name, (engine_settings, _) in integrated("ENGINES").items():
        if name == engine or engine_settings is None:
            continue
        for field in options_of(load(engine_settings)):
            if field.name in given:
                option = option_of(field)
                raise ValueError(
                    f"`{option}` needs `--engine {name}`. "
                    f"Received: {option} {given[field.name]}."
                )
