"""The paper's training step on a GPU: this package on JAX against PyTorch.

    python benchmarks/gpu_training.py [--shape base big] [--peak 989e12]

Needs `jax[cuda12]` and `torch` with CUDA; TensorFlow is not used. A batch has
25,000 tokens a side, section 5.1; weights are float32, products bfloat16.
Printed are medians over the rounds, taken in turn, the share of the GPU's peak
that the model's own matrix products reach (`--peak`, FLOP/s; the default is an
H100's or H200's for dense bfloat16), and the hours that the paper's schedule
would take: 100,000 steps for base, 300,000 for big.

`--shape miniature` runs anywhere, to see that the program works.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

from interleaved import machine
from training_steps import (
    Shape,
    keras_transformer,
    torch_compiled,
    torch_eager,
)

# Layers, d_model, d_ff, heads, V, rows, length; and the schedule's steps.
SHAPES = {
    "base": (Shape(6, 512, 2048, 8, 37_000, 520, 48), 100_000),
    "big": (Shape(6, 1024, 4096, 16, 37_000, 520, 48), 300_000),
    "miniature": (Shape(1, 22, 31, 2, 97, 5, 7), 10),
}


PEERS = {
    "keras_transformer": keras_transformer,
    "torch_compiled": torch_compiled,
    "torch_eager": torch_eager,
}
STEPS = 5  # to a round


def work(name, shape):
    """A peer's process: for each line of standard input a few steps."""
    step = PEERS[name](SHAPES[shape][0], "bfloat16")
    for _ in range(3):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        step()
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        print((time.perf_counter() - began) / STEPS, flush=True)


def start(name, shape):
    process = subprocess.Popen(
        [sys.executable, __file__, "--work", name, shape],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # All peers share the GPU: JAX must not take the whole of it.
        env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )
    return process if process.stdout.readline() == "ready\n" else None


def gpu():
    """Describes the GPU, without a library that would take memory there."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv"]
    if not shutil.which(query[0]):
        return "no GPU"
    found = subprocess.run(query, capture_output=True, text=True, check=True)
    return found.stdout.splitlines()[1]


def compare(shape, rounds, peak):
    size, steps = SHAPES[shape]
    print(f"\n{shape}: {size.rows} x {size.length} tokens, bfloat16")
    found = {name: start(name, shape) for name in PEERS}
    times = {name: [] for name, process in found.items() if process}
    for _ in range(rounds):
        for name, seconds in times.items():
            found[name].stdin.write("\n")
            found[name].stdin.flush()
            seconds.append(float(found[name].stdout.readline()))
    print(f"{'':18}{'ms/step':>9}{'tokens/s':>11}{'of peak':>9}{'hours':>8}")
    for name, seconds in times.items():
        found[name].stdin.close()
        median = statistics.median(seconds)
        print(
            f"{name:18}{1000 * median:9,.1f}{size.tokens / median:11,.0f}"
            f"{size.flops / median / peak:9.1%}{steps * median / 3600:8.1f}"
        )
    for name in PEERS.keys() - times.keys():
        print(f"{name}: left out, it failed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", default=["base", "big"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peak", type=float, default=989e12)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
    else:
        print(f"{machine()}; {gpu()}")
        for shape in options.shape:
            compare(shape, options.rounds, options.peak)
