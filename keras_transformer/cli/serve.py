"""The command `serve`; TensorFlow is imported when it runs."""

from typing import Any

from keras_transformer.cli.options import option_of, options_of, settings_of
from keras_transformer.serve.settings import RaySettings, ServeSettings


def serve(given: dict[str, Any]) -> None:
    """Serves SavedModels until it is told to end."""
    from keras_transformer.serve.model_config import (
        config_of_path,
        read_config_file,
    )
    from keras_transformer.serve.server import serve

    settings = ServeSettings(**settings_of(ServeSettings, given))
    ray_settings = RaySettings(**settings_of(RaySettings, given))
    engine = given.get("engine", "local")
    if engine == "local":
        _check_options_of_ray(given)
    if ("path" in given) == ("config" in given):
        received = "both" if "path" in given else "neither"
        raise ValueError(
            "`serve` takes a model or a config file. Received: "
            f"{received}. Give either MODEL or --config FILE."
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

    if engine == "local":
        serve(configs, settings)
        return
    from keras_transformer.integrations.ray.cluster import running_ray

    with running_ray(ray_settings) as start_engine:
        serve(configs, settings, start_engine)


def _check_options_of_ray(given):
    for field in options_of(RaySettings):
        if field.name in given:
            option = option_of(field)
            raise ValueError(
                f"`{option}` needs `--engine ray`. "
                f"Received: {option} {given[field.name]}."
            )
