"""Table 3 of the paper in small: the worth of each part of the model.

    python examples/table_3.py FOLDER [--corpus CORPUS] [--steps STEPS]

Trains rows A, B, D and E, each in FOLDER/ROW, and prints their parameters,
perplexity a word piece and BLEU on the validation split beside the paper's. The
model is small: 2 layers, d_model 128, 4 heads. Key widths, and numbers of heads
above 1, stand in the same proportion to it as the paper's to `base`. Without
`--corpus` the built-in one is learned, whose grammar is too easy to tell most
rows apart; a folder of text as `docs/corpora.md` describes it serves better. A
second row `base` has another seed: smaller differences than theirs say nothing.

A second start goes on where the first one stopped.

Promise: a table of 13 rows; each takes four to five minutes on two CPU cores.
On Multi30k its perplexities order heads, key widths, smoothing and positions as
the paper's do for the most part, but not dropout; each row has one seed
(docs/results.md).
"""

import argparse
import dataclasses
import math
import os
import pathlib

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

from keras_transformer.training import Recipe, open_run, start_run, train
from keras_transformer.training.callbacks import read_log

STEPS = 1700
RECIPE = Recipe(
    vocab_size=4000,
    tokens_per_batch=1024,
    warmup_steps=700,
    validate_every=STEPS,
    average_checkpoints=1,
)
SHAPE = {"num_layers": 2}  # of the preset "tiny"


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of table 3: what differs from `base`, and the paper's figures."""

    group: str
    change: str
    paper_change: str
    paper_perplexity: float
    paper_bleu: float
    shape: dict = dataclasses.field(default_factory=dict)
    recipe: dict = dataclasses.field(default_factory=dict)

    @property
    def name(self):
        return self.change.replace(" ", "-").replace(",", "")


def _heads(here, paper, perplexity, bleu):
    heads = {"num_heads": here}
    return Row("A", f"h {here}", f"h {paper}", perplexity, bleu, heads)


def _key_dim(here, paper, perplexity, bleu):
    # The values keep their width, as in the paper's row.
    widths = {"key_dim": here, "value_dim": 32}
    return Row("B", f"d_k {here}", f"d_k {paper}", perplexity, bleu, widths)


def _dropout(rate, perplexity, bleu):
    name = f"dropout {rate}"
    return Row("D", name, name, perplexity, bleu, {"dropout_rate": rate})


def _smoothing(epsilon, perplexity, bleu):
    name, recipe = f"smoothing {epsilon}", {"label_smoothing": epsilon}
    return Row("D", name, name, perplexity, bleu, recipe=recipe)


BASE = Row("", "base", "base", 4.92, 25.8)
ROWS = [
    BASE,
    dataclasses.replace(BASE, change="base, seed 2", recipe={"seed": 2}),
    _heads(1, 1, 5.29, 24.9),
    _heads(2, 4, 5.00, 25.5),
    _heads(8, 16, 4.91, 25.8),
    _heads(16, 32, 5.01, 25.4),
    _key_dim(8, 16, 5.16, 25.1),
    _key_dim(16, 32, 5.01, 25.4),
    _dropout(0.0, 5.77, 24.6),
    _dropout(0.2, 4.95, 25.5),
    _smoothing(0.0, 4.67, 25.3),
    _smoothing(0.2, 5.47, 25.7),
    Row("E", "learned", "learned", 4.92, 25.7, {"positions": "learned"}),
]


def trained(folder, row, recipe, shape):
    """Returns parameters, perplexity and BLEU of a row after training."""
    if folder.exists():
        run = open_run(folder)
    else:
        recipe = dataclasses.replace(recipe, **row.recipe)
        run = start_run(folder, "tiny", recipe, **{**shape, **row.shape})
    parameters = train(run).count_params()
    last = read_log(run.folder)[-1]
    return parameters, math.exp(last["val_nll"]), last["val_bleu"]


def main(folder, corpus="builtin", steps=STEPS, rows=ROWS, **shape):
    """Trains the rows and prints the table; `shape` is for tests."""
    recipe = dataclasses.replace(
        RECIPE, corpus=corpus, steps=steps, validate_every=steps
    )
    lines = []
    for row in rows:
        path = pathlib.Path(folder, row.name)
        found = trained(path, row, recipe, {**SHAPE, **shape})
        lines.append((row, *found))
    print("| | here | parameters | perplexity | BLEU | paper | ppl | BLEU |")
    print("|---|---|---|---|---|---|---|---|")
    for row, parameters, perplexity, bleu in lines:
        print(
            f"| {row.group} | {row.change} | {parameters:,} | "
            f"{perplexity:.2f} | {bleu:.1f} | {row.paper_change} | "
            f"{row.paper_perplexity:.2f} | {row.paper_bleu:.1f} |"
        )
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--corpus", default="builtin")
    parser.add_argument("--steps", type=int, default=STEPS)
    main(**vars(parser.parse_args()))
