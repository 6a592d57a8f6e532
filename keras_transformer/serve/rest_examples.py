"""Reads requests of TensorFlow Serving's Classify and Regress APIs.

Exports of this package have no signature for them. A request is read only to
answer it with the error that TensorFlow Serving would give.
"""

from typing import Any

from keras_transformer.serve.errors import ServingError
from keras_transformer.serve.json_text import Members
from keras_transformer.serve.rest_json import (
    parse_object,
    refusing_deep_nesting,
    signature_name_of,
    wrong_format,
)
from keras_transformer.serve.signatures import DEFAULT
from keras_transformer.serve.tensors import (
    decode_base64,
    invalid,
    is_base64,
    json_type,
    lossy,
)

_MAX_FLOAT = 3.4028234663852886e38
_EXAMPLES = "'examples'"


@refusing_deep_nesting()
def read_examples(body: bytes) -> str:
    """Checks a request, and returns the name of its signature.

    Args:
        body: the JSON document. What follows it is ignored.

    Returns:
        The name, "" for the default signature.

    Raises:
        ServingError: `INVALID_ARGUMENT` with TensorFlow Serving's text.
    """
    document = parse_object(body)
    name = signature_name_of(document)
    if "context" in document:
        _check_example(document.find("context"))
    if "examples" not in document:
        # TensorFlow Serving says `classify` to both.
        raise wrong_format(
            document,
            f"When method is classify, key {_EXAMPLES} is expected and was "
            "not found",
        )
    examples = document.find("examples")
    if not isinstance(examples, list):
        raise wrong_format(
            document, f"Expecting {_EXAMPLES} value to be an list/array"
        )
    if not examples:
        raise wrong_format(document, f"{_EXAMPLES} value is an empty array")
    for example in examples:
        _check_example(example)
    return name


def refuse(method: str, signature_name: str, signatures: Any) -> ServingError:
    """Returns the error of a request to classify or to regress.

    TensorFlow Serving does not look at the name of a signature's method,
    unless it is told to, but at its inputs and outputs.

    Args:
        method: "classify" or "regress".
        signature_name: name of the signature, "" for the default one.
        signatures: `SignatureDef` messages by name.
    """
    name = signature_name or DEFAULT
    if name not in signatures:
        return invalid(f"No signature was found with the name: {name}")
    signature = signatures[name]
    outputs = len(signature.outputs)
    if len(signature.inputs) != 1:
        return invalid("Expected one input Tensor.")
    if method == "regress" and outputs != 1:
        return invalid("Expected one output Tensor.")
    if method == "classify" and outputs not in (1, 2):
        return invalid(f"Expected one or two output Tensors, found {outputs}")
    kind = "classification" if method == "classify" else "regression"
    return invalid(
        f"Expected {kind} signature method_name to be "
        f"tensorflow/serving/{method}. Was: {signature.method_name}"
    )


def _check_example(example):
    if not isinstance(example, Members):
        raise invalid(
            "Example must be JSON object but got JSON " + json_type(example)
        )
    for name, content in example:
        kind = None
        for value in content if isinstance(content, list) else [content]:
            kind = _check_feature(name, value, kind)


def _check_feature(name, value, kind):
    """Returns the kind of a feature's list, which all its values have."""
    if value is None or isinstance(value, list):
        raise _unexpected(name, value)
    if isinstance(value, Members) and not is_base64(value):
        raise _unexpected(name, value)
    if isinstance(value, str | Members):
        found = "bytes"
    else:
        found = "float" if isinstance(value, float) else "int64"
    if kind not in (None, found):
        raise invalid(
            f"Unexpected element type in feature: {name} expecting type: {kind}"
        )
    if isinstance(value, Members):
        decode_base64(value)
    if found == "float" and _MAX_FLOAT < abs(value) < float("inf"):
        raise lossy(value, "float")
    if found == "int64" and value >= 2**63:
        raise invalid(
            f"Feature: {name} has uint64 element. Only int64 is supported."
        )
    return found


def _unexpected(name, value):
    return invalid(
        f"Feature: {name} has element with unexpected JSON type: "
        f"{json_type(value)}"
    )
