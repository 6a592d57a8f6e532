"""Joins word pieces to words, and their attention.

The server's page does the same, in `serve/page/pieces.js`.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

WORD_START = "▁"  # begins a piece that begins a word
END_PIECE = "</s>"
BYTE = re.compile("<0x([0-9A-F]{2})>")


@dataclasses.dataclass
class Word:
    """Describes a word, or punctuation after one.

    Args:
        text: the word; `</s>` for the end of a sentence.
        places: indices of its word pieces.
    """

    text: str
    places: list[int]


def words_of(pieces: Sequence[str]) -> list[Word]:
    """Returns the words of SentencePiece pieces.

    Example:

    >>> [word.text for word in words_of(["▁Vi", "en", "na", ".", "</s>"])]
    ['Vienna', '.', '</s>']

    Punctuation after a word is a word of its own, piece by piece.

    Args:
        pieces: the pieces of a sentence.
    """
    words: list[Word] = []
    for place, piece in enumerate(pieces):
        starts = piece.startswith(WORD_START) or piece == END_PIECE
        if not words or starts or (words[-1].text and _ends(pieces[place:])):
            words.append(Word("", []))
        word = words[-1]
        word.places.append(place)
        word.text = _text([pieces[i] for i in word.places])
    return [Word(word.text or "␣", word.places) for word in words]


def weights_of_words(
    weights: np.ndarray, queries: Sequence[Word], keys: Sequence[Word]
) -> np.ndarray:
    """Returns the attention of words: the sum over the pieces of a word that
    is attended to, and the mean over those of a word that attends.

    Args:
        weights: `(…, T, S)`, those of T pieces on S pieces.
        queries, keys: the words of the T and of the S pieces.

    Returns:
        Weights `(…, words, words)`. Rows that added up to 1 still do.
    """
    weights = np.stack(
        [weights[..., word.places].sum(axis=-1) for word in keys], axis=-1
    )
    return np.stack(
        [weights[..., word.places, :].mean(axis=-2) for word in queries],
        axis=-2,
    )


def _text(pieces):
    """Returns the text of pieces; bytes such as `<0xE2>` become characters."""
    if pieces == [END_PIECE]:
        return END_PIECE
    data = b""
    for piece in pieces:
        byte = BYTE.fullmatch(piece)
        text = piece.replace(WORD_START, " ").encode()
        data += bytes([int(byte[1], 16)]) if byte else text
    return data.decode("utf-8", "replace").strip()


def _ends(pieces):
    """Returns whether only punctuation follows until the next word."""
    for piece in pieces:
        if piece.startswith(WORD_START) or piece == END_PIECE:
            break
        if any(unicodedata.category(c)[0] != "P" for c in piece):
            return False
    return True
