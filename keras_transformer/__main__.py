"""The command `keras-transformer`: train, export, translate, evaluate."""

import argparse
import dataclasses
import json
import os
import sys

from keras_transformer import chatter


def main(arguments=None) -> int:
    """Runs the command; an expected error is one line and exit status 1."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments)
    options.given = {a.split("=")[0] for a in arguments if a.startswith("--")}
    try:
        options.run(options)
    except ImportError as error:
        if os.environ.get(chatter.DEBUG):
            raise
        message = (
            f"{error}. The command needs more than the layers do: install the "
            "extra `text`, as in the README."
        )
        print(f"keras-transformer: error: {message}", file=sys.stderr)
        return 1
    except (ValueError, OSError, *_tensorflow_errors()) as error:
        if os.environ.get(chatter.DEBUG):
            raise
        message = " ".join(str(error).split())
        print(f"keras-transformer: error: {message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("keras-transformer: interrupted", file=sys.stderr)
        return 130
    return 0


def _tensorflow_errors():
    """TensorFlow's errors, if it has been imported at all."""
    tensorflow = sys.modules.get("tensorflow")
    return (tensorflow.errors.OpError,) if tensorflow else ()


def train(options):
    from keras_transformer import run as runs
    from keras_transformer.training import evaluate, train

    if options.steps < 1:
        raise ValueError(
            f"`--steps` must be at least 1. Received: {options.steps}"
        )
    if options.resume:
        others = options.given - {"--resume", "--out", "--steps"}
        if others:
            raise ValueError(
                "A resumed run keeps its settings. Received: "
                f"{', '.join(sorted(others))}. Leave these out, or start a "
                "new run."
            )
        run = runs.open_run(options.out)
    else:
        overrides = {
            name: value
            for name in ("dropout_rate", "norm_first")
            if (value := getattr(options, name)) is not None
        }
        run = runs.start_run(
            options.out, options.preset, _recipe(options), **overrides
        )
    model = train(run, options.steps)
    if run.recipe.test_split:
        print(json.dumps(evaluate(run, model, run.recipe.test_split)))
    print(
        f"Trained {options.out}. Next: keras-transformer export "
        f"{options.out} saved_models/NAME/1"
    )


def export(options):
    from keras_transformer import saved_model
    from keras_transformer.run import open_run
    from keras_transformer.translator import SearchSettings

    settings = SearchSettings(options.beam_size, options.alpha)
    path = saved_model.export(open_run(options.folder), options.path, settings)
    print(f"Exported {path}")


def translate(options):
    from keras_transformer.saved_model import SavedTranslator
    from keras_transformer.translator import translate_lines

    model = SavedTranslator(options.path)
    function = _function(model, options)
    # Some thousand lines at a time: enough to sort by length, and memory
    # stays bounded whatever comes.
    done = 0
    for lines in _chunks(sys.stdin.buffer, 4096):
        for line in translate_lines(function, lines, options.batch_size):
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        done += len(lines)
        if not sys.stdout.isatty() and sys.stderr.isatty():
            print(f"\r{done:,} lines", end="", file=sys.stderr)


def evaluate(options):
    from keras_transformer import evaluation
    from keras_transformer.data.corpus import read_lines
    from keras_transformer.saved_model import SavedTranslator
    from keras_transformer.translator import translate_lines

    evaluation.check_tokenizer(options.tokenize)
    sources = read_lines(options.source)
    references = read_lines(options.reference)
    if len(sources) != len(references) or not sources:
        raise ValueError(
            "Source and reference must have the same number of lines. "
            f"Received: {len(sources)} in {options.source!r}, "
            f"{len(references)} in {options.reference!r}."
        )
    model = SavedTranslator(options.path)
    progress = None
    if sys.stderr.isatty():

        def progress(done):
            end = "\n" if done == len(sources) else ""
            print(
                f"\r{done:,} of {len(sources):,} lines",
                end=end,
                file=sys.stderr,
                flush=True,
            )

    hypotheses = translate_lines(
        _function(model, options), sources, options.batch_size, progress
    )
    search = dict(model.about["search"])
    for name in ("beam_size", "alpha"):
        if getattr(options, name) is not None:
            search[name] = getattr(options, name)
    result = {
        **evaluation.score(hypotheses, references, options.tokenize),
        "source": os.path.basename(options.source),
        "reference": os.path.basename(options.reference),
        "model": model.about["signature"],
        "search": search,
    }
    print(json.dumps(result), flush=True)
    evaluation.remember(model.path, result)


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, but not of options that have none."""

    def _get_help_string(self, action):
        if action.default in (None, False):
            return action.help
        return super()._get_help_string(action)


def parser() -> argparse.ArgumentParser:
    """The command line; TensorFlow is not imported for it."""
    from keras_transformer.config import PRESETS

    top = argparse.ArgumentParser(
        prog="keras-transformer",
        description='The Transformer of "Attention Is All You Need".',
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(function, help):
        sub = commands.add_parser(
            function.__name__,
            help=help,
            description=help,
            formatter_class=_Help,
            allow_abbrev=False,
        )
        sub.set_defaults(run=function)
        return sub

    sub = command(train, "Learn a vocabulary and train a model.")
    sub.add_argument(
        "--corpus",
        default="builtin",
        help="builtin, tfds:NAME, or a folder with SPLIT.LANGUAGE[.gz] files",
    )
    sub.add_argument("--source", default="en", help="source language")
    sub.add_argument("--target", default="de", help="target language")
    split = {"metavar": "SPLIT"}
    sub.add_argument("--train", default="train", help="learned from", **split)
    sub.add_argument(
        "--validation",
        default="validation",
        help="scored along the way",
        **split,
    )
    sub.add_argument("--test", help="scored at the end", **split)
    sub.add_argument("--data-dir", help="where TensorFlow Datasets keeps files")
    sub.add_argument(
        "--preset", default="tiny", help=f"one of {', '.join(PRESETS)}"
    )
    sub.add_argument("--steps", type=int, default=100_000, help="updates")
    sub.add_argument("--out", required=True, help="folder of the run")
    sub.add_argument("--resume", action="store_true", help="go on with --out")
    number = {"metavar": "N", "type": int}
    sub.add_argument("--vocab-size", default=8000, **number, help="word pieces")
    sub.add_argument(
        "--separate-vocabularies", action="store_true", help="one for each side"
    )
    sub.add_argument("--max-length", default=256, **number, help="word pieces")
    sub.add_argument(
        "--tokens-per-batch", default=4096, **number, help="on each side"
    )
    sub.add_argument(
        "--warmup-steps", default=4000, **number, help="section 5.3"
    )
    sub.add_argument(
        "--learning-rate-scale", default=1.0, type=float, help="on equation 3"
    )
    sub.add_argument(
        "--subword-dropout", default=0.0, type=float, help="BPE-dropout"
    )
    sub.add_argument(
        "--global-clipnorm", type=float, metavar="X", help="of the gradient"
    )
    sub.add_argument(
        "--gradient-accumulation-steps",
        default=1,
        **number,
        help="parts of a batch that follow one another, for less memory",
    )
    sub.add_argument(
        "--dtype-policy",
        default="float32",
        choices=["float32", "mixed_bfloat16"],
        help="of the computation; weights stay float32",
    )
    sub.add_argument(
        "--bleu-tokenizer",
        default="13a",
        help='sacreBLEU\'s, of the validation; "none" for text in tokens',
    )
    sub.add_argument(
        "--patience", **number, help="validations without a better BLEU"
    )
    sub.add_argument(
        "--average-checkpoints", default=5, **number, help="the last, at the end"
    )
    sub.add_argument("--label-smoothing", default=0.1, type=float, help="ε")
    sub.add_argument("--dropout-rate", type=float, help="default: the preset's")
    sub.add_argument(
        "--norm-first", action="store_true", default=None, help="pre-norm"
    )
    sub.add_argument(
        "--validate-every",
        default=1000,
        **number,
        help="steps between validations; a checkpoint is saved with each",
    )
    sub.add_argument("--keep-checkpoints", default=5, **number, help="files")
    sub.add_argument("--seed", default=1, **number, help="of everything random")

    sub = command(export, "Export a run as a SavedModel: text in, text out.")
    sub.add_argument("folder", metavar="RUN", help="folder of the run")
    sub.add_argument("path", help="saved_models/NAME/VERSION")
    sub.add_argument("--beam-size", default=4, type=int, help="section 6.1")
    sub.add_argument("--alpha", default=0.6, type=float, help="length penalty")

    sub = command(translate, "Translate lines: standard input to output.")
    _search_options(sub)

    sub = command(evaluate, "Score a SavedModel by sacreBLEU; one JSON line.")
    _search_options(sub)
    sub.add_argument(
        "--source", required=True, metavar="FILE", help="a line each"
    )
    sub.add_argument(
        "--reference", required=True, metavar="FILE", help="likewise"
    )
    sub.add_argument("--tokenize", default="13a", help="sacreBLEU's tokenizer")
    return top


def _search_options(sub):
    sub.add_argument("path", metavar="MODEL", help="saved_models/NAME/VERSION")
    sub.add_argument("--beam-size", type=int, help="default: as exported")
    sub.add_argument("--alpha", type=float, help="default: as exported")
    sub.add_argument("--batch-size", type=int, default=64, help="lines")


def _function(model, options):
    if options.beam_size is None and options.alpha is None:
        return model.translate
    return model.searched_with(options.beam_size, options.alpha)


# Where a recipe's field has another name on the command line.
_OPTIONS = {
    "train_split": "train",
    "validation_split": "validation",
    "test_split": "test",
}


def _recipe(options):
    from keras_transformer.run import Recipe

    values = {
        field.name: getattr(options, _OPTIONS.get(field.name, field.name))
        for field in dataclasses.fields(Recipe)
        if field.name != "shared_vocabulary"
    }
    return Recipe(**values, shared_vocabulary=not options.separate_vocabularies)


def _chunks(file, size):
    """Lists of up to `size` lines; bytes, since input may be no UTF-8."""
    lines = []
    for line in file:
        lines.append(line.removesuffix(b"\n").removesuffix(b"\r"))
        if len(lines) == size:
            yield lines
            lines = []
    if lines:
        yield lines


if __name__ == "__main__":
    sys.exit(main())
