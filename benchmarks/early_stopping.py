"""How many steps a search takes under each rule of when to stop, and its BLEU.

    python benchmarks/early_stopping.py RUN --source FILE --reference FILE
        [--tokenize 13a] [--alpha 0.6]

Each sentence is translated alone with a beam of 4. Printed is the mean number
of steps of a sentence, beside the mean length of its translation, end token
included: a search that stopped with its answer would take as many.
"""

import argparse
import dataclasses
import os
import statistics

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import tensorflow as tf
from interleaved import machine

from keras_transformer.data import read_lines
from keras_transformer.ids import PAD
from keras_transformer.inference import Translator, evaluation
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.inference.translator import run_search
from keras_transformer.search.beam_search import EARLY_STOPPING
from keras_transformer.training import load_model, open_run

BEAM = 4


class CountingModel(InferenceModel):
    """Counts its steps in `steps`."""

    steps: tf.Variable

    def step(self, tokens, cache, index):
        with tf.control_dependencies([self.steps.assign_add(1)]):
            return super().step(tf.identity(tokens), cache, index)


def translations(run, lines, rule, alpha):
    """Returns the translations, their lengths and the steps of each line."""
    settings = dataclasses.replace(run.search, early_stopping=rule)
    tokenizer = run.target_tokenizer
    model = load_model(run)
    fixed = Translator(model, run.source_tokenizer, tokenizer, settings).fixed()
    counting = CountingModel(model.config, fixed.weights)
    counting.steps = tf.Variable(0)

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
    )
    def translate(text):
        source = run.source_tokenizer.encode(text)
        limits = source.row_lengths() + settings.extra_length
        ids, _ = run_search(
            counting,
            source.to_tensor(PAD),
            tf.cast(limits, tf.int32),
            settings,
            BEAM,
            alpha,
        )
        return ids[:, 0]

    found, lengths, steps = [], [], []
    for line in lines:
        counting.steps.assign(0)
        ids = translate(tf.constant([line]))
        steps.append(int(counting.steps))
        lengths.append(int(tf.math.count_nonzero(ids)))
        found.append(tokenizer.decode(ids)[0].numpy().decode())
    return found, lengths, steps


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--source", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--tokenize", default="13a")
    parser.add_argument("--alpha", type=float, default=0.6)
    options = parser.parse_args()
    print(machine())
    run = open_run(options.run)
    lines = read_lines(options.source)
    references = read_lines(options.reference)
    print(f"{len(lines):,} lines, beam {BEAM}, alpha {options.alpha}")
    print(f"{'steps':>7}{'length':>8}{'BLEU':>7}")
    for rule in EARLY_STOPPING:
        found, lengths, steps = translations(run, lines, rule, options.alpha)
        result = evaluation.score(found, references, options.tokenize)
        print(
            f"{statistics.mean(steps):7.2f}{statistics.mean(lengths):8.2f}"
            f"{result['bleu']:7.2f}  {rule}",
            flush=True,
        )


if __name__ == "__main__":
    main()
