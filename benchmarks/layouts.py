"""The choices of the exported graph against the alternatives.

    python benchmarks/layouts.py [--setting native off avx2] [--shape tiny base]
        [--dtype float32 bfloat16] [--batch 1 32] [--threads 2] [--calls 2]
        [--rounds 7]

Each variant searches with random weights (20 pieces in, 33 out, beam 4) in a
process of its own; the variants take turns. Printed are milliseconds a step,
medians over the rounds, and the share of the time of `as exported`. The
settings in `interleaved.py` stand for other processors. For bfloat16
TensorFlow lays out the matrices once, as our commands have it. An operation
has one thread, as in our commands; with `--threads 2`, two operations may run
at the same time, as in our commands on two cores. With `--calls 2`, two
searches start at the same time, and a step lasts until both have done it.
"""

import argparse
import math
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from decoding import BEAM, PIECES_IN, PIECES_OUT, freeze
from interleaved import SETTINGS, machine, serve, start
from training_steps import SHAPES


def as_exported(layers, weights):
    """No alternative: large matrices in two halves, and with the columns of
    zeros that `widened` adds."""


def whole(layers, weights):
    """With those columns, and each matrix in one product."""
    layers.HALVED_SIZE = math.inf


def plain(layers, weights):
    """Without either, as the other alternatives are, too."""
    whole(layers, weights)


def panels(layers, weights, width=64):
    """Large matrices `(D_in, D_out)` as `(D_out / 64, D_in, 64)`."""
    import tensorflow as tf

    def in_panels(kernel):
        depth, columns = kernel.shape
        if depth * columns < 2**18 or columns % width:
            return kernel
        kernel = tf.reshape(kernel, [depth, columns // width, width])
        return tf.transpose(kernel, [1, 0, 2])

    def product(x, kernel):
        x = tf.matmul(tf.cast(x, kernel.dtype), kernel)
        if kernel.shape.rank == 2:
            return x
        return tf.reshape(
            tf.transpose(x, [1, 0, 2]), [-1, kernel.shape[0] * width]
        )

    _change_kernels(weights, in_panels)
    layers.product = product


def transposed_table(layers, weights):
    """The projection's matrix as the embedding has it, `(V, D)`."""
    import tensorflow as tf

    projection = weights["projection"]
    projection["kernel"] = tf.transpose(projection["kernel"])

    def product(x, kernel):
        x = tf.cast(x, kernel.dtype)
        by_rows = kernel is projection["kernel"]
        return tf.matmul(x, kernel, transpose_b=by_rows)

    layers.product = product


VARIANTS = {
    function.__name__: function
    for function in (
        as_exported,
        whole,
        plain,
        panels,
        transposed_table,
    )
}


def _change_kernels(weights, function):
    if isinstance(weights, dict):
        for name, value in weights.items():
            if name == "kernel":
                weights[name] = function(value)
            else:
                _change_kernels(value, function)
    elif isinstance(weights, list):
        for value in weights:
            _change_kernels(value, function)


def work(name, setting, shape, dtype, threads, calls):
    """A variant's process: answers a batch size with seconds a step."""
    os.environ.update(SETTINGS[setting])
    if dtype == "bfloat16":
        freeze()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(int(threads))

    from keras_transformer import Transformer, beam_search
    from keras_transformer.ids import END
    from keras_transformer.inference import graph_layers, graph_weights
    from keras_transformer.inference.graph_model import InferenceModel

    if name not in ("as_exported", "whole"):
        graph_weights.MORE_COLUMNS = 0
    size = SHAPES[shape]
    weights = graph_weights.inference_weights(
        Transformer(size.config()), dtype, [END]
    )
    VARIANTS[name](graph_layers, weights)
    model = InferenceModel(size.config(), weights)
    pool = ThreadPoolExecutor(int(calls))
    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[ids], autograph=False)
    def search(source):
        def step(tokens, cache, index):
            return model.step(tf.reshape(tokens, [-1, BEAM]), cache, index)

        return beam_search(
            step,
            model.empty_cache(model.encode(source), BEAM),
            tf.fill([tf.shape(source)[0]], PIECES_OUT),
            BEAM,
            reorder_cache=model.reorder,
            select_rows=model.keep,
        )

    def answer(batch):
        source = tf.random.stateless_uniform(
            [batch, PIECES_IN], [1, 1], 4, size.vocab_size, tf.int32
        )
        search(source)  # not timed: who waited has lost the caches
        began = time.perf_counter()
        list(pool.map(lambda x: search(x)[1].numpy(), [source] * int(calls)))
        return (time.perf_counter() - began) / PIECES_OUT

    return {}, answer


def compare(setting, shape, dtype, options):
    names, batches = options.variant, options.batch
    case = [setting, shape, dtype, str(options.threads), str(options.calls)]
    peers = start({name: [__file__, "--work", name, *case] for name in names})
    print("\n{}, {}, {}, threads {}, calls {}: ms a step".format(*case))
    print(
        " " * 20 + "".join(f"{f'batch {n}':>10}{'share':>7}" for n in batches)
    )
    times = {peer.name: {n: [] for n in batches} for peer in peers}
    for n in batches:
        for _ in range(options.rounds):
            for peer in peers:
                times[peer.name][n].append(peer.ask(n))
    for peer in peers:
        peer.end()
    first = names[0]
    for name, found in times.items():
        row = ""
        for n in batches:
            seconds = statistics.median(found[n])
            share = seconds / statistics.median(times[first][n])
            row += f"{1000 * seconds:10.2f}{share:7.2f}"
        print(f"{name:20}{row}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    several = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--setting", default=list(SETTINGS), **several)
    parser.add_argument("--shape", default=list(SHAPES), **several)
    parser.add_argument("--dtype", default=["float32", "bfloat16"], **several)
    parser.add_argument("--variant", default=list(VARIANTS), **several)
    parser.add_argument("--batch", default=[1, 32], type=int, nargs="+")
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--threads", default=1, type=int)
    parser.add_argument("--calls", default=1, type=int)
    parser.add_argument("--work", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        serve(lambda: work(*options.work))
        return
    print(machine())
    for setting in options.setting:
        for shape in options.shape:
            for dtype in options.dtype:
                compare(setting, shape, dtype, options)


if __name__ == "__main__":
    main()
