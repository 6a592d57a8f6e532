"""Blockwise parallel decoding against greedy search, by one trained model.

    python benchmarks/blockwise.py RUN --source FILE ... [--block-size 2 4 8]

Learns the proposals of each block size if the run has none, and translates
all lines greedily and blockwise. Printed is how many translations are
identical, piece by piece, and how many pieces a step finds: with matrices in
float64, where no near-tie is decided by rounding, and in float32.
"""

import argparse
import dataclasses
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import numpy as np
import tensorflow as tf

from keras_transformer import blockwise_search
from keras_transformer.config import PAD
from keras_transformer.data import read_lines
from keras_transformer.inference import Translator
from keras_transformer.inference.run_search import run_search
from keras_transformer.training import learn_proposals, load_model, open_run

BATCH = 50


def searches(run, proposals, dtype):
    """Returns functions of texts: the ids that greedy search finds, and those
    and the number of steps of the blockwise one."""
    settings = dataclasses.replace(run.search, beam_size=1)
    tokenizers = run.source_tokenizer, run.target_tokenizer
    plain, blockwise = (
        Translator(
            load_model(run), *tokenizers, settings, proposals=chosen
        ).fixed(dtype)
        for chosen in (None, proposals)
    )
    text = [tf.TensorSpec([None], tf.string)]

    def source_and_limits(text):
        source = run.source_tokenizer.encode(text)
        lengths = tf.cast(source.row_lengths(), tf.int32)
        return source.to_tensor(PAD), lengths + settings.extra_length

    @tf.function(input_signature=text, autograph=False)
    def greedy(text):
        source, limits = source_and_limits(text)
        model = plain.inference_model()
        return run_search(model, source, limits, settings, 1, 0.0)[0][:, 0]

    @tf.function(input_signature=text, autograph=False)
    def in_blocks(text):
        source, limits = source_and_limits(text)
        model = blockwise.inference_model()
        ids, _, steps = blockwise_search(
            model.verify,
            model.propose,
            model.empty_block_cache(model.encode(source)),
            limits,
            model.block_size,
        )
        return ids, steps

    return greedy, in_blocks


def compare(run, lines, block_size, dtype):
    proposals = learn_proposals(run, block_size)
    greedy, in_blocks = searches(run, proposals, dtype)
    same = pieces = steps = 0
    for start in range(0, len(lines), BATCH):
        text = tf.constant(lines[start : start + BATCH])
        expected = greedy(text).numpy()
        found, taken = (x.numpy() for x in in_blocks(text))
        same += (found == expected).all(axis=1).sum()
        pieces += np.count_nonzero(found)
        steps += taken.sum()
    print(
        f"blocks of {block_size}, {dtype}: {same:,} of {len(lines):,} "
        f"identical; {pieces / steps:.2f} pieces a step",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--source", required=True, nargs="+")
    parser.add_argument("--block-size", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args()
    run = open_run(options.run)
    lines = [line for path in options.source for line in read_lines(path)]
    for block_size in options.block_size:
        for dtype in ("float64", "float32"):
            compare(run, lines, block_size, dtype)


if __name__ == "__main__":
    main()
