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


def no_servable(name: str, version: int | None) -> ServingError:
    """Returns the error for a model or version that is not served."""
    wanted = (
        f"Latest({name})" if version is None else f"Specific({name}, {version})"
    )
    return ServingError(
        "NOT_FOUND", f"Servable not found for request: {wanted}"
    )


def no_label(label: str) -> ServingError:
    """Returns the error for a label that no version has."""
    return ServingError(
        "INVALID_ARGUMENT", f"Unrecognized servable version label: {label}"
    )


def no_status(name: str, version: int | None) -> ServingError:
    """Returns the error for the status of an unknown model or version."""
    message = (
        f"Could not find any versions of model {name}"
        if version is None
        else f"Could not find version {version} of model {name}"
    )
    return ServingError("NOT_FOUND", message)
