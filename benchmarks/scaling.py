"""The paper's table 1, measured, and how a training step of ours grows.

    python benchmarks/scaling.py [--plot FILE.png] [--rounds 5]
    python benchmarks/scaling.py --restricted [--window 256] [--longest 65536]
        [--rounds 3]

Table 1 compares layers of width d on sequences of length n: self-attention
costs O(n² d) and is one step deep, a recurrent layer O(n d²) and n steps deep,
a convolution of width k O(k n d²). Here each layer maps `(4, n, 512)` to the
same shape, forward and backward. A step of ours is that of `tiny` with one of
batch, length and vocabulary changed.

The last row of table 1, self-attention (restricted), costs O(r n d). With
`--restricted` it is compared with full attention on one long sequence: the
time, and the memory that a process of its own takes. Table 1 leaves out the
four projections, which cost O(n d²) either way. So equation 1 alone is timed,
too. That needs 12 GB of memory and eight minutes.
"""

import argparse
import dataclasses
import functools
import resource
import statistics
import subprocess
import sys
import time

from interleaved import machine
from training_steps import SHAPES, keras_transformer, tensorflow

LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
WIDTH = 512
HEADS = 8
ROWS = 4
MEMORY = 12e9  # bytes; what needs more is not run


def layers():
    import keras

    from keras_transformer import MultiHeadAttention

    attention = MultiHeadAttention(HEADS, key_dim=WIDTH // HEADS)
    return {
        "self-attention": lambda x: attention(x, x),
        "LSTM": keras.layers.LSTM(WIDTH, return_sequences=True),
        "Conv1D, k = 3": keras.layers.Conv1D(WIDTH, 3, padding="same"),
    }


def layer_step(layer, shape):
    """Forward and backward through one layer."""
    tf = tensorflow()
    x = tf.random.normal(shape)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(layer(x) ** 2)
        weights = tape.watched_variables()
        return [tf.reduce_sum(g) for g in tape.gradient(y, [x, *weights])]

    return lambda: [float(g) for g in step()]


def medians(steps, rounds):
    """Seconds of each step, taken in turn."""
    for step in steps.values():
        step()
    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def table_1(rounds):
    """Milliseconds per layer by name and length."""
    steps = {
        (name, length): layer_step(layer, (ROWS, length, WIDTH))
        for name, layer in layers().items()
        for length in LENGTHS
    }
    found = medians(steps, rounds)
    names = list(dict.fromkeys(name for name, _ in found))
    print(f"Table 1: ms per layer, width {WIDTH}, batch {ROWS}, fwd + bwd")
    print(f"{'n':>6}" + "".join(f"{name:>16}" for name in names))
    for n in LENGTHS:
        cells = "".join(f"{1000 * found[name, n]:16.1f}" for name in names)
        print(f"{n:6}{cells}", flush=True)
    return found


def plot(found, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(name for name, _ in found):
        times = [1000 * found[name, n] for n in LENGTHS]
        axes.loglog(LENGTHS, times, "o-", base=2, label=name)
    axes.set_xlabel("length of the sequence, n")
    axes.set_ylabel(f"ms per layer, d = {WIDTH}, batch {ROWS}")
    axes.set_xticks(LENGTHS, [str(n) for n in LENGTHS])
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def growth(rounds):
    """A training step of `tiny` against batch, length and vocabulary."""
    changes = {
        "rows": (32, 64, 128, 256),
        "length": (10, 20, 40, 80),
        "vocab_size": (5_000, 10_000, 20_000, 40_000),
    }
    print("\nOne training step of tiny, ms (128 x 20 tokens, V 10,000)")
    for name, values in changes.items():
        steps = {
            value: keras_transformer(
                dataclasses.replace(SHAPES["tiny"], **{name: value}), "float32"
            )
            for value in values
        }
        found = medians(steps, rounds)
        cells = "".join(f"{v:>9,}: {1000 * found[v]:6.0f}" for v in values)
        print(f"{name:12}{cells}", flush=True)


def attention_step(window, length):
    """A step of attention on one sequence, full if `window` is None."""
    from keras_transformer import MultiHeadAttention

    attention = MultiHeadAttention(HEADS, key_dim=WIDTH // HEADS)
    attention.build((1, length, WIDTH))
    call = functools.partial(attention, attention_window=window)
    return layer_step(lambda x: call(x, x), (1, length, WIDTH))


def equation_1_step(window, length):
    """Returns the same step without the projections."""
    from keras_transformer.layers.attention import scaled_dot_product_attention
    from keras_transformer.layers.windowed_attention import windowed_attention

    def full(x):
        return scaled_dot_product_attention(x, x, x)[0]

    def restricted(x):
        return windowed_attention(x, x, x, window)

    function = restricted if window else full
    return layer_step(function, (1, HEADS, length, WIDTH // HEADS))


def fits(window, length):
    """Whether the weights, their gradient and two copies fit into memory."""
    seen = 3 * window // 2 if window else length
    return 4 * (4 * HEADS * length * seen) < MEMORY


def peak_memory(window, length):
    """MB that a step takes at most, besides those of the program."""
    tensorflow()
    attention_step(window, 16)()

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    before = peak()
    attention_step(window, length)()
    return peak() - before


def memory_of_a_process(window, length):
    """`peak_memory` in a process of its own."""
    numbers = [str(window or 0), str(length)]
    command = [sys.executable, __file__, "--memory", *numbers]
    return int(subprocess.run(command, stdout=-1, check=True).stdout)


def restricted(window, longest, rounds):
    """Time and memory of full and of restricted attention by length."""
    lengths = [256 * 2**i for i in range(9) if 256 * 2**i <= longest]
    measured = [
        (seen, length)
        for length in lengths
        for seen in (window, None)
        if fits(seen, length)
    ]
    memory = {case: memory_of_a_process(*case) for case in measured}
    layer, equation_1 = (
        medians({case: step(*case) for case in measured}, rounds)
        for step in (attention_step, equation_1_step)
    )
    print(
        f"Self-attention (restricted), r = {window}, width {WIDTH}, "
        f"{HEADS} heads, batch 1, fwd + bwd; in brackets equation 1 alone"
    )
    print(f"{'n':>7}{'restricted':>32}{'full':>32}")

    def cell(case):
        if case not in layer:
            return "does not fit"
        times = layer[case], equation_1[case]
        whole, alone = (f"{1000 * seconds:,.0f}" for seconds in times)
        return f"{whole} ms ({alone}) {memory[case]:6,} MB"

    for n in lengths:
        cells = [cell((seen, n)) for seen in (window, None)]
        print(f"{n:7,}" + "".join(f"{x:>32}" for x in cells), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--restricted", action="store_true")
    parser.add_argument("--window", default=256, type=int)
    parser.add_argument("--longest", default=65_536, type=int)
    parser.add_argument("--memory", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        window, length = options.memory
        sys.exit(print(peak_memory(window or None, length)))
    print(machine())
    tensorflow()
    if options.restricted:
        sys.exit(restricted(options.window, options.longest, options.rounds))
    times = table_1(options.rounds)
    if options.plot:
        plot(times, options.plot)
    growth(options.rounds)
