"""Errors that a client is told, with the codes of gRPC."""

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


class ServingError(Exception):
    """An error that a client is told.

    Args:
        code: name of a gRPC status code, a key of `HTTP_STATUS`.
        message: text for the client.
        http_status: status of the HTTP answer, if it is not the code's.
        retry_after: seconds after which the client may try again, or `None`.
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


def too_large(what: str, size: int, limit: int) -> ServingError:
    """Returns the error of a request that is larger than it may be.

    Args:
        what: that there is too much of, such as "rows".
        size: how much there is.
        limit: how much there may be.
    """
    return ServingError(
        "INVALID_ARGUMENT",
        f"A request may have {limit:,} {what}. Received: {size:,}. Send them "
        "in several requests.",
    )


def no_servable(name: str, version: int | None = None) -> ServingError:
    """Returns the error of a request for a model that is not served.

    Args:
        name: name of the model that was asked for.
        version: number that was asked for. Defaults to `None`, the newest.
    """
    wanted = f"Latest({name})"
    if version is not None:
        wanted = f"Specific({name}, {version})"
    return ServingError(
        "NOT_FOUND", f"Servable not found for request: {wanted}"
    )


def no_label(label: str) -> ServingError:
    """Returns the error of a request for a label that no version has."""
    return ServingError(
        "INVALID_ARGUMENT", f"Unrecognized servable version label: {label}"
    )


def no_status(name: str, version: int | None = None) -> ServingError:
    """Returns the error of a status request for an unknown model or version.

    Args:
        name: name of the model that was asked for.
        version: number that was asked for. Defaults to `None`, all versions.
    """
    wanted = "any versions" if version is None else f"version {version}"
    return ServingError("NOT_FOUND", f"Could not find {wanted} of model {name}")
