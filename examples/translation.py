"""A translation run from corpus to SavedModel, by the package's functions.

Learns to translate the built-in corpus, English to German, about numbers,
dates, clock times and prices; exports the model; scores it on sentences that
were held out. It is what `make demo` runs.

    python examples/translation.py

Promise: under five minutes of training on two CPU cores, BLEU at least 90.
"""

import argparse
import json
import os
import pathlib

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

from keras_transformer.data import load_pairs
from keras_transformer.export import SavedTranslator, saved_model
from keras_transformer.inference import evaluation, translate_lines
from keras_transformer.training import (
    Recipe,
    checkpoints,
    open_run,
    start_run,
    train,
)

RECIPE = Recipe(
    corpus="tfds:keras_transformer_phrases",  # the built-in one
    vocab_size=1000,
    tokens_per_batch=1500,
    warmup_steps=250,
    learning_rate_scale=0.5,
    validate_every=100,
    average_checkpoints=4,
    data_dir="runs/data",
)
# Unlike the paper's: pre-norm, which needs fewer steps; two layers, which are
# enough for this grammar; and no dropout, since no sentence comes twice.
OVERRIDES = {"norm_first": True, "num_layers": 2, "dropout_rate": 0.0}
STEPS = 1400


def main(folder="runs/demo", export="saved_models/demo/1", steps=STEPS):
    folder, export = pathlib.Path(folder), pathlib.Path(export)
    if folder.exists():
        run = open_run(folder)
    else:
        run = start_run(folder, "tiny", RECIPE, **OVERRIDES)
    done = max(dict(checkpoints.steps(run.checkpoints)), default=0)
    if export.exists() and done < steps:
        raise ValueError(
            f"{str(export)!r} is there already, and would not be of the "
            f"{steps:,} steps to train. Remove it."
        )
    weights = saved_model.digest(train(run, steps))
    # A second run of this program finds all done. But an older export of
    # other weights is not taken for ours: `export` will say that it is there.
    if not (
        export.exists()
        and SavedTranslator(export).metadata["weights"] == weights
    ):
        saved_model.export(run, export, control=True)

    model = SavedTranslator(export)
    test = load_pairs(
        run.recipe.corpus, "test", "en", "de", run.recipe.data_dir
    )
    hypotheses = translate_lines(model.translate, test.source)
    result = {
        **evaluation.score(hypotheses, test.target),
        "source": "builtin test",
        "search": model.metadata["search"],
    }
    evaluation.remember(export, result)
    print(json.dumps(result, indent=2))
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    main(steps=parser.parse_args().steps)
