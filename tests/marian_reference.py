"""Makes Marian models and reference outputs, by transformers alone.

The tests of the import need models as the Hugging Face hub has them, and what
transformers computes with them. Needs torch, transformers, safetensors and
sentencepiece, and neither TensorFlow nor the hub. From the root of the clone:

    python tests/marian_reference.py random FOLDER --seed 1
    python tests/marian_reference.py tokens FOLDER tokens.json
    python tests/marian_reference.py trained FOLDER
    python tests/marian_reference.py outputs FOLDER LINES outputs.json
    python tests/marian_reference.py corpus FOLDER
    python tests/marian_reference.py all FOLDER [--trained FOLDER]
"""

import argparse
import json
import os
import pathlib
import sys
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("KERAS_BACKEND", "torch")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import marian_folders as folders
import marian_strings
import transformers
from transformers import MarianTokenizer

transformers.utils.logging.disable_progress_bar()
warnings.filterwarnings("ignore", message=".*sacremoses")


def write_rows(path, head, rows):
    """Writes JSON with one row a line, so that changes can be read."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    head = json.dumps(head, ensure_ascii=False)[1:-1] + ",\n" if head else ""
    text = f'{{{head}"rows": [\n{lines}\n]}}\n' if head else f"[\n{lines}\n]\n"
    json.loads(text)
    pathlib.Path(path).write_text(text, encoding="utf-8")


def make_corpus(options):
    """Writes the text of the built-in corpus."""
    folders.write_corpus(options.folder)


def make_random(options):
    """Writes a folder with random weights, and reference logits."""
    settings = folders.write_random(options.folder, options.seed, options.shape)
    print(json.dumps(settings))


def make_tokens(options):
    """Writes the ids of strings on which tokenizers may differ."""
    tokenizer = MarianTokenizer.from_pretrained(options.folder)
    words = sorted(
        {
            word
            for pair in folders.corpus_pairs("test", 300)
            for line in pair
            for word in line.split()
        }
    )
    alphabets = [
        {c for i in range(len(spm)) for c in spm.id_to_piece(i)}
        for spm in (tokenizer.spm_source, tokenizer.spm_target)
    ]
    one_sided = sorted(alphabets[0] ^ alphabets[1])
    strings = marian_strings.draw_strings(
        options.count, options.seed, words, one_sided
    )
    rows = [[text, tokenizer(text)["input_ids"]] for text in strings]
    write_rows(options.out, None, rows)


def make_trained(options):
    """Trains a model, and writes its folder."""
    import marian_training

    marian_training.write_trained(options)


def make_outputs(options):
    """Writes what transformers translates lines to."""
    import marian_outputs

    lines = folders.read_lines(options.lines)[: options.count]
    head, rows = marian_outputs.outputs(options.folder, lines)
    head = {"transformers": transformers.__version__, "searches": head}
    write_rows(options.out, head, rows)
    print(json.dumps(head, indent=2))


def make_all(options):
    """Writes all that `marian_parity.py` compares, in 15 minutes."""
    folder = options.folder
    for seed in range(options.random):
        folders.write_random(folder / f"random-{seed:02}", seed, None)
    for shape in sorted(folders.SHAPES):
        folders.write_random(folder / shape, 0, shape)
    run("corpus", folder / "corpus")
    trained = options.trained
    if trained is None:
        trained = folder / "trained"
        run("trained", trained, "--corpus", folder / "corpus")
    elif not (folder / "trained").exists():
        (folder / "trained").symlink_to(trained.resolve())
    outputs, tokens = (
        folder / f"trained.{name}.json" for name in ("outputs", "tokens")
    )
    lines = folder / "corpus" / "test.en"
    run("outputs", trained, lines, outputs, "--count", "500")
    run("tokens", trained, tokens)
    for name in ("random-00", "random-01"):
        run("tokens", folder / name, folder / f"{name}.tokens.json")


def run(*arguments):
    """Runs another command of this program."""
    arguments = parse([str(argument) for argument in arguments])
    arguments.function(arguments)


def parse(arguments=None):
    """Returns the command's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)

    def command(name, function):
        part = commands.add_parser(name, help=function.__doc__)
        part.set_defaults(function=function)
        part.add_argument("folder", type=pathlib.Path)
        return part

    command("corpus", make_corpus)

    part = command("all", make_all)
    part.add_argument("--trained", type=pathlib.Path, help="instead of a new")
    part.add_argument("--random", type=int, default=50, help="configs")

    part = command("random", make_random)
    part.add_argument("--seed", type=int, default=0)
    part.add_argument("--shape", choices=sorted(folders.SHAPES))

    part = command("tokens", make_tokens)
    part.add_argument("out")
    part.add_argument("--count", type=int, default=10_000)
    part.add_argument("--seed", type=int, default=0)

    part = command("outputs", make_outputs)
    part.add_argument("lines")
    part.add_argument("out")
    part.add_argument("--count", type=int, help="of the first lines only")

    part = command("trained", make_trained)
    part.add_argument("--corpus", type=pathlib.Path, help="made by `corpus`")
    part.add_argument("--minutes", type=float, default=12, help="at most")
    part.add_argument("--steps", type=int, default=4000)
    part.add_argument("--tokens", type=int, default=2000, help="of a batch")
    part.add_argument("--rate", type=float, default=1.5e-3, help="the highest")
    part.add_argument("--warmup", type=int, default=400)
    part.add_argument("--seed", type=int, default=0)
    part.add_argument("--pieces", type=int, default=1000, help="of each side")
    part.add_argument("--d-model", type=int, default=128)
    part.add_argument("--d-ff", type=int, default=256)
    part.add_argument("--heads", type=int, default=4)
    part.add_argument("--encoder-layers", type=int, default=3)
    part.add_argument("--decoder-layers", type=int, default=2)
    part.add_argument("--dropout", type=float, default=0.1)
    part.add_argument("--dtype", default="float32", help="to be stored in")
    part.add_argument("--lines", type=int, default=30_000, help="to learn from")
    part.add_argument("--longest", type=int, help="words of a source sentence")
    part.add_argument(
        "--tags", action="store_true", help="begin half the sources by >>deu<<"
    )
    part.add_argument(
        "--target-rule", default="nmt_nfkc", help="normalization of target.spm"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    arguments = parse()
    arguments.function(arguments)
