"""Text in capitals, translated as a sentence and written in capitals again.

Word pieces tell capitals from small letters, so to a model that has read few
capitals they are another language, of which it invents translations.
"""

import tensorflow as tf

# Two words of at least two capitals, and no small letter: a single word may be
# an abbreviation.
_ANY = r"[^\p{Ll}]*"
IN_CAPITALS = (
    rf"(?s){_ANY}\p{{Lu}}{{2}}{_ANY}[^\p{{L}}]{_ANY}\p{{Lu}}{{2}}{_ANY}"
)


def is_in_capitals(text: tf.Tensor) -> tf.Tensor:
    """Returns which strings `(B,)` are two or more words in capitals."""
    return tf.strings.regex_full_match(text, IN_CAPITALS)


def as_sentence(text: tf.Tensor) -> tf.Tensor:
    """Returns strings in small letters, with a capital at the start.

    Example:

    >>> import tensorflow as tf
    >>> text = as_sentence(tf.constant(["ÜBER ROOM 7."]))
    >>> print(text[0].numpy().decode())
    Über room 7.

    Args:
        text: strings `(B,)` in UTF-8.
    """
    return capitalized(tf.strings.lower(text, "utf-8"))


def capitalized(text: tf.Tensor) -> tf.Tensor:
    """Returns strings in UTF-8 with a capital at the start."""
    first = tf.strings.substr(text, 0, 1, "UTF8_CHAR")
    length = tf.strings.length(text, "UTF8_CHAR")  # 0 for an empty string
    rest = tf.strings.substr(text, tf.minimum(length, 1), length, "UTF8_CHAR")
    return tf.strings.join([tf.strings.upper(first, "utf-8"), rest])
