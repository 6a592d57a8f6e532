"""The command line of `keras-transformer`.

It imports neither Keras nor TensorFlow, so the command shows its help fast.
"""

import argparse
import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

from keras_transformer.cli.engines import ENGINES, LOCAL, engine_parts
from keras_transformer.config import PRESETS, TransformerConfig
from keras_transformer.data.options import Preparation
from keras_transformer.hardware import DTYPES
from keras_transformer.inference.evaluation import BLEU_TOKENIZERS
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.serve.settings import ServeSettings
from keras_transformer.training.recipe import Recipe

BATCH_SIZE = 64
DEFAULT_PRESET = "tiny"
METAVARS = {int: "N", float: "X"}
SEARCH_OF_A_CALL = ("beam_size", "alpha")  # other settings are the export's


def parser() -> argparse.ArgumentParser:
    """Returns the parser.

    Parsed arguments contain only the options that were given. The functions
    that use the options have the defaults.
    """
    top = argparse.ArgumentParser(
        prog="keras-transformer",
        description='The Transformer of "Attention Is All You Need".',
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name, help):
        sub = commands.add_parser(
            name,
            help=help,
            description=help,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )
        sub.set_defaults(command=name)
        return sub

    sub = command("train", "Learn a vocabulary and train a model.")
    sub.add_argument(
        "--out", required=True, metavar="RUN", help="folder of the run"
    )
    sub.add_argument(
        "--resume",
        action="store_true",
        help="resume the run; if it does not exist, start it by the other "
        "options",
    )
    sub.add_argument(
        "--deterministic",
        action="store_true",
        help="make results on GPUs reproducible bit for bit; slower",
    )
    sub.add_argument(
        "--preset",
        metavar="NAME",
        help=f"preset of the model, one of {', '.join(PRESETS)} "
        f"(default: that of --initial-run, or {DEFAULT_PRESET})",
    )
    of_others = "that of the preset or of --initial-run"
    _add_options(sub, TransformerConfig, of_others)
    _add_options(sub, Recipe)

    sub = command(
        "prepare",
        "Clean and encode corpora of any size, once, for training.",
    )
    sub.add_argument(
        "corpora",
        metavar="CORPUS",
        nargs="+",
        help="builtin, tfds:NAME, or a folder with files SPLIT.LANGUAGE, "
        "SPLIT.tsv or SPLIT.parquet",
    )
    sub.add_argument("folder", metavar="FOLDER", help="folder to write to")
    sub.add_argument(
        "--weights",
        type=float,
        nargs="+",
        metavar="X",
        help="how often an epoch has the pairs of each corpus (default: once)",
    )
    sub.add_argument(
        "--vocabulary-of",
        metavar="RUN",
        help="run whose vocabulary is taken (default: it is learned)",
    )
    _add_runner(sub)
    _add_options(sub, Preparation)

    sub = command(
        "import", "Import a Marian model, such as those of OPUS-MT, as a run."
    )
    sub.add_argument(
        "source",
        metavar="MODEL",
        help="folder of the model, or its name on the Hugging Face hub, such "
        "as Helsinki-NLP/opus-mt-en-de",
    )
    sub.add_argument("folder", metavar="RUN", help="folder of the new run")

    sub = command(
        "average", "Choose weights: the newest, the best, or an average."
    )
    _add_run(sub)
    sub.add_argument(
        "--last",
        type=int,
        metavar="N",
        help="number of newest checkpoints to average (default: the run's)",
    )

    sub = command(
        "export", "Export a run as a SavedModel that translates text."
    )
    _add_run(sub)
    sub.add_argument(
        "path",
        metavar="FOLDER",
        help="folder to export to, such as saved_models/NAME/VERSION",
    )
    sub.add_argument(
        "--format",
        choices=["saved_model", "ctranslate2", "marian"],
        help="format of the export; ctranslate2 is another engine, with its "
        "own search; marian is for transformers (default: saved_model)",
    )
    sub.add_argument(
        "--quantization",
        help="quantization of ctranslate2: int8, int16, float16, bfloat16 or "
        "float32",
    )
    sub.add_argument(
        "--dtype",
        choices=DTYPES,
        help="dtype of the SavedModel's matrices, one in which the serving "
        "machine computes; int8 makes the smallest export, and multiplies in "
        "float32; auto is bfloat16 if this machine multiplies in bfloat16, "
        "else float32 (default: auto)",
    )
    sub.add_argument(
        "--shortlist",
        type=int,
        metavar="N",
        help="limit the search to the N likeliest target pieces of each source "
        "piece and to the most frequent ones, which is faster with a large "
        "vocabulary (default: all pieces)",
    )
    sub.add_argument(
        "--block-size",
        type=int,
        metavar="K",
        help="read K pieces at a step of greedy search, of which K - 1 are "
        "proposals; learns them first (default: one piece)",
    )
    _add_options(sub, SearchSettings, "the run's")

    sub = command(
        "translate", "Translate lines from standard input to standard output."
    )
    _add_model(sub)
    for side, direction in (("source", "translate"), ("target", "write")):
        sub.add_argument(
            f"--{side}",
            metavar="FILE",
            help=f"file to {direction}, with --runner only",
        )
    _add_runner(sub)
    sub.add_argument(
        "--document",
        action="store_true",
        help="translate a document: split its lines into sentences, and keep "
        "all white space between them",
    )
    sub.add_argument(
        "--language",
        metavar="CODE",
        help="language of the document, such as en, with --document only "
        "(default: the model's)",
    )
    sub.add_argument(
        "--explain",
        metavar="FILE.png",
        help="draw the attention of each head for a single line",
    )

    sub = command(
        "serve",
        "Serve SavedModels by HTTP and gRPC, as TensorFlow Serving does, with "
        "a page to try them.",
    )
    sub.add_argument(
        "path",
        metavar="MODEL",
        nargs="?",
        help="folder of a model's versions, such as saved_models/NAME, whose "
        "newest one is served; or one version",
    )
    sub.add_argument(
        "--config",
        metavar="FILE",
        help="config file of TensorFlow Serving, for several models",
    )
    _add_options(sub, ServeSettings)
    sub.add_argument(
        "--engine",
        choices=[LOCAL, *ENGINES],
        help="what computes: a process of this machine for each version, or "
        "replicas of Ray Serve (default: local)",
    )
    for name in ENGINES:
        settings, _ = engine_parts(name)
        _add_options(sub, settings)

    sub = command(
        "evaluate",
        "Score a SavedModel with sacreBLEU; print one line of JSON, and add it "
        "to the export's evaluations.jsonl.",
    )
    _add_model(sub)
    for side in ("source", "reference"):
        sub.add_argument(
            f"--{side}",
            required=True,
            metavar="FILE",
            help=f"file of {side} sentences, one per line",
        )
    sub.add_argument(
        "--tokenize",
        metavar="NAME",
        help=f"sacreBLEU's tokenizer: {', '.join(BLEU_TOKENIZERS)} (default: "
        f"{Recipe.bleu_tokenizer})",
    )
    return top


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Parses the arguments of the command.

    What follows `--` are options of an Apache Beam runner.

    Returns:
        The options that were given, with `command` and `runner_options`.
    """
    options: list[str] = []
    if "--" in arguments:
        end = arguments.index("--")
        arguments, options = arguments[:end], [*arguments[end + 1 :]]
    top = parser()
    given = vars(top.parse_args(arguments))
    if options:
        if "runner" not in given:
            top.error("options after `--` are for a `--runner` of Apache Beam")
        given["runner_options"] = options
    return given


def _add_runner(sub):
    sub.add_argument(
        "--runner",
        metavar="NAME",
        help="run on Apache Beam: DirectRunner, FlinkRunner, SparkRunner or "
        "DataflowRunner; options of the runner follow after `--`",
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


def _add_options(sub, cls, default=None, names=None):
    """Adds the options of a dataclass, or those of the fields `names` alone.

    Help texts name the defaults of the fields, or another `default`.
    """
    for field in options_of(cls):
        if names is None or field.name in names:
            shown = field.default if default is None else default
            _add_option(sub, cls, field, shown)


def _add_option(sub, cls, field, default):
    """Adds the option of a field of a dataclass."""
    hint = typing.get_type_hints(cls)[field.name]
    members = typing.get_args(hint) or (hint,)  # a union has several
    kind = next(k for k in (bool, int, float, str) if k in members)
    if kind is bool:
        sub.add_argument(
            option_of(field),
            action="store_false" if field.default else "store_true",
            dest=field.name,
            default=argparse.SUPPRESS,
            help=field.metadata["help"],
        )
        return
    choices = field.metadata.get("choices")
    metavar = field.metadata.get("metavar", METAVARS.get(kind))
    shown = "" if default is None else f" (default: {default})"
    sub.add_argument(
        option_of(field),
        type=kind,
        dest=field.name,
        choices=choices,
        metavar=None if choices else metavar,
        help=field.metadata["help"] + shown,
    )


def _add_run(sub):
    sub.add_argument("folder", metavar="RUN", help="folder of the run")
    sub.add_argument(
        "--corpus",
        metavar="FOLDER",
        help="where the run's corpus lies now, if it was moved",
    )


def _add_model(sub):
    sub.add_argument(
        "path",
        metavar="MODEL",
        help="SavedModel, such as saved_models/NAME/VERSION",
    )
    _add_options(sub, SearchSettings, "as exported", SEARCH_OF_A_CALL)
    sub.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help=f"number of lines to translate at a time (default: {BATCH_SIZE})",
    )
