"""Sentence pairs as ids of word pieces, in NumPy arrays.

Shapes: N pairs.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.data.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Holds rows of ids of different lengths, one after another.

    Args:
        values: the ids of all rows, one-dimensional.
        lengths: int64 `(N,)`, the number of ids of each row.
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Rows":
        """Returns the rows of a list of lists."""
        lengths = np.array([len(row) for row in rows], np.int64)
        values = np.array([i for row in rows for i in row], np.int32)
        return cls(values, lengths)

    def __len__(self):
        return len(self.lengths)

    def take(self, rows: np.ndarray) -> "Rows":
        """Returns the rows with these numbers, in this order."""
        starts = np.cumsum(self.lengths) - self.lengths
        return take_slices(self.values, starts[rows], self.lengths[rows])

    def tolist(self) -> list[list[int]]:
        """Returns the rows as lists."""
        ends = np.cumsum(self.lengths)
        return [
            self.values[end - length : end].tolist()
            for length, end in zip(self.lengths, ends, strict=True)
        ]


def take_slices(
    values: np.ndarray, starts: np.ndarray, lengths: np.ndarray
) -> Rows:
    """Returns slices of an array as rows; slice i begins at `starts[i]`."""
    lengths = lengths.astype(np.int64)
    # Where a slice begins in `values`, less where it begins in the result.
    shifts = starts - (np.cumsum(lengths) - lengths)
    places = np.repeat(shifts, lengths)
    places += np.arange(len(places))
    return Rows(values[places], lengths)


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Holds the ids of N sentence pairs.

    Args:
        source, target: `Rows` of N sentences, each with its end token.
    """

    source: Rows
    target: Rows

    def __len__(self):
        return len(self.source)

    @property
    def target_tokens(self) -> int:
        """The number of target tokens, end tokens included."""
        return len(self.target.values)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of source and target, `(N, 2)`.

        The end token is included.
        """
        return np.stack([self.source.lengths, self.target.lengths], axis=1)

    def take(self, rows: np.ndarray) -> "EncodedPairs":
        """Returns the pairs with these numbers, in this order."""
        return EncodedPairs(self.source.take(rows), self.target.take(rows))

    def read(self, rows: np.ndarray, epoch: int) -> "EncodedPairs":
        """Returns pairs of an epoch: here, the same in every epoch.

        This makes pairs in memory usable where prepared ones are.
        """
        return self.take(rows)


def encode_pairs(
    source: Sequence[str],
    target: Sequence[str],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
) -> EncodedPairs:
    """Encodes sentences and their translations, end tokens included."""
    return EncodedPairs(
        _encode(source, source_tokenizer), _encode(target, target_tokenizer)
    )


def _encode(sentences, tokenizer):
    ids = tokenizer.encode(tf.constant(sentences, tf.string))
    return Rows(ids.values.numpy(), ids.row_lengths().numpy())
