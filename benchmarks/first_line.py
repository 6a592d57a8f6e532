"""Seconds until an export answers: to load it, and for its first lines.

    python benchmarks/first_line.py [saved_models/demo/1] [--rounds 5]
        [--setting native | off | avx2]

Each round is a process that loads the model as `keras-transformer translate`
does and then translates two lines, one after the other, as it does for a pipe.
TensorFlow optimises the graph at the first line. Printed are medians.
"""

import argparse
import statistics
import time

from interleaved import SETTINGS, serve, set_up, start

LINES = "The meeting is on the 3rd of May.", "Room 7 is on the third floor."


def work(path):
    """A process: says how long loading took, and each line."""
    began = time.perf_counter()
    import tensorflow as tf

    from keras_transformer.cli import commands
    from keras_transformer.cli.arguments import BATCH_SIZE

    commands._workers(BATCH_SIZE)
    imported = time.perf_counter()
    model = commands._exported(path)
    times = [imported - began, time.perf_counter() - imported]
    for line in LINES:
        began = time.perf_counter()
        model.translate(tf.constant([line]))["translation"].numpy()
        times.append(time.perf_counter() - began)
    return {"times": times}, None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("path", nargs="?", default="saved_models/demo/1")
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--setting", default="native", choices=SETTINGS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        serve(lambda: work(options.path))
        return
    set_up(options.setting)
    rounds = []
    for _ in range(options.rounds):
        (process,) = start({"model": [__file__, "--work", options.path]})
        rounds.append(process.metadata["times"])
        process.end()
    names = "imports", "loading", "first line", "second line"
    for name, times in zip(names, zip(*rounds, strict=True), strict=True):
        print(f"{name:12}{statistics.median(times):7.2f} s")


if __name__ == "__main__":
    main()
