"""BPE-dropout (Provilkov et al., 2020): other word pieces in every epoch.

SentencePiece can sample segmentations, too, but its random generator cannot be
seeded, so a run could neither be repeated nor resumed. Here the samples depend
on a seed, the epoch, and the place of the sentence in it.
"""

import random

import numpy as np

from keras_transformer.data.batches import (
    EncodedPairs,
    Rows,
    TrainingPairs,
    take_slices,
)
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import END

SAMPLES = 16  # segmentations of a word, from which each occurrence has one
WORDS = 200_000  # whose segmentations are remembered


class SampledPairs:
    """Holds sentence pairs whose word pieces change from epoch to epoch.

    Each word has `SAMPLES` segmentations, and each occurrence of the word has
    one of them. They are drawn when they are needed and remembered, in bounded
    memory. It does not suit languages that write no spaces.

    Args:
        pairs: the pairs, in their usual segmentation.
        source_tokenizer, target_tokenizer: a `Tokenizer` each.
        rate: probability of leaving out a merge, in [0, 1).
        seed: seed of all sampling.
        max_length: maximum number of tokens on a side, end token included. A
            sentence that sampling makes longer keeps its usual segmentation.
    """

    def __init__(
        self,
        pairs: TrainingPairs,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        rate: float,
        seed: int,
        max_length: int,
    ):
        self.pairs, self.seed, self.max_length = pairs, seed, max_length
        self._source = _Words(source_tokenizer, rate, seed)
        self._target = _Words(target_tokenizer, rate, seed)

    def __len__(self):
        return len(self.pairs)

    @property
    def target_tokens(self) -> int:
        """The number of target tokens of an epoch in usual segmentation."""
        return self.pairs.target_tokens

    def read(self, rows: np.ndarray, epoch: int) -> EncodedPairs:
        """Returns pairs of an epoch with the segmentations of that epoch."""
        usual = self.pairs.read(rows, epoch)
        rng = np.random.default_rng((self.seed, epoch, int(rows[0])))
        return EncodedPairs(
            self._source.sample(usual.source, rng, self.max_length),
            self._target.sample(usual.target, rng, self.max_length),
        )


class _Words:
    """Draws and remembers segmentations of the words of one language.

    The segmentations of a word depend on the word, the rate and the seed alone,
    so that it does not matter which ones are remembered.
    """

    def __init__(self, tokenizer, rate, seed):
        self.tokenizer, self.rate, self.seed = tokenizer, rate, seed
        self.merges = tokenizer.merges()
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        # A word begins with a mark; a tag and the end of a sentence are whole.
        self.begins = np.array([piece.startswith("▁") for piece in pieces])
        self.whole = {END, *tokenizer.tags.values()}
        self.begins[list(self.whole)] = True
        self._forget()

    def _forget(self):
        self.numbers: dict[bytes, int] = {}
        self.words: list[bytes] = []
        self.ids = np.zeros(0, np.int32)  # of all remembered segmentations
        # One for each segmentation; -1 if it is not drawn yet.
        self.starts = np.full(0, -1)
        self.sizes = np.zeros(0, np.int64)

    def sample(self, usual: Rows, rng, max_length) -> Rows:
        """Returns rows in which each word has a random segmentation."""
        if len(self.words) > WORDS:
            self._forget()
        values = usual.values.astype(np.int32)
        row_starts = np.cumsum(usual.lengths) - usual.lengths
        begins = self.begins[values]
        begins[row_starts] = True
        places = np.flatnonzero(begins)
        sizes = np.diff(places, append=len(values))
        numbers = self._numbers(values, places, sizes)
        chosen = numbers * SAMPLES + rng.integers(SAMPLES, size=len(numbers))
        self._draw(chosen)
        # Words of each row; too long a row keeps its usual words.
        first_words = np.cumsum(begins)[row_starts] - 1
        lengths = np.add.reduceat(self.sizes[chosen], first_words)
        counts = np.diff(first_words, append=len(places))
        keeps = np.repeat(lengths > max_length, counts)
        starts = np.where(keeps, places + len(self.ids), self.starts[chosen])
        sizes = np.where(keeps, sizes, self.sizes[chosen])
        found = take_slices(np.concatenate([self.ids, values]), starts, sizes)
        return Rows(found.values, np.add.reduceat(sizes, first_words))

    def _numbers(self, values, places, sizes):
        """Returns the number of each word, a new one for a new word."""
        data, width = values.tobytes(), values.itemsize
        get, numbers = self.numbers.get, np.empty(len(places), np.int64)
        ends = ((places + sizes) * width).tolist()
        for i, (start, end) in enumerate(
            zip((places * width).tolist(), ends, strict=True)
        ):
            word = data[start:end]
            number = get(word)
            if number is None:
                number = self.numbers[word] = len(self.words)
                self.words.append(word)
            numbers[i] = number
        missing = len(self.words) * SAMPLES - len(self.starts)
        self.starts = np.append(self.starts, np.full(missing, -1))
        self.sizes = np.append(self.sizes, np.zeros(missing, np.int64))
        return numbers

    def _draw(self, chosen):
        """Draws the segmentations that are not remembered."""
        new = np.unique(chosen[self.starts[chosen] < 0])
        drawn, end = [], len(self.ids)
        for segmentation in new.tolist():
            number, sample = divmod(segmentation, SAMPLES)
            ids = self._segment(self.words[number], sample)
            drawn.append(ids)
            self.starts[segmentation] = end
            self.sizes[segmentation] = len(ids)
            end += len(ids)
        self.ids = np.concatenate([self.ids, *drawn]).astype(np.int32)

    def _segment(self, word, sample):
        ids = np.frombuffer(word, np.int32)
        if len(ids) == 1 and int(ids[0]) in self.whole:
            return ids
        text = self.tokenizer.text_of(ids)
        rng = random.Random(f"{self.seed} {sample} {text}")
        pieces = segment(text, self.merges, self.rate, rng)
        return np.array(self.tokenizer.ids(pieces), np.int32)


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
