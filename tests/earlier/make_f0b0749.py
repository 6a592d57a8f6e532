"""Writes the files of `f0b0749.tar.xz`, and the numbers they gave.

The files are a run, an export and two `.keras` files. This program was run in a
checkout of commit f0b0749:

    python make_f0b0749.py FOLDER
"""

import os
import pathlib
import shutil
import sys

import keras
import numpy as np
import tensorflow as tf
from keras_transformer.run import Recipe, open_run, start_run

import keras_transformer as kt
from keras_transformer import saved_model
from keras_transformer.data.builtin import pairs_of_split
from keras_transformer.training import make_model, train

LINES = ["The meeting is on Monday.", "I bought a red car.", ""]
TRANSLATIONS = ["Am Montag.", "Ein Auto.", "x"]
RECIPE = Recipe(
    corpus="corpus",
    vocab_size=360,
    tokens_per_batch=300,
    warmup_steps=60,
    validate_every=100,
    learning_rate_scale=4.0,
    keep_checkpoints=2,
    average_checkpoints=2,
    dtype_policy="float32",
    global_clipnorm=1.0,
)
SHAPE = {"num_layers": 1, "d_model": 26, "num_heads": 2, "d_ff": 31}


def write_corpus():
    pathlib.Path("corpus").mkdir()
    for split, size in {"train": 400, "validation": 13}.items():
        pairs = list(pairs_of_split(split, size))
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            path = pathlib.Path("corpus", f"{split}.{language}")
            path.write_text(text, "utf-8")


def of_run(rng):
    """Writes a run of 300 steps, its model and its export; returns numbers.

    Among them are the weights after two more steps.
    """
    run = start_run("run", "tiny", RECIPE, **SHAPE)
    train(run, 300, verbose=0)
    model = run.load_model()
    compiled = make_model(run.config, RECIPE)
    compiled.set_weights(model.get_weights())
    compiled.save("transformer.keras")
    source, target = (rng.integers(4, 360, (2, n), "int32") for n in (5, 7))
    saved_model.export(run, "model/1", dtype="float32")
    loaded = saved_model.SavedTranslator("model/1")
    found = loaded.translate(tf.constant(LINES))
    scored = loaded.loaded.signatures["score"](
        text=tf.constant(LINES), translation=tf.constant(TRANSLATIONS)
    )
    shutil.copytree("run", "resumed")
    train(open_run("resumed"), 302, verbose=0)
    later = np.load("resumed/checkpoints/step-00000302.npz")
    shutil.rmtree("resumed")
    shutil.rmtree("run/logs")
    os.remove("run/training.png")
    return {
        "source": source,
        "target": target,
        "logits": np.asarray(model({"source": source, "target": target})),
        "translation": found["translation"].numpy().astype("S"),
        "score": found["score"].numpy(),
        "scored": scored["score"].numpy(),
        **{name: later[name] for name in later if name.startswith("weights.")},
    }


def of_composed_layers(rng):
    """Writes a model of composed layers; returns its inputs and outputs."""
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    memory = kt.PositionalEmbedding(17, 12, mask_zero=True)(source)
    memory = kt.EncoderLayer(12, num_heads=3, d_ff=19)(memory)
    x = kt.PositionalEmbedding(19, 12, mask_zero=True)(target)
    x = kt.DecoderLayer(12, num_heads=3, d_ff=19)(x, memory)
    x = kt.MultiHeadAttention(num_heads=2, key_dim=5)(x, memory)
    x = kt.FeedForward(12, 23)(x)
    model = keras.Model([source, target], keras.layers.Dense(19)(x))
    model.compile(
        keras.optimizers.Adam(kt.TransformerSchedule(12, 7)),
        kt.LabelSmoothedCrossEntropy(),
        metrics=[kt.Perplexity(), kt.TokenAccuracy()],
    )
    s, t = rng.integers(1, 17, (2, 5)), rng.integers(1, 19, (2, 7))
    model.fit([s, t], t, verbose=0)
    model.save("composed.keras")
    return {"s": s, "t": t, "composed": np.asarray(model([s, t]))}


def main(folder):
    os.makedirs(folder)
    os.chdir(folder)
    rng = np.random.default_rng(1)
    write_corpus()
    numbers = {**of_run(rng), **of_composed_layers(rng)}
    np.savez_compressed("expected.npz", **numbers)


if __name__ == "__main__":
    main(sys.argv[1])
