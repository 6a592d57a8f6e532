"""Writes messages as protobuf's JSON printer in C++ does.

Python's printer puts fields without a value last, and writes some characters
and whole floats in another way. The printer in C++ gives the entries of a map
in no certain order; here they are sorted.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format
from tensorflow_serving.apis import model_pb2

from keras_transformer.serve import served
from keras_transformer.serve.served import VersionStatus

_ESCAPES = {
    ord(character): f"\\u{ord(character):04x}" for character in "<>\x7f"
}


def write_status(statuses: Sequence[VersionStatus]) -> bytes:
    """Returns the answer to a request for a model's status.

    Args:
        statuses: states of the versions, in the order of the answer.
    """
    return _print(served.status_response(statuses)).encode()


def write_metadata(
    name: str, version: int, signatures: Mapping[str, Any]
) -> bytes:
    """Returns the answer to a request for a model's metadata.

    Args:
        name: name of the model.
        version: number of the version.
        signatures: `SignatureDef` messages by name.
    """
    model = model_pb2.ModelSpec(name=name)
    model.version.value = version
    defs = served.signature_map(signatures)
    # TensorFlow Serving prints two messages into a text of its own.
    return (
        f'{{\n"model_spec":{_print(model)},\n'
        f'"metadata": {{"signature_def": {_print(defs)}}}\n}}\n'
    ).encode()


def _print(message):
    """Returns the text of a message, with its last line break."""
    fields = json_format.MessageToDict(
        message,
        always_print_fields_with_no_presence=True,
        preserving_proto_field_name=True,
    )
    text = json.dumps(
        _in_order(fields, message.DESCRIPTOR), indent=1, ensure_ascii=False
    )
    # These characters are in strings only.
    return text.translate(_ESCAPES) + "\n"


def _in_order(fields, descriptor):
    """Returns the fields of a message sorted by their numbers."""
    if not isinstance(fields, dict):  # such as a wrapped number
        return fields
    known = descriptor.fields_by_name
    return {
        name: _field_in_order(fields[name], known[name].message_type)
        for name in sorted(fields, key=lambda name: known[name].number)
    }


def _field_in_order(value, descriptor):
    if isinstance(value, float) and value.is_integer():
        return int(value)  # C++ writes `1`
    if isinstance(value, list):
        return [_field_in_order(item, descriptor) for item in value]
    if descriptor is None:
        return value
    if descriptor.GetOptions().map_entry:
        inner = descriptor.fields_by_name["value"].message_type
        return {
            key: _field_in_order(value[key], inner) for key in sorted(value)
        }
    return _in_order(value, descriptor)
