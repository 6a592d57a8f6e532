"""Explains translations by the attention of the decoder to the source."""

import tensorflow as tf

from keras_transformer.config import PAD
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.inference.fast_model import InferenceModel


def explained(
    model: InferenceModel,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    source: tf.Tensor,
    target: tf.Tensor,
    blank: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Returns translations with their pieces and attention.

    Args:
        model: the model that translated.
        source_tokenizer, target_tokenizer: its tokenizers.
        source, target: ids `(B, S)` and `(B, T)`, padded with 0.
        blank: booleans `(n,)`, True for texts without words. `source` may have
            more rows, which are left out.

    Returns:
        A dictionary of `translation`, `source_pieces`, `target_pieces` and
        `attention`, see `Translator.explain`.
    """
    count = tf.size(blank)
    lengths = tf.math.count_nonzero(target[:count], axis=1, dtype=tf.int32)
    longest = tf.reduce_max(tf.where(blank, 1, lengths))
    target = target[:, : tf.maximum(longest, 1)]
    _, attention = model.read(target, model.encode(source))

    def pieces(tokenizer, ids):
        names = tokenizer.pieces(range(tokenizer.vocab_size))
        names[PAD] = ""
        return tf.gather(tf.constant(names), ids)

    found = {
        "translation": target_tokenizer.decode(target),
        "source_pieces": pieces(source_tokenizer, source),
        "target_pieces": pieces(target_tokenizer, target),
        "attention": tf.stack(attention, axis=1),
    }
    found = {name: value[:count] for name, value in found.items()}
    attention = found.pop("attention")
    return {
        "translation": tf.where(blank, "", found.pop("translation")),
        "attention": tf.where(blank[:, None, None, None, None], 0.0, attention),
        **{
            name: tf.where(blank[:, None], "", names)
            for name, names in found.items()
        },
    }
