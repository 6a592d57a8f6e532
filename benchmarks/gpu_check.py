"""Training on a machine with a GPU and JAX, without network or TensorFlow.

    python benchmarks/gpu_check.py CORPUS [--minutes 1] [--trace FOLDER]

CORPUS is a folder of `keras-transformer prepare`, of a few MB. The packages can
be carried there as wheels:

    pip wheel '.[jax]' --wheel-dir wheels     # with a network; then there
    pip install --no-index --find-links wheels 'keras-transformer-paper[jax]'

It takes less than ten minutes, and prints the card and its versions; the result
of the tests on JAX, if pytest is installed; for `base` and `big`, steps of
`train` on the corpus for a minute each, their time divided by that of the bare
steps on the same batches, and the share of positions that are padding; and the
steps of `gpu_training.py` beside `torch.compile`. `--trace` keeps a profile of
three steps of each shape, for TensorBoard or Perfetto.

`--miniature` runs anywhere, to see that the program works.
"""

import argparse
import contextlib
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["KERAS_BACKEND"] = "jax"
# Tests and peers run in other processes, on the same GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import gpu_training
import jax
import keras
import numpy as np
from interleaved import machine

from keras_transformer.data.batches import training_batches
from keras_transformer.training import Recipe, start_run, train
from keras_transformer.training.loop import make_trainer
from keras_transformer.training.models import make_model
from keras_transformer.training.run_data import load_training_pairs

HERE = pathlib.Path(__file__).resolve().parents[1]
TESTS = ["test_conformance.py", "test_features.py", "jax_checks.py"]
STEPS = 20  # that are timed bare
# The preset, tokens of a batch, and changes of the preset.
SHAPES = {"base": ("base", 25_000, {}), "big": ("big", 25_000, {})}
SMALL = {"num_layers": 1, "d_model": 22, "num_heads": 2, "d_ff": 17}
MINIATURE = {"miniature": ("tiny", 700, SMALL)}


class TimeIsUp(Exception):  # noqa: N818, it is no error
    """Ends the training of a minute."""


class Clock(keras.callbacks.Callback):
    """Keeps the time of each step, and raises `TimeIsUp`."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.times = seconds, []

    def on_train_begin(self, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self.times.append(now)
        if now - self.began > self.seconds and len(self.times) > 2 * STEPS:
            raise TimeIsUp


def run_tests():
    if not importlib.util.find_spec("pytest"):
        print("tests: left out, pytest is not installed")
        return
    paths = [str(HERE / "tests" / name) for name in TESTS]
    # They compile 900 small programs, for which a GPU is of no use.
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *paths],
            capture_output=True,
            text=True,
            timeout=240,
            env=environment,
        )
        print("tests on JAX:", (done.stdout.strip() or done.stderr)[-80:])
    except subprocess.TimeoutExpired:
        print("tests on JAX: not done after 240 s")


def time_training(corpus, name, shapes, seconds, folder, trace):
    """Prints the steps of `train`, and of the same batches without it."""
    preset, tokens, changes = shapes[name]
    recipe = Recipe(
        corpus=corpus,
        tokens_per_batch=tokens,
        steps=10**6,
        validate_every=10**6,
    )
    run = start_run(folder / name, preset, recipe, **changes)
    clock = Clock(seconds)
    with contextlib.suppress(TimeIsUp):
        train(run, verbose=0, callbacks=[clock])
    last = statistics.median(np.diff(clock.times)[-STEPS:])  # some compile
    done = len(clock.times)

    trainer = make_trainer()
    with trainer.scope():
        model = make_model(run.config, run.recipe)
    trainer.prepare(model, run.recipe)
    pairs = load_training_pairs(run)
    batches = training_batches(
        pairs,
        tokens,
        recipe.seed,
        trainer.sharding(),
        done - STEPS,
        recipe.max_length,
    )
    batches = [next(batches) for _ in range(STEPS)]
    positions = sum(x[k].size for x in batches for k in ("source", "labels"))
    real = sum(np.count_nonzero(x["source"]) for x in batches)
    real += sum(np.count_nonzero(x["labels"]) for x in batches)

    def steps(count=STEPS):
        with contextlib.closing(trainer.batches(batches)) as left:
            placed = list(left)
        began, stop = time.perf_counter(), np.zeros(2)
        for i in range(count):
            sums = trainer.train(iter([placed[i]]), stop)
        jax.block_until_ready(sums)
        return (time.perf_counter() - began) / count

    steps()  # compiles
    bare = min(steps() for _ in range(3))
    print(
        f"{name}: {run.config.vocab_size:,} pieces, {run.recipe.dtype_policy}; "
        f"{done} steps of train; the last {STEPS} took "
        f"{1000 * last:.1f} ms each, {last / bare:.2f} of the "
        f"bare step's {1000 * bare:.1f}; {real / STEPS / last:,.0f} "
        f"tokens/s; {1 - real / positions:.0%} padding",
        flush=True,
    )
    if trace:
        with jax.profiler.trace(os.path.join(trace, name)):
            steps(3)


def main(corpus, minutes, trace, miniature):
    print(f"{machine()}; {gpu_training.gpu()}; {jax.devices()}", flush=True)
    if not miniature:
        run_tests()
    shapes = MINIATURE if miniature else SHAPES
    with tempfile.TemporaryDirectory() as folder:
        for name in shapes:
            folder_of_runs = pathlib.Path(folder)
            seconds = 60 * minutes
            time_training(corpus, name, shapes, seconds, folder_of_runs, trace)
    for name in shapes:
        gpu_training.compare(name, 3, 989e12)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("corpus")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--trace", metavar="FOLDER")
    parser.add_argument("--miniature", action="store_true")
    options = parser.parse_args()
    main(options.corpus, options.minutes, options.trace, options.miniature)
