"""The commands of `keras-transformer` and their arguments.

It imports neither Keras nor TensorFlow, so the command shows its help fast.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from keras_transformer.cli import commands
from keras_transformer.cli.command_line import CommandLine, integrated, load
from keras_transformer.cli.commands import BATCH_SIZE
from keras_transformer.cli.options import (
    DEFAULT_PRESET,
    SEARCH_OF_A_CALL,
    add_options,
    options_of,
)
from keras_transformer.cli.serve import LOCAL, serve
from keras_transformer.config import PRESETS, TransformerConfig
from keras_transformer.data.options import CorpusSettings, Preparation
from keras_transformer.inference.evaluation import BLEU_TOKENIZERS
from keras_transformer.inference.markup import MARKUPS
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.serve.settings import ServeSettings
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.synthetic_pairs import SyntheticPairs

FINE_TUNING = ("initial_run", "lora_rank", "teacher_weight", "teachers")
AT_VALIDATIONS = (
    "steps",
    "validate_every",
    "patience",
    "bleu_tokenizer",
    "save_every_minutes",
    "keep_checkpoints",
    "average_checkpoints",
)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    return command_line().parser


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the options that were given, see `CommandLine.parse`."""
    return command_line().parse(arguments)


def command_line() -> CommandLine:
    """Returns the command line, with the commands of integrations."""
    line = CommandLine()
    _add_train(line)
    _add_prepare(line)
    _add_average(line)
    _add_export(line)
    _add_translate(line)
    _add_serve(line)
    _add_evaluate(line)
    _add_back_translate(line)
    _add_distill(line)
    for reference in integrated("COMMANDS"):
        load(reference)(line)
    return line


def _add_train(line):
    sub = line.add(
        "train",
        "Learn a vocabulary and train a model.",
        commands.train,
        examples=(
            "--corpus FOLDER --source en --target de --out runs/NAME",
            "--initial-run runs/NAME --train-files A.en A.de --steps 1000 "
            "--out runs/TUNED",
        ),
    )
    sub.add_argument(
        "--out", required=True, metavar="RUN", help="folder of the run"
    )
    sub.add_argument(
        "--train-files",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="two files to train on, line by line, instead of a corpus; the "
        "languages default to their endings, such as .en and .de",
    )
    sub.add_argument(
        "--resume",
        action="store_true",
        help="resume the run; if it does not exist, start it by the other "
        "options",
    )
    sub.add_argument("--epochs", action=_Epochs, help=argparse.SUPPRESS)
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
    model = sub.add_argument_group(
        "the model", "Defaults are those of the preset, or of --initial-run."
    )
    add_options(model, TransformerConfig, _of_presets)
    corpus = [field.name for field in options_of(CorpusSettings)]
    groups = {
        "the corpus": ["corpus", *corpus, "bpe_dropout"],
        "fine-tuning": FINE_TUNING,
        "validations, checkpoints and the end": AT_VALIDATIONS,
    }
    named = {name for names in groups.values() for name in names}
    others = [f.name for f in options_of(Recipe) if f.name not in named]
    for title, names in (groups | {"training": others}).items():
        add_options(sub.add_argument_group(title), Recipe, names=names)


def _of_presets(field):
    """Returns the values that a field has in the presets."""
    values = {
        name: preset.get(field.name, field.default)
        for name, preset in PRESETS.items()
    }
    if len(set(values.values())) == 1:
        return field.default
    return ", ".join(f"{k} {v}" for k, v in values.items() if v is not None)


class _Epochs(argparse.Action):
    """Says what to write instead of a number of epochs."""

    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(
            f"training is counted in steps: instead of {option_string} "
            f"{values} write --steps N, of --tokens-per-batch target tokens "
            "each; the first lines of a training say how many steps an epoch "
            "has"
        )


def _add_prepare(line):
    sub = line.add(
        "prepare",
        "Clean and encode corpora of any size, once, for training.",
        commands.prepare,
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
        "--languages",
        nargs="+",
        metavar="SOURCE-TARGET",
        help="languages of each corpus, to learn several directions: sources "
        "begin with the tag of their target language, such as >>de<< "
        "(default: those of --source and --target, without tags)",
    )
    sub.add_argument(
        "--vocabulary-of",
        metavar="RUN",
        help="run whose vocabulary is taken (default: it is learned)",
    )
    add_options(sub, Preparation)


def _add_average(line):
    sub = line.add(
        "average",
        "Choose weights: the newest, the best, or an average.",
        commands.average,
    )
    _add_run(sub)
    sub.add_argument(
        "--last",
        type=int,
        metavar="N",
        help="number of newest checkpoints to average (default: the run's)",
    )


def _add_export(line):
    sub = line.add(
        "export",
        "Export a run as a SavedModel that translates text.",
        commands.export,
        needs_keras=True,
    )
    _add_run(sub)
    sub.add_argument(
        "path",
        metavar="FOLDER",
        help="folder to export to, such as saved_models/NAME/VERSION",
    )
    sub.add_argument(
        "--format",
        choices=sorted(commands.export_formats()),
        help="format of the export; others than saved_model are those of other "
        "programs, with their own search (default: saved_model)",
    )
    sub.add_argument(
        "--dtype",
        metavar="DTYPE",
        help="dtype of the matrices, one in which the serving machine "
        "computes: float32, bfloat16 or int8, or another one that the format "
        "has; int8 makes the smallest SavedModel, and multiplies in float32; "
        "auto is bfloat16 if this machine multiplies in bfloat16, else "
        "float32 (default: auto for a SavedModel)",
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
        "--draft-tokens",
        type=int,
        metavar="N",
        help="draft N pieces at a step of greedy search, and check them at "
        "once, which is faster; trains a draft head first (default: none)",
    )
    sub.add_argument(
        "--ensemble",
        nargs="+",
        metavar="RUN",
        help="other runs of the same vocabularies: the export translates with "
        "the mean of all models' probabilities (default: none)",
    )
    sub.add_argument(
        "--control",
        action="store_true",
        help="also export the search for requests with a wanted beginning, "
        "required terms, words to avoid, a least length or limits to "
        "repetition; such an export is larger",
    )
    add_options(sub, SearchSettings, "the run's")


def _add_translate(line):
    sub = line.add(
        "translate",
        "Translate lines from standard input to standard output.",
        commands.translate,
    )
    _add_model(sub)
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
        "--markup",
        choices=MARKUPS,
        help="keep mark-up and put it where it belongs: tags and entities of "
        "HTML, or the marks of Markdown, and placeholders such as {name}, URLs "
        "and code; or these only. With --document, tags such as <p> or blank "
        "lines of Markdown separate texts (default: all is text)",
    )
    sub.add_argument(
        "--prefix-file",
        metavar="FILE",
        help="how the translations begin: a line for each line, which may be "
        "blank; for exports made with --control",
    )
    sub.add_argument(
        "--engine",
        choices=[*integrated("TRANSLATORS")],
        help="what computes, for exports of its format (default: TensorFlow)",
    )
    sub.add_argument(
        "--glossary",
        metavar="FILE.tsv",
        help="terms that translations must have: a source term, a tab and a "
        "target term in each line; for exports made with --control",
    )
    sub.add_argument(
        "--avoid",
        metavar="FILE",
        help="words or phrases that no translation may have, one in each line; "
        "for exports made with --control",
    )
    sub.add_argument(
        "--alignment",
        metavar="FILE",
        help="also write which words belong together, a line each: 0-0 2-1 if "
        "the third word of the source, tags apart, and the second one of the "
        "translation do",
    )
    sub.add_argument(
        "--explain",
        metavar="FILE.png",
        help="draw the attention of each head for a single line",
    )
    sub.add_argument(
        "--attention",
        choices=["decoder", "encoder"],
        help="attention to draw with --explain: from the translation to the "
        "source (decoder), or from the source to itself (encoder; default: "
        "decoder)",
    )


def _add_serve(line):
    sub = line.add(
        "serve",
        "Serve SavedModels by HTTP and gRPC, as TensorFlow Serving does, with "
        "a page to try them.",
        serve,
        extra="serve",
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
    add_options(sub, ServeSettings)
    engines = integrated("ENGINES")
    sub.add_argument(
        "--engine",
        choices=[LOCAL, *engines],
        help="what computes: a process of this machine for each version "
        "(local, the default), replicas of Ray Serve, or CTranslate2, for "
        "exports of its format",
    )
    for settings, _ in engines.values():
        if settings is not None:
            add_options(sub, load(settings))


def _add_evaluate(line):
    sub = line.add(
        "evaluate",
        "Score SavedModels on test sets with sacreBLEU: BLEU, chrF and TER. "
        "Print one line of JSON for each model and set, and add it to the "
        "export's evaluations.jsonl. For several models or sets, a table "
        "follows on standard error.",
        commands.evaluate,
    )
    # The models come first: after the files they would be taken for files.
    sub.usage = (
        "%(prog)s MODEL [MODEL ...] --source-file FILE [FILE ...] "
        "--reference-file FILE [FILE ...] [options]"
    )
    _add_model(sub, several=True)
    for side in ("source", "reference"):
        sub.add_argument(
            f"--{side}-file",
            required=True,
            nargs="+",
            action="extend",
            metavar="FILE",
            help=f"files of {side} sentences, one per line; one file for each "
            "test set",
        )
    sub.add_argument(
        "--confidence",
        action="store_true",
        help="add 95-percent confidence intervals by bootstrap resampling "
        "and, for several models, p-values against the first one",
    )
    sub.add_argument(
        "--certainty",
        action="store_true",
        help="add how well the model's log-probabilities sort good lines from "
        "bad ones, by chrF, and which lines look wrong; takes a second pass",
    )
    sub.add_argument(
        "--tokenize",
        metavar="NAME",
        help=f"sacreBLEU's tokenizer: {', '.join(BLEU_TOKENIZERS)} (default: "
        f"{Recipe.bleu_tokenizer})",
    )


def _add_back_translate(line):
    sub = line.add(
        "back-translate",
        "Make pairs of text in the target language, by runs that translate the "
        "other way.",
        commands.back_translate,
        examples=("runs/de-en --files MONOLINGUAL.de --out corpora/back",),
    )
    _add_making(sub)
    add_options(sub, SyntheticPairs)


def _add_distill(line):
    sub = line.add(
        "distill",
        "Make pairs of text in the source language, for a student of runs.",
        commands.distill,
        examples=("runs/A runs/B --files corpus/train.en --out corpora/made",),
    )
    _add_making(sub)
    sub.add_argument(
        "--references",
        nargs="+",
        metavar="FILE",
        help="translations of the files: take of each beam the translation "
        "nearest to the reference (default: the most probable one)",
    )
    names = [field.name for field in options_of(SyntheticPairs)]
    add_options(sub, SyntheticPairs, names={*names} - {"tag"})


def _add_making(sub):
    sub.add_argument(
        "folders",
        metavar="RUN",
        nargs="+",
        help="folder of a run; several translate as one ensemble",
    )
    sub.add_argument(
        "--files",
        required=True,
        nargs="+",
        metavar="FILE",
        help="text, one sentence per line, which may be compressed",
    )
    sub.add_argument(
        "--out",
        required=True,
        metavar="FOLDER",
        help="folder of the new corpus, for prepare and train",
    )


def _add_run(sub):
    sub.add_argument("folder", metavar="RUN", help="folder of the run")
    sub.add_argument(
        "--corpus",
        metavar="FOLDER",
        help="where the run's corpus lies now, if it was moved",
    )


def _add_model(sub, several=False):
    sub.add_argument(
        "paths" if several else "path",
        metavar="MODEL",
        nargs="+" if several else None,
        help="folder of a model's versions, such as saved_models/NAME, whose "
        "newest one is taken; or one version",
    )
    add_options(sub, SearchSettings, "as exported", SEARCH_OF_A_CALL)
    sub.add_argument(
        "--target-language",
        metavar="CODE",
        help="language to translate into, for a model of several; its lines "
        "may begin with a tag such as >>de<< instead",
    )
    sub.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help=f"number of lines to translate at a time (default: {BATCH_SIZE})",
    )
