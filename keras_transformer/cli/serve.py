"""The command `serve`; TensorFlow is imported when it runs."""

from typing import Any

from keras_transformer.cli.arguments import options_of
from keras_transformer.serve.settings import ServeSettings


def serve(given: dict[str, Any]) -> None:
    """Serves SavedModels until it is told to end."""
    from keras_transformer.serve.model_config import (
        config_of_path,
        read_config_file,
    )
    from keras_transformer.serve.server import serve

    if ("path" in given) == ("config" in given):
        raise ValueError(
            "`serve` takes a model or a config file. Give either MODEL or "
            "--config FILE."
        )
    if "config" in given:
        path = given["config"]
        read_config_file(path)  # errors are shown at once

        def configs():
            return read_config_file(path)
    else:
        config = config_of_path(given["path"])

        def configs():
            return [config]

    names = {field.name for field in options_of(ServeSettings)}
    settings = ServeSettings(
        **{name: value for name, value in given.items() if name in names}
    )
    serve(configs, settings)
