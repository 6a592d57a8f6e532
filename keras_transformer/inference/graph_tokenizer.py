"""Word pieces in TensorFlow graphs, by tensorflow-text."""

import hashlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.data.cleaning import (
    RE2_BLANK,
    RE2_INVISIBLE,
    RE2_SPACES,
)
from keras_transformer.data.sentencepiece_file import pieces_alone
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import END, UNKNOWN

# Normalisation makes text shorter, such as 𝐀 of 4 bytes to A. Text that becomes
# shorter than by this factor may be cut before it fills the model.
SHRINKING = 4


class GraphTokenizer:
    """Converts strings to ids and back as a `Tokenizer` does, as operations of
    TensorFlow.

    Example:

    >>> from keras_transformer.training import open_run
    >>> tokenizer = GraphTokenizer(open_run("runs/demo").source_tokenizer)
    >>> ids = tokenizer.encode(["Good morning."])
    >>> print(tokenizer.decode(ids.to_tensor()).numpy())
    [b'Good morning.']

    Args:
        tokenizer: the `Tokenizer`, also an attribute.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        # Each is in a graph once, however often that calls it. They make their
        # SentencePiece themselves: `tf.random.set_seed` destroys the resource
        # of every tokenizer that was made in eager mode.
        self._tokenize = tf.function(
            lambda text: _sentencepiece(tokenizer.model).tokenize(text),
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )
        pieces = pieces_alone(tokenizer.model)
        self._detokenize = tf.function(
            lambda ids: _sentencepiece(pieces).detokenize(ids),
            input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)],
            autograph=False,
        )

    def encode(self, text: tf.Tensor | Sequence[str]) -> tf.RaggedTensor:
        """Encodes strings.

        Args:
            text: strings `(B,)`.

        Returns:
            Ids `(B, None)` with end tokens, a ragged tensor.

        Raises:
            ValueError: if there is a single string, or a table of them.
        """
        return self._encode(self._without_invisible(as_strings(text)))

    def _without_invisible(self, text):
        if self.tokenizer.rule is None:
            return text
        return tf.strings.regex_replace(text, RE2_INVISIBLE, r"\1")

    def _encode(self, text):
        parts = []
        if self.tokenizer.tags:
            tags, text = self.split_tags(text)
            parts.append(self._tag_ids(tags))
        ids = self._tokenize(text)
        if self.tokenizer.has_more_pieces:
            known = ids.values < self.tokenizer.vocab_size
            ids = ids.with_values(tf.where(known, ids.values, UNKNOWN))
        ends = tf.fill([ids.nrows(), 1], END)
        return tf.concat([*parts, ids, tf.cast(ends, ids.dtype)], axis=1)

    def split_tags(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the tags such as `>>fra<<` that strings `(B,)` begin with,
        and the strings without them."""
        pattern = f"^{self.tokenizer.tag_pattern(re2=True)}"
        rest = tf.strings.regex_replace(text, pattern, "")
        length = tf.strings.length(text) - tf.strings.length(rest)
        return tf.strings.substr(text, tf.zeros_like(length), length), rest

    def _tag_ids(self, tags):
        """Returns the ids `(B, None)` of the tags of `split_tags`."""
        known = self.tokenizer.tags
        # Each tag without its end, and at last what follows the last end.
        found = tf.raw_ops.StringSplitV2(input=tags, sep="<<").values
        found = tf.strings.regex_replace(found, r"^[^>]+", "")
        found = tf.boolean_mask(found, tf.strings.length(found) > 0)
        names = [tag.removesuffix("<<") for tag in known]
        is_tag = tf.equal(found[:, None], names)  # [all tags, known tags]
        ids = tf.where(is_tag, tf.constant(list(known.values())), UNKNOWN)
        ends = tf.strings.regex_replace(tags, "<<", "")
        counts = tf.strings.length(tags) - tf.strings.length(ends)
        counts = tf.cast(counts // 2, tf.int64)
        ids = tf.reduce_max(ids, axis=1)
        return tf.RaggedTensor.from_row_lengths(ids, counts, validate=False)

    def is_blank(self, text: tf.Tensor) -> tf.Tensor:
        """Returns which strings a reader sees as blank, tags apart."""
        if self.tokenizer.tags:
            text = self.split_tags(text)[1]
        return tf.strings.regex_full_match(text, RE2_BLANK)

    def encode_at_most(
        self, text: tf.Tensor, most: int | tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Encodes strings and cuts those that are too long.

        Bytes that cannot be in the first `most` pieces are removed before
        encoding, so that the cost of a string is bounded whatever its size.
        Runs of spaces count as one space, as they do for SentencePiece, and
        what the tokenizer's rule removes does not count.

        Args:
            text: strings `(B,)`.
            most: maximum number of pieces before the end token.

        Returns:
            Ids `(B, None)` with end tokens, and bool `(B,)`, True for strings
            that were cut.
        """
        rule, longest = self.tokenizer.rule, self.tokenizer.longest_piece
        if self.tokenizer.normalizes:
            longest *= SHRINKING
        text = self._without_invisible(text)
        spaces = RE2_SPACES[rule] if rule else " "
        text = tf.strings.regex_replace(text, f"{spaces}{{2,}}", " ")
        start = tf.strings.substr(text, 0, (most + 1) * longest + 1)
        pieces = self._encode(start)
        longer = (pieces.row_lengths() > most + 1) | tf.not_equal(start, text)
        ends = tf.fill([pieces.nrows(), 1], END)
        return tf.concat([pieces[:, :-1][:, :most], ends], axis=1), longer

    def decode(self, ids: tf.Tensor | np.ndarray) -> tf.Tensor:
        """Decodes ids.

        Ids after the end token, special ids and ids outside the vocabulary are
        ignored.

        Args:
            ids: padded ids `(B, T)`, integers of any dtype.

        Returns:
            Strings `(B,)` of valid UTF-8.

        Raises:
            ValueError: if ids have another rank.
        """
        ids = tf.cast(tf.convert_to_tensor(ids), tf.int32)
        if ids.shape.rank not in (None, 2):
            raise ValueError(
                "Ids to decode have shape (batch, length). Received: "
                f"ids.shape={tuple(ids.shape)}. Give `ids[None]` for one row."
            )
        ended = tf.cumsum(tf.cast(tf.equal(ids, END), tf.int32), axis=1)
        is_text = (ids > END) & (ids < self.tokenizer.vocab_size)
        is_text &= tf.equal(ended, 0)
        return self._detokenize(tf.ragged.boolean_mask(ids, is_text))


def _sentencepiece(model):
    """Returns the operation of a model, with a name that no other model has:
    functions of a loaded SavedModel share resources of the same name."""
    name = f"sentencepiece_{hashlib.sha256(model).hexdigest()[:16]}"
    return tf_text.SentencepieceTokenizer(model, out_type=tf.int32, name=name)


def as_strings(text: tf.Tensor | Sequence[str]) -> tf.Tensor:
    """Returns strings `(B,)` as a tensor, also those of an empty list.

    Raises:
        ValueError: if there is a single string, or a table of them.
    """
    text = tf.convert_to_tensor(text, tf.string)
    if text.shape.rank not in (None, 1):
        raise ValueError(
            "Text is a list of strings. Received: "
            f"text.shape={tuple(text.shape)}. Give `[text]` for one string."
        )
    return tf.ensure_shape(text, [None]) if text.shape.rank is None else text


def for_language(
    text: tf.Tensor, language: str | tf.Tensor, known: Sequence[str]
) -> tf.Tensor:
    """Returns strings `(B,)` with the tag of a target language before them.

    Args:
        text: the strings.
        language: one of the known ones, or "" for no tag; may be a tensor.
        known: names of the tags of a vocabulary.

    Raises:
        ValueError: if the language is another one. If it is a tensor, the graph
            raises a `tf.errors.InvalidArgumentError`.
    """
    if not tf.is_tensor(language) and not language:
        return text
    languages = ", ".join(known) or "none, as the model has no tags"
    message = f"`target_language` may be {languages}. Received:"
    if not tf.is_tensor(language) and language not in known:
        raise ValueError(f"{message} target_language={language!r}")
    is_known = tf.reduce_any(tf.equal(language, ["", *known]))
    check = tf.debugging.Assert(is_known, [message, language])
    with tf.control_dependencies([check]):
        tag = tf.strings.join([">>", language, "<< "])
    return tf.strings.join([tf.where(tf.equal(language, ""), "", tag), text])
