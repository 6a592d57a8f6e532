"""Measures how well an export aligns words, on the built-in test set.

    python benchmarks/alignment_error_rate.py saved_models/demo

The grammar knows which words of its sentences belong together. The model reads
each English sentence with its German one, and its links A are compared with
those of the grammar G: the error rate is 1 - 2 |A ∩ G| / (|A| + |G|) (Och and
Ney, 2003, where all links are sure).
"""

import argparse

import tensorflow as tf

from keras_transformer.data.builtin.phrases import aligned_pairs_of_split
from keras_transformer.export.saved_translator import SavedTranslator

ROWS = 50

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
)
parser.add_argument("export")
parser.add_argument("--lines", type=int, default=1000)
options = parser.parse_args()

score = SavedTranslator(options.export).loaded.signatures["score"]
pairs = list(aligned_pairs_of_split("test", options.lines))
right = found = known = 0
for start in range(0, len(pairs), ROWS):
    sources, targets, links = zip(*pairs[start : start + ROWS], strict=True)
    answer = score(text=tf.constant(sources), translation=tf.constant(targets))
    for line, expected in zip(answer["alignment"].numpy(), links, strict=True):
        linked = {
            tuple(map(int, link.split("-"))) for link in line.decode().split()
        }
        right += len(linked & expected)
        found += len(linked)
        known += len(expected)
print(f"lines                 {len(pairs):,}")
print(f"alignment error rate  {1 - 2 * right / (found + known):.3f}")
print(f"precision             {right / found:.3f}")
print(f"recall                {right / known:.3f}")
