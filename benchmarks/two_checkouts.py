"""Speed of this checkout and of another one, such as an earlier commit.

    git worktree add /tmp/earlier COMMIT
    python benchmarks/two_checkouts.py /tmp/earlier

Each checkout's package runs in its own process and they take turns. Timed are a
training step of `base` and of `tiny`; the translation of 128 lines by an
export, one line and 32 lines at a time; and that of 512 lines by the server,
in requests of 100 by 16 clients. Printed are milliseconds, medians over the
rounds, and this checkout's share of the other one's time. Each checkout trains
the model that it exports; if their translations differ, the program says so.

It works for commits from e2a190a on: earlier ones have other module paths.
"""

import argparse
import asyncio
import atexit
import os
import pathlib
import statistics
import sys
import tempfile
import time

from interleaved import SETTINGS, Peer, serve, set_up
from serving import Server, translate_by_server
from training_steps import THREADS

HERE = pathlib.Path(__file__).resolve().parents[1]
LINES = [f"the {n} meetings begin at {n % 12} o'clock" for n in range(128)]


def training(checkout, name, dtype):
    """Serves the seconds of a training step."""
    sys.path.insert(0, checkout)
    sys.path.insert(0, str(pathlib.Path(checkout, "benchmarks")))
    for module in ("training_steps", "interleaved"):
        sys.modules.pop(module, None)
    import training_steps

    step = training_steps.keras_transformer(training_steps.SHAPES[name], dtype)
    step(), step()

    def answer(steps):
        began = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - began) / steps

    return {}, answer


def prepare(checkout, folder):
    """Trains a small run in `folder` and exports it to `folder/model/1`."""
    sys.path.insert(0, checkout)
    from keras_transformer.data.builtin.dataset import pairs_of_split
    from keras_transformer.export.saved_model import export
    from keras_transformer.training import Recipe, start_run, train

    folder = pathlib.Path(folder)
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for split, size in {"train": 2000, "validation": 13}.items():
        pairs = list(pairs_of_split(split, size))
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (corpus / f"{split}.{language}").write_text(text, "utf-8")
    recipe = Recipe(
        corpus=str(corpus),
        vocab_size=800,
        tokens_per_batch=1000,
        warmup_steps=40,
        dtype_policy="float32",
    )
    run = start_run(folder / "run", "tiny", recipe)
    train(run, 60, verbose=0)
    export(run, folder / "model" / "1", dtype="float32")


def decoding(folder):
    """Serves the seconds of a translation of all lines."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401, registers the tokenizer's operations

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    path = str(pathlib.Path(folder, "model", "1"))
    translate = tf.saved_model.load(path).signatures["serving_default"]
    translate(text=tf.constant(LINES[:1]))
    texts = translate(text=tf.constant(LINES[:32]))["translation"].numpy()

    def answer(batch_size):
        began = time.perf_counter()
        for i in range(0, len(LINES), batch_size):
            translate(text=tf.constant(LINES[i : i + batch_size]))
        return time.perf_counter() - began

    return {"translations": [text.decode() for text in texts]}, answer


def serving(checkout, folder):
    """Serves the seconds of a translation of all lines, `times` times."""
    os.chdir(checkout)  # `python -m` imports the package from there
    server = Server(pathlib.Path(folder, "model"), ["--timeout", "600"])
    atexit.register(server.stop)

    def answer(times):
        lines = LINES * times
        _, seconds = asyncio.run(translate_by_server(server, lines))
        return seconds

    answer(1)
    return {}, answer


def compare(name, commands, question, rounds):
    """Prints the medians of two peers, which take turns."""
    peers = [Peer(who, __file__, *command) for who, command in commands.items()]
    for peer in peers:
        if "missing" in peer.metadata:
            sys.exit(f"{peer.name} failed: {peer.metadata['missing']}")
    texts = [peer.metadata.get("translations", []) for peer in peers]
    if texts[0] != texts[1]:
        print("The translations of the two checkouts differ.")
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


def compare_training(checkouts, rounds, folder):
    for shape, steps in (("tiny", 10), ("base", 2)):
        for dtype in ("float32", "bfloat16"):
            commands = {
                who: ["training", path, shape, dtype]
                for who, path in checkouts.items()
            }
            compare(f"training, {shape}, {dtype}", commands, steps, rounds)


def compare_translation(checkouts, rounds, folder):
    commands = {
        who: ["decoding", export_of(who, path, folder)]
        for who, path in checkouts.items()
    }
    for batch_size in (1, 32):
        name = f"translation, {batch_size} at a time"
        compare(name, commands, batch_size, rounds)


def compare_serving(checkouts, rounds, folder):
    commands = {
        who: ["serving", path, export_of(who, path, folder)]
        for who, path in checkouts.items()
    }
    compare("serving, 512 lines", commands, 4, rounds)


def export_of(who, checkout, folder):
    """Returns the folder of a checkout's export, which it makes once."""
    own = pathlib.Path(folder, who)
    if not own.exists():
        Peer(who, __file__, "prepare", checkout, str(own)).end()
    return str(own)


PARTS = {
    "training": compare_training,
    "translation": compare_translation,
    "serving": compare_serving,
}


def main(other, setting, parts, rounds):
    set_up(setting)
    checkouts = {"here": str(HERE), "there": str(pathlib.Path(other).resolve())}
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            PARTS[part](checkouts, rounds, folder)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    kind = sys.argv[1] if len(sys.argv) > 1 else ""
    served = {"training": training, "decoding": decoding, "serving": serving}
    if kind in served:
        serve(lambda: served[kind](*sys.argv[2:]))
    elif kind == "prepare":
        serve(lambda: ({}, prepare(*sys.argv[2:])))
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
