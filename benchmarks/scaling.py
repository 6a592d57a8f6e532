"""The paper's table 1, measured, and how a training step of ours grows.

    python benchmarks/scaling.py [--plot FILE.png] [--rounds 5]

Table 1 compares layers of width d on sequences of length n: self-attention
costs O(n² d) and is one step deep, a recurrent layer O(n d²) and n steps deep,
a convolution of width k O(k n d²). Here each layer maps `(4, n, 512)` to the
same shape, forward and backward. A step of ours is that of `tiny` with one of
batch, length and vocabulary changed.
"""

import argparse
import dataclasses
import statistics
import time

from training_steps import SHAPES, keras_transformer, tensorflow

LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
WIDTH = 512
ROWS = 4


def layers():
    import keras

    from keras_transformer import MultiHeadAttention

    attention = MultiHeadAttention(num_heads=8, key_dim=WIDTH // 8)
    return {
        "self-attention": lambda x: attention(x, x),
        "LSTM": keras.layers.LSTM(WIDTH, return_sequences=True),
        "Conv1D, k = 3": keras.layers.Conv1D(WIDTH, 3, padding="same"),
    }


def layer_step(layer, length):
    """Forward and backward through one layer."""
    tf = tensorflow()
    x = tf.random.normal((ROWS, length, WIDTH))

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
        (name, length): layer_step(layer, length)
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("--rounds", default=5, type=int)
    options = parser.parse_args()
    tensorflow()
    times = table_1(options.rounds)
    if options.plot:
        plot(times, options.plot)
    growth(options.rounds)
