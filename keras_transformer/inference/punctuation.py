"""Punctuation, replaced and normalised as Moses does it, in TensorFlow graphs.

Two functions do what three scripts of Moses do, with which the sources of most
OPUS-MT models were prepared: `replace-unicode-punctuation.perl` and
`remove-non-printing-char.perl`, then `normalize-punctuation.perl`.

The last one replaces some fifty patterns, one after the other. Here, patterns
that are replaced in the same way share a pass, since each pass is an operation
in every exported graph. A group that takes no part in a match is empty in the
replacement. Of several alternatives the leftmost match is taken, and of these
the first in the pattern.

The patterns are RE2's, which has no lookahead: characters beside what is
removed are captured and written back.
"""

import tensorflow as tf

from keras_transformer.data.cleaning import RE2_INVISIBLE

NBSP = "\u00a0"  # the no-break space, Moses' "pseudo-space"
DIGIT = r"\p{Nd}"
# The white space of Python's `str.strip`.
SPACE = r"[\t-\r\x1c-\x1f\x{85}\pZ]"


def any_of(*alternatives: str) -> str:
    """Joins patterns into one that matches any of them."""
    return "|".join(alternatives)


# Each pass is a pattern and its replacement.
PASSES = [
    # Adds spaces around brackets. The next pass removes those inside.
    (r"([()])", r" \1 "),
    # Removes carriage returns, and spaces that do not belong there.
    (
        any_of(
            r"[ \r]*(\))(?:[ \r]+([.!:?;,]))?",
            r"(\()[ \r]+",
            rf"({DIGIT})[ \r]+(%)",
            r"[ \r]+([:;])",
            r"\r*( )[ \r]*",
            r"\r+",
        ),
        r"\1\2\3\4\5\6\7",
    ),
    # Adds spaces around two apostrophes or backticks, and around em dashes.
    (r"([`']{2}|—)", r" \1 "),
    # Replaces quotation marks. French ones lose the no-break space inside, and
    # if there is one inside, also that outside.
    (
        any_of(
            "[„“”]",
            "[`'´‘’‚]{2}",
            f"{NBSP}«{NBSP}",
            f"«{NBSP}?",
            f"{NBSP}»{NBSP}?",
            "»",
        ),
        '"',
    ),
    ("[–—]", "-"),
    ("[`´‘’‚]", "'"),
    ("…", "..."),
    # Removes no-break spaces before punctuation. One after "nº" is left to the
    # next pass, unless a percent sign follows.
    (any_of(f"(nº{NBSP}[:?!;])", f"{NBSP}([%:?!;])"), r"\1\2"),
    # Replaces no-break spaces after "nº" or a comma and before units, with the
    # spaces beside them, by one space; and runs of spaces by one.
    (
        any_of(
            f"(?:(nº|,){NBSP} *| +)(?:{NBSP}(ºC|cm))?",
            f"{NBSP}(ºC|cm)",
        ),
        r"\1 \2\3",
    ),
]

# Two last passes depend on the language. The first replaces a no-break space
# between digits, as in 12 000, by a point or a comma.
NUMBERS = f"({DIGIT}){NBSP}({DIGIT})"
POINTS = (NUMBERS, r"\1.\2")
COMMAS = (NUMBERS, r"\1,\2")
# In some languages it also moves a comma out of a quotation.
COMMAS_AFTER_QUOTES = (any_of(NUMBERS, ',(")'), r"\1\3,\2")

# The second removes white space at both ends of the text.
STRIP = (f"^{SPACE}+|{SPACE}+$", "")
# In English it also moves points and commas into a quotation.
STRIP_EN = (any_of(STRIP[0], '(")([,.]+)'), r"\2\1")
# In others it also moves points out of one, unless the text ends there or "<"
# follows.
STRIP_DE_ES_FR = (
    any_of(rf'(\.+)(")(?:{SPACE}+$|({SPACE}*[^<]))', STRIP[0]),
    r"\2\1\3",
)
LAST_PASSES = {
    "en": [POINTS, STRIP_EN],
    "de": [COMMAS_AFTER_QUOTES, STRIP_DE_ES_FR],
    "es": [COMMAS_AFTER_QUOTES, STRIP_DE_ES_FR],
    "fr": [COMMAS_AFTER_QUOTES, STRIP_DE_ES_FR],
    "cs": [COMMAS, STRIP],
    "cz": [COMMAS, STRIP],
}


# The characters that `replace-unicode-punctuation.perl` replaces, by theirs.
# It makes a quotation mark of the full-width 1; here that is a 1.
REPLACED = {
    ",": "，、",
    '"': "“”《》「」",
    ":": "∶：",
    "?": "？",
    ")": "）",
    "!": "！",
    "(": "（",
    ";": "；",
    **{str(digit): chr(ord("０") + digit) for digit in range(10)},
    "~": "～",
    "'": "’",
    "...": "…",
    "-": "━",
    "<": "〈",
    ">": "〉",
    "[": "【",
    "]": "】",
    "%": "％",
}
STOP = ("[。．] *", ". ")
# Control, format, private and unassigned characters. RE2's class of them has
# not the unassigned ones.
NOT_PRINTED = r"[^\pL\pM\pN\pP\pS\pZ\n]"


def replace_punctuation(text: tf.Tensor) -> tf.Tensor:
    """Replaces Unicode punctuation, and what does not print by spaces.

    It does what Moses' `replace-unicode-punctuation.perl` and
    `remove-non-printing-char.perl` do, one after the other, with two
    exceptions: invisible characters, such as a soft hyphen, are removed first
    and leave no space in the middle of a word, and a full-width 1 is a 1, not a
    quotation mark.

    Example:

    >>> import tensorflow as tf
    >>> text = tf.constant(["３０％，“so\u00adft”"])
    >>> print(replace_punctuation(text)[0].numpy().decode())
    30%,"soft"

    Args:
        text: strings `(B,)` in UTF-8. Invalid bytes stay as they are.

    Returns:
        Strings `(B,)`.
    """
    text = tf.strings.regex_replace(text, RE2_INVISIBLE, r"\1")
    text = tf.strings.regex_replace(text, *STOP)
    for replacement, characters in REPLACED.items():
        text = tf.strings.regex_replace(text, f"[{characters}]", replacement)
    return tf.strings.regex_replace(text, NOT_PRINTED, " ")


def normalize_punctuation(text: tf.Tensor, language: str = "en") -> tf.Tensor:
    """Normalises punctuation as the scripts of Moses do.

    Typographic quotation marks, dashes and ellipses become ASCII, spaces beside
    punctuation are removed or added, and no-break spaces are replaced. The
    result is that of `MosesPunctNormalizer(language).normalize` in sacremoses
    0.2. Where that differs from Moses' Perl script, this does too.

    Example:

    >>> import tensorflow as tf
    >>> text = tf.constant(["“It’s late…” ( 10 % ) ."])
    >>> print(normalize_punctuation(text, "en")[0].numpy().decode())
    "It's late..." (10%).

    Args:
        text: strings `(B,)` in UTF-8. Invalid bytes stay as they are.
        language: code of the text's language, such as "en". It decides about
            points and commas beside quotation marks and in numbers: "en" has
            rules of its own, "de", "es" and "fr" share theirs, "cs" and "cz"
            theirs, and so do all other languages.

    Returns:
        Strings `(B,)`.
    """
    others = [POINTS, STRIP]
    for pattern, rewrite in PASSES + LAST_PASSES.get(language, others):
        text = tf.strings.regex_replace(text, pattern, rewrite)
    return text
