"""Whether two engines say the same: our SavedModel and CTranslate2.

    python benchmarks/agreement.py RUN --source FILE [--reference FILE]
        [--tokenize 13a]

The weights of a trained run are exported both ways and translate the lines of
FILE, by greedy search and by a beam of 4, α = 0, where both divide by the same.
Printed is how many translations are identical, how far apart the scores of
those are, and every one that differs with both scores. CTranslate2 has one
limit for all sentences of a call; here each gets the limit that our export
gives it. A translation that is cut there has an end token in our export and
none in CTranslate2, so its scores are not compared. With --reference also the
BLEU of exports in float32 and bfloat16, α = 0.6.
"""

import argparse
import os
import pathlib
import tempfile

from interleaved import machine

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

BATCH = 50
SETTINGS = {"alpha": 0.0, "max_length": 200}


def ours(folder, lines, beam):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    n_best = tf.saved_model.load(str(folder)).signatures["n_best"]
    pairs = []
    for start in range(0, len(lines), BATCH):
        found = n_best(
            text=tf.constant(lines[start : start + BATCH]),
            beam_size=tf.constant(beam),
            **{name: tf.constant(value) for name, value in SETTINGS.items()},
        )
        pairs += zip(
            [text.decode() for text in found["translation"][:, 0].numpy()],
            found["score"][:, 0].numpy(),
            strict=True,
        )
    return pairs


def theirs(folder, lines, beam, extra_length):
    import ctranslate2
    import sentencepiece

    source, target = (
        sentencepiece.SentencePieceProcessor(str(folder / f"{side}.model"))
        for side in ("source", "target")
    )
    translator = ctranslate2.Translator(str(folder))
    pieces = [source.encode(line, out_type=str) for line in lines]
    # Ours count the end tokens of the source and of the translation.
    limits = [
        min(len(line) + 1 + extra_length, SETTINGS["max_length"]) - 1
        for line in pieces
    ]
    found = {}
    for limit in sorted(set(limits)):
        numbers = [i for i, own in enumerate(limits) if own == limit]
        results = translator.translate_batch(
            [pieces[i] for i in numbers],
            beam_size=beam,
            length_penalty=SETTINGS["alpha"],
            max_decoding_length=limit,
            return_scores=True,
            max_batch_size=BATCH,
            # Our export never says these.
            suppress_sequences=[
                [piece]
                for piece in ("<unk>", "<pad>", "<s>", "<0x0A>", "<0x0D>")
            ],
        )
        for i, result in zip(numbers, results, strict=True):
            (translation,), (score,) = result.hypotheses, result.scores
            is_cut = len(translation) == limit
            found[i] = target.decode(translation), score, is_cut
    return [found[i] for i in range(len(lines))]


def compare(folder, lines, extra_length):
    for beam in (1, 4):
        pairs = list(
            zip(
                ours(folder / "float32" / "1", lines, beam),
                theirs(folder / "ctranslate2", lines, beam, extra_length),
                strict=True,
            )
        )
        same = [(a, b) for a, b in pairs if a[0] == b[0]]
        apart = [abs(a[1] - b[1]) for a, b in same if not b[2]]
        print(
            f"beam {beam}: {len(same):,} of {len(lines):,} identical, "
            f"{len(same) - len(apart)} of them cut at the limit; the scores "
            f"of the others at most {max(apart, default=0):.1e} apart",
            flush=True,
        )
        for a, b in pairs:
            if a[0] != b[0]:
                print(f"  ours {a[1]:.4f}: {a[0]}\n  theirs {b[1]:.4f}: {b[0]}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--source", required=True)
    parser.add_argument("--reference")
    parser.add_argument("--tokenize", default="13a")
    options = parser.parse_args()
    print(machine())

    from keras_transformer.data import read_lines
    from keras_transformer.export import SavedTranslator, saved_model
    from keras_transformer.inference import evaluation, translate_lines
    from keras_transformer.integrations import ctranslate2
    from keras_transformer.training import open_run

    run = open_run(options.run)
    lines = read_lines(options.source)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for dtype in ("float32", "bfloat16"):
            saved_model.export(run, folder / dtype / "1", dtype=dtype)
        ctranslate2.export(run, folder / "ctranslate2")
        compare(folder, lines, run.search.extra_length)
        if not options.reference:
            return
        references = read_lines(options.reference)
        for dtype in ("float32", "bfloat16"):
            model = SavedTranslator(folder / dtype / "1")
            found = translate_lines(model.translate, lines)
            score = evaluation.score(found, references, options.tokenize)
            print(f"{dtype}: BLEU {score['bleu']}", flush=True)


if __name__ == "__main__":
    main()
