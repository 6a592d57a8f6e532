"""The rules that clean text: what looks the same becomes the same.

A vocabulary carries its rule as SentencePiece's `precompiled_charsmap`, so text
is cleaned wherever it is encoded: when a corpus is prepared, in an exported
graph, and in other programs that read the vocabulary. There are two rules:

- "source" removes invisible characters, makes one space of all white space, and
  writes compatible characters alike (Unicode's NFKC);
- "target", for text that the model learns to write, removes invisible
  characters and line ends and composes accents (NFC), but keeps what a reader
  can tell apart, such as no-break spaces and "½".
"""

import functools
import itertools
import pathlib
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import sentencepiece

RULES = ("source", "target")
FORMS: dict[str, Literal["NFKC", "NFC"]]
FORMS = {"source": "NFKC", "target": "NFC"}

Ranges = list[tuple[int, int]]
LINE_ENDS: Ranges = [(0x0A, 0x0D), (0x85, 0x85), (0x2028, 0x2029)]
# Unicode's White_Space.
WHITE_SPACE: Ranges = [
    *LINE_ENDS,
    (0x09, 0x09),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
]
# The two joiners, which tell words of some languages and emoji apart, and the
# selectors of Mongolian are invisible alone, and kept.
JOINERS: Ranges = [(0x200C, 0x200D), (0x180B, 0x180D), (0x180F, 0x180F)]
# Control characters, and Unicode's Default_Ignorable_Code_Point without those
# above; characters that annotate or stand for an object.
INVISIBLE: Ranges = [
    (0x00, 0x08),
    (0x0E, 0x1F),
    (0x7F, 0x84),
    (0x86, 0x9F),
    (0xAD, 0xAD),  # soft hyphen
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180E, 0x180E),
    (0x200B, 0x200B),  # zero-width space
    (0x200E, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),  # variation selectors, kept after emoji
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFC),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),  # tags
]
EMOJI_SELECTOR, KEYCAP = "\ufe0f", "\u20e3"
# Hyphens that look like the one on the keyboard.
HYPHENS = "\u2010\u2011"
SPACE_MARK = 0x2581  # which SentencePiece writes for a space


def _code_points(ranges: Ranges) -> Iterator[int]:
    return itertools.chain(*(range(a, b + 1) for a, b in ranges))


def _symbols() -> Ranges:
    """Returns the symbols among which all emoji with a selector are."""
    blocks = [(0xA9, 0xAE), (0x2000, 0x33FF), (0x1F000, 0x1FAFF)]
    found = [
        code
        for code in _code_points(blocks)
        if unicodedata.category(chr(code)) in ("So", "Sm")
    ]
    ranges: Ranges = []
    for code in found:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = ranges[-1][0], code
        else:
            ranges.append((code, code))
    return ranges


SYMBOLS = _symbols()


def pattern_of(ranges: Ranges, re2: bool = False) -> str:
    """Returns a character class, as `re` writes it or as RE2 does."""
    form = "\\x{{{:x}}}-\\x{{{:x}}}" if re2 else "\\U{:08x}-\\U{:08x}"
    return f"[{''.join(form.format(*bounds) for bounds in ranges)}]"


def _invisible_pattern(re2):
    """Returns a pattern of what is removed, and of emoji with a selector, which
    are the group and are kept."""
    symbols = pattern_of(SYMBOLS, re2)
    invisible = pattern_of(INVISIBLE, re2)
    return (
        f"({symbols}{EMOJI_SELECTOR}|[0-9#*]{EMOJI_SELECTOR}{KEYCAP})"
        f"|{invisible}"
    )


# Characters that become a space, by rule.
SPACES: dict[str, Ranges] = {
    "source": WHITE_SPACE,
    "target": [(0x20, 0x20), *LINE_ENDS],
}
# Patterns of `tf.strings`: invisible characters, to be replaced by `\1`; what
# becomes a space; and text of which a reader sees nothing.
RE2_INVISIBLE = _invisible_pattern(re2=True)
RE2_SPACES = {
    rule: pattern_of(ranges, re2=True) for rule, ranges in SPACES.items()
}
BLANK: Ranges = [*WHITE_SPACE, *INVISIBLE, *JOINERS, (SPACE_MARK, SPACE_MARK)]
RE2_BLANK = pattern_of(BLANK, re2=True) + "*"
_BLANK = re.compile(pattern_of(BLANK) + "*")
_INVISIBLE = re.compile(_invisible_pattern(re2=False))
_CHANGED = {
    "source": re.compile(
        pattern_of(
            [
                *INVISIBLE,
                *(r for r in WHITE_SPACE if r != (0x20, 0x20)),
                *((ord(c), ord(c)) for c in HYPHENS),
            ]
        )
    ),
    "target": re.compile(pattern_of([*INVISIBLE, *LINE_ENDS])),
}


def is_blank(text: str) -> bool:
    """Returns whether a reader sees nothing of a text."""
    return _BLANK.fullmatch(text) is not None


def without_invisible(text: str) -> str:
    """Removes the invisible characters of a text.

    The table in a vocabulary does this, too, except for U+0000, selectors that
    follow no emoji, and what stands between a letter and its accent.
    """
    return _INVISIBLE.sub(r"\1", text)


def clean(text: str, rule: str) -> str:
    """Returns a text as a vocabulary with this rule sees it.

    Example:

    >>> clean("soft\\u00adly  said,\\u00a0½", "source")
    'softly said, 1⁄2'

    Args:
        text: any string.
        rule: "source" or "target".
    """
    is_clean = unicodedata.is_normalized(FORMS[rule], text)
    if is_clean and not _CHANGED[rule].search(text):
        return text
    return normalizer_of(rule).normalize(without_invisible(text))


def clean_all(texts: Iterable[str], rule: str) -> Iterator[str]:
    """Yields texts as `clean` returns them."""
    return (clean(text, rule) for text in texts)


@functools.cache
def normalizer_of(rule: str) -> sentencepiece.SentencePieceNormalizer:
    """Compiles a rule, which takes half a second."""
    # No model can hold U+0000, or a sequence that stays as it is, which a
    # selector after an emoji would be. `clean` and the tokenizer see to them.
    found = replacements(rule)
    for text in ("\0", EMOJI_SELECTOR):
        found.pop(text, None)
    return compile_replacements(found)


def compile_replacements(
    found: Mapping[str, str],
) -> sentencepiece.SentencePieceNormalizer:
    """Compiles strings and their replacements."""
    sentencepiece.set_min_log_level(2)

    def hexadecimal(text):
        return " ".join(f"{ord(character):X}" for character in text)

    lines = (
        f"{hexadecimal(before)}\t{hexadecimal(after)}\n"
        for before, after in found.items()
    )
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rule.tsv")
        path.write_text("".join(lines))
        return sentencepiece.SentencePieceNormalizer(
            rule_tsv=str(path),
            add_dummy_prefix=False,
            escape_whitespaces=False,
            remove_extra_whitespaces=True,
        )


def replacements(rule: str) -> dict[str, str]:
    """Returns what a rule replaces: strings and their replacements.

    At each place of a text, the longest string is replaced. Strings of several
    characters are those that Unicode composes.
    """
    form = FORMS[rule]
    found = {}
    for code in range(0x110000):
        character = chr(code)
        # Most characters have no parts, and surrogates are no text.
        if unicodedata.is_normalized("NFKD", character):
            continue
        normal = unicodedata.normalize(form, character)
        if normal != character:
            found[character] = normal
        for sequence in _sequences(character):
            if sequence != normal:
                found[sequence] = normal
    if rule == "source":
        found |= dict.fromkeys(HYPHENS, "-")
        found |= {chr(code): " " for code in _code_points(WHITE_SPACE)}
        found.pop(" ")
    found |= {chr(code): " " for code in _code_points(LINE_ENDS)}
    return found | {chr(code): "" for code in _code_points(INVISIBLE)}


def _sequences(character):
    """Yields the strings that Unicode composes to a character: its letter, or
    a part of it that is composed, and the other marks in any order."""
    letter, *marks = list(unicodedata.normalize("NFD", character))
    if not marks:
        return
    composed = unicodedata.normalize("NFC", character)
    for order in itertools.permutations(marks):
        for done in range(len(order) + 1):
            start = unicodedata.normalize("NFC", letter + "".join(order[:done]))
            sequence = start + "".join(order[done:])
            is_same = unicodedata.normalize("NFC", sequence) == composed
            if is_same and len(sequence) > 1:
                yield sequence
