"""Errors that a client is told, with the codes of gRPC."""

import json
from typing import Any

# The answers of TensorFlow Serving's HTTP server (`http_server.cc`).
HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNKNOWN": 500,
    "DATA_LOSS": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
MOST_QUOTED = 200  # characters of a request that an error repeats


class ServingError(Exception):
    """An error that a client is told.

    Args:
        code: name of a gRPC status code, a key of `HTTP_STATUS`.
        message: text for the client.
        http_status: status of the HTTP answer. Defaults to the code's.
        retry_after: seconds after which the client may try again. Defaults to
            `None`.
    """

    def __init__(
        self,
        code: str,
        message: str,
        http_status: int | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.code = code
        self.http_status = http_status or HTTP_STATUS[code]
        self.retry_after = retry_after


class ProcessEndedError(Exception):
    """A process or replica has ended before it answered."""


class VersionEndedError(ServingError):
    """A version has ended, before it answered, since it cannot be started
    again and another one has taken over."""

    def __init__(self) -> None:
        text = "The version that was to answer has ended. Try again."
        super().__init__("UNAVAILABLE", text, retry_after=1)


def quoted(value: Any) -> str:
    """Returns a part of a request as JSON, cut at 200 characters.

    A request may be large, and the whole of it would be a large error.

    Args:
        value: a value of JSON, such as a name in the request.
    """
    text = ""
    for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += part
        if len(text) > MOST_QUOTED:
            return text[:MOST_QUOTED] + "…"
    return text


def invalid(message: str) -> ServingError:
    """Returns an error that is the client's fault."""
    return ServingError("INVALID_ARGUMENT", message)


def too_large(what: str, size: int, limit: int) -> ServingError:
    """Returns the error of a request that is larger than it may be.

    Args:
        what: that there is too much of, such as "rows".
        size: how much there is.
        limit: how much there may be.
    """
    return invalid(
        f"A request may have {limit:,} {what}. Received: {size:,}. Send them "
        "in several requests."
    )


def not_served(name: str, version: int | None = None) -> ServingError:
    """Returns the error of a request for an unknown model or version.

    Args:
        name: name of the model that was asked for.
        version: number that was asked for. Defaults to `None`, any.
    """
    what = f"Model {quoted(name)}"
    if version is not None:
        what = f"Version {version} of model {quoted(name)}"
    return ServingError("NOT_FOUND", f"{what} is not served.")


def no_label(label: str) -> ServingError:
    """Returns the error of a request for a label that no version has."""
    return invalid(f"No version has the label {quoted(label)}.")
