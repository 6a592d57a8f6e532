"""Text files with one sentence per line, plain or compressed."""

import codecs
import dataclasses
import gzip
import io
import itertools
import lzma
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Pair = tuple[str, str]
UTF16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
SAMPLE = 10_000  # lines that show what a file is
SKIP_DAMAGED = (
    "`prepare --skip-damaged` leaves such pairs out, and counts them."
)
SUFFIXES = (".gz", ".xz", ".zst")  # of compressed files


class MissingSplitError(ValueError):
    """A corpus has no such split."""


class DamagedLineError(ValueError):
    """A line of a corpus cannot be read, though its file can.

    Args:
        message: names the line.
        undecoded: file whose line is not UTF-8. It is looked at for a remedy
            only if the error is shown: of a file, all lines may be damaged.
    """

    def __init__(
        self, message: str, undecoded: str | os.PathLike | None = None
    ):
        super().__init__(message)
        self.undecoded = undecoded

    def __str__(self):
        remedy = f"Mend it. {SKIP_DAMAGED}"
        if self.undecoded and _has_other_encoding(self.undecoded):
            remedy = (
                "Convert the file, for example by `iconv -f latin1 -t utf-8`."
            )
        return f"{super().__str__()} {remedy}"


def read_lines(path: str | os.PathLike) -> list[str]:
    r"""Reads the lines of a UTF-8 file, which may be compressed.

    Only `\n` ends a line: `str.splitlines` would also split at U+2028 and
    other characters, and misalign the two sides. A carriage return at the end
    of a line and a byte order mark at the start of the file are removed.

    Example:

    >>> read_lines("corpus/train.en")
    ['Good morning.', 'Room 7 is on the third floor.', 'The clock is slow.']

    Args:
        path: path of the file. If its name ends in `.gz`, `.xz` or `.zst`, it
            is decompressed.

    Returns:
        The lines, without their ends.

    Raises:
        ValueError: if the file does not exist, is damaged, or is not UTF-8.
    """
    return list(stream_lines(path))


def stream_lines(
    path: str | os.PathLike, errors: str = "strict"
) -> Iterator[str]:
    """Yields the lines of a file, see `read_lines`.

    With `errors="replace"`, U+FFFD replaces what is not UTF-8.
    """
    path = pathlib.Path(path)
    for number, line in enumerate(raw_lines(path), start=1):
        yield decode(line, path, number, errors)


def raw_lines(path: str | os.PathLike) -> Iterator[bytes]:
    """Yields the lines of a file without their ends, as bytes.

    Raises:
        ValueError: if the file does not exist, is damaged, or is UTF-16.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(
            "Expected a file of sentences, one per line. "
            f"Received: path={str(path)!r}, which is no file."
        )
    try:
        if path.suffix in SUFFIXES and not path.stat().st_size:
            raise EOFError("it is empty")
        with _opener(path)(path) as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    if line.startswith(UTF16):
                        raise ValueError(
                            f"{str(path)!r} is UTF-16, as some editors of "
                            "Windows write. Convert it by `iconv -f utf-16 -t "
                            "utf-8`."
                        )
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line:
                    yield line.removesuffix(b"\n").removesuffix(b"\r")
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"Cannot read {str(path)!r}: {error}. Is the file complete?"
        ) from error


def _opener(path):
    """Returns the function that opens a file."""
    openers: dict[str, Callable[[pathlib.Path], Any]]
    openers = {".gz": gzip.open, ".xz": lzma.open, ".zst": _open_zstandard}
    return openers.get(path.suffix, lambda path: open(path, "rb"))


def _open_zstandard(path):
    import pyarrow  # which, unlike others, notices that a file was cut

    return io.BufferedReader(pyarrow.input_stream(path, compression="zstd"))


def decode(
    line: bytes, path: str | os.PathLike, number: int, errors: str = "strict"
) -> str:
    """Returns a line of a file as text.

    Raises:
        DamagedLineError: if it is not UTF-8.
    """
    try:
        return line.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise DamagedLineError(
            f"Line {number} of {str(path)!r} is not UTF-8: {error.reason} at "
            f"byte {error.start + 1}.",
            path,
        ) from error


def _has_other_encoding(path):
    """Returns whether most lines beyond ASCII are not UTF-8."""
    counts = {True: 0, False: 0}
    for line in itertools.islice(raw_lines(path), SAMPLE):
        if not line.isascii():
            counts["\ufffd" in line.decode(errors="replace")] += 1
    return counts[True] > counts[False]


@dataclasses.dataclass(frozen=True)
class PairStream:
    """Yields sentences with their translations, anew each time.

    Args:
        identity: describes the data, so that other data has another identity.
        read: returns an iterator over the pairs, from the first one, with the
            error in the place of a damaged pair.
    """

    identity: str
    read: Callable[[], Iterator[Pair | DamagedLineError]]

    def __iter__(self) -> Iterator[Pair]:
        for pair in self.read():
            if isinstance(pair, DamagedLineError):
                raise pair
            yield pair

    def with_damaged(self) -> Iterator[Pair | None]:
        """Yields the pairs, and `None` in the place of each damaged one."""
        for pair in self.read():
            yield None if isinstance(pair, DamagedLineError) else pair


def parallel_pairs(
    folder: str | os.PathLike, name: str, source: str, target: str
) -> PairStream:
    """Returns the pairs of parallel files `NAME.LANGUAGE`.

    Raises:
        ValueError: if a file has no counterpart; while the pairs are read, if
            two files differ in their number of lines.
    """
    suffixes = f".{source}", f".{target}"
    sides = [find(folder, name, suffix) for suffix in suffixes]
    parts = [
        [_part(path, suffix) for path in side]
        for side, suffix in zip(sides, suffixes, strict=True)
    ]
    for missing, suffix in zip(
        (set(parts[1]) - set(parts[0]), set(parts[0]) - set(parts[1])),
        suffixes,
        strict=True,
    ):
        if missing:
            names = ", ".join(f"{part}{suffix}" for part in sorted(missing))
            raise ValueError(
                f"Sentences in {str(folder)!r} have no counterpart. Expected: "
                f"{names}, which may end in {', '.join(SUFFIXES)}. Name "
                "another split or language."
            )

    return pairs_of_files(list(zip(*sides, strict=True)))


def pairs_of_files(files: Sequence[Sequence[pathlib.Path]]) -> PairStream:
    """Returns the pairs of parallel files, each a source and a target.

    Raises:
        ValueError: if a file does not exist; while the pairs are read, if two
            files differ in their number of lines.
    """

    def read():
        for paths in files:
            yield from _zipped(paths)

    return PairStream(identity_of(itertools.chain(*files)), read)


def _zipped(
    paths: Sequence[pathlib.Path],
) -> Iterator[Pair | DamagedLineError]:
    """Yields the lines of two files in pairs."""
    streams = [raw_lines(path) for path in paths]
    for count, lines in enumerate(itertools.zip_longest(*streams)):
        if None in lines:
            counts = [count, count]
            longer = 1 if lines[0] is None else 0
            counts[longer] += 1 + sum(1 for _ in streams[longer])
            raise ValueError(
                "Parallel files must have the same number of lines. Received: "
                f"{counts[0]} in {str(paths[0])!r}, "
                f"{counts[1]} in {str(paths[1])!r}."
            )
        try:
            source, target = (
                decode(line, path, count + 1)
                for line, path in zip(lines, paths, strict=True)
            )
            yield source, target
        except DamagedLineError as error:
            yield error


def find(
    folder: str | os.PathLike, name: str, suffix: str
) -> list[pathlib.Path]:
    """Returns the file `NAME.SUFFIX`, or the files `NAME-PART.SUFFIX`.

    They may be compressed. The list is empty if there are none.

    Raises:
        ValueError: if there is the whole file and a part.
    """
    # A compressed copy beside a file is not read.
    by_part = {
        _part(path, suffix): path
        for end in reversed(("", *SUFFIXES))
        for middle in ("", "-*")
        for path in pathlib.Path(folder).glob(f"{name}{middle}{suffix}{end}")
        if path.is_file()
    }
    if name in by_part and len(by_part) > 1:
        raise ValueError(
            f"A split is one file or has parts. Received: {name}{suffix} and "
            f"{', '.join(sorted(by_part.keys() - {name}))} in {str(folder)!r}. "
            "Give the file the name of a part, too."
        )
    return [by_part[part] for part in sorted(by_part)]


def _part(path, suffix):
    name = path.name
    for end in SUFFIXES:
        name = name.removesuffix(f"{suffix}{end}")
    return name.removesuffix(suffix)


def check_name_parts(*parts: str):
    """Raises a `ValueError` if a part of a file name could leave the folder."""
    for part in parts:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", part):
            raise ValueError(
                "Splits and languages are made of letters, digits and `_.-`. "
                f"Received: {part!r}. Rename the files, or the columns."
            )


def identity_of(paths: Iterable[pathlib.Path]) -> str:
    """Returns names, sizes and times of change of files.

    Raises:
        ValueError: if a file does not exist.
    """
    paths = list(paths)
    for path in paths:
        if not path.is_file():
            raise ValueError(
                "Expected a file. "
                f"Received: {str(path)!r}, which does not exist."
            )
    found = ((path.resolve(), path.stat()) for path in paths)
    return "; ".join(f"{path} {s.st_size} {s.st_mtime_ns}" for path, s in found)
