"""Settings of a corpus: what is read, and how it is cleaned and encoded."""

import dataclasses
import re

from keras_transformer.validation import (
    check_at_least,
    check_field,
    check_types,
    option_field,
)

VOCAB_SIZE = 8000


@dataclasses.dataclass(frozen=True)
class CorpusSettings:
    """Describes the sentence pairs of a corpus and their vocabulary.

    Raises:
        ValueError: if a value is out of range.
    """

    source: str = option_field("en", "source language")
    target: str = option_field("de", "target language")
    train_split: str = option_field(
        "train", "split to train on", option="train", metavar="SPLIT"
    )
    validation_split: str = option_field(
        "validation",
        "split to score during training",
        option="validation",
        metavar="SPLIT",
    )
    validation_pairs: int | None = option_field(
        None,
        "pairs of the split to train on to hold out and score (default, "
        "where a corpus has no split to score: one in 20, at most 500)",
    )
    test_split: str | None = option_field(
        None,
        "split to score when training has ended; `prepare` copies it, and "
        "`train` needs the option again",
        option="test",
        metavar="SPLIT",
    )
    data_dir: str | None = option_field(
        None,
        "folder where TensorFlow Datasets keeps its data, for tfds:NAME",
        metavar="FOLDER",
    )
    vocab_size: int = option_field(
        VOCAB_SIZE,
        "size of the vocabulary in word pieces; the default becomes smaller "
        "where the text does not allow it; section 5.1 has 37,000",
    )
    shared_vocabulary: bool = option_field(
        True,
        "learn one vocabulary for each language; section 3.4 shares one",
        option="separate-vocabularies",
    )
    max_length: int = option_field(
        256,
        "leave out pairs with more word pieces on a side; the end token counts "
        "as one",
    )
    seed: int = option_field(1, "seed of all random numbers")

    def __post_init__(self):
        check_types(self)
        check_field(self, "seed", 0 <= self.seed < 2**32, "in [0, 2³²)")
        check_at_least(self, vocab_size=1, max_length=1, validation_pairs=1)


@dataclasses.dataclass(frozen=True)
class Preparation(CorpusSettings):
    """Describes how a corpus is prepared for training.

    The help of each field is what `keras-transformer prepare --help` prints.

    Example:

    >>> Preparation(vocab_size=37000).max_length
    256

    Raises:
        ValueError: if a value is out of range.
    """

    max_length_ratio: float | None = option_field(
        None,
        "leave out pairs with more than X times as many word pieces on one "
        "side as on the other; the end token counts as one",
    )
    drop_duplicates: bool = option_field(
        False, "leave out pairs that were there before"
    )
    drop_identical: bool = option_field(
        False, "leave out pairs that are the same on both sides"
    )
    skip_damaged: bool = option_field(
        False,
        "leave out pairs that are damaged: not UTF-8, or rows of a table with "
        "more or fewer cells than its first",
    )
    noise: float = option_field(
        0.0,
        "add noisy copies of this share of the pairs, each with one of: upper "
        "case, lower case, title case, no final punctuation, stray spaces, "
        "other quotation marks",
    )
    tags: tuple[str, ...] = option_field(
        (),
        "names, such as bt, whose tags >>NAME<< sources may begin with; each "
        "tag is a word piece of its own",
        metavar="NAME",
    )
    vocabulary_pairs: int = option_field(
        200_000, "pairs that the vocabulary is learned from, drawn by the seed"
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, max_length_ratio=1, vocabulary_pairs=1)
        check_field(self, "noise", 0 <= self.noise <= 1, "in [0, 1]")
        holds = all(re.fullmatch("[A-Za-z0-9_-]+", tag) for tag in self.tags)
        check_field(self, "tags", holds, "names of letters, digits and `_-`")
        unique = tuple(dict.fromkeys(self.tags))
        object.__setattr__(self, "tags", unique)
