"""Word alignment: which word of a text each word of a translation came from.

Shapes: B batch, H heads, S source length, T target length.
"""

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import END, UNKNOWN
from keras_transformer.inference.piece_words import WORD_START

# Added to the mean of a source piece's weights before they are divided by it.
SMOOTHING = 0.02


def align(
    attention: Sequence[tf.Tensor],
    source_words: tf.Tensor,
    target_words: tf.Tensor,
) -> tf.Tensor:
    """Aligns words by attention.

    Each target piece is linked to the source piece with the greatest weight,
    see `piece_weights`; so are their words.

    Args:
        attention: float32 `(B, H, T, S)` for each layer of the decoder.
        source_words, target_words: int32 `(B, S)` and `(B, T)`, see
            `word_numbers`.

    Returns:
        Strings `(B,)` in Pharaoh form: "0-0 1-2" if the first words belong
        together, and the second word of the source and the third one of the
        target. Links are sorted; a word may have none, or several.
    """
    shape, length = tf.shape(source_words), tf.shape(target_words)[1]
    weights = piece_weights(attention, target_words >= 0)
    weights = tf.where(source_words[:, None] >= 0, weights, -1.0)
    words = tf.gather(
        source_words, tf.argmax(weights, axis=2), batch_dims=1
    )  # [B, T]
    links = tf.matmul(
        tf.one_hot(words, shape[1]),  # [B, T, source words]
        tf.one_hot(target_words, length),
        transpose_a=True,
    )
    rows, source, target = tf.unstack(tf.where(links > 0), num=3, axis=1)
    pairs = tf.strings.join(
        [tf.strings.as_string(source), tf.strings.as_string(target)], "-"
    )
    return tf.strings.unsorted_segment_join(pairs, rows, shape[0], " ")


def piece_weights(
    attention: Sequence[tf.Tensor], is_target: tf.Tensor
) -> tf.Tensor:
    """Returns how much each target piece belongs to each source piece.

    That is the mean attention of all layers and heads. It is divided by what
    all target pieces give to a source piece: many look at a full stop or at an
    article, whatever they translate.

    Args:
        attention: float32 `(B, H, T, S)` for each layer of the decoder.
        is_target: bool `(B, T)`, False at padding and at the end token.

    Returns:
        float32 `(B, T, S)`, 0 where `is_target` is False.
    """
    weights = tf.reduce_mean(attention[0], axis=1)
    for layer in attention[1:]:
        weights += tf.reduce_mean(layer, axis=1)
    weights /= len(attention)
    weights = tf.where(is_target[:, :, None], weights, 0.0)
    count = tf.reduce_sum(tf.cast(is_target, tf.float32), axis=1)
    mean = tf.reduce_sum(weights, axis=1) / tf.maximum(count, 1.0)[:, None]
    return weights / (mean[:, None] + SMOOTHING)


def word_numbers(ids: tf.Tensor, tokenizer: Tokenizer) -> tf.Tensor:
    """Returns which word each piece is in.

    Words are what white space separates, tags such as `>>de<<` apart.

    Args:
        ids: int32 `(B, S)`.
        tokenizer: the `Tokenizer` of the ids.

    Returns:
        int32 `(B, S)`, from 0 on; -1 for tags and special pieces.
    """
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    has_text = [
        i == UNKNOWN or (i > END and piece not in tokenizer.tags)
        for i, piece in enumerate(pieces)
    ]
    starts = [piece.startswith(WORD_START) for piece in pieces]
    has_text = tf.gather(tf.constant(has_text), ids)
    starts = tf.gather(tf.constant(starts), ids)
    place = tf.cumsum(tf.cast(has_text, tf.int32), axis=1)
    starts = has_text & (starts | tf.equal(place, 1))
    words = tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1
    return tf.where(has_text, words, -1)
