"""Words that translations must have, and words to avoid, as word pieces.

Shapes: B batch, K hypotheses, T target length, C terms, L pieces of a term.
"""

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import PAD
from keras_transformer.inference.capitals import as_sentence, capitalized
from keras_transformer.inference.graph_tokenizer import (
    GraphTokenizer,
    as_strings,
)

LONGEST = 32  # pieces of a term
MOST = 64  # terms of a text
# First letters of pieces that continue a word. Letters without a case are not
# among them: many of these scripts have no spaces.
LETTERS = {"Lu", "Ll", "Lt", "Lm", "Mn", "Mc", "Nd"}


class TextTerms:
    """Reads the terms of texts, and finds them in translations.

    A term is there if no piece that continues a word follows it: "Haus" is not
    in "Haustür". To avoid it is stricter: no word may begin with its pieces.

    Args:
        tokenizer: `GraphTokenizer` of the target.
        suppressed_ids: ids that no translation has.
        terms, avoid: strings `(B,)`, the terms of each text in lines, or
            `None`.
        count: B, a scalar tensor.

    Raises:
        tf.errors.InvalidArgumentError: if there are not as many strings as
            texts, or more lines than `MOST`.
    """

    def __init__(
        self,
        tokenizer: GraphTokenizer,
        suppressed_ids: Sequence[int],
        terms: tf.Tensor | None,
        avoid: tf.Tensor | None,
        count: tf.Tensor,
    ):
        self.tokenizer = tokenizer
        self.terms = _lines("terms", terms, count)
        self.avoid = _lines("avoid", avoid, count)
        self._suppressed_ids = suppressed_ids
        self._continues = tf.constant(continues_word(tokenizer.tokenizer))
        # A word is another piece at the start of a sentence.
        both = tf.concat([self.avoid, capitalized(self.avoid)], axis=1)
        self._avoided = self._pieces(both)
        # A search for a term that it must avoid would not end by itself.
        required = self._pieces(self.terms)
        is_avoided = self._has(self._avoided, required, whole=False)
        is_avoided = tf.reduce_any(is_avoided, axis=2, keepdims=True)
        self._required = tf.where(is_avoided, -1, required)

    def rules(self, is_full: tf.Tensor) -> dict[str, Any]:
        """Returns the rules of a search.

        Args:
            is_full: booleans `(B,)`, True for texts that are searched. Where
                none is, the search has one row nevertheless.
        """

        def chosen(pieces):
            pieces = tf.boolean_mask(pieces, is_full)
            missing = 1 - tf.minimum(tf.shape(pieces)[0], 1)
            rest = [[0, missing], [0, 0], [0, 0]]
            return tf.pad(pieces, rest, constant_values=-1)

        return {
            "terms": chosen(self._required),
            "avoid": chosen(self._avoided),
            "word_continuations": self._continues,
        }

    def unmet(self, ids: tf.Tensor, translation: tf.Tensor) -> tf.Tensor:
        """Returns the terms that translations lack, and the words to avoid that
        they have.

        Args:
            ids: those of the search, `(B, K, T)`.
            translation: strings `(B, K)`.

        Returns:
            Strings `(B, K)`, the terms in lines.
        """
        shape = tf.shape(translation)
        # The search may have found other pieces of the same text.
        again = self.tokenizer.encode(tf.reshape(translation, [-1]))
        again = again.to_tensor(PAD)
        length = tf.shape(again)[1:]
        again = tf.reshape(again, tf.concat([shape, length], axis=0))
        required, avoided = self._required, self._avoided
        lacks = ~(self._has(required, ids) | self._has(required, again))
        has = self._has(avoided, again)
        as_given, as_capitalized = tf.split(has, 2, axis=2)
        is_unmet = tf.concat([lacks, as_given | as_capitalized], axis=2)
        lines = tf.concat([self.terms, self.avoid], axis=1)[:, None]
        is_unmet &= tf.not_equal(lines, "")
        count = shape[0] * shape[1]
        places = tf.reshape(tf.range(count), shape)[..., None]
        joined = tf.strings.unsorted_segment_join(
            *(
                tf.boolean_mask(
                    tf.broadcast_to(x, tf.shape(is_unmet)), is_unmet
                )
                for x in (lines, places)
            ),
            count,
            "\n",
        )
        return tf.reshape(joined, shape)

    def _pieces(self, lines):
        """Returns the ids of lines `(B, C)`, int32 `(B, C, L)`, padded with -1:
        none of a line that no translation can have."""
        pieces, is_cut = self.tokenizer.encode_at_most(
            tf.reshape(lines, [-1]), LONGEST
        )
        ids = pieces[:, :-1].to_tensor(-1)  # without end tokens
        bad = _is_one_of(ids, self._suppressed_ids)
        bad = tf.reduce_any(bad, axis=1) | is_cut
        ids = tf.where(bad[:, None], -1, ids)
        shape = tf.concat([tf.shape(lines), tf.shape(ids)[1:]], axis=0)
        return tf.reshape(ids, shape)

    def _has(self, pieces, ids, whole=True):
        """Returns whether ids `(B, K, T)` have pieces `(B, C, L)`, as whole
        words or also as beginnings of words, booleans `(B, K, C)`."""
        count, length = tf.shape(ids)[2], tf.shape(pieces)[2]
        ids = tf.pad(ids, [[0, 0], [0, 0], [0, length]])
        places = tf.range(count)[:, None] + tf.range(length + 1)
        found = tf.gather(ids, places, axis=2)[
            :, :, None
        ]  # [B, K, 1, T, L + 1]
        continues = tf.gather(self._continues, tf.maximum(found, 0)) & whole
        pieces = tf.pad(pieces, [[0, 0], [0, 0], [0, 1]], constant_values=-1)
        pieces = pieces[:, None, :, None]  # [B, 1, C, 1, L + 1]
        is_piece = pieces >= 0
        lengths = tf.math.count_nonzero(is_piece, -1, True, tf.int32)
        is_end = tf.equal(tf.range(length + 1), lengths)
        fits = tf.equal(found, pieces) | ~is_piece
        fits = tf.reduce_all(fits & ~(is_end & continues), axis=-1)
        return tf.reduce_any(fits & (lengths[..., 0] > 0), axis=-1)


def continues_word(tokenizer: Tokenizer) -> np.ndarray:
    """Returns which pieces of a vocabulary continue a word, `(V,)`."""

    def continues(piece):
        if piece.startswith("<0x"):  # a byte; most are of a letter
            byte = int(piece[3:5], 16)
            return byte >= 128 or chr(byte).isalnum()
        return unicodedata.category(piece[0]) in LETTERS

    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    return np.array([bool(piece) and continues(piece) for piece in pieces])


def prefix_pieces(
    tokenizer: GraphTokenizer,
    suppressed_ids: Sequence[int],
    prefix: tf.Tensor,
    is_full: tf.Tensor,
    capitals: tf.Tensor,
    most: int,
) -> tf.Tensor:
    """Returns the pieces that translations begin with.

    Args:
        tokenizer, suppressed_ids: as for `TextTerms`.
        prefix: strings `(B,)`. Each ends before a piece that no translation
            has.
        is_full: booleans `(B,)`, True for texts that are searched.
        capitals: booleans `(B,)`, True for texts that were in capitals.
        most: maximum number of pieces.

    Returns:
        int32 `(n, P)`, padded with -1, for the n texts that are searched. Where
        none is, the search has one row nevertheless.
    """
    is_loud = tf.equal(tf.strings.upper(prefix, "utf-8"), prefix)
    # In sentences, as the texts are then.
    prefix = tf.where(capitals & is_loud, as_sentence(prefix), prefix)
    prefix = tf.boolean_mask(prefix, is_full)
    missing = tf.fill([1 - tf.minimum(tf.size(prefix), 1)], "")
    prefix = tf.concat([prefix, missing], axis=0)
    pieces, _ = tokenizer.encode_at_most(prefix, most)
    ids = pieces[:, :-1].to_tensor(-1)  # without end tokens
    bad = tf.cast(_is_one_of(ids, suppressed_ids), tf.int32)
    return tf.where(tf.cumsum(bad, axis=1) > 0, -1, ids)


def _is_one_of(ids, others):
    """Returns which of ids `(n, T)` are in a list."""
    return tf.reduce_any(tf.equal(ids[..., None], others), axis=-1)


def _lines(name, text, count):
    """Returns the lines of strings `(B,)`, strings `(B, C)`, "" at padding."""
    text = tf.fill([count], "") if text is None else as_strings(text)
    tf.debugging.assert_equal(
        tf.size(text),
        count,
        f"`text` and `{name}` must have the same number of strings.",
    )
    found = tf.raw_ops.StringSplitV2(input=text, sep="\n")
    lines = tf.tensor_scatter_nd_update(
        tf.fill(found.shape, ""), found.indices, found.values
    )
    tf.debugging.assert_less_equal(
        tf.shape(lines)[1],
        MOST,
        f"`{name}` of a text must be at most {MOST} lines.",
    )
    return tf.strings.regex_replace(lines, r"^\s+|\s+$", "")
