"""Writes JSON as RapidJSON's pretty writer does, byte for byte.

Texts are `str` until the end; `as_bytes` encodes them. Bytes that are no UTF-8
are in them as Python's `surrogateescape` has them.
"""

import base64
import decimal
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.serve.json_text import Members

INDENT = " " * 4

_ESCAPES = {code: f"\\u{code:04X}" for code in range(32)}
_ESCAPES |= {
    ord(character): "\\" + letter
    for character, letter in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)
}
_MAX_FLOAT = 3.4028234e38  # the bound that RapidJSON 1.1.0 has for a float


def as_bytes(text: str) -> bytes:
    """Returns the bytes of a text, also those that are no UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def as_text(value: bytes) -> str:
    """Returns the text of bytes; the opposite of `as_bytes`."""
    return value.decode("utf-8", "surrogateescape")


def quote(text: str) -> str:
    """Returns a string of JSON."""
    return f'"{text.translate(_ESCAPES)}"'


def bytes_object(value: bytes, depth: int) -> str:
    """Returns an object with the key "b64", for bytes that are no text.

    Args:
        value: the bytes.
        depth: number of objects and arrays that the object is in.
    """
    inner, outer = INDENT * (depth + 1), INDENT * depth
    encoded = base64.b64encode(value).decode()
    return f'{{\n{inner}"b64": "{encoded}"\n{outer}}}'


def decimals(values: np.ndarray) -> list[str]:
    """Returns floats as TensorFlow Serving writes them.

    Six significant digits where they give the same float, otherwise nine for
    float32 and seventeen for float64. They have a point or an exponent.

    Args:
        values: an array of float32 or float64.
    """
    digits = 9 if values.dtype == np.float32 else 17
    # As Python's floats, and in one format string: a tenth of the time.
    flat = values.ravel().tolist()
    short = ("%g " * len(flat) % tuple(flat)).split()
    with np.errstate(over="ignore", under="ignore"):
        same = np.array(short, np.float64).astype(values.dtype)
    is_exact = (same == values.ravel()).tolist()
    return [
        text if exact and ("." in text or "e" in text) else _other(x, digits)
        for text, exact, x in zip(short, is_exact, flat, strict=True)
    ]


def _other(value, digits):
    """Returns a float that six digits do not give, or that is whole or not
    finite."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    text = f"{value:.{digits}g}"
    return text if "." in text or "e" in text else text + ".0"


def nest(
    texts: Sequence[str],
    shape: Sequence[int],
    depth: int = 0,
    is_one_line: bool = False,
) -> list[str]:
    """Puts elements into arrays.

    Args:
        texts: the elements of all arrays.
        shape: shape of each array; `()` for none.
        depth: number of objects and arrays that each array is in. Defaults
            to 0.
        is_one_line: whether arrays have no line breaks. Defaults to `False`.

    Returns:
        One text for each array.
    """
    for axis in reversed(range(len(shape))):
        length = shape[axis]
        if not length:
            # The number of empty arrays; the axes before this one make more.
            count = math.prod(shape[:axis])
            texts = ["[]"] * count
            continue
        start, between, end = "[", ", ", "]"
        if not is_one_line:
            line = "\n" + INDENT * (depth + axis)
            start, between = f"[{line}{INDENT}", f",{line}{INDENT}"
            end = f"{line}]"
        texts = [
            f"{start}{between.join(texts[i : i + length])}{end}"
            for i in range(0, len(texts), length)
        ]
    return list(texts)


def members(pairs: Sequence[tuple[str, str]], depth: int = 0) -> str:
    """Returns an object.

    Args:
        pairs: names, and texts of values.
        depth: number of objects and arrays that the object is in. Defaults
            to 0.
    """
    if not pairs:
        return "{}"
    line = "\n" + INDENT * depth
    inside = f",{line}{INDENT}".join(
        f"{quote(name)}: {text}" for name, text in pairs
    )
    return f"{{{line}{INDENT}{inside}{line}}}"


def value_text(value: Any) -> str:
    """Returns a value that `parse` read, as errors show it.

    RapidJSON's text ends before the first float that is not finite, and so does
    this one. A value that is a single float is always written.
    """
    if isinstance(value, float):
        is_float = -_MAX_FLOAT <= value <= _MAX_FLOAT
        dtype = np.float32 if is_float else np.float64
        return decimals(np.array([value], dtype))[0]
    parts: list[str] = []
    _write(value, 0, parts)
    return "".join(parts)


def _write(value, depth, parts):
    """Adds the text of a value; returns whether it is whole."""
    if isinstance(value, list | Members):
        return _write_all(value, depth, parts)
    if isinstance(value, float):
        if not math.isfinite(value):
            return False
        parts.append(_double(value))
    elif isinstance(value, str):
        parts.append(quote(value))
    elif value is None:
        parts.append("null")
    else:
        parts.append(str(value).lower())  # an integer or a bool
    return True


def _write_all(values, depth, parts):
    is_object = isinstance(values, Members)
    start, end = "{}" if is_object else "[]"
    line = "\n" + INDENT * depth
    parts.append(start)
    for index, item in enumerate(values):
        parts.append(("," if index else "") + line + INDENT)
        if is_object:
            name, item = item
            parts.append(quote(name) + ": ")
        if not _write(item, depth + 1, parts):
            return False
    parts.append(line + end if values else end)
    return True


def _double(value):
    """Returns a finite float as RapidJSON writes it: the shortest digits."""
    number = decimal.Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, number.digits))
    exponent = int(number.exponent)
    minus = "-" if number.sign else ""
    point = len(text) + exponent
    if text == "0":
        return minus + "0.0"
    if exponent >= 0 and point <= 21:
        return f"{minus}{text}{'0' * exponent}.0"
    if 0 < point <= 21:
        return f"{minus}{text[:point]}.{text[point:]}"
    if -6 < point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{minus}{text[0]}{fraction}e{point - 1}"
