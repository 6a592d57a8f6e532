"""Translation from text to text against the peers: tokens a second, memory.

    python benchmarks/decoding.py [--run RUN --lines FILE] [--batch 1 32]
        [--peer saved_model ctranslate2 ...] [--rounds 7]
        [--setting native | off | avx2]

The settings, in `interleaved.py`, stand for other processors.

Without --run: `base` of table 3 with random weights, a vocabulary of 32,000
pieces, 20 pieces in and 33 out, beam 4. With --run: a trained run translates
lines of FILE, at their natural lengths.

Every peer runs in its own process, on two cores; they take turns, round after
round. Each is there twice: with two threads for a call, and with one; then a
batch is split into two simultaneous calls. With TensorFlow, these are the
threads of an operation: two operations may run at once. Printed are medians
over the rounds, text to text, tokenizers included; "ours is" divides the best
speed of the first peer by the best of each. Peers that are not installed are
named and left out: `pip install ctranslate2 torch transformers keras-hub`.
"Imported" is the same model, exported to a Marian folder and imported again.
"Shortlist" is an export that searches the likely pieces of a sentence only.
"Products alone" is an upper bound: the decoder's matrix products alone.
"""

import argparse
import dataclasses
import os
import pathlib
import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from interleaved import SETTINGS, megabytes, serve, set_up, start
from training_steps import THREADS

PIECES_IN, PIECES_OUT = 20, 33
OUT_BEYOND = PIECES_OUT - PIECES_IN
BEAM = 4
SHORTLIST = 50  # target pieces for each source piece
SIZE = {"vocab_size": 32_000, "d_model": 512, "d_ff": 2048, "heads": 8}


def random_run(folder):
    """Makes a run of `base` with random weights, and lines to translate."""
    from keras_transformer.training import (
        Recipe,
        checkpoints,
        make_model,
        start_run,
    )

    rng = random.Random(1)
    corpus = folder / "corpus"
    corpus.mkdir()
    onsets = ["", *"bdfgklmnprstvz", "sch", "st", "tr"]
    syllables = [a + b + c for a in onsets for b in "aeiou" for c in "\0nrsl"]
    words = [
        "".join(rng.choices(syllables, k=rng.choice((1, 2, 2, 3, 3))))
        for _ in range(60_000)
    ]
    for name in ("train.en", "train.de", "validation.en", "validation.de"):
        lines = (
            " ".join(
                words[min(int(rng.paretovariate(0.4)), len(words)) - 1]
                for _ in range(12)
            )
            for _ in range(30_000 if "train" in name else 50)
        )
        text = "\n".join(lines).replace("\0", "")
        (corpus / name).write_text(text + "\n")
    run = start_run(
        folder / "run",
        "base",
        Recipe(corpus=str(corpus), vocab_size=SIZE["vocab_size"]),
    )
    checkpoints.save(run.checkpoints, make_model(run.config, run.recipe), 0)
    whole = [
        piece[1:]
        for piece in run.source_tokenizer.pieces(range(300, 20_000))
        if piece[0] == "\N{LOWER ONE EIGHTH BLOCK}" and len(piece) > 3
    ]
    lines = [" ".join(rng.choices(whole, k=PIECES_IN)) for _ in range(64)]
    return run, lines


def prepare(folder, run):
    """Exports what the peers load; call it in a separate process."""
    from keras_transformer.export import saved_model
    from keras_transformer.inference import SearchSettings
    from keras_transformer.integrations import ctranslate2
    from keras_transformer.integrations.marian import exporter, import_marian
    from keras_transformer.training import open_run

    folder = pathlib.Path(folder)
    lines = []
    settings = SearchSettings(BEAM)
    if run:
        run = open_run(run)
    else:
        run, lines = random_run(folder)
        # The end token is one of the pieces out, and one of those in.
        settings = SearchSettings(BEAM, extra_length=OUT_BEYOND - 1)
    saved_model.export(run, folder / "saved_model" / "1", settings, "float32")
    for dtype in ("bfloat16", "int8"):
        saved_model.export(run, folder / dtype / "1", settings, dtype)
    for dtype in ("float32", "bfloat16"):
        path = folder / f"shortlist_{dtype}" / "1"
        saved_model.export(run, path, settings, dtype, SHORTLIST)
    ctranslate2.export(run, folder / "ctranslate2")
    ctranslate2.export(run, folder / "ctranslate2_int8", "int8")
    try:
        exporter.export(run, folder / "marian")
    except ValueError as error:
        print(f"Not a Marian model: {error}")
        return {"lines": lines}
    imported = import_marian(folder / "marian", folder / "imported_run")
    searched = dataclasses.replace(imported.search, beam_size=BEAM)
    if lines:
        searched = dataclasses.replace(
            searched, extra_length=OUT_BEYOND - 1, max_length=None
        )
    saved_model.export(imported, folder / "imported" / "1", searched, "float32")
    return {"lines": lines}


def frozen_saved_model(folder, fixed, threads):
    """Lays out each matrix once, as our commands do for bfloat16."""
    freeze()
    return our_saved_model(folder, fixed, threads)


def freeze():
    os.environ["TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"] = "1"


def our_saved_model(folder, fixed, threads):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    import tensorflow_text  # noqa: F401

    loaded = tf.saved_model.load(str(folder / "1"))
    serving = loaded.signatures["serving_default"]
    return lambda lines: [
        line.decode()
        for line in serving(text=tf.constant(lines))["translation"].numpy()
    ]


def ctranslate2(folder, fixed, threads):
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
        compute_type="int8" if "int8" in folder.name else "float32",
    )
    length = {"max_decoding_length": 256}
    if fixed:
        length = {
            "max_decoding_length": PIECES_OUT,
            "min_decoding_length": PIECES_OUT,
        }

    def translate(lines):
        results = engine.translate_batch(
            [source.encode(line, out_type=str) for line in lines],
            beam_size=BEAM,
            length_penalty=0.6,
            disable_unk=True,
            **length,
        )
        return [target.decode(r.hypotheses[0]) for r in results]

    return translate


def marian(folder, fixed, threads):
    """Hugging Face's Marian, with the weights that we export to its format."""
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    if not folder.exists():
        raise ImportError("the run's model is none of Marian's")
    torch.set_num_threads(threads)
    model = MarianMTModel.from_pretrained(folder).eval()
    tokenizer = MarianTokenizer.from_pretrained(folder)
    length = {}
    if fixed:
        length = {"min_new_tokens": PIECES_OUT, "max_new_tokens": PIECES_OUT}

    def translate(lines):
        inputs = tokenizer(lines, return_tensors="pt", padding=True)
        with torch.inference_mode():
            ids = model.generate(**inputs, num_beams=BEAM, **length)
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    return translate


def keras_hub(folder, fixed, threads):
    """Our Keras model, with its own caches, under keras-hub's beam search."""
    import tensorflow as tf
    from keras_hub.samplers import BeamSampler

    from keras_transformer import padding_mask
    from keras_transformer.inference import GraphTokenizer
    from keras_transformer.training import load_model, open_run

    if not fixed:
        raise ImportError("its beams go on behind their end tokens")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    run = open_run(folder)
    model = load_model(run)
    source_pieces = GraphTokenizer(run.source_tokenizer)
    target_pieces = GraphTokenizer(run.target_tokenizer)
    sampler = BeamSampler(num_beams=BEAM)
    text = tf.TensorSpec([None], tf.string)

    @tf.function(input_signature=[text], autograph=False)
    def search(text):
        source = source_pieces.encode(text).to_tensor()
        mask = padding_mask(source)
        memory = model.project_memory(model.encode(source))
        batch = tf.shape(source)[0]

        def step(prompt, cache, index):
            tokens = tf.gather(prompt, index - 1, axis=1)
            logits, cache = model.decode_step(
                tokens, cache, index - 1, memory, mask
            )
            return logits, None, cache

        rows = tf.zeros([batch, PIECES_OUT + 1], tf.int32)
        prompt = tf.tensor_scatter_nd_update(
            rows,
            tf.stack([tf.range(batch), tf.zeros_like(rows[:, 0])], axis=1),
            tf.fill([batch], 2),
        )
        given = tf.equal(prompt, 2)
        cache = model.empty_cache(batch, PIECES_OUT)
        ids = sampler(step, prompt, cache, index=1, mask=given)
        return target_pieces.decode(ids[:, 1:])

    return lambda lines: [
        line.decode() for line in search(tf.constant(lines)).numpy()
    ]


def products(folder, fixed, threads, dtype="float32"):
    """An upper bound, not a peer: the decoder's matrix products alone."""
    import tensorflow as tf

    from keras_transformer.inference.graph_layers import linear
    from keras_transformer.inference.graph_weights import inference_weights
    from keras_transformer.training import load_model, open_run

    if not fixed:
        raise ImportError("its steps are as many as they are")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    model = load_model(open_run(folder))
    width = model.config.d_model
    weights = tf.nest.map_structure(
        tf.Variable, inference_weights(model, dtype)
    )

    # Each product needs what came before it, so none of them can be left out.
    def step(index, x):
        for layer in weights["decoder"]:
            for name in ("self", "self_output", "query", "cross_output"):
                x = linear(x, layer[name], width)
            x = linear(x, layer["inner"], model.config.d_ff)
            x = linear(x, layer["outer"], width)
        logits = linear(x, weights["projection"], width)
        return index + 1, tf.tanh(x + logits)

    @tf.function(
        input_signature=[tf.TensorSpec([None, width], dtype)], autograph=False
    )
    def steps(x):
        return tf.while_loop(lambda i, x: i < PIECES_OUT, step, (0, x))[1]

    def translate(lines):
        steps(tf.cast(tf.ones([BEAM * len(lines), width]), dtype)).numpy()
        return lines

    return translate


def bfloat16_products(folder, fixed, threads):
    freeze()
    return products(folder, fixed, threads, "bfloat16")


PEERS = {
    "saved_model": (our_saved_model, "saved_model"),
    "bfloat16": (our_saved_model, "bfloat16"),
    "bfloat16, frozen": (frozen_saved_model, "bfloat16"),
    "int8": (our_saved_model, "int8"),
    "shortlist": (our_saved_model, "shortlist_float32"),
    "shortlist, bfloat16": (our_saved_model, "shortlist_bfloat16"),
    "ctranslate2": (ctranslate2, "ctranslate2"),
    "ctranslate2, int8": (ctranslate2, "ctranslate2_int8"),
    "imported": (our_saved_model, "imported"),
    "marian": (marian, "marian"),
    "keras-hub's beam search": (keras_hub, "run"),
    "products alone": (products, "run"),
    "products alone, bfloat16": (bfloat16_products, "run"),
}


def shared(translate, workers):
    """Splits a batch into `workers` simultaneous calls."""
    pool = ThreadPoolExecutor(workers)

    def translate_all(lines):
        parts = [lines[i::workers] for i in range(min(workers, len(lines)))]
        results = [""] * len(lines)
        for i, found in enumerate(pool.map(translate, parts)):
            results[i::workers] = found
        return results

    return translate_all


def work(name, folder, fixed, threads):
    """Makes a peer that translates batches; see `interleaved.serve`."""
    make, part = PEERS[name]
    threads = int(threads)
    translate = make(pathlib.Path(folder) / part, fixed == "fixed", threads)
    translate = shared(translate, THREADS // threads)

    def answer(batches):
        translate(batches[0])  # not timed: a waiting peer loses its caches
        began = time.perf_counter()
        results = [line for batch in batches for line in translate(batch)]
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "lines": results, "peak": megabytes()}

    return {}, answer


def compare(names, folder, lines, tokens, batch, rounds, fixed):
    """Prints a table; `tokens` counts the pieces of a list of translations."""
    batches = [lines[i : i + batch] for i in range(0, len(lines), batch)]
    batches = batches[: 1 if batch > 1 else 4]
    mode = "fixed" if fixed else "natural"

    def label(name, n):
        return f"{name}, {n} a call"

    peers = start(
        {
            label(name, n): [__file__, "--work", name, folder, mode, str(n)]
            for name in names
            for n in (THREADS, 1)
        }
    )
    rates = {peer.name: [] for peer in peers}
    last = {}
    for peer in peers:
        peer.ask(batches)
    for _ in range(rounds):
        for peer in peers:
            result = last[peer.name] = peer.ask(batches)
            count = tokens(result["lines"])
            rates[peer.name].append(count / result["seconds"])
    for peer in peers:
        peer.end()
    print(f"\nbatch {batch}, beam {BEAM}, {mode} length of the output")
    print(
        f"{'tokens/s':24}{f'{THREADS} threads':>11}{'spread':>8}"
        f"{'1 a call':>11}{'spread':>8}{'ours is':>9}{'MB':>7}"
    )
    best = {}
    for name in names:
        keys = [label(name, n) for n in (THREADS, 1)]
        if keys[0] not in rates:
            continue
        row = ""
        for key in keys:
            values = sorted(rates[key])
            rate = statistics.median(values)
            low, high = values[len(values) // 4], values[-1 - len(values) // 4]
            row += f"{rate:11,.0f}{(high - low) / rate:8.0%}"
            best[name] = max(best.get(name, 0), rate)
        ours = next(iter(best.values()))
        print(
            f"{name:24}{row}{ours / best[name]:8.2f}x"
            f"{last[keys[0]]['peak']:7,.0f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--run", help="folder of a trained run")
    parser.add_argument("--lines", help="what it translates, a line each")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--peer", nargs="+", default=list(PEERS))
    parser.add_argument("--setting", default="native", choices=SETTINGS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        serve(lambda: work(*options.work))
        return
    if options.prepare:
        serve(lambda: (prepare(*options.prepare), None))
        return
    if options.run and not options.lines:
        parser.error("--run needs --lines")
    set_up(options.setting)
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or ""
        (prepared,) = start({"export": [__file__, "--prepare", folder, run]})
        prepared.end()
        lines = prepared.metadata["lines"]
        if run:
            import sentencepiece

            target = sentencepiece.SentencePieceProcessor(f"{run}/target.model")
            with open(options.lines) as file:
                lines = [line.strip() for line in file][:64]

            def tokens(lines):
                return sum(len(ids) + 1 for ids in target.encode(lines))
        else:

            def tokens(lines):
                return PIECES_OUT * len(lines)

        for batch in options.batch:
            compare(
                options.peer,
                folder,
                lines,
                tokens,
                batch,
                options.rounds,
                not run,
            )


if __name__ == "__main__":
    main()
