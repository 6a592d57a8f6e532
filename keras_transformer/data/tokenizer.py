"""Word pieces: text to ids and back by SentencePiece, in TensorFlow graphs."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.data import sentencepiece_file
from keras_transformer.data.byte_pairs import learn_byte_pairs
from keras_transformer.data.cleaning import (
    RE2_BLANK,
    RE2_INVISIBLE,
    RE2_SPACES,
    RULES,
    clean_all,
)
from keras_transformer.data.sentencepiece_file import (
    TAG,
    is_line_break,
    rule_of,
    with_rule,
)
from keras_transformer.ids import END, PAD, START, UNKNOWN
from keras_transformer.validation import checked_integer

# Normalisation makes text shorter, such as 𝐀 of 4 bytes to A. Text that becomes
# shorter than by this factor may be cut before it fills the model.
SHRINKING = 4
SPECIAL = {"pad": PAD, "unk": UNKNOWN, "bos": START, "eos": END}


class Tokenizer:
    """Converts strings to ids and back with a SentencePiece model.

    It runs in TensorFlow graphs, by tensorflow-text.

    Example:

    >>> from pathlib import Path
    >>> tokenizer = Tokenizer(Path("runs/demo/source.model").read_bytes())
    >>> ids = tokenizer.encode(["Good morning."])
    >>> print(tokenizer.decode(ids.to_tensor()).numpy())
    [b'Good morning.']

    Args:
        model: the bytes of a SentencePiece model, in which padding is 0,
            unknown 1, start 2 and end 3. Load only files that you trust, since
            native code parses them.

    Raises:
        ValueError: if the model cannot be read or has other special ids.
    """

    def __init__(self, model: bytes):
        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError(
                "`model` must be a SentencePiece model. "
                f"Received: {len(model)} bytes that cannot be parsed."
            ) from error
        ids = {name: getattr(processor, f"{name}_id")() for name in SPECIAL}
        if ids != SPECIAL:
            raise ValueError(
                f"The tokenizer's special ids must be {SPECIAL}. "
                f"Received: {ids}. Train it with `train_tokenizer`."
            )
        self.model = model
        proto = sentencepiece_file.parse(model)
        pieces = len(proto.pieces)
        # A model may know fewer pieces than SentencePiece cuts; the others
        # become the unknown piece.
        self.vocab_size = min(pieces, proto.trainer_spec.vocab_size or pieces)
        self._has_more_pieces = self.vocab_size < pieces
        # Imported and older vocabularies have none of our rules.
        self.rule = rule_of(proto)
        self._processor = processor
        self._ids = {
            processor.id_to_piece(i): i for i in range(self.vocab_size)
        }
        self.kind = sentencepiece_file.MODEL_TYPES.get(
            proto.trainer_spec.model_type, "unigram"
        )
        has_user_defined = any(
            piece.type == sentencepiece_file.USER_DEFINED
            for piece in proto.pieces
        )
        self.allows_bpe_dropout = (
            self.kind == "bpe"
            and "<0x00>" in self._ids
            and not has_user_defined
        )
        self._tags = {
            piece: i
            for piece, i in self._ids.items()
            if processor.is_control(i) and re.fullmatch(TAG, piece)
        }
        self.has_tags = bool(self._tags)  # tags name target languages
        self._longest = max(len(piece.encode()) for piece in self._ids)
        if proto.normalizer_spec.precompiled_charsmap:
            self._longest *= SHRINKING
        self.line_breaks = [
            i for piece, i in self._ids.items() if is_line_break(piece)
        ]

    def with_rule(self, rule: str) -> "Tokenizer":
        """Returns a tokenizer of the same pieces that cleans text differently.

        Args:
            rule: "source" or "target", see `train_tokenizer`.

        Raises:
            ValueError: if the rule is another one.
        """
        _check_rule(rule)
        return Tokenizer(with_rule(self.model, rule))

    def has_pieces_of(self, other: "Tokenizer") -> bool:
        """Returns whether another tokenizer has the same pieces: each model of
        a shared vocabulary does, whatever its rule."""
        protos = [sentencepiece_file.parse(t.model) for t in (self, other)]
        for proto in protos:
            proto.ClearField("normalizer_spec")
        return protos[0] == protos[1]

    def suppressed_ids(self, allow_unknown: bool = False) -> list[int]:
        """Returns the ids that a model must not generate: they have no text, or
        would break a line.

        Args:
            allow_unknown: whether the unknown piece is not among them.
        """
        unknown = [] if allow_unknown else [UNKNOWN]
        return [PAD, START, *unknown, *self.line_breaks]

    def _operations(self):
        """Returns the tokenizer of tensorflow-text.

        Each call or graph makes its own: `tf.random.set_seed` destroys the
        resource of every tokenizer that was made in eager mode.
        """
        return tf_text.SentencepieceTokenizer(self.model, out_type=tf.int32)

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
        """Removes what the tokenizer's rule removes.

        The table in the model does this, too, except for U+0000, selectors
        that follow no emoji, and what stands between a letter and its accent.
        """
        if self.rule is None:
            return text
        return tf.strings.regex_replace(text, RE2_INVISIBLE, r"\1")

    def _encode(self, text):
        parts = []
        if self._tags:
            tags, text = self._split_tags(text)
            parts.append(tags)
        ids = self._operations().tokenize(text)
        if self._has_more_pieces:
            known = ids.values < self.vocab_size
            ids = ids.with_values(tf.where(known, ids.values, UNKNOWN))
        ends = tf.fill([ids.nrows(), 1], END)
        return tf.concat([*parts, ids, tf.cast(ends, ids.dtype)], axis=1)

    def _split_tags(self, text):
        """Returns the ids of tags such as `>>fra<<` that strings begin with,
        and the strings without them."""
        is_tagged = tf.strings.regex_full_match(text, f"(?s){TAG}.*")
        tags = tf.strings.regex_replace(text, f"(?s)^({TAG}).*$", r"\1")
        is_tag = tf.equal(tags[:, None], list(self._tags))  # [B, tags]
        known = tf.constant(list(self._tags.values()))
        ids = tf.reduce_max(tf.where(is_tag, known, UNKNOWN), axis=1)
        ids = tf.ragged.boolean_mask(ids[:, None], is_tagged[:, None])
        return ids, tf.strings.regex_replace(text, f"(?s)^{TAG}", "")

    def is_blank(self, text: tf.Tensor) -> tf.Tensor:
        """Returns which strings a reader sees as blank, tags apart."""
        if self._tags:
            text = self._split_tags(text)[1]
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
        text = self._without_invisible(text)
        spaces = RE2_SPACES[self.rule] if self.rule else " "
        text = tf.strings.regex_replace(text, f"{spaces}{{2,}}", " ")
        start = tf.strings.substr(text, 0, (most + 1) * self._longest + 1)
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
        text = (ids > END) & (ids < self.vocab_size) & tf.equal(ended, 0)
        return self._operations().detokenize(tf.ragged.boolean_mask(ids, text))

    def merges(self) -> dict[str, float]:
        """Returns the score of every piece of text.

        Merges that make a piece with a higher score are made first.
        """
        processor = self._processor
        return {
            processor.id_to_piece(i): processor.get_score(i)
            for i in range(self.vocab_size)
            if not (
                processor.is_byte(i)
                or processor.is_control(i)
                or processor.is_unknown(i)
                or processor.is_unused(i)
            )
        }

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """Returns the ids of pieces; unknown pieces become byte ids."""
        ids = []
        for piece in pieces:
            known = self._ids.get(piece)
            if known is None:
                ids += [self._ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
            else:
                ids.append(known)
        return ids

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns pieces as SentencePiece writes them, to be read by people."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def text_of(self, ids: Iterable[int]) -> str:
        """Returns the text of pieces with the marks of spaces in it."""
        text = b""
        for piece in self.pieces(ids):
            byte = re.fullmatch("<0x([0-9A-F]{2})>", piece)
            text += bytes.fromhex(byte[1]) if byte else piece.encode()
        return text.decode("utf-8", "replace")


def train_tokenizer(
    sentences: Iterable[str], vocab_size: int, rule: str = "source"
) -> Tokenizer:
    """Learns a byte-pair encoding.

    Encoding and decoding preserve text except for what the rule cleans: case
    and accents stay, and characters outside the vocabulary become bytes. Each
    digit is a piece of its own, so that unseen numbers can be encoded, too.

    Example:

    >>> from keras_transformer.data import read_lines
    >>> tokenizer = train_tokenizer(read_lines("corpus/train.en"), 290)
    >>> tokenizer.vocab_size
    290

    Args:
        sentences: sentences of one language, or of both for a joint vocabulary.
        vocab_size: number of pieces, including 256 bytes and 4 special pieces.
        rule: how text is cleaned. "source" removes invisible characters, makes
            one space of all white space, and writes compatible characters
            alike (NFKC); "target" removes invisible characters and composes
            accents (NFC), and keeps what a reader can tell apart. Defaults to
            "source".

    Returns:
        The `Tokenizer`.

    Raises:
        ValueError: if the text has too little variety for `vocab_size` pieces,
            or if `vocab_size` is too small for the characters of the text, or
            if there is a single string instead of sentences, or if the rule is
            another one.
    """
    if isinstance(sentences, str | bytes):
        raise ValueError(
            "Sentences are several strings. Received: "
            f"sentences={sentences[:40]!r}. Read those of a file by "
            "`read_lines(path)`."
        )
    vocab_size = checked_integer("vocab_size", vocab_size)
    _check_rule(rule)
    model = learn_byte_pairs(clean_all(sentences, rule), vocab_size)
    return Tokenizer(with_rule(model, rule))


def _check_rule(rule):
    if rule not in RULES:
        raise ValueError(
            f"`rule` must be one of {', '.join(RULES)}. Received: rule={rule!r}"
        )


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
