"""Blockwise parallel decoding against greedy search, by one trained model.

    python benchmarks/blockwise.py RUN --source FILE ... [--block-size 2 4 8]
    python benchmarks/blockwise.py --simulate 0.5 0.7 0.9 [--block-size 2 4 8]
        [--likely 8000]

The first learns the proposals of each block size if the run has none, and
translates all lines greedily and blockwise. Printed is how many translations
are identical, piece by piece, and how many pieces a step finds: with matrices
in float64, where no near-tie is decided by rounding, and in float32.

The second times `base` of table 3 with random weights, one sentence of 20
pieces in and 33 out. Such a model has no real proposals: they are computed, of
so many pieces as --likely says, but each is then replaced by what greedy search
finds, with the probability that --simulate gives. Times are medians of pairs of
calls, one after the other.
"""

import argparse
import dataclasses
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import numpy as np
import tensorflow as tf
from interleaved import machine

from keras_transformer import (
    Transformer,
    TransformerConfig,
    blockwise_search,
)
from keras_transformer.data import read_lines
from keras_transformer.ids import END, PAD
from keras_transformer.inference import (
    ProposalLayer,
    SearchSettings,
    Translator,
)
from keras_transformer.inference.blockwise import BlockwiseModel
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.inference.graph_weights import inference_weights
from keras_transformer.inference.translator import run_search
from keras_transformer.training import learn_proposals, load_model, open_run

BATCH = 50
PIECES_IN, PIECES_OUT = 20, 33  # as in decoding.py


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


class SimulatedModel(BlockwiseModel):
    """Knows what greedy search finds, and proposes it now and then.

    Attributes:
        known: ids `(B, L)` that greedy search finds.
        share: probability of each proposal to be taken from them.
    """

    known: tf.Tensor
    share: float

    def propose(self, cache, accepted, certain):
        size = self.block_size
        first = cache["positions"][:, -size] + accepted + 1
        proposals, cache = super().propose(cache, accepted, certain)
        places = first[:, None] + tf.range(size - 1)
        places = tf.minimum(places, self.known.shape[1] - 1)
        known = tf.gather(self.known, places, batch_dims=1)
        is_known = tf.random.uniform(tf.shape(known)) < self.share
        return tf.where(is_known, known, proposals), cache


def simulate(share, block_size, likely, rounds):
    """Prints the times of greedy and blockwise search for `base`."""
    config = TransformerConfig.preset("base", vocab_size=32_000)
    proposals = ProposalLayer.for_model(config, block_size)
    proposals.likely_pieces = np.arange(likely) if likely else None
    weights = inference_weights(
        Transformer(config, seed=1),
        barred=[PAD, END],
        proposals=proposals,
    )
    rng = np.random.default_rng(1)
    weights = tf.nest.map_structure(tf.Variable, weights)
    source = tf.constant(rng.integers(4, 32_000, (1, PIECES_IN)), tf.int32)
    of_ids = [tf.TensorSpec([None, None], tf.int32)]
    settings = SearchSettings(beam_size=1)

    @tf.function(input_signature=of_ids, autograph=False)
    def greedy(source):
        limits = tf.fill([tf.shape(source)[0]], PIECES_OUT)
        model = InferenceModel(config, weights)
        return run_search(model, source, limits, settings, 1, 0.0)[0][:, 0]

    model = SimulatedModel(config, weights)
    model.known, model.share = greedy(source), share

    @tf.function(input_signature=of_ids, autograph=False)
    def in_blocks(source):
        limits = tf.fill([tf.shape(source)[0]], PIECES_OUT)
        ids, _, steps = blockwise_search(
            model.verify,
            model.propose,
            model.empty_block_cache(model.encode(source)),
            limits,
            block_size,
        )
        return ids, steps

    in_blocks(source)
    times, steps = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        expected = greedy(source).numpy()
        middle = time.perf_counter()
        found, taken = in_blocks(source)
        found = found.numpy()
        times.append((middle - began, time.perf_counter() - middle))
        steps.append(int(taken[0]))
        if (found != expected).any():
            print("The two searches differ.")
    alone, in_block = np.median(times, axis=0) * 1000
    ratio = np.median([a / b for a, b in times])
    print(
        f"blocks of {block_size}, {share:.0%} right: "
        f"{PIECES_OUT / np.mean(steps):.2f} pieces a step, {alone:.0f} ms "
        f"greedily, {in_block:.0f} ms in blocks: {ratio:.2f} x",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", nargs="?")
    parser.add_argument("--source", nargs="+")
    parser.add_argument("--block-size", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--simulate", type=float, nargs="+", metavar="SHARE")
    parser.add_argument("--likely", type=int, help="default: all pieces")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if not options.simulate and not (options.run and options.source):
        parser.error("name a run and --source, or --simulate")
    print(machine())
    if options.simulate:
        for block_size in options.block_size:
            for share in options.simulate:
                simulate(share, block_size, options.likely, options.rounds)
        return
    run = open_run(options.run)
    lines = [line for path in options.source for line in read_lines(path)]
    for block_size in options.block_size:
        for dtype in ("float64", "float32"):
            compare(run, lines, block_size, dtype)


if __name__ == "__main__":
    main()
