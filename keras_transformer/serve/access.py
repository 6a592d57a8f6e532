"""Tokens that clients send, if a server asks for one: RFC 6750."""

import hmac
import logging
import os
import pathlib
import re
import time

SECONDS_BETWEEN_LOOKS = 1.0  # at the file of tokens
logger = logging.getLogger("keras_transformer.serve")


class Tokens:
    """The tokens of a file, which is read again when it changes.

    A file that then holds no tokens changes nothing, which the log says once.

    Args:
        path: file with a token in each line; blank lines are ignored.

    Raises:
        ValueError: if the file holds no tokens.
    """

    def __init__(self, path: str | os.PathLike):
        self._path = path
        self._state = _state(path)
        self._tokens = read_tokens(path)
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS

    def allow(self, authorization: str | bytes) -> bool:
        """Returns whether the header `Authorization` holds one of the tokens.

        The name of the scheme may be in capitals or not: RFC 9110, section
        11.1.
        """
        self._read_again()
        if isinstance(authorization, str):
            authorization = authorization.encode()
        scheme, _, given = authorization.partition(b" ")
        same = [
            hmac.compare_digest(given.strip(b" "), token.encode())
            for token in self._tokens
        ]
        return scheme.lower() == b"bearer" and any(same)

    def _read_again(self):
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        state = _state(self._path)
        if state == self._state:
            return
        self._state = state
        try:
            self._tokens = read_tokens(self._path)
            logger.info("The tokens have changed: %s.", self._path)
        except (OSError, ValueError) as error:
            logger.error("The tokens stay as they were: %s", error)


def _state(path):
    """Returns what changes with a file; `None` if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_tokens(path: str | os.PathLike) -> list[str]:
    """Returns the tokens of a file, one in each line.

    Raises:
        ValueError: if there is none, or if one has others than visible ASCII
            characters, the only ones that headers can hold.
    """
    lines = [line.strip() for line in read_text(path).splitlines()]
    tokens = [line for line in lines if line]
    if not tokens or not all(re.fullmatch(r"[!-~]+", x) for x in tokens):
        raise ValueError(
            "A token file must hold a token in each line, in visible ASCII "
            f"characters. Received: {str(path)!r} with {len(tokens)} lines. "
            "Write another."
        )
    return tokens


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
