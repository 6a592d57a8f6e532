"""Measures a corpus by its size: to prepare, to start, to resume, to read.

    python benchmarks/corpora.py FOLDER [--sizes 30000 300000 4500000]
        [--corpus FOLDER-OF-A-CORPUS]

Makes a corpus of each size with the built-in grammar in FOLDER, or takes one
that exists, prepares it by the command, and opens it in processes of their own:

- `memory`: the most that the process held at once, TensorFlow's 0.8 GB in it
- `starts`: seconds from the prepared folder to the first batch, all checksums
  compared, at step 0, 1, 1,000 and 100,000
- `grows`: memory of the process after two epochs' plans and 3,000 batches, less
  that before the corpus was opened
- `tokens/s`: real target tokens that the input pipeline alone gives, without
  and with BPE-dropout, and the share of padding
"""

import argparse
import itertools
import json
import multiprocessing
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

from interleaved import machine

TOKENS, VOCABULARY = 4096, 3500


def write_corpus(folder, size):
    from keras_transformer.data.builtin.dataset import pairs_of_split

    folder.mkdir(parents=True)
    for split, count in (("validation", 500), ("train", size)):
        paths = [folder / f"{split}.{language}" for language in ("en", "de")]
        with open(paths[0], "w") as source, open(paths[1], "w") as target:
            for pair in itertools.islice(pairs_of_split(split, count), count):
                source.write(pair[0] + "\n")
                target.write(pair[1] + "\n")


def prepare(corpus, folder, vocabulary):
    """Prepares a corpus by the command; returns seconds and bytes."""
    command = [sys.executable, "-m", "keras_transformer", "prepare"]
    command += [str(corpus), str(folder), "--vocab-size", str(vocabulary)]
    command += ["--drop-duplicates", "--max-length-ratio", "3"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(process.returncode)
    return time.perf_counter() - began, usage.ru_maxrss * 1024


def memory():
    """Bytes that this process holds now."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def read(folder, dropout):
    """A process: opens a prepared corpus and reads batches; prints figures."""
    import tensorflow as tf

    import keras_transformer.training.train_run  # noqa: F401, part of a start
    from keras_transformer.data.batches import make_plan, training_batches
    from keras_transformer.data.bpe_dropout import SampledPairs
    from keras_transformer.data.prepared_corpus import PreparedCorpus

    before, found = memory(), {"starts": []}
    for step in (0, 1, 1000, 100_000):
        began = time.perf_counter()
        pairs = PreparedCorpus(folder)
        if dropout:
            tokenizers = pairs.source_tokenizer, pairs.target_tokenizer
            pairs = SampledPairs(pairs, *tokenizers, dropout, 1, 256)
        next(iter(training_batches(pairs, TOKENS, 1, first_batch=step)))
        found["starts"].append(round(time.perf_counter() - began, 2))
    plan = make_plan(pairs, TOKENS, 1)
    plan.read(pairs, plan.pools)  # the first pool of the second epoch
    batches = min(3000, max(500, plan.batches))
    real = {"source": 0, "labels": 0}
    padded, iterator = 0, iter(training_batches(pairs, TOKENS, 1))
    next(iterator)
    began = time.perf_counter()
    for batch in itertools.islice(iterator, batches):
        for side in real:
            real[side] += int(tf.math.count_nonzero(batch[side]))
            padded += int(tf.size(batch[side]))
    seconds = time.perf_counter() - began
    found["tokens/s"] = round(real["labels"] / seconds)
    found["padding"] = round(1 - sum(real.values()) / padded, 3)
    found["grows"] = memory() - before
    print(json.dumps(found))


def figures(folder, dropout):
    command = [sys.executable, __file__, str(folder), "--read", str(dropout)]
    output = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout
    return json.loads(output.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[30_000, 300_000, 4_500_000]
    )
    parser.add_argument("--corpus")
    parser.add_argument("--vocab-size", type=int, default=VOCABULARY)
    parser.add_argument("--read", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        read(options.folder, options.read)
        return
    print(machine())
    corpora = {f"{size:,} pairs": size for size in options.sizes}
    if options.corpus:
        corpora = {options.corpus: None}
    for name, size in corpora.items():
        corpus = pathlib.Path(options.corpus or options.folder / f"text-{size}")
        if not corpus.exists():
            # In a process of its own: a command's memory is counted from that
            # of the process that starts it.
            partial = corpus.with_name(f"{corpus.name}.part")
            shutil.rmtree(partial, ignore_errors=True)
            process = multiprocessing.Process(
                target=write_corpus, args=(partial, size)
            )
            process.start()
            process.join()
            if process.exitcode:
                sys.exit(f"The corpus of {name} could not be written.")
            partial.rename(corpus)
        prepared = options.folder / f"prepared-{size or corpus.name}"
        shutil.rmtree(prepared, ignore_errors=True)  # left by a start before
        seconds, most = prepare(corpus, prepared, options.vocab_size)
        on_disk = sum(path.stat().st_size for path in prepared.iterdir())
        print(
            f"{name}: prepared in {seconds:.0f} s, memory {most / 1e9:.2f} GB, "
            f"{on_disk / 1e6:.0f} MB on disk"
        )
        for dropout in (0.0, 0.1):
            found = figures(prepared, dropout)
            starts = ", ".join(f"{x:.2f}" for x in found["starts"])
            print(
                f"  BPE-dropout {dropout}: starts {starts} s; grows by "
                f"{found['grows'] / 1e6:.0f} MB; "
                f"{found['tokens/s'] / 1e6:.2f}M tokens/s; padding "
                f"{100 * found['padding']:.1f} %",
                flush=True,
            )


if __name__ == "__main__":
    main()
