"""Answers requests of TensorFlow Serving's REST API, all below `/v1/`."""

import asyncio
import dataclasses
import json
import re
import urllib.parse
from collections.abc import Iterator

from google.protobuf import json_format

from keras_transformer.serve.errors import ServingError, invalid, quoted
from keras_transformer.serve.model_registry import (
    ModelRegistry,
    status_response,
)
from keras_transformer.serve.rest_json import (
    parse_object,
    read_predict_request,
    write_predictions,
)
from keras_transformer.serve.signatures import check_shapes, signature_map

# Larger bodies are read in a thread, and larger answers are written in pieces
# by a thread, so that other requests do not wait.
MOST_TO_READ_AT_ONCE = 50_000  # bytes
MOST_TO_WRITE_AT_ONCE = 10_000  # elements
_FLAGS = re.IGNORECASE | re.ASCII
_VERSION_OR_LABEL = r"(?:/versions/0*(\d{1,19})|/labels/([^/:]+))?"
_POST_PATH = re.compile(
    rf"/v1/models/([^/:]+){_VERSION_OR_LABEL}:(?-i:(classify|regress|predict))",
    _FLAGS,
)
_GET_PATH = re.compile(
    rf"/v1/models(?:/([^/:]+))?{_VERSION_OR_LABEL}(?:/(metadata))?", _FLAGS
)
JSON = [("Content-Type", "application/json")]


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer of HTTP.

    Args:
        status: the status code.
        headers: names and values; the length of the body is not among them.
        body: the body, or its pieces if it is large. They are written when
            they are asked for, which takes long: do it in a thread.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes | Iterator[bytes]


async def answer(
    method: str,
    path: str,
    body: bytes,
    models: ModelRegistry,
    timeout: float | None = None,
    origin: str = "",
) -> Answer:
    """Answers a request.

    Args:
        method: method of HTTP, such as "GET".
        path: path of the request, still escaped; a query in it is ignored.
        body: body of the request, decompressed.
        models: the models that are served.
        timeout: seconds until the answer is of no use. Defaults to `None`.
        origin: value of the header `Origin`. Defaults to "", no such header.

    Raises:
        ServingError: if there is no answer, with a code for the client.
    """
    path = re.split("[?#]", path, maxsplit=1)[0]
    if method == "OPTIONS":
        # A browser asks with it, before a page of another site may ask.
        if not re.search("https?://", origin):
            raise ServingError(
                "FAILED_PRECONDITION", "A preflight needs the header `Origin`."
            )
        return Answer(200, [], b"")
    if method == "POST" and (match := _POST_PATH.fullmatch(path)):
        *target, called = match.groups()
        if called != "predict":
            raise ServingError(
                "UNIMPLEMENTED",
                f"No model has a signature to {called} with. Use `predict`.",
            )
        content = await _predict(models, _target(*target), body, timeout)
    elif method == "GET" and (match := _GET_PATH.fullmatch(path)):
        *target, called = match.groups()
        content = _describe(models, _target(*target), called)
    else:
        request = quoted(f"{method} {path}")
        raise invalid(f"Malformed request. Received: {request}.")
    return Answer(200, JSON, content)


def error_answer(error: ServingError) -> Answer:
    """Returns the answer to a request that failed, an object with `error`."""
    headers = [*JSON]
    if error.retry_after is not None:
        headers.append(("Retry-After", str(error.retry_after)))
    return Answer(error.http_status, headers, error_body(error))


def error_body(error: ServingError) -> bytes:
    """Returns the JSON of an error."""
    text = json.dumps({"error": str(error)}, ensure_ascii=False)
    # Half of a surrogate pair, which a request may have escaped, is no UTF-8.
    return text.encode(errors="replace")


def _target(name, version, label):
    """Returns name, version and label of a model, as a path has them."""
    if name is None:
        raise invalid("The path has no name of a model.")
    number = None if version is None else int(version)
    if number is not None and number >= 2**63:
        raise invalid(f"A version has 63 bits. Received: version {version}.")
    label = None if label is None else urllib.parse.unquote(label)
    return urllib.parse.unquote(name), number, label


async def _predict(models, target, body, timeout) -> bytes | Iterator[bytes]:
    """Returns the body of the answer to a request for predictions."""
    is_small = len(body) < MOST_TO_READ_AT_ONCE
    document = await _call(is_small, parse_object, body)
    served = models.find(*target)
    request = await _call(
        is_small, read_predict_request, document, served.signatures
    )
    name = request.signature_name
    check_shapes(served.signatures[name], request.inputs)
    outputs = await models.predict(
        served, target, name, request.inputs, timeout
    )
    pieces = write_predictions(outputs, request.is_row_form)
    size = sum(x.size for x in outputs.values())
    return b"".join(pieces) if size < MOST_TO_WRITE_AT_ONCE else pieces


async def _call(is_fast, function, *arguments):
    """Calls a function, in a thread unless it is fast."""
    if is_fast:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _describe(models, target, called):
    """Returns the status or the metadata of a model."""
    if called != "metadata":  # which is not found in capitals
        return _dumps(_fields(status_response(models.statuses(*target))))
    served = models.find(*target)
    model = {
        "name": served.name,
        "version": str(served.number),
        "signature_name": "",
    }
    signatures = _fields(signature_map(served.signatures))
    metadata = {"signature_def": signatures}
    return _dumps({"model_spec": model, "metadata": metadata})


def _fields(message):
    """Returns the fields of a message, as protobuf has them in JSON."""
    return json_format.MessageToDict(
        message,
        always_print_fields_with_no_presence=True,
        preserving_proto_field_name=True,
    )


def _dumps(value):
    return json.dumps(value, indent=1, ensure_ascii=False).encode()
