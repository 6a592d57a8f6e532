"""Word pieces: text to ids and back by SentencePiece, on any backend."""

import re
from collections.abc import Iterable

import numpy as np
import sentencepiece

from keras_transformer.data import sentencepiece_file
from keras_transformer.data.byte_pairs import learn_byte_pairs
from keras_transformer.data.cleaning import (
    RULES,
    SPACES,
    clean_all,
    pattern_of,
    without_invisible,
)
from keras_transformer.data.sentencepiece_file import (
    TAG,
    is_line_break,
    rule_of,
    with_rule,
)
from keras_transformer.ids import END, PAD, START, UNKNOWN
from keras_transformer.validation import checked_integer, shown

UTF_8 = "utf-8", "replace"
ANY_BYTES = "utf-8", "surrogateescape"
SPECIAL = {"pad": PAD, "unk": UNKNOWN, "bos": START, "eos": END}


class Tokenizer:
    """Converts strings to ids and back with a SentencePiece model.

    `inference.GraphTokenizer` does the same in TensorFlow graphs.

    Example:

    >>> from pathlib import Path
    >>> tokenizer = Tokenizer(Path("runs/demo/source.model").read_bytes())
    >>> ids = tokenizer.encode(["Good morning."])
    >>> tokenizer.decode(ids)
    ['Good morning.']

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
        self.has_more_pieces = self.vocab_size < pieces
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
        self.tags = {
            piece: i
            for piece, i in self._ids.items()
            if processor.is_control(i) and re.findall(TAG, piece) == [piece]
        }
        self.tag_names = [tag[2:-2] for tag in self.tags]
        self._tags = re.compile(self.tag_pattern(), re.DOTALL)
        self.normalizes = bool(proto.normalizer_spec.precompiled_charsmap)
        self.longest_piece = max(len(piece.encode()) for piece in self._ids)
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
        # Imported models search as where they come from.
        tags = [] if self.rule is None else self.tags.values()
        return [PAD, START, *unknown, *tags, *self.line_breaks]

    def encode(self, text: Iterable[str | bytes]) -> list[list[int]]:
        """Encodes strings.

        Args:
            text: strings; bytes are taken as UTF-8.

        Returns:
            Ids of each string, with its end token.

        Raises:
            ValueError: if there is a single string, or something else than
                strings.
        """
        lines, tags = [], []
        for line in checked_strings(text):
            # A lone surrogate becomes "?". Bytes that are no UTF-8 stay, and
            # SentencePiece takes each as unknown.
            line = line if isinstance(line, bytes) else line.encode(*UTF_8)
            line = line.decode(*ANY_BYTES)
            if self.rule is not None:
                line = without_invisible(line)
            found, line = self.split_tags(line)
            lines.append(line.encode(*ANY_BYTES))
            names = re.findall(TAG, found, re.DOTALL)
            tags.append([self.tags.get(name, UNKNOWN) for name in names])
        rows = self._processor.encode(lines)
        if self.has_more_pieces:
            most = self.vocab_size
            rows = [[i if i < most else UNKNOWN for i in row] for row in rows]
        return [[*ids, *row, END] for ids, row in zip(tags, rows, strict=True)]

    def split_tags(self, line: str) -> tuple[str, str]:
        """Returns the tags such as `>>fra<<` that a string begins with, and the
        string without them."""
        tags = self._tags.match(line) if self.tags else None
        end = tags.end() if tags else 0
        return line[:end], line[end:]

    def tag_pattern(self, re2: bool = False) -> str:
        """Returns the pattern of the tags at the start of a string, as `re`
        writes it or as RE2 does.

        Other text in such brackets is a quotation, but for the first of a model
        that was imported: Marian takes that for an unknown tag.
        """
        tag = f"(?:{'|'.join(map(re.escape, self.tags))})"
        if self.rule is None:
            # In RE2, "." is a character of valid UTF-8, and "\C" any byte.
            first = TAG.replace(".", r"\C") if re2 else TAG
            return f"{first}(?: *{tag})*"
        space = pattern_of(SPACES[self.rule], re2)
        return f"{tag}(?:{space}*{tag})*{space}*"

    def decode(self, ids: Iterable[Iterable[int]]) -> list[str]:
        """Decodes ids.

        Ids after the end token, special ids and ids outside the vocabulary are
        ignored.

        Args:
            ids: rows of integers, such as an array `(B, T)`.

        Raises:
            ValueError: if there is a single row.
        """
        rows = []
        for row in ids:
            if isinstance(row, int | np.integer):
                raise ValueError(
                    "Ids to decode are several rows. Received: a single one, "
                    f"which begins with {row}. Give `[ids]`."
                )
            row = [int(i) for i in row]
            row = row[: row.index(END)] if END in row else row
            rows.append([i for i in row if END < i < self.vocab_size])
        return self._processor.decode(rows) if rows else []

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


def checked_strings(text: Iterable[str | bytes]) -> list[str | bytes]:
    """Returns strings as a list.

    Raises:
        ValueError: if there is a single one, or something else.
    """
    is_one = isinstance(text, str | bytes)
    lines = [] if is_one else list(text)
    if is_one or not all(isinstance(line, str | bytes) for line in lines):
        raise ValueError(
            "Text is a list of strings. Received: "
            f"text={shown(text)}. Give `[text]` for one string."
        )
    return lines
