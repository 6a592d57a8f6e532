"""The token that clients send, if a server asks for one: RFC 6750."""

import hmac
import os
import pathlib
import re


def read_token(path: str | os.PathLike | None) -> str | None:
    """Returns the token of a file, or `None` without a file.

    Raises:
        ValueError: if the file is not one line of visible ASCII characters,
            the only ones that headers can hold.
    """
    if path is None:
        return None
    lines = read_text(path).strip().splitlines()
    if len(lines) != 1 or not re.fullmatch(r"[!-~]+", lines[0]):
        raise ValueError(
            "A token file must hold a token, in one line of visible ASCII "
            f"characters. Received: {str(path)!r} with {len(lines)} lines. "
            "Write another."
        )
    return lines[0]


def is_bearer(given: str | bytes, token: str) -> bool:
    """Returns whether an `Authorization` holds the token.

    The name of the scheme may be in capitals or not: RFC 9110, section 11.1.
    """
    given = given.encode() if isinstance(given, str) else given
    scheme, _, rest = given.partition(b" ")
    is_same = hmac.compare_digest(rest.strip(b" "), token.encode())
    return scheme.lower() == b"bearer" and is_same


def read_text(path: str | os.PathLike) -> str:
    """Reads a text file, with or without a byte order mark.

    Raises:
        ValueError: if it is not UTF-8.
    """
    try:
        return pathlib.Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is not UTF-8: {error.reason}. Convert the file, "
            "for example with `iconv -f utf-16 -t utf-8`."
        ) from error
