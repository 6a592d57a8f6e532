"""The command `serve`; TensorFlow is imported when it runs."""

from typing import Any

from keras_transformer.cli.arguments import option_of, options_of
from keras_transformer.serve.settings import RaySettings, ServeSettings


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

    settings = ServeSettings(**_values(ServeSettings, given))
    ray_options = _values(RaySettings, given)
    if given.get("engine") == "ray":
        from keras_transformer.serve.ray_cluster import running_ray

        with running_ray(RaySettings(**ray_options)) as start_engine:
            serve(configs, settings, start_engine)
        return
    for field in options_of(RaySettings):
        if field.name in ray_options:
            raise ValueError(
                f"`{option_of(field)}` needs `--engine ray`. Received: "
                f"{option_of(field)} {ray_options[field.name]}."
            )
    serve(configs, settings)


def _values(cls, given):
    """Returns the options that are fields of a dataclass."""
    names = {field.name for field in options_of(cls)}
    return {name: value for name, value in given.items() if name in names}
