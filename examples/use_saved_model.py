"""Uses an exported model as a program would that knows nothing of us.

Imports TensorFlow, and tensorflow-text for the tokenizer's operations; this
package need not be installed.

    python examples/use_saved_model.py saved_models/demo/1

Promise: five sentences within seconds on any machine.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# TensorFlow leaves oneDNN off on processors without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers operations

SENTENCES = [
    "The meeting is on the 3rd of May at quarter past five.",
    "My sister bought a beautiful lamp for €1,249.50.",
    "On Monday there were forty-seven visitors in the museum.",
    "The train to Vienna leaves at half past six from platform 12.",
    "Our neighbour needs 3 bottles of apple juice.",
]


def main(path):
    translate = tf.saved_model.load(path).signatures["serving_default"]
    result = translate(text=tf.constant(SENTENCES))
    for sentence, translation, score in zip(
        SENTENCES,
        result["translation"].numpy(),
        result["score"].numpy(),
        strict=True,
    ):
        print(f"{sentence}\n  {translation.decode()}  ({score:.3f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("path", help="saved_models/NAME/VERSION")
    main(parser.parse_args().path)
