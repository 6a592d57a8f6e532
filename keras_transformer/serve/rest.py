"""Answers requests of TensorFlow Serving's REST API, all below `/v1/`."""

import asyncio
import dataclasses
import re
import urllib.parse
from collections.abc import Sequence

from keras_transformer.serve.errors import ServingError
from keras_transformer.serve.json_writer import as_text
from keras_transformer.serve.proto_json import write_metadata, write_status
from keras_transformer.serve.rest_answers import write_error, write_predictions
from keras_transformer.serve.rest_examples import read_examples, refuse
from keras_transformer.serve.rest_json import read_predict_request
from keras_transformer.serve.served import ServedModels, ServedVersion
from keras_transformer.serve.signatures import DEFAULT, check_inputs
from keras_transformer.serve.tensors import invalid

# Larger bodies are read, and larger answers written, in a thread, so that other
# requests do not wait.
MOST_TO_READ_AT_ONCE = 50_000  # bytes
MOST_TO_WRITE_AT_ONCE = 10_000  # elements
_FLAGS = re.IGNORECASE | re.ASCII
_VERSION_OR_LABEL = r"(?:/versions/(\d+)|/labels/([^/:]+))?"
_POST_PATH = re.compile(
    rf"/v1/models/([^/:]+){_VERSION_OR_LABEL}:(classify|regress|predict)",
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
        body: the body.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class _WrongVersionError(ServingError):
    """A version is no number of 64 bits."""


@dataclasses.dataclass(frozen=True)
class _Target:
    """Describes the model and what is asked of it, as a path says it."""

    name: str
    version: int | None
    label: str | None
    method: str


async def answer(
    method: str,
    path: str,
    body: bytes,
    models: ServedModels,
    timeout: float | None = None,
    origin: str = "",
    extra_headers: Sequence[tuple[str, str]] = (),
) -> Answer:
    """Answers a request.

    Args:
        method: method of HTTP, such as "GET".
        path: path of the request, still escaped; a query in it is ignored.
        body: body of the request, decompressed.
        models: the models that are served.
        timeout: seconds until the answer is of no use. Defaults to `None`.
        origin: value of the header `Origin`. Defaults to "", no such header.
        extra_headers: headers to send besides, such as those of
            `cors_headers`. Defaults to none.

    Returns:
        The answer, also to requests with errors.
    """
    headers = [] if method == "OPTIONS" else [*JSON]
    try:
        status, content = (
            200,
            await _content(method, path, body, models, timeout, origin),
        )
    except ServingError as error:
        status, content = error.http_status, write_error(str(error))
        # TensorFlow Serving gives up on these before it writes a body.
        if method == "OPTIONS" or isinstance(error, _WrongVersionError):
            content = b""
        if error.retry_after is not None:
            headers.append(("Retry-After", str(error.retry_after)))
    return Answer(status, [*headers, *extra_headers], content)


def cors_headers(has_token: bool) -> list[tuple[str, str]]:
    """Returns the headers that let pages of any site ask and read answers.

    Args:
        has_token: whether requests have a token.
    """
    allowed = "Content-Type, Authorization" if has_token else "Content-Type"
    return [
        ("Access-Control-Allow-Origin", "*"),
        ("Access-Control-Allow-Methods", "POST, GET"),
        ("Access-Control-Allow-Headers", allowed),
    ]


async def _content(method, path, body, models, timeout, origin):
    if method == "OPTIONS":
        # A browser asks with it, before a page of another site may ask.
        if not re.search("https?://", origin):
            raise ServingError(
                "FAILED_PRECONDITION",
                "Origin header is missing in CORS preflight",
            )
        return b""
    path = re.split("[?#]", path, maxsplit=1)[0]
    target = _target(method, path)
    if target is None:
        raise invalid(f"Malformed request: {method} {path}")
    if method == "POST":
        if target.method == "predict":
            return await _predict(target, body, models, timeout)
        name = read_examples(body)
        served = models.find(target.name, target.version, target.label)
        raise refuse(target.method, name, served.signatures)
    return _describe(target, models)


def _target(method, path):
    """Returns the target of a path, or `None` if it has none."""
    paths = {"POST": _POST_PATH, "GET": _GET_PATH}
    match = paths[method].fullmatch(path) if method in paths else None
    if not match:
        return None
    name, version, label, method_name = match.groups()
    # Names in paths are found in any case; this one is compared exactly.
    if method == "POST" and method_name != method_name.lower():
        # The version is read first, and may be wrong.
        _number(version)
        return None
    return _Target(
        _unescape(name or ""),
        _number(version),
        None if label is None else _unescape(label),
        method_name or "",
    )


def _number(version):
    if version is None:
        return None
    # Python refuses to read very long numbers.
    number = int(version) if len(version.lstrip("0")) < 20 else 2**63
    if number >= 2**63:
        raise _WrongVersionError(
            "INVALID_ARGUMENT",
            f"Failed to convert version: {version} to numeric.",
        )
    return number


def _unescape(text):
    return as_text(urllib.parse.unquote_to_bytes(text))


async def _predict(target, body, models, timeout):
    found: list[ServedVersion] = []

    def inputs_of(signature_name):
        served = models.find(target.name, target.version, target.label)
        name = signature_name or DEFAULT
        found.append(served)
        if name not in served.signatures:
            raise invalid(
                f'Serving signature name: "{name}" not found in signature def'
            )
        return served.signatures[name].inputs

    if len(body) < MOST_TO_READ_AT_ONCE:
        call = read_predict_request(body, inputs_of)
    else:
        call = await asyncio.to_thread(read_predict_request, body, inputs_of)
    served = found[0]
    name = call.signature_name or DEFAULT
    check_inputs(served.signatures[name], call.inputs)
    outputs = await served.predict(name, call.inputs, timeout)
    if sum(x.size for x in outputs.values()) < MOST_TO_WRITE_AT_ONCE:
        return write_predictions(outputs, call.is_row_form)
    return await asyncio.to_thread(write_predictions, outputs, call.is_row_form)


def _describe(target, models):
    """Returns the status or the metadata of a model."""
    if not target.name:
        raise invalid("Missing model name in request.")
    if target.method == "metadata":
        served = models.find(target.name, target.version, target.label)
        return write_metadata(served.name, served.number, served.signatures)
    return write_status(
        models.statuses(target.name, target.version, target.label)
    )
