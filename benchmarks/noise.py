"""BLEU of clean and of noisy text, after training with and without noise.

    python benchmarks/noise.py runs/noise-0 --noise 0
    python benchmarks/noise.py runs/noise-20 --noise 0.2
    python benchmarks/noise.py runs/m30k-20 --noise 0.2 --corpus multi30k \
        --train train --validation val --test test_2016_flickr --steps 2000

Trains the model of `examples/translation.py` by the recipe there, or by one for
a corpus like Multi30k, for as many epochs of the pairs whatever the noise, and
scores the test split: as it is, and with each kind of
noise in all sentences that it changes. Case and final marks are changed in the
references, too, as they are in training.
"""

import argparse
import dataclasses
import os
import pathlib
import sys

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
import numpy as np

from keras_transformer.data import load_pairs, prepare
from keras_transformer.data.noise import KINDS
from keras_transformer.data.options import Preparation
from keras_transformer.export import SavedTranslator, saved_model
from keras_transformer.inference import evaluation, translate_lines
from keras_transformer.training import open_run, start_run, train

NATURAL = {
    "vocab_size": 4000,
    "tokens_per_batch": 2000,
    "warmup_steps": 500,
    "learning_rate_scale": 1.0,
    "validate_every": 200,
}
EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


def main(options):
    sys.path.insert(0, str(EXAMPLES))
    import translation

    folder = pathlib.Path(options.folder)
    recipe, shape = translation.RECIPE, translation.OVERRIDES
    steps = options.steps or translation.STEPS
    if options.corpus != "builtin":
        recipe = dataclasses.replace(recipe, **NATURAL)
        shape = {**shape, "dropout_rate": 0.1}
    corpus = {
        "train_split": options.train,
        "validation_split": options.validation,
        "test_split": options.test,
        "vocab_size": recipe.vocab_size,
        "data_dir": recipe.data_dir,
    }
    if not (folder / "run").exists():
        settings = Preparation(noise=options.noise, **corpus)
        prepared = prepare(options.corpus, folder / "prepared", settings)
        (record,) = prepared.manifest["corpora"]
        copies = sum(record["noise"].values())
        print(f"{record['pairs_read']:,} pairs, {copies:,} noisy copies")
        share = 1 + copies / record["pairs_read"]
        recipe = dataclasses.replace(
            recipe,
            **corpus | {"test_split": None},
            corpus=str(prepared.folder),
            steps=round(steps * share),
        )
        start_run(folder / "run", "tiny", recipe, **shape)
    run = open_run(folder / "run")
    export = folder / "model" / "1"
    if not export.exists():
        train(run)
        saved_model.export(run, export)
    model = SavedTranslator(export)
    test = load_pairs(
        options.corpus, options.test, "en", "de", run.recipe.data_dir
    )
    pairs = list(zip(test.source, test.target, strict=True))
    for name, kind in {"clean": lambda s, t, rng: (s, t), **KINDS}.items():
        rng = np.random.default_rng(1)
        changed = [kind(*pair, rng) for pair in pairs]
        count = sum(a != b for a, b in zip(changed, pairs, strict=True))
        sources, references = zip(*changed, strict=True)
        found = translate_lines(model.translate, sources)
        bleu = evaluation.score(found, list(references))["bleu"]
        print(f"{name:24} {count:5,} of {len(pairs):,} changed  BLEU {bleu}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="folder to write to")
    parser.add_argument("--noise", type=float, required=True)
    parser.add_argument("--corpus", default="builtin")
    parser.add_argument("--train", default="train")
    parser.add_argument("--validation", default="validation")
    parser.add_argument("--test", default="test")
    parser.add_argument("--steps", type=int)
    main(parser.parse_args())
