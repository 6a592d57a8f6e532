"""BPE-dropout (Provilkov et al., 2020): other word pieces in every epoch.

SentencePiece can sample segmentations, too, but its random generator cannot be
seeded, so a run could neither be repeated nor resumed. Here the samples depend
on a seed and the number of the epoch.
"""

import array
import random
import re

import numpy as np
import tensorflow as tf

from keras_transformer.config import END
from keras_transformer.data.batches import EncodedPairs
from keras_transformer.data.corpus import SentencePairs
from keras_transformer.data.tokenizer import Tokenizer

# Number of segmentations drawn for each word, from which epochs choose.
SAMPLES = 16


class SampledPairs:
    """Holds sentence pairs whose word pieces change from epoch to epoch.

    For each word `SAMPLES` segmentations are drawn once. An epoch chooses one
    of them for each occurrence of the word. That takes memory and time at the
    start for every distinct word, about 1 kB and 0.2 ms. It does not suit
    languages that write no spaces.

    Args:
        pairs: the text.
        source_tokenizer, target_tokenizer: a `Tokenizer` each.
        rate: probability of leaving out a merge, in [0, 1).
        seed: seed of all sampling.
        max_length: maximum number of tokens on a side, end token included.
            Pairs whose usual segmentation is longer are dropped. A sentence
            that sampling makes longer keeps its usual segmentation.
    """

    def __init__(
        self,
        pairs: SentencePairs,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        rate: float,
        seed: int,
        max_length: int,
    ):
        self.seed = seed
        self.max_length = max_length
        self.source = _Side(pairs.source, source_tokenizer, rate, seed)
        self.target = _Side(pairs.target, target_tokenizer, rate, seed)
        usual = [side.lengths(0) for side in (self.source, self.target)]
        self.kept = np.flatnonzero(np.maximum(*usual) <= max_length)

    def __len__(self):
        return len(self.kept)

    def epoch(self, number: int) -> EncodedPairs:
        """Returns the pairs with the segmentations of one epoch."""
        rng = np.random.default_rng((self.seed, number))
        return EncodedPairs(
            self.source.sample(rng, self.max_length, self.kept),
            self.target.sample(rng, self.max_length, self.kept),
        )


class _Side:
    """Holds the sentences of one language as numbers of words.

    For each word it has the ids of the usual segmentation, followed by those
    of all drawn segmentations.
    """

    def __init__(self, sentences, tokenizer, rate, seed):
        words: dict[str, int] = {}  # the number of each distinct word
        numbers, counts = array.array("i"), []
        for sentence in sentences:
            split = _words(sentence)
            numbers.extend(words.setdefault(word, len(words)) for word in split)
            counts.append(len(split))
        self.words = np.array(numbers)
        self.splits = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        merges = tokenizer.merges()
        rng = random.Random(seed)
        sizes, table = array.array("i"), array.array("i")
        for word in words:
            usual = segment(word, merges)
            drawn = (segment(word, merges, rate, rng) for _ in range(SAMPLES))
            for pieces in (usual, *drawn):
                ids = tokenizer.ids(pieces)
                sizes.append(len(ids))
                table.extend(ids)
        self.sizes, self.ids = np.array(sizes), np.array(table)
        self.starts = np.cumsum(self.sizes) - self.sizes

    def lengths(self, choices):
        """Returns the number of tokens of each sentence, end token included.

        `choices` has the number of a segmentation for each word; 0 is the
        usual segmentation.
        """
        sizes = self.sizes[self.words * (1 + SAMPLES) + choices]
        sums = np.concatenate([[0], np.cumsum(sizes)])
        return np.diff(sums[self.splits]) + 1

    def sample(self, rng, max_length, kept):
        """Returns ragged ids of the sentences `kept`, randomly segmented."""
        choices = rng.integers(1, 1 + SAMPLES, size=len(self.words))
        long = self.lengths(choices) > max_length
        choices[np.repeat(long, np.diff(self.splits))] = 0
        chosen = self.words * (1 + SAMPLES) + choices
        sizes = self.sizes[chosen]
        # Piece j of a word is at offset j from the start of its segmentation.
        offsets = np.arange(sizes.sum()) - np.repeat(
            np.cumsum(sizes) - sizes, sizes
        )
        ids = self.ids[np.repeat(self.starts[chosen], sizes) + offsets]
        rows = tf.RaggedTensor.from_row_lengths(ids, self.lengths(choices) - 1)
        ends = tf.fill([rows.nrows(), 1], END)
        return tf.gather(tf.concat([rows, ends], axis=1), kept)


def _words(sentence):
    """Splits a sentence into words as SentencePiece does.

    It splits at spaces, puts a mark before each word, and splits before marks
    that are in the text, except for those at its end.
    """
    marked = "".join("▁" + word for word in sentence.split(" ") if word)
    return re.findall("▁[^▁]*", marked.rstrip("▁"))


def segment(
    word: str,
    merges: dict[str, float],
    rate: float = 0.0,
    rng: random.Random | None = None,
) -> list[str]:
    """Divides a word into pieces by byte-pair encoding.

    Args:
        word: a word with SentencePiece's mark of a space in front.
        merges: score of each piece that a merge can make. The merge with the
            highest score is made first.
        rate: probability of leaving out a merge at each step. Defaults to 0.
        rng: random generator; required if `rate` is not 0.

    Returns:
        Pieces that together are the word. Characters that no merge joins are
        pieces of their own.
    """
    pieces = list(word)
    while len(pieces) > 1:
        best_score, best_index = None, None
        for i in range(len(pieces) - 1):
            score = merges.get(pieces[i] + pieces[i + 1])
            if score is None:
                continue
            if rng is not None and rate and rng.random() < rate:
                continue
            if best_score is None or score > best_score:
                best_score, best_index = score, i
        if best_index is None:
            break
        merged = pieces[best_index] + pieces[best_index + 1]
        pieces[best_index : best_index + 2] = [merged]
    return pieces
