"""The vocabularies of a corpus, learned from a sample of bounded size."""

import itertools
from collections.abc import Sequence

import numpy as np

from keras_transformer.data.byte_pairs import (
    TooManyPiecesError,
    learn_byte_pairs,
)
from keras_transformer.data.cleaning import RULES, clean_all
from keras_transformer.data.options import VOCAB_SIZE, Preparation
from keras_transformer.data.sentencepiece_file import tag_of, with_rule
from keras_transformer.data.shards import Block, hash_pairs
from keras_transformer.data.text_files import Pair
from keras_transformer.data.tokenizer import Tokenizer


def learn_vocabularies(
    pairs: Sequence[Pair], settings: Preparation
) -> tuple[Tokenizer, Tokenizer]:
    """Learns the vocabularies of source and target, the same one if shared.

    Raises:
        ValueError: if there is too little text.
    """
    if not pairs:
        raise ValueError(
            "Cannot learn the vocabulary: the corpus has no pair left. "
            f"Received: train_split={settings.train_split!r}. Look at the "
            "files of that split."
        )
    sides = [[pair[i] for pair in pairs] for i in (0, 1)]
    try:
        return _learned(sides, settings, settings.vocab_size)
    except TooManyPiecesError as error:
        if settings.vocab_size != VOCAB_SIZE:  # which is the default
            raise
        print(
            f"The text allows {error.most:,} word pieces instead of "
            f"{settings.vocab_size:,}."
        )
        return _learned(sides, settings, error.most)


def _learned(sides, settings, vocab_size):
    tags = list(map(tag_of, settings.tags))
    source, target = map(clean_all, sides, RULES)
    if settings.shared_vocabulary:
        text = itertools.chain(source, target)
        models = [learn_byte_pairs(text, vocab_size, tags)] * 2
    else:  # only sources have tags
        models = [
            learn_byte_pairs(source, vocab_size, tags),
            learn_byte_pairs(target, vocab_size),
        ]
    found = map(with_rule, models, RULES)
    return Tokenizer(next(found)), Tokenizer(next(found))


class ReservoirSample:
    """Draws pairs from a stream of blocks, but none of their noisy copies.

    Args:
        size: number of pairs.
        seed: seed of the choice.
        distinct: whether equal pairs are drawn once. Defaults to False.
    """

    def __init__(self, size: int, seed: int, distinct: bool = False):
        self.size, self.seed, self.distinct = size, seed, distinct
        self._drawn: list[tuple[int, tuple[int, int, int], Pair]] = []
        self._limit = 2**63

    def add(self, block: Block, rows: Sequence[int]):
        """Adds some pairs of a block to those that are drawn from."""
        keys = sampling_keys(block, self.seed, self.distinct)
        for row in rows:
            if row < block.originals and keys[row] < self._limit:
                place = *block.key, row
                drawn = int(keys[row]), place, block.pairs[row]
                self._drawn.append(drawn)
        if len(self._drawn) > 2 * self.size:
            self._shrink()

    def _shrink(self):
        self._drawn.sort()
        if self.distinct:
            self._drawn = [
                drawn
                for before, drawn in zip(
                    [(None,), *self._drawn], self._drawn, strict=False
                )
                if drawn[0] != before[0]
            ]
        if len(self._drawn) >= self.size:
            del self._drawn[self.size :]
            self._limit = self._drawn[-1][0]

    def merge(self, other: "ReservoirSample"):
        """Adds what another sample of the same size has drawn."""
        self._drawn += other._drawn
        if len(self._drawn) > 2 * self.size:
            self._shrink()

    def pairs(self) -> list[Pair]:
        """Returns the sample, in the order of the corpus."""
        self._shrink()
        self._drawn.sort(key=lambda drawn: drawn[1])
        return [pair for _, _, pair in self._drawn]


def vocabulary_sample(settings: Preparation) -> ReservoirSample:
    """Returns an empty sample, to learn the vocabularies of a corpus from."""
    return ReservoirSample(
        settings.vocabulary_pairs, settings.seed, settings.drop_duplicates
    )


def sampling_keys(block: Block, seed: int, distinct: bool) -> np.ndarray:
    """Returns a random number for each pair.

    It depends on the pair's place in the corpus alone, or with `distinct` on
    its text alone, so that equal pairs have the same number.

    The sample is made of the pairs with the smallest keys, so that it does
    not depend on the order in which blocks are read.
    """
    if distinct:
        mask = np.random.default_rng(seed).integers(2**63, dtype=np.uint64)
        return (hash_pairs(block, range(len(block.pairs))) ^ mask) >> 1
    rng = np.random.default_rng((seed, *block.key))
    return rng.integers(2**63, size=len(block.pairs))
