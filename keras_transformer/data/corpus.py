"""Loads sentence pairs: section 5.1 of the paper.

The name of a corpus is `builtin`, `tfds:NAME` (a translation data set of
TensorFlow Datasets, such as `tfds:wmt14_translate/de-en`), or a folder with
parallel files `SPLIT.LANGUAGE` or `SPLIT.LANGUAGE.gz`, one sentence per line.
"""

import contextlib
import dataclasses
import errno
import gzip
import io
import os
import pathlib
import re
import socket
import urllib.parse
import urllib.request
import zlib

SPLIT_NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


@dataclasses.dataclass(frozen=True)
class SentencePairs:
    """Holds sentences and their translations, two lists of equal length.

    Example:

    >>> pairs = SentencePairs(["Yes.", "No."], ["Ja.", "Nein."])
    >>> len(pairs), pairs.first(1)
    (2, SentencePairs(source=['Yes.'], target=['Ja.']))

    Args:
        source: the sentences.
        target: their translations, in the same order.
    """

    source: list[str]
    target: list[str]

    def __len__(self):
        return len(self.source)

    def first(self, count: int) -> "SentencePairs":
        """Returns the first `count` pairs."""
        return SentencePairs(self.source[:count], self.target[:count])


def load_pairs(
    corpus: str,
    split: str,
    source: str,
    target: str,
    data_dir: str | None = None,
) -> SentencePairs:
    """Loads all pairs of one split.

    Example:

    >>> pairs = load_pairs("corpus", "train", source="en", target="de")
    >>> pairs.source[0], pairs.target[0]
    ('Good morning.', 'Guten Morgen.')

    Args:
        corpus: "builtin", the built-in corpus; "tfds:NAME", a data set of
            TensorFlow Datasets; or a folder with parallel files
            `SPLIT.LANGUAGE` or `SPLIT.LANGUAGE.gz`, one sentence per line.
        split: name of a split in the corpus. "train", "validation" and "test"
            also find the usual names of files, such as "valid", "val" and
            "dev".
        source, target: languages as the corpus names them, such as "en".
        data_dir: folder of TensorFlow Datasets. Defaults to that of the
            library.

    Returns:
        The pairs, in the order of the corpus.

    Raises:
        ValueError: if the corpus, the split or a language does not exist, if
            the two sides differ in length, or if a file is not UTF-8.
        ConnectionError: if the data cannot be downloaded.
        OSError: if the disk has no space to prepare the data.
    """
    if corpus == "builtin":
        return _from_tfds(
            "keras_transformer_phrases", split, source, target, data_dir
        )
    if corpus.startswith("tfds:"):
        return _from_tfds(corpus[5:], split, source, target, data_dir)
    return _from_folder(corpus, split, source, target)


def remove_unusable(pairs: SentencePairs) -> tuple[SentencePairs, int]:
    """Returns the pairs without those with a blank side, and the number of
    dropped pairs."""
    kept = [
        pair
        for pair in zip(pairs.source, pairs.target, strict=True)
        if pair[0].strip() and pair[1].strip()
    ]
    source, target = ([p[i] for p in kept] for i in (0, 1))
    return SentencePairs(source, target), len(pairs) - len(kept)


# --- Files ---


def read_lines(path: str | os.PathLike) -> list[str]:
    r"""Reads the lines of a UTF-8 file, gzipped if its name ends in `.gz`.

    Only `\n` ends a line: `str.splitlines` would also split at U+2028 and
    other characters, and misalign the two sides. A carriage return at the end
    of a line and a byte order mark at the start of the file are removed.

    Example:

    >>> read_lines("corpus/train.en")
    ['Good morning.', 'Room 7 is on the third floor.', 'The clock is slow.']

    Args:
        path: path of the file.

    Returns:
        The lines, without their ends.

    Raises:
        ValueError: if the file does not exist, is damaged, or is not UTF-8.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(
            "Expected a file of sentences, one per line. "
            f"Received: path={str(path)!r}, which does not exist."
        )
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"Cannot read {str(path)!r}: {error}. Is the file complete?"
        ) from error
    if not data:
        return []
    lines = data.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n")
    return [_decode(line, path, n) for n, line in enumerate(lines, start=1)]


def _decode(line: bytes, path: pathlib.Path, number: int) -> str:
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Line {number} of {str(path)!r} is not UTF-8: {error.reason}. "
            "Convert the file, for example with `iconv -t utf-8`."
        ) from error


def _from_folder(folder, split, source, target):
    if not os.path.isdir(folder):
        raise ValueError(
            'A corpus is "builtin", "tfds:NAME" or a folder. '
            f"Received: corpus={folder!r}, which is no folder."
        )
    sides = [_side(folder, split, language) for language in (source, target)]
    lines = [read_lines(path) for path in sides]
    if len(lines[0]) != len(lines[1]):
        raise ValueError(
            "Parallel files must have the same number of lines. Received: "
            f"{len(lines[0])} in {str(sides[0])!r}, "
            f"{len(lines[1])} in {str(sides[1])!r}."
        )
    return SentencePairs(*lines)


def _side(folder, split, language):
    for part in (split, language):
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", part):
            raise ValueError(
                "Splits and languages are made of letters, digits and `_.-`. "
                f"Received: {part!r}"
            )
    names = [
        f"{name}.{language}{suffix}"
        for name in SPLIT_NAMES.get(split, (split,))
        for suffix in ("", ".gz")
    ]
    for name in names:
        path = pathlib.Path(folder, name)
        if path.is_file():
            return path
    raise ValueError(
        f"No file for split {split!r}, language {language!r} in {folder!r}. "
        f"Expected one of: {', '.join(names)}. Name another split or language."
    )


# --- TensorFlow Datasets ---


def _from_tfds(name, split, source, target, data_dir):
    import tensorflow_datasets as tfds

    # The import registers the builder under its name.
    from keras_transformer.data.builtin import dataset as builtin  # noqa: F401

    tfds.disable_progress_bar()
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except (ValueError, ImportError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"TensorFlow Datasets has no corpus {name!r}: {reason} "
            "For a folder leave out the `tfds:`."
        ) from error
    for language in (source, target):
        if language not in builder.info.features:
            raise ValueError(
                f"{name!r} has no language {language!r}. Expected one of: "
                f"{', '.join(sorted(builder.info.features))}."
            )
    if not builder.is_prepared():
        _require_network(name, builder)
        print(f"Preparing {name} …")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OSError(
                    error.errno,
                    f"The disk is full, {name!r} cannot be prepared. Free some "
                    "space, or choose a folder on another disk with --data-dir",
                    str(builder.data_dir),
                ) from error
            raise ConnectionError(_unreachable(name, str(error))) from error
        except AssertionError as error:  # files must be downloaded by hand
            raise ValueError(str(error)) from error
    if split not in builder.info.splits and not re.search(r"[\[+]", split):
        raise ValueError(
            f"{name!r} has no split {split!r}. Expected one of: "
            f"{', '.join(builder.info.splits)}, or a slice of one."
        )
    pairs = SentencePairs([], [])
    for batch in tfds.as_numpy(
        builder.as_dataset(split=split, batch_size=4096)
    ):
        pairs.source.extend(line.decode() for line in batch[source])
        pairs.target.extend(line.decode() for line in batch[target])
    return pairs


def _require_network(name, builder):
    """Raises a `ConnectionError` if a host of the data cannot be found.

    The library would retry for minutes.
    """
    if urllib.request.getproxies():
        return
    urls = builder.url_infos or ()  # none for the built-in corpus
    hosts = {urllib.parse.urlparse(url).hostname for url in urls}
    for host in hosts - {None}:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            raise ConnectionError(
                _unreachable(name, f"{host} cannot be found")
            ) from error


def _unreachable(name, reason):
    return (
        f"Cannot download {name!r}: {reason}. Prepare the data on a machine "
        "with a network (`tfds build`) and pass its folder as --data-dir, "
        "or use `--corpus FOLDER` or `--corpus builtin`."
    )
