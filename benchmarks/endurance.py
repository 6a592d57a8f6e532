"""Checks that memory does not grow, over many requests and a long file.

    python benchmarks/endurance.py MODEL --lines FILE [--requests 10000]
        [--file-lines 100000]

MODEL is an exported model, FILE has sentences of its language. First,
`keras-transformer translate` reads a short and a long file of FILE's lines,
repeated, with empty lines and some of 50,000 characters. Printed are the peak
memory of each, and whether equal lines have equal translations. Then, in one
process, the signatures get requests of 1 to 32 texts: sentences, empty strings,
several hundred words, invalid UTF-8. The process' memory is printed on the way.
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from interleaved import machine, resident

LONG = 50_000  # characters


def mixed(rng, sentences):
    """Returns the texts of one request."""
    odd = (b"", b"   ", b"\xff\xfe no UTF-8 \xc3", "grün 🦄".encode())
    texts = []
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3, 5, 8, 13, 32))):
        kind = rng.random()
        if kind < 0.9:
            texts.append(rng.choice(sentences))
        elif kind < 0.999:
            texts.append(rng.choice(odd))
        else:
            texts.append(b" ".join(rng.choices(sentences, k=30)))
    return texts


def requests(path, sentences, count):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    signatures = tf.saved_model.load(str(path)).signatures
    rng = random.Random(1)
    began = time.perf_counter()
    seen = []
    print(f"{'requests':>9}{'texts':>9}{'seconds':>9}{'MB':>8}")
    texts = 0
    for number in range(1, count + 1):
        batch = mixed(rng, sentences)
        texts += len(batch)
        text = tf.constant(batch)
        which = rng.random()
        if which < 0.7:
            found = signatures["serving_default"](text=text)
        elif which < 0.9:
            found = signatures["n_best"](
                text=text,
                beam_size=tf.constant(rng.choice((1, 2, 4, 8))),
                alpha=tf.constant(0.6),
                max_length=tf.constant(64),
            )
        else:
            found = signatures["score"](text=text, translation=text)
        assert len(found["score"]) == len(batch)
        if number % max(1, count // 20) == 0:
            seen.append(resident())
            seconds = time.perf_counter() - began
            print(
                f"{number:9,}{texts:9,}{seconds:9,.0f}{seen[-1]:8,.0f}",
                flush=True,
            )
    after = seen[len(seen) // 4 :]  # the first quarter warms up
    middle = sorted(after)[len(after) // 2]
    low, high = min(after) / middle - 1, max(after) / middle - 1
    print(f"after the first quarter: {low:+.1%} to {high:+.1%} of the median")


def translated(path, sentences, count, folder):
    """Prints the command's peak memory on `count` lines; checks its output."""
    long = b" ".join(sentences)[:LONG]
    lines = [sentences[i % len(sentences)] for i in range(count)]
    for i in range(0, count, max(2, count // 7)):
        lines[i] = b""
    for i in range(1, count, max(2, count // 3)):
        lines[i] = long
    source = folder / "source"
    source.write_bytes(b"\n".join(lines) + b"\n")
    began = time.perf_counter()
    with open(source, "rb") as stdin, open(folder / "target", "wb") as stdout:
        command = [sys.executable, "-m", "keras_transformer", "translate", path]
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout)
        _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    seconds = time.perf_counter() - began
    peak = usage.ru_maxrss / 1024
    found = (folder / "target").read_bytes().split(b"\n")[:-1]
    assert len(found) == count
    # Equal lines have equal answers, wherever they are.
    answers, wrong = {}, 0
    for line, answer in zip(lines, found, strict=True):
        wrong += answers.setdefault(line, answer) != answer
    assert answers[b""] == b""
    print(
        f"{count:9,} lines in {seconds:,.0f} s, at most {peak:,.0f} MB, "
        f"{len(answers):,} different ones, {wrong} answered differently",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--lines", required=True)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--file-lines", type=int, default=100_000)
    options = parser.parse_args()
    print(machine(), flush=True)
    sentences = pathlib.Path(options.lines).read_bytes().split(b"\n")
    sentences = [line for line in sentences if line.strip()]
    if options.file_lines:
        with tempfile.TemporaryDirectory() as folder:
            for count in (options.file_lines // 10, options.file_lines):
                folder = pathlib.Path(folder)
                translated(options.model, sentences, count, folder)
    if options.requests:
        requests(options.model, sentences, options.requests)


if __name__ == "__main__":
    main()
