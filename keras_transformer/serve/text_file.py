"""The text files that a server is given: its config and its token."""

import os
import pathlib


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
