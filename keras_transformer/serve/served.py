"""Describes the models of a server to its protocols."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
)


@dataclasses.dataclass(frozen=True)
class VersionStatus:
    """State of one version of a model.

    Args:
        version: number of the version.
        state: "START", "LOADING", "AVAILABLE", "UNLOADING" or "END".
        error_code: name of a gRPC status code. Defaults to "OK".
        error_message: text of the error. Defaults to "".
    """

    version: int
    state: str
    error_code: str = "OK"
    error_message: str = ""


class ServedVersion(Protocol):
    """A version of a model that answers requests.

    Attributes:
        name: name of the model.
        number: number of the version.
        signatures: `SignatureDef` messages by name.
        metadata: contents of `keras_transformer.json`.
    """

    name: str
    number: int
    signatures: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @property
    def is_running(self) -> bool:
        """Whether requests are computed; `False` while what computes them
        cannot be started."""
        ...

    async def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, np.ndarray],
        timeout: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Computes a signature.

        Args:
            signature_name: name of a signature of the model.
            inputs: arrays by name; strings are arrays of `bytes` objects.
                Inputs that have a default may be missing.
            timeout: seconds until the answer is of no use, or `None`.

        Raises:
            ServingError: with a code for the client.
        """
        ...


class ServedModels(Protocol):
    """All models of a server."""

    def find(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> ServedVersion:
        """Returns a version that answers requests, by default the newest.

        Raises:
            ServingError: `NOT_FOUND` for an unknown model or version;
                `INVALID_ARGUMENT` for an unknown label.
        """
        ...

    def statuses(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> list[VersionStatus]:
        """Returns the states of a model's versions, newest first.

        Raises:
            ServingError: see `find`.
        """
        ...


def status_response(
    statuses: Iterable[VersionStatus],
) -> get_model_status_pb2.GetModelStatusResponse:
    """Returns the states of a model's versions, in their order."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for status in statuses:
        added = response.model_version_status.add(
            version=status.version, state=status.state
        )
        # The enumeration of codes is TensorFlow's; its descriptor is here.
        codes = added.status.DESCRIPTOR.fields_by_name["error_code"].enum_type
        added.status.error_code = codes.values_by_name[status.error_code].number
        added.status.error_message = status.error_message
    return response


def signature_map(
    signatures: Mapping[str, Any],
) -> get_model_metadata_pb2.SignatureDefMap:
    """Returns the `SignatureDef` messages of a model, by name."""
    found = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in signatures.items():
        found.signature_def[name].CopyFrom(signature)
    return found
