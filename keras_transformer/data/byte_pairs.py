"""Learns a byte-pair encoding with SentencePiece, without TensorFlow."""

import io
import re
from collections.abc import Iterable, Sequence

import sentencepiece

from keras_transformer.ids import END, PAD, START, UNKNOWN


class TooManyPiecesError(ValueError):
    """A text has too little variety for a vocabulary.

    Args:
        vocab_size: the number of pieces.
        most: the largest number that the text allows.
    """

    def __init__(self, vocab_size: int, most: int):
        super().__init__(
            f"Cannot learn a vocabulary. Received: vocab_size={vocab_size}, "
            "more word pieces than the text has variety for. Choose at most "
            f"{most}."
        )
        self.most = most


def learn_byte_pairs(
    sentences: Iterable[str], vocab_size: int, tags: Sequence[str] = ()
) -> bytes:
    """Returns the bytes of a SentencePiece model.

    See `train_tokenizer`, which makes a `Tokenizer` of them. The tags, such as
    `>>de<<`, are control pieces: nothing is learned of them where the sentences
    have them, and no text becomes one.

    Raises:
        ValueError: if the text does not allow so many or so few pieces.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=0.9999,
            byte_fallback=True,
            split_digits=True,
            normalization_rule_name="identity",
            max_sentence_length=2**30,  # longer lines would be left out
            pad_id=PAD,
            unk_id=UNKNOWN,
            bos_id=START,
            eos_id=END,
            control_symbols=list(tags),
            minloglevel=2,
        )
    except RuntimeError as error:
        too_high = r"Vocabulary size too high .* value <= (\d+)"
        if most := re.search(too_high, str(error)):
            raise TooManyPiecesError(vocab_size, int(most[1])) from error
        raise ValueError(
            f"Cannot learn a vocabulary. Received: vocab_size={vocab_size}"
            f"{_limit(str(error))}"
        ) from error
    return model.getvalue()


def _limit(error):
    """Returns which vocabularies the text allows, by SentencePiece's error."""
    if least := re.search(r"smaller than required_chars. \d+ vs (\d+)", error):
        return (
            ", too few word pieces for the characters of the text. Choose at "
            f"least {least[1]}."
        )
    if re.search(r"sentences_\.empty\(\)|\(all_chars_count\) > \(0\)", error):
        return ", and no text. Give sentences that are not blank."
    return f". SentencePiece says: {error.strip()}"
