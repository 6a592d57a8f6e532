"""A small corpus, made larger by its own translations.

    python examples/small_corpus.py FOLDER runs/small --train train
        --validation val [--source en --target de --models 1 --tokenize none]

With some ten thousand pairs a Transformer overfits long before it has learned
what it could. Data diversification (Nguyen et al., 2020) trains models of both
directions, translates either side of the training text with them, and trains
the model that counts on the pairs that were there and on those that were made.
On Multi30k that has gained nothing yet; CONTRIBUTING.md has what was tried.
A second start goes on where the first one stopped. What it makes:

    forward-1/, backward-1/ …  runs of the two directions
    corpus/                    the files of all pairs, original and made
    final/                     the run to export

Promise: none here, it takes hours; the test does it in miniature.
"""

import argparse
import dataclasses
import pathlib
import re

from keras_transformer import checkpoints
from keras_transformer.data.corpus import load_pairs, read_lines
from keras_transformer.lines import translate_lines
from keras_transformer.run import Recipe, open_run, start_run
from keras_transformer.saved_model import digest
from keras_transformer.training import train
from keras_transformer.translator import SearchSettings, Translator, compiled

RECIPE = Recipe(
    vocab_size=6000,
    tokens_per_batch=4096,
    warmup_steps=2000,
    steps=12_000,
    validate_every=500,
    keep_checkpoints=20,
    average_checkpoints=10,
)
FINAL_STEPS = 20_000
# Pre-norm, unlike the paper: it needs fewer steps.
SHAPE = {"norm_first": True, "dropout_rate": 0.3}


def main(recipe, folder, models=1, final_steps=FINAL_STEPS, **shape):
    """Does what is not done yet, and gives the run that was trained last."""
    if models < 1:
        raise ValueError(
            f"`models` must be positive. Received: models={models}"
        )
    recipe = dataclasses.replace(recipe, test_split=None)
    folder = pathlib.Path(folder).resolve()
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    shape = {**SHAPE, **shape}
    validation = pairs_of(recipe, recipe.validation_split)
    write(corpus, "train", recipe, diversified(recipe, folder, models, shape))
    write(corpus, "validation", recipe, validation)
    final = dataclasses.replace(
        recipe,
        corpus=str(corpus),
        train_split="train",
        validation_split="validation",
        steps=final_steps,
    )
    return trained(folder / "final", final, shape)


def diversified(recipe, folder, models, shape):
    """The training pairs, and those that models of both directions make."""
    pairs = pairs_of(recipe, recipe.train_split)
    sources, targets = zip(*pairs, strict=True)
    backward = dataclasses.replace(
        recipe, source=recipe.target, target=recipe.source
    )

    def translations(way, one, seed, lines):
        one = dataclasses.replace(one, seed=seed)
        return translated(trained(folder / f"{way}-{seed}", one, shape), lines)

    made = []
    for seed in range(1, models + 1):
        lines = translations("forward", recipe, seed, sources)
        made += zip(sources, lines, strict=True)
        lines = translations("backward", backward, seed, targets)
        made += zip(lines, targets, strict=True)
    # What comes out as it was, or twice, is no new pair.
    known = set(pairs)
    new = [pair for pair in dict.fromkeys(made) if pair not in known]
    print(f"To {len(pairs):,} pairs have come {len(new):,}.")
    return pairs + new


def pairs_of(recipe, split):
    """Pairs of one-line sentences, as files want them."""
    pairs = load_pairs(
        recipe.corpus, split, recipe.source, recipe.target, recipe.data_dir
    )
    sides = (
        [" ".join(re.split(r"[\r\n]+", line)) for line in side]
        for side in (pairs.source, pairs.target)
    )
    return list(zip(*sides, strict=True))


def trained(folder, recipe, shape):
    """The run of this folder, with all its steps."""
    if folder.exists():
        run = open_run(folder)
        found = dataclasses.replace(run.recipe, steps=recipe.steps)
        has = {name: getattr(run.config, name) for name in shape}
        if found != recipe or has != shape:
            raise ValueError(
                f"{str(folder)!r} is a run of another recipe or shape. "
                f"Received: {recipe}, {shape}. Name another folder."
            )
    else:
        run = start_run(folder, "tiny", recipe, **shape)
    train(run, recipe.steps)
    return run


def translated(run, lines):
    """What a run makes of lines; kept in its folder, since it takes long."""
    model = run.load_model()
    path = run.folder / f"training-text-{digest(model)[:12]}.txt"
    if not path.exists():
        translator = Translator(
            model,
            run.source_tokenizer,
            run.target_tokenizer,
            SearchSettings(),
        )
        write_lines(path, translate_lines(compiled(translator), lines))
    return read_lines(path)


def write(corpus, split, recipe, pairs):
    for side, language in enumerate((recipe.source, recipe.target)):
        lines = [pair[side] for pair in pairs]
        write_lines(corpus / f"{split}.{language}", lines)


def write_lines(path, lines):
    with checkpoints.write_aside(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("corpus", help="a folder, or tfds:NAME")
    parser.add_argument("folder")
    parser.add_argument("--train", default="train")
    parser.add_argument("--validation", default="validation")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU's")
    parser.add_argument("--models", type=int, default=1, help="a direction")
    options = parser.parse_args()
    main(
        dataclasses.replace(
            RECIPE,
            corpus=options.corpus,
            train_split=options.train,
            validation_split=options.validation,
            source=options.source,
            target=options.target,
            bleu_tokenizer=options.tokenize,
        ),
        options.folder,
        options.models,
    )
