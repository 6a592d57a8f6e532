"""Corpora by name: section 5.1 of the paper.

The name of a corpus is `builtin`, `tfds:NAME` (a translation data set of
TensorFlow Datasets, such as `tfds:wmt14_translate/de-en`), or a folder. The
folder has for each split one of

- parallel files `SPLIT.LANGUAGE`, one sentence per line,
- a table `SPLIT.tsv` with a column for each language, named in its first line;
  numbers such as `1` and `2` name the columns of a table without names,
- a table `SPLIT.parquet`, with a column for each language or one column
  `translation` with a field for each.

Text may be compressed (`.gz`, `.xz`, `.zst`), and a split may be divided into
parts, `SPLIT-PART.LANGUAGE`, in the order of their names.

Two files of any names are the corpus `files:SOURCE:TARGET`, to train on.
"""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from keras_transformer.data import table_files, text_files
from keras_transformer.data.builtin.phrases import phrases
from keras_transformer.data.cleaning import is_blank
from keras_transformer.data.options import CorpusSettings
from keras_transformer.data.text_files import MissingSplitError, PairStream

SPLIT_NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


FILES = "files:"  # begins the name of a corpus of two files


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

    Raises:
        ValueError: if there are more of one than of the other.
    """

    source: list[str]
    target: list[str]

    def __post_init__(self):
        if len(self.source) != len(self.target):
            raise ValueError(
                "Every sentence needs its translation. Received: "
                f"{len(self.source)} sentences, {len(self.target)} "
                "translations."
            )

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
    """Loads all pairs of one split into memory.

    Example:

    >>> pairs = load_pairs("corpus", "train", source="en", target="de")
    >>> pairs.source[0], pairs.target[0]
    ('Good morning.', 'Guten Morgen.')

    Args:
        corpus: "builtin", the built-in corpus; "tfds:NAME", a data set of
            TensorFlow Datasets; or a folder with parallel files
            `SPLIT.LANGUAGE`, or a table `SPLIT.tsv` or `SPLIT.parquet`.
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
    pairs = list(open_corpus(corpus, split, source, target, data_dir))
    return SentencePairs([pair[0] for pair in pairs], [p[1] for p in pairs])


def open_corpus(
    corpus: str | Iterable[Mapping],
    split: str,
    source: str,
    target: str,
    data_dir: str | None = None,
) -> PairStream:
    """Returns the pairs of one split as a stream.

    Args:
        corpus: as for `load_pairs`, or rows of a table: a data set of Hugging
            Face, or another iterable of dictionaries that can be read again.
            Rows are one split, so `split` is not used.
        split, source, target, data_dir: as for `load_pairs`.

    Raises:
        ValueError: if the corpus, the split or a language does not exist.
            Other errors of `load_pairs` are raised while the pairs are read.
    """
    corpus = os.fspath(corpus) if isinstance(corpus, os.PathLike) else corpus
    if not isinstance(corpus, str):
        return table_files.row_pairs(corpus, source, target)
    if corpus.startswith(FILES):
        return _pair_of_files(corpus, split)
    if corpus == "builtin":
        return phrases(split, source, target)
    if not is_path(corpus):
        from keras_transformer.data.tfds_corpus import tfds_pairs

        name = corpus.removeprefix("tfds:")
        return tfds_pairs(name, split, source, target, data_dir)
    return _folder_pairs(corpus, split, source, target)


def is_path(corpus: str) -> bool:
    """Returns whether the name of a corpus is the path of a folder."""
    return corpus != "builtin" and not corpus.startswith(("tfds:", FILES))


def absolute(corpus: Any) -> Any:
    """Returns the name of a corpus; a path becomes absolute. Rows are returned
    as they are."""
    if not isinstance(corpus, str | os.PathLike):
        return corpus
    corpus = os.fspath(corpus)
    if corpus.startswith(FILES):
        return FILES + ":".join(map(absolute_path, _two_files(corpus)))
    return absolute_path(corpus) if is_path(corpus) else corpus


def absolute_path(path: str) -> str:
    """Returns an absolute path; a URL, such as of a bucket, stays as it is."""
    return path if "://" in path else os.path.abspath(path)


def lacks_validation(corpus: str, settings: CorpusSettings) -> bool:
    """Returns whether a corpus has no split to validate on, and none was named.

    Raises:
        ValueError: if the corpus or a language does not exist.
    """
    names = settings.source, settings.target, settings.data_dir
    if settings.validation_split != CorpusSettings.validation_split:
        return False
    try:
        open_corpus(corpus, settings.validation_split, *names)
    except MissingSplitError:
        return True
    return False


def _two_files(corpus):
    paths = corpus.removeprefix(FILES).split(":")
    if len(paths) != 2 or not all(paths):
        raise ValueError(
            "A corpus of two files is named `files:SOURCE:TARGET`, and their "
            f"paths have no colon. Received: {corpus!r}"
        )
    return paths


def _pair_of_files(corpus, split):
    paths = [pathlib.Path(path) for path in _two_files(corpus)]
    if split != "train":
        raise MissingSplitError(
            "Two files are a split to train on. Received: "
            f"split={split!r} of {corpus!r}. Put the files of several splits "
            "into a folder, as SPLIT.LANGUAGE."
        )
    return text_files.pairs_of_files([paths])


def _folder_pairs(folder, split, source, target):
    if not os.path.isdir(folder):
        raise ValueError(
            'A corpus is "builtin", "tfds:NAME" or a folder. '
            f"Received: corpus={folder!r}, which is no folder. Name another."
        )
    text_files.check_name_parts(split, source, target)
    expected = []
    for name, suffix in itertools.product(
        SPLIT_NAMES.get(split, (split,)), (f".{source}", ".tsv", ".parquet")
    ):
        expected.append(name + suffix)
        if paths := text_files.find(folder, name, suffix):
            if suffix == ".tsv":
                return table_files.tsv_pairs(paths, source, target)
            if suffix == ".parquet":
                return table_files.parquet_pairs(paths, source, target)
            return text_files.parallel_pairs(folder, name, source, target)
    raise MissingSplitError(
        f"No file for split {split!r}, language {source!r} in {folder!r}. "
        f"Expected one of: {', '.join(expected)}; text may end in "
        f"{', '.join(text_files.SUFFIXES)}. Name another split or language. Of "
        "several corpora, the first one needs the splits to evaluate on, and a "
        "prepared corpus has only those that it was prepared with."
    )


def remove_unusable(pairs: SentencePairs) -> tuple[SentencePairs, int]:
    """Returns the pairs without those with a blank side, and the number of
    dropped pairs."""
    kept = [
        pair
        for pair in zip(pairs.source, pairs.target, strict=True)
        if not any(map(is_blank, pair))
    ]
    source, target = ([p[i] for p in kept] for i in (0, 1))
    return SentencePairs(source, target), len(pairs) - len(kept)
