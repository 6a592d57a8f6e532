"""Standard input and output of the command, as lines of bytes."""

import io
import select
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import cast


def chunks_of_lines(
    file: io.BufferedReader, size: int, keep_ends: bool = False
) -> Iterator[list[bytes]]:
    """Yields the lines of a file in lists of up to `size`.

    Lines that a pipe has delivered are yielded without waiting for more, so
    that a program that writes line by line gets its answers line by line. Line
    ends and a byte order mark at the start are removed, as by
    `data.text_files.read_lines`.

    Args:
        file: a buffered file of bytes, which need not be UTF-8.
        size: maximum number of lines of a list.
        keep_ends: whether line ends and a byte order mark are kept.
    """
    lines: list[bytes] = []
    unfinished: list[bytes] = []  # parts of a line, joined when it ends
    at_start = not keep_ends

    def line_of(data, end=b""):
        return data + end if keep_ends else data.removesuffix(b"\r")

    while data := file.read1(1 << 20):
        unfinished.append(data)
        if at_start:
            start = b"".join(unfinished)
            at_start = len(start) < len(BOM_UTF8) and BOM_UTF8.startswith(start)
            unfinished = [start.removeprefix(BOM_UTF8)]
        if b"\n" in unfinished[-1]:
            *ended, rest = b"".join(unfinished).split(b"\n")
            lines += [line_of(line, b"\n") for line in ended]
            unfinished = [rest]
        while len(lines) >= size or (lines and not _is_ready(file)):
            yield lines[:size]
            del lines[:size]
    if rest := b"".join(unfinished):
        lines.append(line_of(rest))
    if lines:
        yield lines


def _is_ready(file):
    """Returns whether the file can be read without waiting."""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except ValueError:  # not a file of the system, so reading does not wait
        return True
    except OSError:  # the system can wait for sockets only
        return False


def standard_input() -> io.BufferedReader:
    """Returns standard input as a file of bytes.

    Raises:
        ValueError: if standard input is closed.
    """
    if sys.stdin is None:
        raise ValueError(
            "Standard input must be open, with one sentence per line. "
            "Received: sys.stdin=None. Redirect it from a file or a pipe."
        )
    return cast(io.BufferedReader, sys.stdin.buffer)


def standard_output() -> io.BufferedWriter:
    """Returns standard output as a file of bytes.

    Raises:
        ValueError: if standard output is closed.
    """
    if sys.stdout is None:
        raise ValueError(
            "Standard output must be open for the translations. Received: "
            "sys.stdout=None. Redirect it to a file or a pipe."
        )
    return cast(io.BufferedWriter, sys.stdout.buffer)


def write_line(line: str) -> None:
    """Writes a line to standard output as UTF-8, whatever the locale."""
    standard_output().write(line.encode() + b"\n")


def show(text: str, end: str = "") -> None:
    """Shows text on standard error, in place of the text shown before."""
    print(f"\r{text}", end=end, file=sys.stderr, flush=True)


class Progress:
    """Shows on standard error how much of a stream is translated.

    It shows nothing where nobody would see it, or where the translations
    appear on the same terminal.

    Args:
        unit: noun for what is counted, such as "lines".
    """

    def __init__(self, unit: str):
        self.unit = unit
        self.before = 0
        self.is_shown = sys.stderr.isatty() and not standard_output().isatty()

    def __call__(self, done: int) -> None:
        """Shows that `done` of the current part are translated."""
        self._show(done)

    def begin_after(self, size: int) -> None:
        """Begins the next part, after one of `size`."""
        self.before += size

    def end(self) -> None:
        """Shows the total and ends the line."""
        self._show(0, end="\n")

    def _show(self, done, end=""):
        if self.is_shown:
            show(f"{self.before + done:,} {self.unit}", end)
