"""Speed of this checkout and of another one, such as an earlier commit.

    git worktree add /tmp/earlier COMMIT
    python benchmarks/two_checkouts.py /tmp/earlier

Each checkout's package runs in a process of its own and they take turns. Timed
are a training step of `base` and of `tiny`, and the translation of 128 lines by
an export, one line and 32 lines at a time. Printed are milliseconds, medians
over the rounds, and this checkout's share of the other one's time.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

from interleaved import SETTINGS, Peer, serve, set_up
from training_steps import THREADS

HERE = pathlib.Path(__file__).resolve().parents[1]
LINES = [f"the {n} meetings begin at {n % 12} o'clock" for n in range(128)]


def training(checkout, name, dtype):
    """Serves the seconds of a training step."""
    sys.path.insert(0, checkout)
    sys.path.insert(0, str(pathlib.Path(checkout, "benchmarks")))
    for module in ("training_steps", "turns", "interleaved"):
        sys.modules.pop(module, None)
    import training_steps

    step = training_steps.keras_transformer(training_steps.SHAPES[name], dtype)
    step(), step()

    def answer(steps):
        began = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - began) / steps

    return {"package": checkout}, answer


def prepare(checkout, run_of, folder):
    """Exports the run in `run_of`, after training it a little if it is new."""
    sys.path.insert(0, checkout)
    try:
        from keras_transformer.data.builtin.dataset import pairs_of_split
        from keras_transformer.export.saved_model import export
        from keras_transformer.training import (
            Recipe,
            open_run,
            start_run,
            train,
        )
    except ImportError:  # before the package had rooms
        from keras_transformer.run import Recipe, open_run, start_run
        from keras_transformer.saved_model import export

        from keras_transformer.data.builtin import pairs_of_split
        from keras_transformer.training import train
    run_of = pathlib.Path(run_of)
    if not run_of.exists():
        corpus = run_of / "corpus"
        corpus.mkdir(parents=True)
        for split, size in {"train": 2000, "validation": 13}.items():
            pairs = list(pairs_of_split(split, size))
            for side, language in enumerate(("en", "de")):
                text = "".join(pair[side] + "\n" for pair in pairs)
                path = corpus / f"{split}.{language}"
                path.write_text(text, "utf-8")
        recipe = Recipe(
            corpus=str(corpus),
            vocab_size=800,
            tokens_per_batch=1000,
            warmup_steps=40,
            dtype_policy="float32",
        )
        train(start_run(run_of / "run", "tiny", recipe), 60, verbose=0)
    path = pathlib.Path(folder, "model", "1")
    export(open_run(run_of / "run"), path, dtype="float32")


def decoding(folder):
    """Serves the seconds of a translation of all lines."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401, registers the tokenizer's operations

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    path = str(pathlib.Path(folder, "model", "1"))
    translate = tf.saved_model.load(path).signatures["serving_default"]
    translate(text=tf.constant(LINES[:1]))
    translate(text=tf.constant(LINES[:32]))

    def answer(batch_size):
        began = time.perf_counter()
        for i in range(0, len(LINES), batch_size):
            translate(text=tf.constant(LINES[i : i + batch_size]))
        return time.perf_counter() - began

    return {"package": folder}, answer


def compare(name, commands, question, rounds):
    """Prints the medians of two peers, which take turns."""
    peers = [Peer(who, __file__, *command) for who, command in commands.items()]
    for peer in peers:
        if "missing" in peer.metadata:
            sys.exit(f"{peer.name} failed: {peer.metadata['missing']}")
    times = {peer.name: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            times[peer.name].append(peer.ask(question))
    for peer in peers:
        peer.end()
    here, there = (1000 * statistics.median(times[p.name]) for p in peers)
    ratios = [
        a / b for a, b in zip(*(times[p.name] for p in peers), strict=True)
    ]
    print(
        f"{name:28} {here:8.1f} ms here {there:8.1f} ms there, "
        f"{statistics.median(ratios):.3f} of its time "
        f"({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


def compare_training(checkouts, rounds):
    for shape, steps in (("tiny", 10), ("base", 2)):
        for dtype in ("float32", "bfloat16"):
            commands = {
                who: ["training", path, shape, dtype]
                for who, path in checkouts.items()
            }
            compare(f"training, {shape}, {dtype}", commands, steps, rounds)


def compare_translation(checkouts, rounds):
    with tempfile.TemporaryDirectory() as folder:
        commands = {}
        run_of = str(pathlib.Path(folder, "trained"))
        # The other one first: what it wrote can be read here.
        for who, path in reversed(checkouts.items()):
            own = str(pathlib.Path(folder, who))
            Peer(who, __file__, "prepare", path, run_of, own).end()
            commands = {who: ["decoding", own], **commands}
        for batch_size in (1, 32):
            name = f"translation, {batch_size} at a time"
            compare(name, commands, batch_size, rounds)


PARTS = {"training": compare_training, "translation": compare_translation}


def main(other, setting, parts, rounds):
    set_up(setting)
    checkouts = {"here": str(HERE), "there": str(pathlib.Path(other).resolve())}
    for part in parts:
        PARTS[part](checkouts, rounds)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    kind = sys.argv[1] if len(sys.argv) > 1 else ""
    if kind in ("training", "decoding"):
        served = {"training": training, "decoding": decoding}[kind]
        serve(lambda: served(*sys.argv[2:]))
    elif kind == "prepare":
        serve(lambda: (prepare(*sys.argv[2:]), None))
    else:
        parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
        parser.add_argument("other", help="folder of the other checkout")
        parser.add_argument("--setting", choices=SETTINGS, default="native")
        parser.add_argument(
            "--part", nargs="+", choices=PARTS, default=list(PARTS)
        )
        parser.add_argument("--rounds", type=int, default=7)
        options = parser.parse_args()
        main(options.other, options.setting, options.part, options.rounds)
