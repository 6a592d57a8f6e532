"""Checks of settings and arguments. Errors name what was received.

Settings are dataclasses: `check_types`, `check_at_least` and `check_field` are
for their `__post_init__`, and a field by `option_field` is an option of the
command. `checked_integer`, `check_choice` and `check_argument` are for single
arguments.
"""

import dataclasses
import numbers
import operator
import reprlib
import typing
from collections.abc import Iterable
from typing import Any

MOST_QUOTED = 200  # characters of a value that an error repeats
# A value of a file may be large, or refer to the same list many times over.
_REPR = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxdict = _REPR.maxlist = _REPR.maxtuple = _REPR.maxset = 9
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 2 * MOST_QUOTED


def shown(value: Any) -> str:
    """Returns a value as errors quote it: its `repr`, cut at 200 characters."""
    text = _REPR.repr(value)
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}…"


def option_field(default: Any, help: str, **metadata: Any) -> Any:
    """Returns a dataclass field that is also an option of the command.

    Args:
        default: default of the field and of the option.
        help: help text of the option, which describes the field.
        metadata: further settings of the option: `option`, its name if that
            differs from the field's, and `metavar` or `choices`.
    """
    return dataclasses.field(
        default=default, metadata=metadata | {"help": help}
    )


# Types of fields: the classes of their values, what errors call them, and how a
# value becomes Python's.
FIELD_TYPES: dict[type, tuple[type, str, Any]] = {
    int: (numbers.Integral, "an integer", operator.index),
    float: (numbers.Real, "a number", float),
    bool: (bool, "True or False", bool),
    str: (str, "a string", str),
}


def check_types(settings: Any) -> None:
    """Checks that fields are of their types; numbers of NumPy become Python's.

    Raises:
        ValueError: if one is not, or is `None` where it must not be.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        types = typing.get_args(field.type) or (field.type,)
        if value is None and type(None) in types:
            continue
        if typing.get_origin(field.type) is tuple:  # of strings
            is_list = isinstance(value, list | tuple)
            holds = is_list and all(isinstance(x, str) for x in value)
            check_field(settings, field.name, holds, "a list of strings")
            object.__setattr__(settings, field.name, tuple(value))
            continue
        for type_, (known, expected, of_python) in FIELD_TYPES.items():
            if type_ in types:
                is_bool = isinstance(value, bool) and type_ is not bool
                holds = isinstance(value, known) and not is_bool
                check_field(settings, field.name, holds, expected)
                if not isinstance(value, int | float | str):
                    object.__setattr__(settings, field.name, of_python(value))


def check_at_least(settings: Any, **least: float) -> None:
    """Checks that fields have at least these values, or a default of `None`.

    Raises:
        ValueError: if one has not, or is NaN.
    """
    defaults = {f.name: f.default for f in dataclasses.fields(settings)}
    for name, low in least.items():
        value = getattr(settings, name)
        holds = defaults[name] is None if value is None else value >= low
        check_field(settings, name, holds, f"at least {low}")


def check_field(settings: Any, name: str, holds: bool, expected: str) -> None:
    """Checks a field of a dataclass.

    Raises:
        ValueError: unless it `holds`; the message names field and value.
    """
    if not holds:
        raise ValueError(
            f"`{name}` must be {expected}. "
            f"Received: {name}={shown(getattr(settings, name))}"
        )


def checked_integer(name: str, value: Any, least: int = 1) -> int:
    """Returns an argument as Python's integer.

    Raises:
        ValueError: if it is no integer, or less than `least`.
    """
    is_whole = isinstance(value, numbers.Integral) and value is not True
    if not is_whole or value < least:
        raise ValueError(
            f"`{name}` must be an integer of at least {least}. "
            f"Received: {name}={shown(value)}"
        )
    return operator.index(value)


def check_choice(name: str, value: Any, choices: Iterable[str | None]) -> None:
    """Checks that an argument is one of some values.

    Raises:
        ValueError: if it is not.
    """
    if value not in (known := list(choices)):
        expected = ", ".join(map(repr, known))
        raise ValueError(
            f"`{name}` must be one of {expected}. "
            f"Received: {name}={shown(value)}"
        )


def check_argument(name: str, value: Any, type_: type, remedy: str) -> None:
    """Checks the class of an argument.

    Raises:
        ValueError: if it is of another; the message names the remedy.
    """
    if not isinstance(value, type_):
        raise ValueError(
            f"`{name}` must be a `{type_.__name__}`. "
            f"Received: {name}={shown(value)}. {remedy}"
        )
