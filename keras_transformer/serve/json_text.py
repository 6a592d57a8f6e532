"""Reads JSON as RapidJSON 1.1.0 does, which TensorFlow Serving reads with.

An object is a `Members`, an array a `list`. Strings may hold bytes that are no
UTF-8, as Python's `surrogateescape` has them. Integers beyond 64 bits are
floats.

It is the standard `json` module, and its errors are put in RapidJSON's words.
These documents are not treated as RapidJSON does:

- `Inf`, `-NaN`, and `NaN` with an exponent are refused. `Infinity`, `-Infinity`
  and `NaN` are numbers.
- A zero with a huge exponent, as in `0e999`, is accepted.
- A low surrogate alone, as in `"\\udc80"`, is refused as a high one is.
- Nesting has a limit, about 1,000 levels. TensorFlow Serving crashes instead.
- A number that is all of the document may end in a point or an `e`.
- Floats are the nearest ones; RapidJSON's may differ in the last digit.
"""

import codecs
import json
import re
from typing import Any

from keras_transformer.serve.errors import ServingError

EMPTY = "The document is empty."
INVALID_VALUE = "Invalid value."
NO_NAME = "Missing a name for object member."
NO_COLON = "Missing a colon after a name of object member."
NO_COMMA_IN_OBJECT = "Missing a comma or '}' after an object member."
NO_COMMA_IN_ARRAY = "Missing a comma or ']' after an array element."
WRONG_HEX = "Incorrect hex digit after \\u escape in string."
WRONG_SURROGATE = "The surrogate pair in string is invalid."
WRONG_ESCAPE = "Invalid escape character in string."
NO_QUOTE = "Missing a closing quotation mark in string."
TOO_BIG = "Number too big to be stored in double."
NO_FRACTION = "Miss fraction part in number."
NO_EXPONENT = "Miss exponent in number."

_WORDS = ("null", "true", "false")
_NUMBERS = ("NaN", "Infinity")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
# A pair of surrogates, one alone (which is the group), another escape.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class Members(tuple):
    """An object of JSON: pairs of name and value, in the document's order."""

    def find(self, name: str, default: Any = None) -> Any:
        """Returns the first value of a name, or `default` if it has none."""
        return next((value for key, value in self if key == name), default)

    def __contains__(self, name: object) -> bool:
        return any(key == name for key, _ in self)


class _TooBigError(ValueError):
    """A number is too big for a double."""


def parse(body: bytes) -> Any:
    """Returns the first value of a document; what follows it is ignored.

    Args:
        body: bytes of the document, in UTF-8, which is not checked.

    Raises:
        ServingError: `INVALID_ARGUMENT` with RapidJSON's text and the number
            of bytes in front of the error.
    """
    if not body:
        raise ServingError(
            "INVALID_ARGUMENT", "JSON Parse error: The document is empty"
        )
    bare = body.removeprefix(codecs.BOM_UTF8)
    text = bare.decode("utf-8", "surrogateescape")
    try:
        value, end = _decode(text)
    except json.JSONDecodeError as error:
        problem, end = _in_rapidjsons_words(text, error)
    except _TooBigError as error:
        # The first place that has these digits, which is nearly always it.
        problem, end = TOO_BIG, text.find(str(error))
    else:
        problem = ""
    surrogate = _lone_surrogate(text, end)
    if surrogate is not None:
        problem, end = WRONG_SURROGATE, surrogate
    elif not problem:
        return value
    before = len(text[:end].encode("utf-8", "surrogateescape"))
    offset = len(body) - len(bare) + before
    raise ServingError(
        "INVALID_ARGUMENT", f"JSON Parse error: {problem} at offset: {offset}"
    )


def _decode(text):
    """Returns the value and its end."""
    decoder = json.JSONDecoder(
        object_pairs_hook=Members, parse_int=_integer, parse_float=_decimal
    )
    return decoder.raw_decode(text, _after_space(text))


def _after_space(text, at=0):
    return len(text) - len(text[at:].lstrip(" \t\n\r"))


def _integer(digits):
    # The comparison of lengths is for speed, and as `int` refuses very long
    # numbers.
    if len(digits) > 20:
        return _decimal(digits)
    value = int(digits)
    return value if -(2**63) <= value < 2**64 else float(value)


def _decimal(digits):
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise _TooBigError(digits)
    return value


def _lone_surrogate(text, end):
    """Returns the place of the first surrogate without its other half."""
    if _SURROGATE.search(text, 0, end):
        for escape in _ESCAPE.finditer(text, 0, end):
            if escape[1]:
                return escape.start()
    return None


def _in_rapidjsons_words(text, error):
    """Returns RapidJSON's text and place of an error of Python's."""
    at, message = error.pos, error.msg
    if message.startswith("Illegal trailing comma"):  # Python 3.13
        at = _after_space(text, at + 1)
        name = "object" in message
        return (NO_NAME if name else INVALID_VALUE), at
    if message.startswith("Expecting property name"):
        return NO_NAME, at
    if message.startswith("Expecting ':'"):
        return NO_COLON, at
    if message.startswith("Expecting ','"):
        return _no_comma(text, at)
    if message.startswith("Expecting value"):
        return _no_value(text, at)
    return _wrong_string(text, at, message)


def _no_value(text, at):
    """Explains a place where no value begins."""
    is_first = _after_space(text) == at
    if is_first and text[at : at + 1] in ("", ",", ":", "}", "]"):
        return EMPTY, at
    # RapidJSON has passed over a sign, and the letters that are right.
    is_negative = text.startswith("-", at)
    at += is_negative
    for word in _NUMBERS if is_negative else _WORDS + _NUMBERS:
        if text.startswith(word[0], at):
            while word and text.startswith(word[0], at):
                word, at = word[1:], at + 1
            break
    return INVALID_VALUE, at


def _no_comma(text, at):
    """Explains a place where a comma or a closing bracket is missing."""
    # Python takes `1` of `1.` and `1e`, and misses the comma.
    number = _NUMBER.search(text[max(0, at - 400) : at])
    after = text[at : at + 1]
    if number and after == "." and not (number[1] or number[2]):
        return NO_FRACTION, at + 1
    if number and after in ("e", "E") and not number[2]:
        return NO_EXPONENT, at + 1 + (text[at + 1 : at + 2] in ("+", "-"))
    depth = 0
    for bracket in reversed(_STRING.sub("", text[:at])):
        depth += (bracket in "]}") - (bracket in "[{")
        if depth < 0:
            is_array = bracket == "["
            return (NO_COMMA_IN_ARRAY if is_array else NO_COMMA_IN_OBJECT), at
    return EMPTY, at


def _wrong_string(text, at, message):
    """Explains an error in a string."""
    if message.startswith("Invalid control character"):
        # RapidJSON takes a zero byte for the end of the document.
        return (NO_QUOTE if text[at] == "\0" else WRONG_ESCAPE), at
    if message.startswith("Unterminated string"):
        backslashes = len(text) - len(text.rstrip("\\"))
        if backslashes % 2:
            return WRONG_ESCAPE, len(text) - 1
        return NO_QUOTE, len(text)
    backslash = text.rfind("\\", 0, at + 1)
    if "XXXX" not in message:
        return WRONG_ESCAPE, backslash
    if _HEX.match(text, backslash + 2):  # Python wants something after it
        return NO_QUOTE, len(text)
    # RapidJSON tells the place of a pair of surrogates, not of its second one.
    first = _HIGH_SURROGATE.search(text[max(0, backslash - 6) : backslash])
    before = text[: backslash - 6]
    is_escaped = (len(before) - len(before.rstrip("\\"))) % 2
    return WRONG_HEX, backslash - (6 if first and not is_escaped else 0)
