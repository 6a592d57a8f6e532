"""Adds `import` and `--runner` to the command.

It is imported before the command reads its arguments, so it imports neither
Keras nor the programs.
"""

import functools
import shlex
from typing import Any

from keras_transformer.cli.command_line import CommandLine, Function
from keras_transformer.cli.commands import prepare_by
from keras_transformer.cli.options import refuse

# `translate --runner` has no place for these.
STREAM_OPTIONS = {
    "alpha",
    "attention",
    "batch_size",
    "beam_size",
    "document",
    "engine",
    "explain",
    "language",
    "markup",
    "target_language",
}


def add_import(command_line: CommandLine) -> None:
    """Adds the command `import`."""
    parser = command_line.add(
        "import",
        "Import a Marian model, such as those of OPUS-MT, as a run.",
        import_model,
        extra="marian",
        needs_keras=True,
    )
    parser.add_argument(
        "source",
        metavar="MODEL",
        help="folder of the model, or its name on the Hugging Face hub, such "
        "as Helsinki-NLP/opus-mt-en-de",
    )
    parser.add_argument("folder", metavar="RUN", help="folder of the new run")
    parser.add_argument(
        "--uncleaned",
        action="store_true",
        help="give sources to the model as they are, as transformers does "
        "(default: clean them as in the model's training)",
    )


def import_model(given: dict[str, Any]) -> None:
    """Imports a Marian model as a run."""
    from keras_transformer.integrations.marian.importer import import_marian

    clean_sources = "uncleaned" not in given
    run = import_marian(given["source"], given["folder"], clean_sources)
    print(
        f"Imported {run.folder}. Next: keras-transformer export "
        f"{shlex.quote(str(run.folder))} saved_models/NAME/1"
    )


def add_runner(command_line: CommandLine) -> None:
    """Adds `--runner` to `prepare` and `translate`: pipelines of Apache Beam.

    Options of the runner follow after `--`.
    """
    for name, function in (("prepare", prepare), ("translate", translate)):
        command_line.commands[name].parser.add_argument(
            "--runner",
            metavar="NAME",
            help="run on Apache Beam: DirectRunner, FlinkRunner, SparkRunner "
            "or DataflowRunner; options of the runner follow after `--`",
        )
        command_line.wrap(name, function)
    parser = command_line.commands["translate"].parser
    for name, direction in (("input", "translate"), ("output", "write")):
        parser.add_argument(
            f"--{name}",
            metavar="FILE",
            help=f"file to {direction}, with --runner only",
        )
    command_line.pass_on("runner")


def prepare(given: dict[str, Any], otherwise: Function) -> None:
    """Prepares corpora by a pipeline if a runner was given."""
    if "runner" not in given:
        otherwise(given)
        return
    from keras_transformer.integrations.beam import prepare_on_beam

    options = _runner_options(given)
    prepare_by(functools.partial(prepare_on_beam, options=options), given)


def translate(given: dict[str, Any], otherwise: Function) -> None:
    """Translates a file by a pipeline if a runner was given."""
    if "runner" not in given:
        refuse(given, {"input", "output"}, "translate without --runner")
        otherwise(given)
        return
    from keras_transformer.integrations.beam import translate_file

    refuse(given, STREAM_OPTIONS, "--runner")
    if not {"input", "output"} <= given.keys():
        raise ValueError(
            "`--runner` needs the files to read and to write. Give --input "
            "and --output."
        )
    source, target = given["input"], given["output"]
    options = _runner_options(given)
    failed = translate_file(given["path"], source, target, options)
    print(f"Translated {source} to {target}; {failed:,} lines failed.")


def _runner_options(given):
    return [f"--runner={given['runner']}", *given.get("passed_on", [])]
