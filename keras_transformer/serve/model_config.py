"""Which models and versions are served: from a path or from a config file."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.export.files import (
    has_model,
    is_version,
    versions_in,
)
from keras_transformer.serve.access import read_text
from keras_transformer.validation import shown


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model to serve.

    Args:
        name: name in requests.
        base_path: folder of the model's versions.
        latest: number of newest versions to serve, unless `versions` are given.
            Defaults to 1; 0 serves all.
        versions: numbers of the versions to serve. Defaults to none: `latest`.
        labels: numbers of versions by label. Defaults to none.
    """

    name: str
    base_path: pathlib.Path
    latest: int = 1
    versions: Sequence[int] = ()
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def wanted(self, found: Sequence[int]) -> list[int]:
        """Returns which of the versions found to serve, newest first."""
        found = sorted(found, reverse=True)
        if self.versions:
            return [number for number in found if number in self.versions]
        return found[: self.latest] if self.latest else found

    def check_found(self, found: Sequence[int]) -> None:
        """Checks that the versions that it names are there, or else any.

        Raises:
            ValueError: if they are not.
        """
        named = {*self.versions, *self.labels.values()}
        if found and named <= set(found):
            return
        versions = ", ".join(map(str, sorted(named - set(found)))) or "version"
        raise ValueError(
            f"Model {self.name!r} has no {versions} in "
            f"{str(self.base_path)!r}. Found: "
            f"{', '.join(map(str, sorted(found))) or 'none'}. Correct the "
            "config, or export the run there."
        )


def config_of_path(path: str | os.PathLike) -> ModelConfig:
    """Returns the config of a model's folder, or of one version's.

    Args:
        path: `NAME`, whose newest version is served, or `NAME/VERSION`.

    Raises:
        ValueError: if there is no such export.
    """
    path = pathlib.Path(os.path.abspath(path))
    versions: tuple[int, ...] = ()
    if is_version(path.name) and has_model(path):
        path, versions = path.parent, (int(path.name),)
    if not versions_in(path):
        raise ValueError(
            f"No export in {str(path)!r}. Expected a folder that "
            "`keras-transformer export` wrote, such as saved_models/NAME with "
            "a folder for each version, or saved_models/NAME/1."
        )
    return ModelConfig(path.name, path, versions=versions)


def read_config_file(path: str | os.PathLike) -> list[ModelConfig]:
    """Reads a config file of TensorFlow Serving, a `ModelServerConfig` as text.

    Example of a file:

        model_config_list {
          config {
            name: "demo"
            base_path: "/models/demo"
            model_platform: "tensorflow"
            model_version_policy { specific { versions: 1 versions: 2 } }
            version_labels { key: "stable" value: 1 }
          }
        }

    Raises:
        ValueError: if the file is malformed, or a model has no name or an
            unknown platform, or the name of another.
    """
    text = read_text(path)
    message = model_server_config_pb2.ModelServerConfig()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise ValueError(
            f"{str(path)!r} is no config file of TensorFlow Serving: "
            f"{error!s:.200}"
        ) from error
    entries = message.model_config_list.config
    if not entries:
        raise ValueError(
            f"A config file must list models in `model_config_list`. Received: "
            f"{str(path)!r}, which lists none."
        )
    configs = [_config(entry, path) for entry in entries]
    names = [config.name for config in configs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"Models of one config file must have different names. Received: "
            f"{shown(twice)} more than once in {str(path)!r}."
        )
    return configs


def _config(entry, path):
    """Returns the `ModelConfig` of a message."""
    for name, is_valid, expected in (
        ("name", bool(entry.name), "must not be empty"),
        ("base_path", bool(entry.base_path), "must not be empty"),
        (
            "model_platform",
            entry.model_platform in ("", "tensorflow"),
            'must be "tensorflow"',
        ),
    ):
        if not is_valid:
            raise ValueError(
                f"`{name}` of a model {expected}. Received: "
                f"{name}={shown(getattr(entry, name))} in {str(path)!r}."
            )
    policy = entry.model_version_policy
    kind = policy.WhichOneof("policy_choice")
    latest = 0 if kind == "all" else max(policy.latest.num_versions, 1)
    return ModelConfig(
        entry.name,
        pathlib.Path(path).parent.absolute() / entry.base_path,
        latest,
        tuple(policy.specific.versions),
        dict(entry.version_labels),
    )
