"""The vocabulary of a Marian model as SentencePiece models with our ids.

Marian has two files for each side: a SentencePiece model, which cuts text into
pieces, and a vocabulary, which gives each piece its id. Here both become one
SentencePiece model, in which a piece's place is its id: padding 0, unknown 1,
start 2, end 3, then the others in Marian's order. The rows of the embeddings
move along.
"""

import dataclasses
import re

from keras_transformer.data import sentencepiece_file
from keras_transformer.data.sentencepiece_file import (
    CONTROL,
    NORMAL,
    TAG,
    UNUSED,
)
from keras_transformer.ids import END, PAD, START, UNKNOWN

# SentencePiece rates an unknown character below all pieces, by this.
UNKNOWN_PENALTY = 10.0
ZEROS = -1  # instead of a row, where Marian has none


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """Holds Marian's ids of the special pieces.

    Args:
        end, unknown: ids of `</s>` and `<unk>`.
        pad: id of `<pad>`, or `ZEROS` if the vocabulary has none.
        start: id that the decoder begins with, or `ZEROS` for a zero embedding.
        is_start_text: whether `start` is also a piece of text. It is where the
            padding token of the source, whose id the decoder begins with, has
            another id in the target's vocabulary. Defaults to False.
    """

    end: int
    unknown: int
    pad: int
    start: int
    is_start_text: bool = False


def rows_in_our_order(size: int, special: SpecialIds) -> list[int]:
    """Returns Marian's id for each of our ids, or `ZEROS`.

    The start token is a row of its own: where Marian begins with padding, that
    row is there twice.

    Args:
        size: number of Marian's pieces.
        special: ids of its special pieces.
    """
    first = {
        PAD: special.pad,
        UNKNOWN: special.unknown,
        START: special.start,
        END: special.end,
    }
    moved = {i for ours, i in first.items() if ours != START}
    if not special.is_start_text:
        moved.add(special.start)
    rest = sorted(set(range(size)) - moved)
    return [first[i] for i in range(len(first))] + rest


def sentencepiece_model(
    model: bytes, pieces: list[str], special: SpecialIds
) -> bytes:
    """Returns a SentencePiece model that cuts text as `model` does and has our
    ids.

    Pieces that `model` has and the vocabulary lacks come last, beyond the
    vocabulary: see `Tokenizer`. Pieces that only the vocabulary has are never
    cut off a text, except for single characters: these keep their id where
    `model` alone would say unknown.

    Args:
        model: a SentencePiece model.
        pieces: Marian's vocabulary, by its ids.
        special: ids of its special pieces.

    Raises:
        ValueError: if `model` cannot be read, or has no pieces.
    """
    proto = sentencepiece_file.parse(model)
    if not any(piece.type == NORMAL for piece in proto.pieces):
        raise ValueError(
            "A SentencePiece model must have pieces. Received: "
            f"{len(model)} bytes without any."
        )
    known = {piece.piece: (piece.score, piece.type) for piece in proto.pieces}
    scores = [piece.score for piece in proto.pieces if piece.type == NORMAL]
    least = min(scores, default=0.0) - UNKNOWN_PENALTY
    order = rows_in_our_order(len(pieces), special)
    rest = [pieces[i] for i in order[END + 1 :]]
    names = ["<pad>", "<unk>", _unused("<s>", rest), "</s>"]
    del proto.pieces[:]
    for name in names:
        kind = sentencepiece_file.UNKNOWN if name == "<unk>" else CONTROL
        proto.pieces.add(piece=name, score=0.0, type=kind)
    for name in rest:
        score, kind = known.get(name, (least, _kind_of_unknown(name)))
        if kind == sentencepiece_file.UNKNOWN or re.fullmatch(TAG, name):
            kind = CONTROL
        proto.pieces.add(piece=name, score=score, type=kind)
    taken = {*names, *rest}
    for name, (score, kind) in known.items():
        if name not in taken and kind not in (
            CONTROL,
            sentencepiece_file.UNKNOWN,
        ):
            proto.pieces.add(piece=name, score=score, type=kind)
    trainer = proto.trainer_spec
    trainer.vocab_size = len(order)
    trainer.pad_id, trainer.unk_id = PAD, UNKNOWN
    trainer.bos_id, trainer.eos_id = START, END
    trainer.pad_piece, trainer.unk_piece = names[PAD], names[UNKNOWN]
    trainer.bos_piece, trainer.eos_piece = names[START], names[END]
    return proto.SerializeToString()


def _unused(name, pieces):
    """Returns a name like `name` that no piece has."""
    while name in pieces:
        name = f"<{name}>"
    return name


def is_text(model: bytes, piece: str) -> bool:
    """Returns whether a piece of a vocabulary may be a part of a text: all are
    but those that are control pieces of its SentencePiece model."""
    control = (CONTROL, sentencepiece_file.UNKNOWN)
    return not any(
        found.piece == piece and found.type in control
        for found in sentencepiece_file.parse(model).pieces
    )


def _kind_of_unknown(piece):
    """Returns the type of a piece that only the vocabulary has."""
    return NORMAL if len(piece) == 1 else UNUSED
