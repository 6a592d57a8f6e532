"""BPE-dropout (Provilkov et al., 2020): other word pieces in every epoch.

SentencePiece samples, too, but from a generator that cannot be set: a run
could not be repeated, nor go on where it stopped. Here a seed and the number of
the epoch decide.
"""

import array
import random
import re

import numpy as np
import tensorflow as tf

from keras_transformer.config import END
from keras_transformer.data.batches import EncodedPairs
from keras_transformer.data.corpus import SentencePairs

# How many ways of writing a word are drawn, for the epochs to choose from.
SAMPLES = 16


class SampledPairs:
    """Sentence pairs whose word pieces change from epoch to epoch.

    For each word `SAMPLES` segmentations are drawn once; each time that it
    occurs, an epoch takes one of them. That wants memory and time at the start
    for every different word, about 1 kB and 0.2 ms, and is not meant for
    languages that write no spaces.

    Args:
        pairs: the text.
        source_tokenizer, target_tokenizer: a `Tokenizer` each.
        rate: how probable it is that a merge is left out, in [0, 1).
        seed: of all sampling.
        max_length: pairs that are longer when nothing is left out are dropped;
            a sentence that sampling makes longer is not sampled.
    """

    def __init__(
        self,
        pairs: SentencePairs,
        source_tokenizer,
        target_tokenizer,
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
        """The pairs as they are written in one epoch."""
        rng = np.random.default_rng((self.seed, number))
        return EncodedPairs(
            self.source.sample(rng, self.max_length, self.kept),
            self.target.sample(rng, self.max_length, self.kept),
        )


class _Side:
    """The sentences of one language, as numbers of words; and for each word
    the ids of its usual segmentation and of all that were drawn, one behind
    the other."""

    def __init__(self, sentences, tokenizer, rate, seed):
        words, numbers, counts = {}, array.array("i"), []
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
        """Pieces of each sentence, its end included; choice 0 is the usual
        segmentation."""
        sizes = self.sizes[self.words * (1 + SAMPLES) + choices]
        sums = np.concatenate([[0], np.cumsum(sizes)])
        return np.diff(sums[self.splits]) + 1

    def sample(self, rng, max_length, kept):
        choices = rng.integers(1, 1 + SAMPLES, size=len(self.words))
        long = self.lengths(choices) > max_length
        choices[np.repeat(long, np.diff(self.splits))] = 0
        chosen = self.words * (1 + SAMPLES) + choices
        sizes = self.sizes[chosen]
        # Piece j of a word lies j behind the word's first.
        behind = np.arange(sizes.sum()) - np.repeat(
            np.cumsum(sizes) - sizes, sizes
        )
        ids = self.ids[np.repeat(self.starts[chosen], sizes) + behind]
        rows = tf.RaggedTensor.from_row_lengths(ids, self.lengths(choices) - 1)
        ends = tf.fill([rows.nrows(), 1], END)
        return tf.gather(tf.concat([rows, ends], axis=1), kept)


def _words(sentence):
    """As SentencePiece splits: at spaces, each word with its mark, and before
    marks that are in the text, but for those at the end."""
    marked = "".join("▁" + word for word in sentence.split(" ") if word)
    return re.findall("▁[^▁]*", marked.rstrip("▁"))


def segment(
    word: str,
    merges: dict[str, float],
    rate: float = 0.0,
    rng: random.Random | None = None,
) -> list[str]:
    """A word in pieces by byte-pair encoding.

    Args:
        word: with SentencePiece's mark of a space in front.
        merges: score of each piece that a merge may give; the highest first.
        rate: at each step every merge is left out with this probability.
        rng: decides which.

    Returns:
        Pieces that together are the word; what is in no vocabulary stands as
        single characters.
    """
    pieces = list(word)
    while len(pieces) > 1:
        best, place = None, None
        for i in range(len(pieces) - 1):
            score = merges.get(pieces[i] + pieces[i + 1])
            if score is None or (rate and rng.random() < rate):
                continue
            if best is None or score > best:
                best, place = score, i
        if place is None:
            break
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    return pieces
