"""The command line: a parser and a function for each command.

The core adds its commands in `arguments`. What `keras_transformer.integrations`
adds is found here, by the tables of that package: nothing imports it before the
command needs it.
"""

import argparse
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any

Function = Callable[[dict[str, Any]], None]


@dataclasses.dataclass
class Command:
    """A command.

    Args:
        parser: its parser.
        function: runs it with the options that were given.
        extra: the extra that it needs besides `text`, if any.
        needs_keras: whether it needs Keras on TensorFlow.
    """

    parser: argparse.ArgumentParser
    function: Function
    extra: str | None
    needs_keras: bool


class CommandLine:
    """The commands of `keras-transformer`, by name, in `commands`."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser(
            prog="keras-transformer",
            description='The Transformer of "Attention Is All You Need".',
        )
        self.commands: dict[str, Command] = {}
        self._subparsers = self.parser.add_subparsers(
            required=True, metavar="COMMAND"
        )
        self._passing_on: set[str] = set()

    def add(
        self,
        name: str,
        help: str,
        function: Function,
        extra: str | None = None,
        needs_keras: bool = False,
        examples: Sequence[str] = (),
    ) -> argparse.ArgumentParser:
        """Adds a command and returns its parser.

        Its help ends with the examples. The other arguments are those of
        `Command`.
        """
        lines = [f"  keras-transformer {name} {one}" for one in examples]
        parser = self._subparsers.add_parser(
            name,
            help=help,
            description=help,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog="\n".join(["examples:", *lines]) if lines else None,
        )
        parser.set_defaults(command=name)
        self.commands[name] = Command(parser, function, extra, needs_keras)
        return parser

    def wrap(
        self, name: str, function: Callable[[dict[str, Any], Function], None]
    ) -> None:
        """Runs another function instead of that of a command.

        Args:
            name: the command.
            function: gets the options that were given, and the function that
                it is run instead of.
        """
        command = self.commands[name]
        otherwise = command.function
        command.function = lambda given: function(given, otherwise)

    def pass_on(self, option: str) -> None:
        """Accepts arguments after `--` where an option was given.

        They are then in the options as `passed_on`, a list.
        """
        self._passing_on.add(option)

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Returns the options that were given, and the name of the `command`.

        It ends the process if they are wrong, as `argparse` does.
        """
        passed_on: list[str] = []
        if "--" in arguments:
            end = arguments.index("--")
            arguments, passed_on = arguments[:end], [*arguments[end + 1 :]]
        given = vars(self.parser.parse_args(arguments))
        if passed_on:
            if not self._passing_on & given.keys():
                options = ", ".join(f"`--{x}`" for x in self._passing_on)
                self.parser.error(f"options after `--` are for {options}")
            given["passed_on"] = passed_on
        return given


def integrated(table: str) -> Any:
    """Returns a table of `keras_transformer.integrations` by its name."""
    package = importlib.import_module("keras_transformer.integrations")
    return getattr(package, table)


def load(reference: str) -> Any:
    """Imports what a reference "module:name" names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
