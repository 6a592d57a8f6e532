"""Standard input and output of the command: lines of bytes, as they come."""

import codecs
import select
import sys


def chunks_of_lines(file, size):
    """Yields the lines of a file in lists of up to `size`.

    What a pipe has delivered is not kept waiting for more, so that a program
    that writes line by line is answered line by line. Line ends and a byte
    order mark at the start are removed, as by `data.corpus.read_lines`.

    Args:
        file: a buffered file of bytes, which need not be UTF-8.
        size: the most lines of a list.
    """
    lines, rest, at_start = [], b"", True
    while data := file.read1(1 << 20):
        if at_start and len(rest + data) >= len(codecs.BOM_UTF8):
            data = (rest + data).removeprefix(codecs.BOM_UTF8)
            rest, at_start = b"", False
        *ended, rest = (rest + data).split(b"\n")
        lines += [line.removesuffix(b"\r") for line in ended]
        while len(lines) >= size or (lines and not _is_ready(file)):
            yield lines[:size]
            del lines[:size]
    if rest:
        lines.append(rest.removesuffix(b"\r"))
    if lines:
        yield lines


def _is_ready(file):
    """Returns whether reading would not wait."""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except ValueError:  # no file of the system, so there is nothing to wait for
        return True
    except OSError:  # a system that can wait for sockets only
        return False


def standard_input():
    """Returns standard input as a file of bytes.

    Raises:
        ValueError: if it is closed.
    """
    if sys.stdin is None:
        raise ValueError(
            "Standard input must be open, with a line of text each. Received: "
            "a closed one. Redirect it from a file or a pipe."
        )
    return sys.stdin.buffer


def write_line(line):
    """Writes a line to standard output as UTF-8, whatever the locale."""
    sys.stdout.buffer.write(line.encode() + b"\n")


def show(text, end=""):
    """Shows text on standard error, in the place of what was shown before."""
    print(f"\r{text}", end=end, file=sys.stderr, flush=True)
