"""The built-in corpus: pairs that a grammar makes, in three splits."""

import hashlib
import itertools
from collections.abc import Iterator

from keras_transformer.data.builtin.grammar import (
    AlignedPair,
    Pair,
    aligned_pairs,
    sentence_pairs,
)
from keras_transformer.data.text_files import MissingSplitError, PairStream

SIZES = {"train": 100_000, "validation": 1_000, "test": 1_000}
SEED = 1706  # of arXiv:1706.03762


def split_of(english: str) -> str:
    """Returns the split of a sentence, so that no test source is in train."""
    bucket = hashlib.sha256(english.encode()).digest()[0] % 16
    return {0: "validation", 1: "test"}.get(bucket, "train")


def pairs_of_split(split: str, size: int) -> Iterator[Pair]:
    """Yields `size` distinct pairs of a split, always the same."""
    return _of_split(sentence_pairs(SEED), split, size)


def aligned_pairs_of_split(split: str, size: int) -> Iterator[AlignedPair]:
    """Yields the same pairs with links (English word, German word)."""
    return _of_split(aligned_pairs(SEED), split, size)


def _of_split(pairs, split, size):
    return itertools.islice((p for p in pairs if split_of(p[0]) == split), size)


def phrases(split: str, source: str, target: str) -> PairStream:
    """Returns the pairs of a split of the built-in corpus.

    Raises:
        ValueError: if it has no such split or language.
    """
    if {source, target} != {"en", "de"}:
        raise ValueError(
            "The built-in corpus has the languages en and de. Received: "
            f"source={source!r}, target={target!r}."
        )
    if split not in SIZES:
        raise MissingSplitError(
            f"The built-in corpus has the splits {', '.join(SIZES)}. Received: "
            f"{split!r}."
        )

    def read():
        for pair in pairs_of_split(split, SIZES[split]):
            yield pair if source == "en" else pair[::-1]

    return PairStream(f"built-in 1.0.0, {split}", read)
