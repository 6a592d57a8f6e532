"""Prepared corpora: encoded sentence pairs on disk, read in any order.

`manifest.json` says what was read, what was left out, and the checksum of each
file. The pairs are in shards of two NumPy files: `NAME.tokens.npy` has the ids
of all sentences one after another, `NAME.rows.npy` `(N + 1, 2)` has the places
in it where source and target of each pair begin. Beside them are the
vocabularies `source.model` and `target.model` and the text of the other splits.

NumPy maps these files into memory, so a pair costs no memory until it is read.
"""

import concurrent.futures
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer import hardware
from keras_transformer.data.batches import (
    EncodedPairs,
    Rows,
    shuffled,
    take_slices,
)
from keras_transformer.data.corpus import is_path
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.validation import shown

FORMAT = 2
MANIFEST = "manifest.json"
KINDS = ("tokens", "rows")
SIDES = ("source", "target")


class PreparedCorpus:
    """Holds the training pairs of a folder that `prepare` wrote.

    An epoch has every pair of a corpus as often as the weight of the corpus
    says. Where the weight is not a whole number, a part of the pairs comes once
    more, another part in each epoch.

    Example:

    >>> import numpy as np
    >>> pairs = PreparedCorpus("runs/demo/data")
    >>> found = pairs.read(np.array([1]), epoch=0)
    >>> "".join(pairs.source_tokenizer.pieces(found.source.values))
    '▁Room▁7▁is▁on▁the▁third▁floor.</s>'

    Args:
        folder: of the prepared corpus. Each file is compared with its checksum.

    Raises:
        ValueError: if it is no such folder, or a file is missing or damaged.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(folder).absolute()
        self.manifest = read_manifest(self.folder)
        self._check_files()
        self.source_tokenizer, self.target_tokenizer = (
            Tokenizer((self.folder / f"{side}.model").read_bytes())
            for side in SIDES
        )
        self._corpora = [
            _Corpus(self.folder, record) for record in self.manifest["corpora"]
        ]
        self._ends = np.cumsum([len(corpus) for corpus in self._corpora])

    def __len__(self):
        return int(self._ends[-1])

    @property
    def target_tokens(self) -> int:
        """The number of target tokens of an epoch, end tokens included."""
        return round(sum(corpus.target_tokens for corpus in self._corpora))

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest: another corpus has another digest."""
        return sha256((self.folder / MANIFEST).read_bytes())

    def read(
        self, rows: Sequence[int] | np.ndarray, epoch: int
    ) -> EncodedPairs:
        """Returns the pairs of an epoch with these numbers, in this order.

        Args:
            rows: integers `(N,)` from 0 to the number of pairs less 1; N may
                be 0.
            epoch: number of the epoch, from 0.

        Raises:
            ValueError: if `rows` are no such numbers, or if a file has changed.
        """
        numbers = self._checked(rows)
        if not len(numbers):
            return EncodedPairs(Rows.of([]), Rows.of([]))
        owners = np.searchsorted(self._ends, numbers, side="right")
        parts, places = [], []
        for i in np.unique(owners):
            mine = np.flatnonzero(owners == i)
            local = numbers[mine] - self._ends[i] + len(self._corpora[i])
            for found, order in self._corpora[i].read(local, epoch):
                parts.append(found)
                places.append(mine[order])
        joined = EncodedPairs(
            *(
                _joined([getattr(part, side) for part in parts])
                for side in SIDES
            )
        )
        return joined.take(np.argsort(np.concatenate(places)))

    def _checked(self, rows) -> np.ndarray:
        numbers = np.asarray(rows)
        if not numbers.size:  # NumPy makes floats of []
            numbers = numbers.astype(np.int64)
        if (
            numbers.ndim != 1
            or numbers.dtype.kind not in "iu"
            or not np.all((numbers >= 0) & (numbers < len(self)))
        ):
            raise ValueError(
                "`rows` must be a vector of numbers of pairs, integers from 0 "
                f"to {len(self) - 1}. Received: rows={rows}"
            )
        return numbers.astype(np.int64)

    def _check_files(self):
        """Compares all files with their checksums."""
        files = {
            f"{side}.model": self.manifest["vocabularies"][side]
            for side in SIDES
        }
        files |= self.manifest["texts"]
        for record in self.manifest["corpora"]:
            for shard in record["shards"]:
                for kind in KINDS:
                    name = f"{shard['name']}.{kind}.npy"
                    files[name] = shard["sha256"][kind]

        def check(name):
            path = self.folder / name
            try:
                found = file_sha256(path)
            except OSError as error:
                raise ValueError(
                    f"Cannot read {str(path)!r} of a prepared corpus: "
                    f"{error.strerror}. Prepare it again."
                ) from error
            if found != files[name]:
                raise ValueError(
                    f"{str(path)!r} is damaged: expected SHA-256 "
                    f"{files[name][:12]}…, received {found[:12]}…. Prepare the "
                    "corpus again."
                )

        # Hashing releases the interpreter: two threads take half the time.
        with concurrent.futures.ThreadPoolExecutor(hardware.cores()) as threads:
            list(threads.map(check, files))


class _Corpus:
    """Holds one corpus of a mixture."""

    def __init__(self, folder, record):
        shards = [shard for shard in record["shards"] if shard["pairs"]]
        self._shards = [_Shard(folder, shard) for shard in shards]
        self._ends = np.cumsum([shard["pairs"] for shard in shards])
        self._pairs = record["pairs"]
        self._weight = record["weight"]
        self.target_tokens = self._weight * sum(
            shard["target_tokens"] for shard in shards
        )

    def __len__(self):
        return round(self._weight * self._pairs)

    def read(self, rows, epoch):
        """Yields pairs of a shard and their places among `rows`."""
        rows = self._drawn(rows, epoch)
        owners = np.searchsorted(self._ends, rows, side="right")
        for i in np.unique(owners):
            mine = np.flatnonzero(owners == i)
            shard = self._shards[i]
            yield shard.read(rows[mine] - self._ends[i] + shard.pairs), mine

    def _drawn(self, rows, epoch):
        """Returns the pairs behind the rows of an epoch.

        The rows of each whole copy of the corpus are its pairs in their order.
        The last copy, which is not whole, has the first pairs of an order that
        differs in each epoch.
        """
        copies, rows = np.divmod(rows, self._pairs)
        partial = copies == len(self) // self._pairs
        chosen = shuffled(rows, self._pairs, (epoch, self._pairs))
        return np.where(partial, chosen, rows)


_NO_SHARD = "{!r} and {!r} are no shard. Prepare the corpus again."


class _Shard:
    """Reads pairs from the two files of a shard."""

    def __init__(self, folder, record):
        self.pairs = record["pairs"]
        self._sums = {
            folder / f"{record['name']}.{kind}.npy": record["sha256"][kind]
            for kind in KINDS
        }
        self._seen = {path: _identity(path) for path in self._sums}

    def read(self, rows):
        """Returns the pairs with these numbers, in this order.

        The files are mapped for that long: a process may not keep as many
        files open as there can be shards.

        Raises:
            ValueError: if a file is not the one whose checksum was right.
        """
        for path, digest in self._sums.items():
            if self._seen[path] != (found := _identity(path)):
                if found is None or file_sha256(path) != digest:
                    raise ValueError(
                        f"{str(path)!r} of a prepared corpus has changed while "
                        "the corpus was in use. Start again."
                    )
                self._seen[path] = found
        tokens, places = map(_mapped, self._sums)
        if tokens.ndim != 1 or places.shape != (self.pairs + 1, 2):
            raise ValueError(_NO_SHARD.format(*self._sums))
        starts, ends = places[rows], places[rows + 1]
        middle = starts[:, 1]
        bounds = starts[:, 0], middle, ends[:, 0], np.uint32(len(tokens))
        if any(np.any(x > y) for x, y in itertools.pairwise(bounds)):
            raise ValueError(_NO_SHARD.format(*self._sums))
        return EncodedPairs(
            take_slices(tokens, starts[:, 0], middle - starts[:, 0]),
            take_slices(tokens, middle, ends[:, 0] - middle),
        )


def _mapped(path):
    """Returns the array of a file, which is read when it is used."""
    try:
        return np.load(path, mmap_mode="r")
    except OSError:
        raise
    except Exception as error:  # NumPy lets the errors of Python's parser out
        raise ValueError(f"{str(path)!r} is no array of NumPy.") from error


def _identity(path):
    """Returns what tells a file from another of its name, `None` without it."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _joined(sides):
    return Rows(
        np.concatenate([side.values for side in sides]),
        np.concatenate([side.lengths for side in sides]),
    )


def read_manifest(folder: str | os.PathLike) -> dict[str, Any]:
    """Returns the manifest of a prepared corpus.

    Raises:
        ValueError: if the folder has none, or one of another version.
    """
    path = pathlib.Path(folder, MANIFEST)
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ValueError(
            f"Not a prepared corpus: {str(folder)!r} has no {MANIFEST}. Make "
            "one by `keras-transformer prepare CORPUS FOLDER`."
        ) from error
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is damaged: {error}.") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise ValueError(
            f"{str(path)!r} has format {shown(found)}, this version reads "
            f"format {FORMAT}. Prepare the corpus again; if the file is not of "
            "`keras-transformer prepare`, give it another name."
        )
    return manifest


def is_prepared(corpus: str) -> bool:
    """Returns whether the name of a corpus is a folder made by `prepare`."""
    is_folder = bool(corpus) and is_path(corpus)
    return is_folder and pathlib.Path(corpus, MANIFEST).is_file()


def file_sha256(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(data: bytes) -> str:
    """Returns the SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
