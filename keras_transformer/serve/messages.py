"""Messages of TensorFlow Serving that REST and gRPC both answer with."""

from collections.abc import Iterable, Mapping
from typing import Any

from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
)

from keras_transformer.serve.served import VersionStatus


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
