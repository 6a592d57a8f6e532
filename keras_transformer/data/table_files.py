"""Sentence pairs in the columns of a table: TSV, Parquet, rows in Python."""

import csv
import itertools
import pathlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence

from keras_transformer.data.text_files import (
    SAMPLE,
    DamagedLineError,
    PairStream,
    decode,
    identity_of,
    raw_lines,
    stream_lines,
)
from keras_transformer.validation import shown

ROWS = 4096  # of a Parquet file, read at a time
# A row of which each cell is quoted, with quotation marks inside doubled, or
# has none.
_CELL = r'(?:"(?:[^"]|"")*"|[^"\t]*)'
QUOTED_ROW = re.compile(rf"{_CELL}(?:\t{_CELL})*")


def tsv_pairs(
    paths: Sequence[pathlib.Path], source: str, target: str
) -> PairStream:
    """Returns the pairs of tables whose columns are separated by tabs.

    Cells may be quoted as pandas and spreadsheets do; in a table where they
    are not, quotation marks are part of the text.

    Args:
        paths: of the tables, each with the names of its columns in the first
            line.
        source, target: names of columns, or their numbers from 1 if the tables
            do not name them.

    Raises:
        ValueError: while the pairs are read, if a column is missing, or if a
            row has more or fewer cells than the first.
    """

    def read():
        for path in paths:
            yield from _read_tsv(path, (source, target))

    return PairStream(identity_of(paths), read)


def _read_tsv(path, columns):
    rows = _quoted_rows(path) if _is_quoted(path) else _plain_rows(path)
    has_names = not all(column.isdigit() for column in columns)
    if not has_names:
        places = [int(column) - 1 for column in columns]
        if min(places) < 0:
            raise ValueError(
                "The columns of a table are counted from 1. "
                f"Received: source={columns[0]}, target={columns[1]}"
            )
    expected = None
    for number, cells in rows:
        if isinstance(cells, DamagedLineError):
            if expected is None:  # without its first line, no table is read
                raise cells
            yield cells
            continue
        if expected is None:
            expected = len(cells)
            if has_names:
                places = [_place(cells, column, path) for column in columns]
                continue
            if expected <= max(places):
                raise ValueError(
                    f"{str(path)!r} must have at least {max(places) + 1} "
                    f"columns, separated by tabs. Received: {expected}"
                )
        if cells in ([], [""]):  # a blank pair, as in parallel files
            yield "", ""
        elif len(cells) != expected:
            yield DamagedLineError(
                f"Line {number} of {str(path)!r} must have {expected} cells, "
                "separated by tabs, as the first line has. Received: "
                f"{len(cells)}."
            )
        else:
            yield cells[places[0]], cells[places[1]]
    if expected is None and has_names:  # the file is empty
        _place([], columns[0], path)


Row = tuple[int, list[str] | DamagedLineError]  # with the number of its line


def _plain_rows(path: pathlib.Path) -> Iterator[Row]:
    for number, line in enumerate(raw_lines(path), start=1):
        try:
            yield number, decode(line, path, number).split("\t")
        except DamagedLineError as error:
            yield number, error


def _is_quoted(path):
    """Returns whether a program has quoted cells: all quotation marks among the
    first lines are as such a program writes them."""
    found, row = False, ""
    for line in itertools.islice(stream_lines(path, "replace"), SAMPLE):
        row += line
        if row.count('"') % 2:  # a cell goes on in the next line
            row += "\n"
            continue
        if '"' in row:
            if not QUOTED_ROW.fullmatch(row):
                return False
            found = True
        row = ""
    return found


def _quoted_rows(path: pathlib.Path) -> Iterator[Row]:
    read: list[bytes] = []  # the lines of a row

    def lines():
        for line in raw_lines(path):
            read.append(line)
            yield line.decode(errors="replace") + "\n"

    rows = csv.reader(lines(), delimiter="\t", strict=True)
    number = 1
    while True:
        try:
            cells = next(rows)
            for i, line in enumerate(read):
                decode(line, path, number + i)
            yield number, cells
        except StopIteration:
            return
        except csv.Error as error:
            damaged = DamagedLineError(
                f"Line {number} of {str(path)!r} has a quoted cell that is "
                f"damaged: {error}."
            )
            yield from ((number + i, damaged) for i in range(len(read)))
        except DamagedLineError as error:
            yield number, error
        number += len(read)
        read.clear()


def _place(names, column, path):
    if column not in names:
        raise ValueError(_no_column(str(path), column, names))
    return names.index(column)


def _no_column(table, column, names):
    return (
        f"{table!r} has no column {column!r}. Expected one of: "
        f"{shown(names)}. Name the columns by --source and --target."
    )


def parquet_pairs(
    paths: Sequence[pathlib.Path], source: str, target: str
) -> PairStream:
    """Returns the pairs of Parquet files.

    Args:
        paths: of the files.
        source, target: names of columns, or of fields of a column
            `translation`. A cell without a value is a blank sentence.

    Raises:
        ValueError: if a column is missing or holds no text, or a file cannot
            be read.
    """
    import pyarrow
    from pyarrow import parquet

    def read():
        for path in paths:
            try:
                with parquet.ParquetFile(path) as file:
                    columns = _columns(file.schema_arrow.names, path)
                    for batch in file.iter_batches(ROWS, columns=columns):
                        yield from _pairs(
                            batch.to_pylist(), str(path), source, target
                        )
            except (
                OSError,
                pyarrow.ArrowException,
                UnicodeDecodeError,
            ) as error:
                raise ValueError(
                    f"Cannot read {str(path)!r}: {error}. Is the file complete?"
                ) from error

    def _columns(names, path):
        if "translation" in names and not {source, target} <= set(names):
            return ["translation"]
        for column in (source, target):
            if column not in names:
                raise ValueError(_no_column(str(path), column, names))
        return [source, target]

    return PairStream(identity_of(paths), read)


def row_pairs(rows: Iterable[Mapping], source: str, target: str) -> PairStream:
    """Returns the pairs of rows in Python, such as a Hugging Face data set.

    Args:
        rows: dictionaries, with an entry for each language or an entry
            `translation` with a dictionary. They must be readable again. Those
            of Hugging Face know their identity; others have a new one each
            time, so that a preparation of them begins anew.
        source, target: names of the entries.

    Raises:
        ValueError: if there are no rows, or if they can be read only once;
            while they are read, if an entry is missing or is no text.
    """
    if not isinstance(rows, Iterable):
        raise ValueError(
            "A corpus is a name, the path of a folder, or rows: dictionaries "
            f"such as {{{source!r}: '...', {target!r}: '...'}}. Received: a "
            f"{type(rows).__name__}."
        )
    if iter(rows) is rows:
        raise ValueError(
            "A corpus is read more than once. Received: an iterator, which can "
            "be read only once. Give a list or a data set."
        )
    identity = getattr(rows, "_fingerprint", None) or uuid.uuid4()
    return PairStream(
        f"{type(rows).__name__} {identity}",
        lambda: _pairs(rows, type(rows).__name__, source, target),
    )


def _pairs(rows, table, source, target):
    for row in rows:
        cells = row
        if "translation" in row and not {source, target} <= row.keys():
            cells = row["translation"]
            if cells is None:
                cells = {source: None, target: None}
            elif not isinstance(cells, Mapping):  # a column of text
                cells = row
        yield tuple(_text(cells, name, table) for name in (source, target))


def _text(cells, column, table):
    if column not in cells:
        raise ValueError(_no_column(table, column, list(cells)))
    text = cells[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise ValueError(
            f"The column {column!r} of {table!r} must hold text. Received: "
            f"{type(text).__name__}. Convert the column to strings."
        )
    return text
