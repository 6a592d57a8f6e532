"""Word alignment: which word of a text each word of a translation came from.

Shapes: B batch, H heads, S source length, T target length.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import END, UNKNOWN
from keras_transformer.inference.piece_words import WORD_START

# Added to the mean of a source piece's weights before they are divided by it.
SMOOTHING = 0.02
SPACE, CONTINUES, STARTS = 1, 2, 3  # codes of pieces; others have no text


def align(
    attention: Sequence[tf.Tensor],
    source_words: tf.Tensor,
    target_words: tf.Tensor,
) -> tf.Tensor:
    """Aligns words by attention.

    Each target word is linked to the word of the source piece to which its
    pieces belong most, see `piece_weights`.

    Args:
        attention: float32 `(B, H, T, S)` for each layer of the decoder.
        source_words, target_words: int32 `(B, S)` and `(B, T)`, see
            `word_numbers`.

    Returns:
        Strings `(B,)` in Pharaoh form: "0-0 2-1" if the first words belong
        together, and the third word of the source and the second one of the
        target. Links are sorted. A source word may have none, or several.
    """
    batch, length = tf.unstack(tf.shape(source_words))
    is_word = tf.one_hot(target_words, tf.shape(target_words)[1])  # [B, T, W]
    weights = piece_weights(attention, target_words >= 0)
    weights = tf.matmul(is_word, weights, transpose_a=True)  # [B, W, S]
    weights = tf.where(source_words[:, None] >= 0, weights, -1.0)
    words = tf.gather(source_words, tf.argmax(weights, axis=2), batch_dims=1)
    words = tf.where(tf.reduce_any(is_word > 0, axis=1), words, -1)  # [B, W]
    links = tf.where(tf.one_hot(words, length, axis=1) > 0)
    rows, source, target = tf.unstack(links, num=3, axis=1)
    pairs = tf.strings.join(
        [tf.strings.as_string(source), tf.strings.as_string(target)], "-"
    )
    return tf.strings.unsorted_segment_join(pairs, rows, batch, " ")


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
        int32 `(B, S)`, from 0 on; -1 for tags, special pieces and spaces.
    """
    codes = tf.gather(tf.constant(_codes(tokenizer)), ids)
    is_space, has_text = tf.equal(codes, SPACE), codes >= CONTINUES
    place = tf.cumsum(tf.cast(has_text, tf.int32), axis=1)
    follows = tf.pad(is_space[:, :-1], [[0, 0], [1, 0]])
    starts = has_text & (follows | tf.equal(codes, STARTS) | tf.equal(place, 1))
    words = tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1
    return tf.where(has_text, words, -1)


def _codes(tokenizer):
    """Returns a code for each piece: whether it has text, and begins a word."""
    codes = np.zeros(tokenizer.vocab_size, "uint8")
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    for i, piece in enumerate(pieces):
        if i == UNKNOWN:
            codes[i] = CONTINUES
        elif i > END and piece not in tokenizer.tags:
            starts = STARTS if piece.startswith(WORD_START) else CONTINUES
            codes[i] = starts if piece.strip(WORD_START) else SPACE
    return codes
