"""Exports side by side: seconds from text to text, pieces a second, BLEU.

    python benchmarks/exports.py FOLDER ... --source FILE [--reference FILE]
        [--tokenize 13a] [--batch 1 32] [--lines 200] [--rounds 5]
        [--setting native | off | avx2]

Each FOLDER is a SavedModel, which searches as it was exported, or a model of
CTranslate2, whose beam follows its name: FOLDER:1 is greedy, 4 is the default.
Each has a process of its own; they take turns with the first lines of FILE,
round after round. A call has two threads, or one, and then a batch is cut in
two that are translated at once; printed is the better of the two, as a median
over the rounds. With --reference, all lines are translated once and scored.
"""

import argparse
import json
import pathlib
import statistics
import time

from decoding import freeze, shared
from interleaved import SETTINGS, serve, set_up, start
from training_steps import THREADS


def saved_model(folder, threads):
    """Returns the functions that translate and that count pieces."""
    metadata = json.loads((folder / "keras_transformer.json").read_text())
    if metadata["dtype"] == "bfloat16":
        freeze()  # as our commands do
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    import tensorflow_text  # noqa: F401

    signatures = tf.saved_model.load(str(folder)).signatures

    def translate(lines):
        found = signatures["serving_default"](text=tf.constant(lines))
        return [line.decode() for line in found["translation"].numpy()]

    def count(lines, translations):
        found = signatures["score"](
            text=tf.constant(lines), translation=tf.constant(translations)
        )
        return int(tf.reduce_sum(found["pieces"]))

    return translate, count


def ctranslate2(folder, beam, threads):
    import ctranslate2
    import sentencepiece

    source, target = (
        sentencepiece.SentencePieceProcessor(str(folder / f"{side}.model"))
        for side in ("source", "target")
    )
    engine = ctranslate2.Translator(
        str(folder),
        inter_threads=THREADS // threads,
        intra_threads=threads,
        compute_type="default",
    )

    def translate(lines):
        results = engine.translate_batch(
            [source.encode(line, out_type=str) for line in lines],
            beam_size=beam,
            length_penalty=0.6,
            disable_unk=True,
            max_decoding_length=256,
        )
        return [target.decode(r.hypotheses[0]) for r in results]

    def count(lines, translations):
        return sum(len(ids) + 1 for ids in target.encode(translations))

    return translate, count


def work(name, threads):
    """A peer's process: translates the batches that it is given."""
    name, _, beam = name.partition(":")
    folder = pathlib.Path(name)
    if (folder / "model.bin").exists():
        translate, count = ctranslate2(folder, int(beam or 4), threads)
    else:
        translate, count = saved_model(folder, threads)
    translate = shared(translate, THREADS // threads)

    def answer(batches):
        translate(batches[0])  # who waited has lost the caches, and pages
        began = time.perf_counter()
        found = [line for batch in batches for line in translate(batch)]
        seconds = time.perf_counter() - began
        lines = [line for batch in batches for line in batch]
        return {
            "seconds": seconds,
            "lines": found,
            "pieces": count(lines, found),
        }

    return {}, answer


def compare(names, lines, batch, rounds):
    """Prints the times of all peers for a batch size."""
    peers = start(
        {
            f"{name} {n}": [__file__, "--work", name, str(n)]
            for name in names
            for n in (THREADS, 1)
        }
    )
    batches = [lines[i : i + batch] for i in range(0, len(lines), batch)]
    for peer in peers:
        peer.ask(batches)
    answers = {peer.name: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            answers[peer.name].append(peer.ask(batches))
    for peer in peers:
        peer.end()
    print(f"\n{len(lines)} lines, {batch} at a time")
    print(f"{'seconds':>9}{'spread':>8}{'pieces/s':>10}{'speed':>9}")
    first = None
    for name in names:
        found = [answers.get(f"{name} {n}") for n in (THREADS, 1)]
        found = [answer for answer in found if answer]
        if not found:
            continue
        seconds, best = min(
            (
                (statistics.median(x["seconds"] for x in answer), answer)
                for answer in found
            ),
            key=lambda pair: pair[0],
        )
        first = first or seconds
        times = sorted(x["seconds"] for x in best)
        spread = times[-1 - len(times) // 4] - times[len(times) // 4]
        print(
            f"{seconds:9.2f}{spread / seconds:8.0%}"
            f"{best[0]['pieces'] / seconds:10,.0f}{first / seconds:8.2f}x"
            f"  {name}",
            flush=True,
        )


def score(names, lines, references, tokenizer):
    """Prints the BLEU of all peers."""
    from keras_transformer.inference import evaluation

    print()
    for name in names:
        for peer in start({name: [__file__, "--work", name, "1"]}):
            batches = [lines[i : i + 32] for i in range(0, len(lines), 32)]
            found = peer.ask(batches)["lines"]
            peer.end()
            result = evaluation.score(found, references, tokenizer)
            print(f"BLEU {result['bleu']:.2f}  {name}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--source")
    parser.add_argument("--reference")
    parser.add_argument("--tokenize", default="13a")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--setting", default="native", choices=SETTINGS)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        name, threads = options.work
        serve(lambda: work(name, int(threads)))
        return
    if not (options.folders and options.source):
        parser.error("name folders of exports, and --source")
    set_up(options.setting)
    lines = pathlib.Path(options.source).read_text().splitlines()
    for batch in options.batch:
        compare(options.folders, lines[: options.lines], batch, options.rounds)
    if options.reference:
        references = pathlib.Path(options.reference).read_text().splitlines()
        score(options.folders, lines, references, options.tokenize)


if __name__ == "__main__":
    main()
