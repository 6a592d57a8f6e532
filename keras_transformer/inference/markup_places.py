"""Puts the mark-up of a text into its translation, where attention says."""

import dataclasses
import html
import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from keras_transformer.data.sentencepiece_file import TAG
from keras_transformer.inference.alignment import piece_weights
from keras_transformer.inference.markup import (
    CLOSING,
    QUOTES,
    Block,
    Markup,
    parse_markup,
)
from keras_transformer.inference.piece_words import (
    END_PIECE,
    Word,
    words_of,
)

AT_THE_END = 0.5  # attention that moves what begins or ends a text elsewhere
# Where a parser of HTML would see a tag or an entity.
MISREAD = re.compile(r"<(?=[A-Za-z/!?])|&(?=#?\w)")


@dataclasses.dataclass
class Alignment:
    """Holds a translation, and which of its words belong to which.

    Args:
        translation: the translation of a text.
        source: the starts of S words of the text, in order.
        target: the starts of T words of the translation.
        weights: `(T, S)`, how much a word attends to a word of the text.
    """

    translation: str
    source: Sequence[int]
    target: Sequence[int]
    weights: np.ndarray


def translate_markup(
    texts: Sequence[str],
    markup: str,
    translate: Callable[[list[str]], Sequence[str]],
    align: Callable[[list[str]], Sequence[Alignment]],
) -> list[str]:
    """Translates texts and keeps their mark-up.

    Args:
        texts: lines or documents.
        markup: "html", "markdown" or "placeholders", see `parse_markup`.
        translate: function that translates texts without mark-up.
        align: function that does so for texts that had mark-up inside.

    Raises:
        ValueError: as `parse_markup` does.
    """
    parsed = [parse_markup(text, markup) for text in texts]
    blocks = [x for parts in parsed for x in parts if isinstance(x, Block)]
    marked = [block for block in blocks if block.children]
    plain = [block for block in blocks if not block.children]
    results: dict[Block, str] = {}
    found = align([block.text for block in marked])
    for block, alignment in zip(marked, found, strict=True):
        results[block] = restore(block, alignment)
    translations = translate([block.text for block in plain])
    for block, text in zip(plain, translations, strict=True):
        middle = _encoded(text, block.entities)
        results[block] = "".join([block.prefix, *middle, block.suffix])
    return [
        "".join(x if isinstance(x, str) else results[x] for x in parts)
        for parts in parsed
    ]


def alignment_of(
    text: str,
    translation: bytes,
    source_pieces: Sequence[bytes],
    target_pieces: Sequence[bytes],
    attention: np.ndarray,
) -> Alignment:
    """Returns the alignment of a text from the attention of a model.

    Args:
        text: the text that was translated.
        translation, source_pieces, target_pieces, attention: a row of the
            outputs of `Translator.explain`; the last one is float32.
    """
    source, target = (
        _words([piece.decode() for piece in pieces if piece])
        for pieces in (source_pieces, target_pieces)
    )
    weights = np.zeros((len(target), len(source)))
    if source and target:
        is_target = [
            piece not in (b"", END_PIECE.encode()) for piece in target_pieces
        ]
        found = piece_weights(list(attention[:, None]), np.array([is_target]))
        pieces = found.numpy()[0]  # (T, S)
        for t, word in enumerate(target):
            rows = pieces[word.places].mean(axis=0)
            weights[t] = [rows[other.places].max() for other in source]
        weights /= weights.sum(axis=1, keepdims=True) + 1e-9
    found = translation.decode()
    starts = _starts(text, source), _starts(found, target)
    return Alignment(found, *starts, weights)


def _words(pieces) -> list[Word]:
    """Returns the words of pieces; in Chinese and Japanese, the pieces."""
    words: list[Word] = []
    for word in words_of(pieces):
        if any(unicodedata.east_asian_width(c) in "WF" for c in word.text):
            parts = [words_of([pieces[place]])[0].text for place in word.places]
            words += map(Word, parts, [[place] for place in word.places])
        elif word.text != END_PIECE and not re.fullmatch(TAG, word.text):
            words.append(word)
    return words


def _starts(text, words) -> list[int]:
    """Returns the starts of words in a text, of which a model may have seen
    other characters."""
    starts, end = [], 0
    lower = text.lower()
    for word in words:
        part = word.text.lower()
        start = lower.find(part, end, end + len(part) + 20)
        starts.append(min(end if start < 0 else start, len(text)))
        end = end if start < 0 else start + len(part)
    return starts


def joined(
    text: str,
    sentences: Sequence[str],
    translation: str,
    found: Sequence[Alignment],
) -> Alignment:
    """Returns the alignment of a text of several sentences.

    Args:
        text: the text.
        sentences: its sentences.
        translation: the translation of the text.
        found: the alignment of each sentence.
    """
    size = [sum(len(part.target) for part in found), 0]
    size[1] = sum(len(part.source) for part in found)
    whole = Alignment(translation, [], [], np.zeros(size))
    i = j = 0
    for sentence, part in zip(sentences, found, strict=True):
        i, j = text.index(sentence, i), translation.index(part.translation, j)
        row, column = len(whole.target), len(whole.source)
        whole.source = [*whole.source, *(i + start for start in part.source)]
        whole.target = [*whole.target, *(j + start for start in part.target)]
        whole.weights[row : len(whole.target), column : len(whole.source)] = (
            part.weights
        )
        i, j = i + len(sentence), j + len(part.translation)
    return whole


def restore(block: Block, found: Alignment) -> str:
    """Returns a translation with the mark-up of its block.

    Each tag and placeholder is in it once. An element is put around the
    smallest range of words that holds all those aligned to its words or, if
    words of another element stand between, around a part of it. Elements are
    nested as in the source. Other mark-up is put between the words that are
    aligned to its neighbours.

    Args:
        block: the block.
        found: the alignment of `block.text`.
    """
    text, texts = found.translation, _encoded(found.translation, block.entities)
    gaps = _Places(block, found).gaps
    # White space and punctuation belong to the word before.
    starts = [0, *found.target[1:], len(text)]
    out, last, space = [block.prefix], " ", ""
    for gap, (items, start) in enumerate(zip(gaps, starts, strict=True)):
        for item, is_end in items:
            if item.tags is None or item.kind != "open":
                left, space = _spaces(
                    item, space, last, text[start : start + 1]
                )
                out += [left, block.source[item.start : item.end]]
                last = out[-1][-1]
            elif is_end:
                out.append(item.tags[1])
            else:
                out += [space, item.tags[0]]
                last, space = " " if space else last, ""
        end = starts[gap + 1] if gap + 1 < len(starts) else start
        word = text[start:end].rstrip()
        out += [space, *texts[start : start + len(word)]]
        last = word[-1:] or (" " if space else last)
        space = text[start + len(word) : end]
    return "".join([*out, block.suffix])


def _encoded(text, entities) -> list[str]:
    """Returns the characters of a text, as entities where needed."""
    if entities is None:
        return list(text)
    texts = [entities.get(character, character) for character in text]
    for found in MISREAD.finditer(text):
        tail = text[found.start() : found.start() + 40]
        if texts[found.start()] == "<" or html.unescape(tail) != tail:
            texts[found.start()] = html.escape(found[0])
    return texts


def _spaces(item: Markup, space, last, after):
    """Returns the white space before and after mark-up.

    Args:
        item: the mark-up.
        space: the white space of the translation at this place.
        last, after: the characters of the translation before and after, which
            are " " and "" at its ends.
    """
    if item.kind == "break":
        return "" if item.before else space, "" if item.after else space
    if item.kind == "mark":
        left = "" if item.before else space
        return left, space if item.before or not item.after else ""
    left = space or " "
    if last.isspace():
        left = space
    elif item.before and (item.before in QUOTES) == (last in QUOTES):
        left = ""
    if not after:
        return left, ""
    is_closing = after in CLOSING
    if not item.after:
        return left, "" if is_closing and not space else " "
    if item.before and item.after not in CLOSING:
        return left, space  # it was inside of a word
    return left, "" if is_closing or item.after not in CLOSING else space or " "


class _Places:
    """Finds the places of mark-up between the words of a translation.

    Args:
        block: the block.
        found: the alignment.

    Attributes:
        gaps: the mark-up before each of the T words and behind the last one,
            and whether it is the end of an element.
    """

    def __init__(self, block, found):
        self.text = block.text
        self.starts = np.array(found.source, int)
        rows = max(len(found.target), 1)  # there is a word, if an empty one
        self.weights = np.zeros((rows, len(self.starts)))
        self.weights[: len(found.target)] = found.weights
        self.gaps: list[list[tuple[Markup, bool]]] = [
            [] for _ in range(rows + 1)
        ]
        # The word that each one attends to most; -1 for none.
        padded = np.pad(self.weights, [(0, 0), (1, 0)])
        self.aligned = padded.argmax(axis=1) - 1
        self.place(block.children, 0, rows, (0, len(self.starts)))

    def place(self, items, first, last, source):
        """Places mark-up in a range of words that translates another."""
        ranges = self.ranges(
            [x for x in items if x.kind == "open"], first, last
        )
        inner = [g - first for a, b in ranges.values() for g in range(a + 1, b)]
        found = []
        for i, item in enumerate(items):
            if item not in ranges:
                gap = first + self.gap(item, first, last, source, inner)
                ranges[item] = gap, gap
            start, end = ranges[item]
            found.append((start, end > start, i))
        for start, _, i in sorted(found):
            item, end = items[i], ranges[items[i]][1]
            self.gaps[start].append((item, False))
            if item.kind == "open":
                self.place(item.children, start, end, self.words(item))
                self.gaps[end].append((item, True))

    def words(self, item):
        """Returns the range of words of the source that an element touches."""
        inside = self.text[item.first : item.last]
        start = item.last - len(inside.lstrip())
        first = np.searchsorted(self.starts, start, "right") - 1
        last = np.searchsorted(self.starts, item.last, "left")
        return max(first, 0), max(first, last)

    def ranges(self, elements, first, last):
        """Returns the disjoint ranges of those elements that get words."""
        owner = np.full(len(self.starts) + 1, -1)  # the last one of no word
        columns = [self.words(element) for element in elements]
        for i, (start, end) in reversed(list(enumerate(columns))):
            owner[start:end] = i
        owners = owner[self.aligned[first:last]]
        weights = [
            self.weights[first:last, a:b].sum(axis=1) for a, b in columns
        ]
        for i, row in enumerate(weights):
            if row.any() and i not in owners:
                t = row.argmax()  # an element of none gets its likeliest word
                if owners[t] < 0 or (owners == owners[t]).sum() > 1:
                    owners[t] = i
        # Words of one element, without those of others between.
        runs: list[list[int]] = []
        for t, i in enumerate(owners.tolist()):
            if i >= 0 and (not runs or runs[-1][0] != i):
                runs.append([i, t, t])
            if i >= 0:
                runs[-1][2] = t + 1
        runs.sort(key=lambda run: weights[run[0]][run[1] : run[2]].sum())
        return {elements[i]: (first + a, first + b) for i, a, b in runs}

    def gap(self, item, first, last, source, inner):
        """Returns the place whose neighbours are aligned best to those of the
        mark-up."""
        left = np.searchsorted(self.starts, item.first, "left") - 1
        right = np.searchsorted(self.starts, item.last, "left")
        scores = np.zeros(last - first + 1)
        if source[0] <= left < source[1]:
            scores[1:] += self.weights[first:last, left]
        else:
            scores[0] += AT_THE_END
        if source[0] <= right < source[1]:
            scores[:-1] += self.weights[first:last, right]
        else:
            scores[-1] += AT_THE_END
        scores[inner] = -1
        return int(scores.argmax())
