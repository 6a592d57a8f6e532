"""The paper's own training runs, section 5: WMT 2014, base and big.

    python examples/paper_recipes.py base-de FOLDER [--parts 8]

Learns from TensorFlow Datasets' `wmt14_translate`, which is downloaded and
prepared in FOLDER-corpus at the first start; 37,000 word pieces for German,
32,000 for French; 25,000 target tokens a batch; checkpoints on the way, of
which the last 5 (base) or 20 (big) are averaged; beam 4 and α 0.6. A device
that has no room for 25,000 tokens works them off in parts: the gradient is the
same. A second start goes on where the first one stopped.

Promise: none here, this takes days on GPUs; the test does it in miniature.
`docs/results.md` has an estimate of the cost.
"""

import argparse
import dataclasses
import os
import pathlib

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

from keras_transformer.config import TransformerConfig
from keras_transformer.data import Preparation, prepare
from keras_transformer.training import Recipe, open_run, start_run, train
from keras_transformer.training.new_run import absolute_paths

GERMAN = Recipe(
    corpus="tfds:wmt14_translate/de-en",
    source="en",
    target="de",
    train_split="train",
    validation_split="validation",  # newstest2013
    test_split="test",  # newstest2014
    vocab_size=37_000,
    tokens_per_batch=25_000,
    validate_every=1_500,  # for base about ten minutes on the paper's machine
    keep_checkpoints=20,
)
FRENCH = dataclasses.replace(
    GERMAN,
    corpus="tfds:wmt14_translate/fr-en",
    target="fr",
    vocab_size=32_000,
)
BASE = {"preset": "base"}, 100_000, 5
BIG = {"preset": "big"}, 300_000, 20
# "For English-to-French we used P_drop = 0.1, instead of 0.3", section 6.1.
BIG_FRENCH = {"preset": "big", "dropout_rate": 0.1}, 300_000, 20

RECIPES = {
    "base-de": (GERMAN, *BASE),
    "big-de": (GERMAN, *BIG),
    "base-fr": (FRENCH, *BASE),
    "big-fr": (FRENCH, *BIG_FRENCH),
}


def main(name, folder, parts=1, dtype_policy="auto", data_dir=None, **changes):
    """Trains a recipe and scores newstest2014; `changes` are for tests."""
    recipe, model, steps, average = RECIPES[name]
    shape = changes.pop("shape", {})
    recipe = dataclasses.replace(
        recipe,
        gradient_accumulation_steps=parts,
        dtype_policy=dtype_policy,
        average_checkpoints=average,
        data_dir=data_dir,
        **{"steps": steps, **changes},
    )
    folder = pathlib.Path(folder).absolute()
    corpus = folder.with_name(f"{folder.name}-corpus")
    if not corpus.exists():
        settings = {
            field.name: getattr(recipe, field.name)
            for field in dataclasses.fields(Preparation)
            if hasattr(recipe, field.name)
        }
        prepare(recipe.corpus, corpus, Preparation(**settings))
    recipe = dataclasses.replace(recipe, corpus=str(corpus))
    if folder.exists():
        run = open_run(folder)
        check_same(run, recipe, **model, **shape)
    else:
        run = start_run(folder, recipe=recipe, **model, **shape)
    train(run)


def check_same(run, recipe, preset, **overrides):
    """Raises a `ValueError` if a run has other settings."""
    if recipe.dtype_policy == "auto":  # resolved when the run was started
        recipe = dataclasses.replace(
            recipe, dtype_policy=run.recipe.dtype_policy
        )
    config = TransformerConfig.preset(
        preset,
        vocab_size=run.config.vocab_size,  # the vocabulary decides
        **overrides,
    )
    # Runs of earlier versions have the paths as they were given.
    recipe, kept = (
        dataclasses.replace(r, **absolute_paths(vars(r)))
        for r in (recipe, run.recipe)
    )
    for ours, theirs in ((recipe, kept), (config, run.config)):
        found = dataclasses.asdict(theirs)
        for name, value in dataclasses.asdict(ours).items():
            if found[name] != value:
                raise ValueError(
                    "A run that goes on keeps its settings. Received: "
                    f"{name}={value}, {str(run.folder)!r} has {found[name]}. "
                    "Make them equal, or name another folder."
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("folder")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--dtype-policy", default="auto")
    parser.add_argument("--data-dir", help="folder of TensorFlow Datasets")
    options = parser.parse_args()
    main(**vars(options))
