"""One training step against the peers: time, tokens a second, memory.

    python benchmarks/training.py [--shape tiny base] [--dtype float32 bfloat16]
        [--peer keras_transformer torch_eager ...] [--rounds 9]
        [--setting native | off | avx2]

The settings, in `interleaved.py`, stand for other processors.

Every peer runs in its own process, with two threads. They compute a few steps
in turn, round after round, so that all see the same noise of the machine.
Printed are medians over the rounds. Peers that are not installed are named and
left out: `pip install torch keras-hub`.

A product of two 2048 x 2048 matrices in TensorFlow takes turns with them. It is
the machine's peak; the column `peak` is the share of it that a step's matrix
products reach. `MB` is the peak memory of the process, `MB own` without what
the imported libraries took, `MB anon` without pages of files, such as the
libraries' code.
"""

import argparse
import statistics
import time

from interleaved import SETTINGS, megabytes, serve, set_up, start, watched
from training_steps import PEERS, SHAPES, tensorflow

STEPS = 3  # to a round


def matrix_product(shape, dtype):
    """Returns the product that measures the machine's peak, for any `shape`."""
    tf = tensorflow()
    x = tf.random.normal((2048, 2048), dtype=dtype)
    product = tf.function(lambda: tf.reduce_sum(tf.matmul(x, x)))
    return lambda: float(product())


PEAK_FLOPS = 2 * 2048**3


def work(name, shape, dtype):
    """Makes a peer; see `interleaved.serve`."""
    functions = {**PEERS, "matrix_product": matrix_product}
    if name.startswith("torch"):
        import torch  # noqa: F401
    elif name != "matrix_product":
        import keras  # noqa: F401
    libraries = megabytes()
    most = {}
    with watched(most):
        step = functions[name](SHAPES[shape], dtype)
        for _ in range(3):
            step()

    def answer(_):
        with watched(most):
            step()  # not timed: while a peer waits, it loses caches and pages
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        seconds = (time.perf_counter() - began) / STEPS
        return {"seconds": seconds, "peak": megabytes(), **most}

    return {"libraries": libraries}, answer


def compare(names, shape, dtype, rounds):
    peers = start(
        {
            name: [__file__, "--work", name, shape, dtype]
            for name in [*names, "matrix_product"]
        }
    )
    results = {peer.name: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            results[peer.name].append(peer.ask())
    libraries = {peer.name: peer.metadata["libraries"] for peer in peers}
    for peer in peers:
        peer.end()
    report(results, libraries, shape, dtype)


def report(results, libraries, shape, dtype):
    seconds = {
        name: statistics.median(r["seconds"] for r in rounds)
        for name, rounds in results.items()
    }
    size = SHAPES[shape]
    peak = PEAK_FLOPS / seconds.pop("matrix_product")
    print(
        f"\n{shape}, {dtype}: {size.rows} x {size.length} tokens, V "
        f"{size.vocab_size:,}; matrix peak {peak / 1e9:,.0f} GFLOP/s"
    )
    print(
        f"{'':18}{'ms/step':>9}{'spread':>9}{'tokens/s':>10}{'ours is':>9}"
        f"{'peak':>6}{'MB':>7}{'MB own':>8}{'MB anon':>9}"
    )
    ours = next(iter(seconds.values()))
    for name, time_of_step in seconds.items():
        times = sorted(r["seconds"] for r in results[name])
        low, high = times[len(times) // 4], times[-1 - len(times) // 4]
        last = results[name][-1]
        memory = last["peak"]
        print(
            f"{name:18}{1000 * time_of_step:9,.0f}"
            f"{(high - low) / time_of_step:9.0%}"
            f"{size.tokens / time_of_step:10,.0f}"
            f"{time_of_step / ours:8.2f}x"
            f"{size.flops / time_of_step / peak:6.0%}"
            f"{memory:7,.0f}{memory - libraries[name]:8,.0f}"
            f"{last['anonymous']:9,.0f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    several = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--shape", default=list(SHAPES), **several)
    parser.add_argument("--dtype", default=["float32", "bfloat16"], **several)
    parser.add_argument("--peer", default=list(PEERS), **several)
    parser.add_argument("--setting", default="native", choices=SETTINGS)
    parser.add_argument("--rounds", default=9, type=int)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        serve(lambda: work(*options.work))
        return
    set_up(options.setting)
    for shape in options.shape:
        for dtype in options.dtype:
            compare(options.peer, shape, dtype, options.rounds)


if __name__ == "__main__":
    main()
