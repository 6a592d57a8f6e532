"""Measures translations with required terms, on the built-in test set.

    python benchmarks/required_terms.py saved_models/demo

The terms of a sentence are words of its reference, preferably words that the
plain translation lacks. The export is one that was made with `--control`. Plain
and constrained searches take turns, and times are medians.
"""

import argparse
import random
import re
import statistics
import time

import sacrebleu
import tensorflow as tf

from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.export.saved_translator import SavedTranslator

ROWS = 50
WORD = re.compile(r"[^\W\d_]{2,}")

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
)
parser.add_argument("export")
parser.add_argument("--lines", type=int, default=500)
parser.add_argument("--rounds", type=int, default=3)
options = parser.parse_args()

model = SavedTranslator(options.export)
pairs = list(pairs_of_split("test", options.lines))
sources, references = map(list, zip(*pairs, strict=True))


def translate(search, *lines):
    """Returns the translations, the terms that they lack, and the seconds."""
    translations, unmet = [], []
    start = time.perf_counter()
    for i in range(0, len(sources), ROWS):
        found = search(
            *(tf.constant(x[i : i + ROWS]) for x in (sources, *lines))
        )
        translations += [x.decode() for x in found["translation"].numpy()]
        if "unmet" in found:
            unmet += found["unmet"].numpy().tolist()
    return translations, unmet, time.perf_counter() - start


def with_terms(text, terms):
    return model.control(text, terms=terms)


def bleu(translations):
    return sacrebleu.corpus_bleu(translations, [references]).score


def chosen(count, plain, rng):
    """Returns the terms of each sentence, and how many the plain translation
    lacks."""
    lines, lacking = [], 0
    for translation, reference in zip(plain, references, strict=True):
        words = sorted(set(WORD.findall(reference)))
        rng.shuffle(words)
        there = set(WORD.findall(translation))
        words.sort(key=lambda word: word in there)  # those that lack come first
        lines.append("\n".join(words[:count]))
        lacking += sum(word not in there for word in words[:count])
    return lines, lacking


plain, *_ = translate(model.translate)  # also warms up
print(f"lines {len(pairs):,}, plain BLEU {bleu(plain):.1f}")
print("terms  lacking before    met   BLEU  seconds  plain  ratio")
for count in (1, 2):
    lines, lacking = chosen(count, plain, random.Random(1))
    total = sum(len(line.split("\n")) for line in lines)
    translate(with_terms, lines)
    times, plain_times = [], []
    for _ in range(options.rounds):
        plain_times.append(translate(model.translate)[2])
        translations, unmet, seconds = translate(with_terms, lines)
        times.append(seconds)
    missed = sum(len(line.split(b"\n")) for line in unmet if line)
    own, other = map(statistics.median, (times, plain_times))
    print(
        f"{count:5}  {lacking / total:14.1%}  {1 - missed / total:6.1%}  "
        f"{bleu(translations):4.1f}  {own:7.2f}  {other:5.2f}  "
        f"{own / other:5.2f}"
    )
