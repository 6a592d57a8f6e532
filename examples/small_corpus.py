"""A small corpus that is made larger by translating it.

    python examples/small_corpus.py CORPUS FOLDER --train train
        --validation val [--source en --target de --tokenize none]

With some ten thousand pairs a Transformer overfits early. So the training has
two parts:

1. A model learns both directions, from twice the pairs (bidirectional training,
   Ding et al., 2021).
2. This model translates both sides of the training text, which makes three
   times the pairs (data diversification, Nguyen et al., 2020). Of the
   translations of a source, the one nearest to the reference is taken (sequence
   interpolation, Kim and Rush, 2016). Training goes on with all pairs, in one
   direction.

A second start goes on where the first one stopped. The program writes:

    FOLDER/corpus-both/    the pairs of both directions
    FOLDER/both/           the run that learns them
    FOLDER/corpus-final/   all pairs, original and translated
    FOLDER/final/          the run to export

With --student, the last model teaches a small one. Most of the time of a
translation goes into the decoder, which runs once for each word piece. So the
student has a deep encoder and a decoder of one layer (Kasai et al., 2021), and
searches greedily. It begins with the first layers of its teacher. The teacher
knows the sources of the training text nearly by heart, so it also translates
new ones: what the first model says of the targets, in the other direction. The
student learns the most probable translation of each, not the one nearest to a
reference: greedy search has to find it without other hypotheses. In the place
of each word piece it also learns the teacher's whole distribution.

    FOLDER/corpus-student/, FOLDER/student/

With KERAS_BACKEND=jax it runs on JAX, for a GPU; TensorFlow exports the runs.

Promise: on Multi30k the BLEU that README gives, in two and a half hours on two
cores; the test does it in miniature. The student takes two hours more, and has
41.27 after 7,481 of its 10,500 steps (docs/results.md).
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import sacrebleu

from keras_transformer.data import load_pairs
from keras_transformer.inference import SearchSettings, translate_lines
from keras_transformer.training import (
    Recipe,
    checkpoints,
    load_model,
    start_run,
    train,
)
from keras_transformer.training.models import digest
from keras_transformer.training.new_run import absolute_paths
from keras_transformer.training.run import open_run, sha256

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
BOTH_DROPOUT, FINAL_DROPOUT = 0.2, 0.3
BEAM, ALPHA = 4, 1.0
# A smaller model learns in half of the steps with less dropout.
STUDENT = {"learning_rate_scale": 1.5, "teacher_weight": 0.5}
STUDENT_SHAPE = {
    "num_encoder_layers": 6,
    "num_decoder_layers": 1,
    "dropout_rate": 0.1,
}
GREEDY = SearchSettings(beam_size=1)


def main(recipe, folder, changes=FINAL, student=False, **shape):
    """Does what is not done yet; returns the run that was trained last.

    Args:
        recipe: of the run of both directions; names corpus and splits.
        folder: folder of all that is written.
        changes: fields of the recipe in which later runs differ.
        student: whether a third run follows, of a small model for greedy
            search.
        shape: fields of the model's config, instead of `SHAPE`.
    """
    recipe = dataclasses.replace(recipe, test_split=None)
    folder = pathlib.Path(folder).resolve()
    shape = {**SHAPE, **shape}
    pairs = pairs_of(recipe, recipe.train_split)
    validation = pairs_of(recipe, recipe.validation_split)

    def run_of(name, pairs, config, search=None, **changes):
        corpus = folder / f"corpus-{name}"
        write(corpus, recipe, {"train": pairs, "validation": validation})
        files = {
            "corpus": str(corpus),
            "train_split": "train",
            "validation_split": "validation",
        }
        one = dataclasses.replace(recipe, **files, **changes)
        return trained(folder / name, one, search, **{**shape, **config})

    turned = [(target, source) for source, target in pairs]
    both = run_of("both", pairs + turned, {"dropout_rate": BOTH_DROPOUT})

    made = interpolated(both, pairs) + back_translated(both, pairs, 1)
    changes = {"initial_run": str(both.folder), **changes}
    shape_of_final = {"dropout_rate": FINAL_DROPOUT}
    final = run_of("final", enlarged(pairs, made), shape_of_final, **changes)
    if not student:
        return final

    back = back_translated(both, pairs, BEAM)
    made = best_translated(final, [source for source, _ in pairs + back])
    changes |= {"initial_run": str(final.folder), **STUDENT}
    more = enlarged(pairs, made)
    return run_of("student", more, STUDENT_SHAPE, GREEDY, **changes)


def back_translated(run, pairs, count):
    """Returns pairs of the first sources of each beam, and their targets."""
    beams = translated(run, [target for _, target in pairs])
    return [
        (source, target)
        for (_, target), sources in zip(pairs, beams, strict=True)
        for source in sources[:count]
    ]


def best_translated(run, sources):
    """Returns pairs of sources and the first translation of each beam."""
    beams = translated(run, sources)
    return [(s, beam[0]) for s, beam in zip(sources, beams, strict=True)]


def interpolated(run, pairs):
    """Returns pairs of the sources and, of each beam, the translation nearest
    to the reference."""
    bleu = sacrebleu.metrics.BLEU(
        effective_order=True, tokenize=run.recipe.bleu_tokenizer, force=True
    )

    def nearest(candidates, target):
        return max(
            candidates, key=lambda c: bleu.sentence_score(c, [target]).score
        )

    beams = translated(run, [source for source, _ in pairs])
    return [
        (source, nearest(candidates, target))
        for (source, target), candidates in zip(pairs, beams, strict=True)
    ]


def enlarged(pairs, made):
    """Returns pairs, and of those that were made the new ones, each once."""
    known = set(pairs)
    new = [pair for pair in dict.fromkeys(made) if pair not in known]
    print(f"{len(new):,} new pairs are added to {len(pairs):,}.")
    return pairs + new


def pairs_of(recipe, split):
    """Returns the pairs of a split, each sentence on one line."""
    pairs = load_pairs(
        recipe.corpus, split, recipe.source, recipe.target, recipe.data_dir
    )
    sides = (
        [" ".join(re.split(r"[\r\n]+", line)) for line in side]
        for side in (pairs.source, pairs.target)
    )
    return list(zip(*sides, strict=True))


def trained(folder, recipe, search=None, preset="tiny", **shape):
    """Returns the run of a folder, which is started and trained if need be."""
    if folder.exists():
        run = open_run(folder)
        recipe = dataclasses.replace(recipe, **absolute_paths(vars(recipe)))
        found = dataclasses.replace(
            run.recipe, steps=recipe.steps, **absolute_paths(vars(run.recipe))
        )
        if recipe.dtype_policy == "auto":  # it was resolved at the start
            found = dataclasses.replace(found, dtype_policy="auto")
        has = {name: getattr(run.config, name) for name in shape}
        is_other_search = search not in (None, run.search)
        if found != recipe or has != shape or is_other_search:
            raise ValueError(
                f"{str(folder)!r} is a run of another recipe or shape. "
                f"Received: {recipe}, {shape}. Move it away, or name another "
                "folder."
            )
    else:
        run = start_run(folder, preset, recipe, search, **shape)
    train(run, recipe.steps)
    return run


def translated(run, lines):
    """Returns a list of translations of each line, the best one first.

    They are kept in the run's folder, since they take long.
    """
    model = load_model(run)
    of_lines = sha256("\n".join(lines).encode())[:12]
    name = f"beams-{digest(model)[:12]}-{of_lines}-{BEAM}-{ALPHA}.json"
    path = run.folder / name
    if not path.exists():
        n_best = make_n_best(run, model)

        # One string a line: no translation has a line break.
        def beams(text):
            found = n_best(text)["translation"]
            found = getattr(found, "numpy", lambda: found)()
            return {"translation": ["\n".join(map(text_of, x)) for x in found]}

        found = [b.split("\n") for b in translate_lines(beams, lines)]
        with checkpoints.write_aside(path) as file:
            file.write(json.dumps(found).encode())
    return json.loads(path.read_text())


def make_n_best(run, model):
    """Returns a function of strings that returns beams of translations."""
    settings = SearchSettings(beam_size=BEAM, alpha=ALPHA)
    arguments = model, run.source_tokenizer, run.target_tokenizer, settings
    if keras.backend.backend() != "tensorflow":
        from keras_transformer.inference.layer_translator import LayerTranslator

        return LayerTranslator(*arguments).n_best
    import tensorflow as tf

    from keras_transformer.inference import Translator

    translator = Translator(*arguments)
    return tf.function(
        lambda text: translator.n_best(text, BEAM, ALPHA),
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )


def text_of(translation):
    """Returns a string; TensorFlow's are bytes."""
    if isinstance(translation, bytes):
        return translation.decode()
    return translation


def write(corpus, recipe, splits):
    """Writes the files of a corpus."""
    corpus.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        sides = zip(*pairs, strict=True)
        for language, lines in zip(
            (recipe.source, recipe.target), sides, strict=True
        ):
            with checkpoints.write_aside(
                corpus / f"{split}.{language}"
            ) as file:
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
    parser.add_argument(
        "--student", action="store_true", help="a small model for greedy search"
    )
    options = parser.parse_args()
    main(
        dataclasses.replace(
            BOTH,
            corpus=options.corpus,
            train_split=options.train,
            validation_split=options.validation,
            source=options.source,
            target=options.target,
            bleu_tokenizer=options.tokenize,
        ),
        options.folder,
        student=options.student,
    )
