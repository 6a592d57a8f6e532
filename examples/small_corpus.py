"""A small corpus that is made larger by translating it.

    python examples/small_corpus.py CORPUS FOLDER --train train
        --validation val [--source en --target de --tokenize none]
        [--source-text FILE --target-text FILE] [--student]

With some ten thousand pairs a Transformer overfits early. So the training has
two parts:

1. A model learns both directions, from twice the pairs (bidirectional training,
   Ding et al., 2021).
2. This model translates both sides of the training text, which makes three
   times the pairs (data diversification, Nguyen et al., 2020). Of the
   translations of a source, the one nearest to the reference is taken (sequence
   interpolation, Kim and Rush, 2016). Training goes on with all pairs, in one
   direction.

Further text in one of the languages is translated, too, and learned from. It
may be of another kind than the corpus. Then end with --cool-down: steps at a
low rate, with the pairs of the corpus and their translations alone.

With --student, the last model teaches a small one. Most of the time of a
translation goes into the decoder, which runs once for each word piece. So the
student has a deep encoder and a decoder of one layer (Kasai et al., 2021), and
searches greedily. It begins with the first layers of its teacher. The teacher
knows the sources of the training text nearly by heart, so it also translates
new ones: further text, and what the first model says of the targets, in the
other direction. The student learns the most probable translation of each, not
the one nearest to a reference: greedy search has to find it without other
hypotheses. In the place of each word piece it also learns the teacher's whole
distribution.

Each step is one that the commands `distill`, `back-translate`, `prepare` and
`train` do, too. A second start goes on where the first one stopped. The program
writes:

    FOLDER/text/, FOLDER/text-both/        the corpus, and both directions of it
    FOLDER/both/                           the run that learns them
    FOLDER/forward/, FOLDER/backward/      its translations
    FOLDER/own-pairs/                      pairs of the corpus, and of these
    FOLDER/forward-text/, FOLDER/backward-text/    further text, translated
    FOLDER/pairs/, FOLDER/final/           all pairs, and the run to export
    FOLDER/cooled/                         the same after --cool-down
    FOLDER/new/, FOLDER/taught/            the student's sources and targets
    FOLDER/student-pairs/, FOLDER/student/

With KERAS_BACKEND=jax it runs on JAX, for a GPU; TensorFlow exports the runs.

Promise: on Multi30k about the BLEU that README gives, in two and a half hours
on two cores; the test does it in miniature. The student takes two hours more,
and had 41.27 after 7,481 of its 10,500 steps (docs/results.md). Both figures
are of this program before it was composed of these commands.
"""

import argparse
import dataclasses
import os
import pathlib
import re

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

from keras_transformer.data import Preparation, load_pairs, prepare
from keras_transformer.inference import SearchSettings
from keras_transformer.training import (
    Recipe,
    SyntheticPairs,
    back_translate,
    distill,
    open_run,
    start_run,
    train,
)

BOTH = Recipe(
    vocab_size=6000,
    tokens_per_batch=3800,
    warmup_steps=2000,
    learning_rate_scale=1.5,
    steps=5500,
    validate_every=500,
    keep_checkpoints=20,
)
# The second run differs in these.
FINAL = {"learning_rate_scale": 1.0, "steps": 10_500, "average_checkpoints": 10}
# Wider than `tiny`, 4.5M parameters; pre-norm, which needs fewer steps.
SHAPE = {"d_model": 192, "num_heads": 6, "d_ff": 512, "norm_first": True}
BOTH_DROPOUT = 0.2
FINAL_SHAPE = {"dropout_rate": 0.3}
BEAMS = SyntheticPairs(beam_size=4, alpha=1.0, tag="")
# The learning rate goes on where it was, and falls fast.
COOLING = {
    "learning_rate_scale": 0.1,
    "warmup_steps": 50,
    "average_checkpoints": 4,
}
# A smaller model learns in half of the steps with less dropout.
STUDENT = {"learning_rate_scale": 1.5, "teacher_weight": 0.5}
STUDENT_SHAPE = {
    "num_encoder_layers": 6,
    "num_decoder_layers": 1,
    "dropout_rate": 0.1,
}
GREEDY = SearchSettings(beam_size=1)


def main(
    recipe,
    folder,
    changes=FINAL,
    source_text=(),
    target_text=(),
    student=False,
    final_shape=FINAL_SHAPE,
    cool_down=0,
    **shape,
):
    """Does what is not done yet; returns the run that was trained last.

    Args:
        recipe: of the run of both directions; names corpus and splits.
        folder: folder of all that is written.
        changes: fields of the recipe in which later runs differ.
        source_text, target_text: files of further text in each language.
        student: whether a third run follows, of a small model for greedy
            search.
        final_shape: fields of the config in which the second run differs.
        cool_down: steps after the second run, without further text.
        shape: fields of the model's config, instead of `SHAPE`.
    """
    folder = pathlib.Path(folder).resolve()
    shape = {**SHAPE, **shape}
    text, both_text = write_text(recipe, folder)
    languages = {"source": recipe.source, "target": recipe.target}
    recipe = dataclasses.replace(
        recipe,
        corpus=str(both_text),
        train_split="train",
        validation_split="validation",
        test_split=None,
    )
    both_shape = {**shape, "dropout_rate": BOTH_DROPOUT}
    both = trained(folder / "both", recipe, **both_shape)

    sources, targets = (text / f"train.{x}" for x in languages.values())
    # The model of both directions knows the language of a text by itself.
    settings = dataclasses.replace(BEAMS, **languages)
    nearest = {"references": [targets]}
    path = folder / "forward"
    made = [made_once(distill, both, [sources], path, settings, **nearest)]
    path = folder / "backward"
    made.append(made_once(back_translate, both, [targets], path, settings))
    own = [text, *made]
    if target_text:
        path = folder / "backward-text"
        fast = dataclasses.replace(settings, beam_size=1)
        made.append(made_once(back_translate, both, target_text, path, fast))
    if source_text:
        path = folder / "forward-text"
        made.append(made_once(distill, both, source_text, path, settings))
    changes = {"initial_run": str(both.folder), **changes}
    pairs = all_pairs(both, [text, *made], folder / "pairs", recipe)
    final_recipe = dataclasses.replace(recipe, corpus=str(pairs), **changes)
    final = trained(folder / "final", final_recipe, **shape | final_shape)
    if cool_down:
        pairs = all_pairs(both, own, folder / "own-pairs", recipe)
        cooling = dataclasses.replace(
            final_recipe,
            corpus=str(pairs),
            initial_run=str(final.folder),
            steps=cool_down,
            validate_every=max(cool_down // 6, 1),
            **COOLING,
        )
        final = trained(folder / "cooled", cooling, **shape | final_shape)
    if not student:
        return final

    every = dataclasses.replace(settings, per_line=settings.beam_size)
    made_once(back_translate, both, [targets], folder / "new", every)
    files = [sources, *source_text]
    for name in ("new", "backward-text"):
        files += sorted((folder / name).glob(f"train-*.{recipe.source}"))
    taught = made_once(distill, final, files, folder / "taught", settings)
    pairs = all_pairs(final, [text, taught], folder / "student-pairs", recipe)
    changes |= {"initial_run": str(final.folder), **STUDENT}
    recipe = dataclasses.replace(recipe, corpus=str(pairs), **changes)
    shape |= STUDENT_SHAPE
    return trained(folder / "student", recipe, GREEDY, **shape)


def write_text(recipe, folder):
    """Writes a corpus, and another one with both directions of its pairs, each
    sentence on one line; returns their folders."""
    splits = {
        "train": recipe.train_split,
        "validation": recipe.validation_split,
    }
    languages = recipe.source, recipe.target
    paths = folder / "text", folder / "text-both"
    for path in paths:
        path.mkdir(parents=True, exist_ok=True)
    for name, split in splits.items():
        pairs = load_pairs(recipe.corpus, split, *languages, recipe.data_dir)
        sides = [
            "".join(re.sub(r"[\r\n]+", " ", line) + "\n" for line in side)
            for side in (pairs.source, pairs.target)
        ]
        for i, language in enumerate(languages):
            file = f"{name}.{language}"
            (paths[0] / file).write_text(sides[i], "utf-8")
            other = sides[1 - i] if name == "train" else ""
            (paths[1] / file).write_text(sides[i] + other, "utf-8")
    return paths


def made_once(make, run, files, folder, settings, **options):
    """Returns the folder of synthetic pairs, which are made if need be."""
    if not folder.exists():
        make(run, files, folder, settings, **options)
    return folder


def all_pairs(run, corpora, folder, recipe):
    """Prepares corpora with the vocabulary of a run, each pair once."""
    if not folder.exists():
        fields = dataclasses.fields(Preparation)
        settings = {f.name: getattr(recipe, f.name, f.default) for f in fields}
        settings |= {"drop_duplicates": True}
        tokenizers = run.source_tokenizer, run.target_tokenizer
        prepare(
            [*map(str, corpora)],
            folder,
            Preparation(**settings),
            tokenizers=tokenizers,
        )
    return folder


def trained(folder, recipe, search=None, preset="tiny", **shape):
    """Returns the run of a folder, which is started and trained if need be."""
    if folder.exists():
        run = open_run(folder)
    else:
        run = start_run(folder, preset, recipe, search, **shape)
    train(run)
    return run


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
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}-text",
            nargs="+",
            default=[],
            help=f"further text in the {side} language",
        )
    parser.add_argument(
        "--student", action="store_true", help="a small model for greedy search"
    )
    parser.add_argument(
        "--steps",
        type=int,
        nargs=2,
        default=[BOTH.steps, FINAL["steps"]],
        metavar="N",
        help="steps of the first training, and of each later one",
    )
    parser.add_argument(
        "--layers",
        type=int,
        nargs=2,
        metavar="N",
        help="layers of encoder and decoder in the second run (default: 4 4)",
    )
    parser.add_argument(
        "--dropout",
        type=float,
        default=FINAL_SHAPE["dropout_rate"],
        help="dropout rate of the second run; less for more text",
    )
    parser.add_argument(
        "--cool-down",
        type=int,
        default=0,
        metavar="STEPS",
        help="steps after the second run, without further text",
    )
    options = parser.parse_args()
    final_shape = {"dropout_rate": options.dropout}
    if options.layers:
        names = "num_encoder_layers", "num_decoder_layers"
        final_shape |= dict(zip(names, options.layers, strict=True))
    main(
        dataclasses.replace(
            BOTH,
            corpus=options.corpus,
            train_split=options.train,
            validation_split=options.validation,
            source=options.source,
            target=options.target,
            bleu_tokenizer=options.tokenize,
            steps=options.steps[0],
        ),
        options.folder,
        {**FINAL, "steps": options.steps[1]},
        source_text=options.source_text,
        target_text=options.target_text,
        student=options.student,
        final_shape=final_shape,
        cool_down=options.cool_down,
    )
