"""Options of the command, made from the fields of dataclasses.

Parsed arguments contain only the options that were given: the functions that
use them have the defaults.
"""

import argparse
import dataclasses
import typing
from collections.abc import Callable, Collection
from typing import Any

DEFAULT_PRESET = "tiny"
METAVARS = {int: "N", float: "X"}
# Settings of the search that a call may choose; the others are the export's.
SEARCH_OF_A_CALL = (
    "beam_size",
    "alpha",
    "min_length",
    "no_repeat_ngram_size",
    "repetition_penalty",
)


def options_of(cls: type) -> list[dataclasses.Field]:
    """Returns the fields of a dataclass that are options."""
    return [f for f in dataclasses.fields(cls) if "help" in f.metadata]


def settings_of(cls: type, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the given options that are fields of a dataclass."""
    return {f.name: given[f.name] for f in options_of(cls) if f.name in given}


def option_of(field: dataclasses.Field) -> str:
    """Returns the name of a field's option, such as `--vocab-size`."""
    return "--" + field.metadata.get("option", field.name.replace("_", "-"))


def refuse(given: dict[str, Any], names: Collection[str], context: str) -> None:
    """Refuses options that do not apply.

    Raises:
        ValueError: if one of the options `names` was given. The message says
            in which context it does not apply.
    """
    if refused := sorted(given.keys() & set(names)):
        options = [f"--{name.replace('_', '-')}" for name in refused]
        raise ValueError(
            f"`{context}` does not support some options. Received: "
            f"{', '.join(options)}. Leave them out."
        )


def add_options(
    parser: argparse._ActionsContainer,
    cls: type,
    default: str | Callable[[dataclasses.Field], Any] | None = None,
    names: Collection[str] | None = None,
) -> None:
    """Adds the options of a dataclass to a parser.

    Args:
        parser: the parser.
        cls: the dataclass.
        default: the default that help texts name, for all options, or a
            function of the field. Defaults to that of each field.
        names: names of the fields. Defaults to all that are options.
    """
    for field in options_of(cls):
        if names is None or field.name in names:
            shown = field.default if default is None else default
            shown = shown(field) if callable(shown) else shown
            _add_option(parser, cls, field, shown)


def _add_option(parser, cls, field, default):
    hint = typing.get_type_hints(cls)[field.name]
    # A union has several, a tuple one.
    members = typing.get_args(hint) or (hint,)
    kind = next(k for k in (bool, int, float, str) if k in members)
    if kind is bool:
        parser.add_argument(
            option_of(field),
            action="store_false" if field.default else "store_true",
            dest=field.name,
            default=argparse.SUPPRESS,
            help=field.metadata["help"],
        )
        return
    choices = field.metadata.get("choices")
    metavar = field.metadata.get("metavar", METAVARS.get(kind))
    shown = "" if default in (None, ()) else f" (default: {default})"
    parser.add_argument(
        option_of(field),
        type=kind,
        nargs="+" if typing.get_origin(hint) is tuple else None,
        dest=field.name,
        choices=choices,
        metavar=None if choices else metavar,
        help=field.metadata["help"] + shown,
    )
