"""Sentences that look like another one, or have what nobody sees."""

import unicodedata

INSIDE = {  # put into a word
    "NUL": "\0",
    "BEL": "\x07",
    "ESC": "\x1b",
    "DEL": "\x7f",
    "APC": "\x9f",
    "soft hyphen": "\u00ad",
    "grapheme joiner": "\u034f",
    "Arabic letter mark": "\u061c",
    "Hangul filler": "\u115f",
    "Mongolian separator": "\u180e",
    "zero-width space": "\u200b",
    "left-to-right mark": "\u200e",
    "right-to-left mark": "\u200f",
    "embedding": "\u202a",
    "override": "\u202e",
    "word joiner": "\u2060",
    "function application": "\u2061",
    "invisible plus": "\u2064",
    "isolate": "\u2066",
    "end of isolate": "\u2069",
    "byte order mark": "\ufeff",
    "object replacement": "\ufffc",
    "variation selector": "\ufe0f",
    "tag": "\U000e0041",
}
BETWEEN = {  # instead of the spaces
    "two spaces": "  ",
    "tab": "\t",
    "line feed": "\n",
    "carriage return": "\r\n",
    "vertical tab": "\x0b",
    "form feed": "\x0c",
    "next line": "\x85",
    "line separator": "\u2028",
    "no-break space": "\u00a0",
    "narrow no-break space": "\u202f",
    "thin space": "\u2009",
    "mathematical space": "\u205f",
    "ideographic space": "\u3000",
    "space and zero-width space": " \u200b ",
}
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
# Those of a sentence's own letters and digits; punctuation as it is.
LETTERS = {c: wide for c, wide in FULL_WIDTH.items() if chr(c).isalnum()}


def look_alikes(sentence):
    """Returns 41 sentences that look like one of several words, by name."""
    middle = sentence.index(" ") + 2  # inside the second word
    start, end = sentence[:middle], sentence[middle:]
    found = {name: start + c + end for name, c in INSIDE.items()}
    found |= {
        name: sentence.replace(" ", space) for name, space in BETWEEN.items()
    }
    found["decomposed"] = unicodedata.normalize("NFD", sentence)
    found["full width"] = sentence.translate(LETTERS)
    found["at both ends"] = f"\ufeff \u00a0{sentence}\u200b\u3000"
    return found
