"""The command line of `keras-transformer`; nothing heavy is imported."""

import argparse

from keras_transformer.config import PRESETS
from keras_transformer.processor import DTYPE_POLICIES, DTYPES


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, but not of options that have none."""

    def _get_help_string(self, action):
        if action.default in (None, False):
            return action.help
        return super()._get_help_string(action)


def parser() -> argparse.ArgumentParser:
    """The command line; TensorFlow is not imported for it."""
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
            formatter_class=_Help,
            allow_abbrev=False,
        )
        sub.set_defaults(command=name)
        return sub

    sub = command("train", "Learn a vocabulary and train a model.")
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
    sub.add_argument(
        "--resume", action="store_true", help="go on with --out, or start it"
    )
    sub.add_argument(
        "--deterministic",
        action="store_true",
        help="bitwise repeatable on GPUs too, and slower there",
    )
    number = {"metavar": "N", "type": int}
    for field in ("num-layers", "d-model", "num-heads", "d-ff"):
        sub.add_argument(f"--{field}", **number, help="default: the preset's")
    sub.add_argument("--vocab-size", default=8000, **number, help="word pieces")
    sub.add_argument(
        "--separate-vocabularies", action="store_true", help="one for each side"
    )
    sub.add_argument(
        "--initial-run",
        metavar="RUN",
        help="whose vocabulary and weights to begin with, to fine-tune them",
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
        default="auto",
        choices=DTYPE_POLICIES,
        help="of the computation; weights stay float32; auto: mixed_bfloat16 "
        "where the processor or GPU multiplies in it",
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
        "--average-checkpoints",
        default=5,
        **number,
        help="the last, at the end",
    )
    sub.add_argument("--label-smoothing", default=0.1, type=float, help="ε")
    sub.add_argument("--dropout-rate", type=float, help="default: the preset's")
    for site in ("attention", "activation"):
        sub.add_argument(
            f"--{site}-dropout-rate",
            type=float,
            metavar="P",
            help="default: 0, as in the paper",
        )
    sub.add_argument(
        "--r-drop",
        default=0.0,
        type=float,
        metavar="ALPHA",
        help="every batch twice, under other dropout, and the two predictions "
        "drawn together: 5 in R-Drop's paper; twice the work and memory",
    )
    sub.add_argument(
        "--bpe-dropout",
        default=0.0,
        type=float,
        metavar="P",
        help="of merges: other word pieces in every epoch; for languages that "
        "write spaces",
    )
    sub.add_argument(
        "--initializer-scale",
        type=float,
        metavar="X",
        help="of the matrices' variance; default: 1, Glorot's; 0.5 for "
        "post-norm and high rates",
    )
    sub.add_argument(
        "--norm-first", action="store_true", default=None, help="pre-norm"
    )
    sub.add_argument(
        "--validate-every",
        default=1000,
        **number,
        help="steps between validations; a checkpoint is saved with each",
    )
    sub.add_argument(
        "--save-every-minutes",
        type=float,
        metavar="MINUTES",
        help="save a checkpoint between validations, too; kept until the next",
    )
    sub.add_argument("--keep-checkpoints", default=5, **number, help="files")
    sub.add_argument("--seed", default=1, **number, help="of everything random")

    sub = command("average", "Choose weights: newest, best, or an average.")
    sub.add_argument("folder", metavar="RUN", help="folder of the run")
    sub.add_argument(
        "--last", **number, help="checkpoints; default: as the run has it"
    )

    sub = command("export", "Export a run as a SavedModel: text in, text out.")
    sub.add_argument("folder", metavar="RUN", help="folder of the run")
    sub.add_argument("path", help="saved_models/NAME/VERSION")
    sub.add_argument(
        "--format",
        default="saved_model",
        choices=["saved_model", "ctranslate2"],
        help="ctranslate2: for another engine, which has its own search",
    )
    sub.add_argument(
        "--quantization",
        help="of ctranslate2: int8, int16, float16, bfloat16 or float32",
    )
    sub.add_argument(
        "--dtype",
        default="auto",
        choices=DTYPES,
        help="of saved_model's matrices; auto: bfloat16 where this machine's "
        "processor multiplies in it; choose for the machine that will serve",
    )
    sub.add_argument("--beam-size", default=4, type=int, help="section 6.1")
    sub.add_argument("--alpha", default=0.6, type=float, help="length penalty")

    sub = command("translate", "Translate lines: standard input to output.")
    _search_options(sub)
    sub.add_argument(
        "--explain",
        metavar="FILE.png",
        help="draw what each head attends to, of one line",
    )

    sub = command("evaluate", "Score a SavedModel by sacreBLEU; one JSON line.")
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
