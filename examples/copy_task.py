"""The copy task: a Transformer put together from its layers.

The shortest way to see that attention, masks and decoding work: the model has
to say again what it was told, digit by digit, at lengths from 1 to 9.

    python examples/copy_task.py

Promise: about a minute on two CPU cores; over 99 of 100 sequences copied.
"""

import os

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
from keras import ops

from keras_transformer import (
    DecoderLayer,
    EncoderLayer,
    LabelSmoothedCrossEntropy,
    PositionalEmbedding,
    TokenAccuracy,
    TransformerSchedule,
)

PAD, START, END, DIGITS = 0, 1, 2, range(3, 13)
VOCAB_SIZE, LONGEST, D_MODEL = 13, 9, 32


def sequences(count, seed):
    """Ids `(count, LONGEST + 1)`: digits, the end token, padding."""
    rng = np.random.default_rng(seed)
    ids = rng.choice(DIGITS, size=(count, LONGEST + 1))
    lengths = rng.integers(1, LONGEST + 1, size=(count, 1))
    places = np.arange(LONGEST + 1)
    ids[np.broadcast_to(places == lengths, ids.shape)] = END
    ids[np.broadcast_to(places > lengths, ids.shape)] = PAD
    return ids


def shifted(ids):
    """Returns what the decoder has said before it says `ids`."""
    return np.concatenate([np.full((len(ids), 1), START), ids[:, :-1]], axis=1)


def build():
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    # The embedding marks id 0 as padding and the layers honour that mark.
    embedding = PositionalEmbedding(VOCAB_SIZE, D_MODEL)
    memory = embedding(source)
    for _ in range(2):
        memory = EncoderLayer(D_MODEL, num_heads=4, d_ff=64)(memory)
    x = embedding(target)
    for _ in range(2):
        x = DecoderLayer(D_MODEL, num_heads=4, d_ff=64)(x, memory)
    logits = embedding(x, reverse=True)
    return keras.Model({"source": source, "target": target}, logits)


def copy(model, source):
    """Greedy decoding without a cache: clear, and fast enough here."""
    target = np.full((len(source), 1), START)
    for _ in range(source.shape[1]):
        logits = model({"source": source, "target": target})[:, -1]
        best = ops.convert_to_numpy(ops.argmax(logits, axis=-1))
        target = np.concatenate([target, best[:, None]], axis=1)
    said = target[:, 1:]
    ended = np.cumsum(said == END, axis=1) - (said == END) > 0
    return np.where(ended, PAD, said)


def main(count=64_000, epochs=4):
    keras.utils.set_random_seed(1)
    model = build()
    model.compile(
        keras.optimizers.Adam(
            TransformerSchedule(D_MODEL, warmup_steps=400),
            beta_2=0.98,
            epsilon=1e-9,
        ),
        LabelSmoothedCrossEntropy(),
        metrics=[TokenAccuracy()],
    )
    ids = sequences(count, seed=1)
    model.fit(
        {"source": ids, "target": shifted(ids)},
        ids,
        batch_size=128,
        epochs=epochs,
        verbose=2,
    )
    test = sequences(1000, seed=2)
    copied = (copy(model, test) == test).all(axis=1).mean()
    print(f"{copied:.1%} of sequences copied")
    return copied


if __name__ == "__main__":
    main()
