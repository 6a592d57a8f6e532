"""Sequences of 16,384 tokens: attention in windows, section 4 of the paper.

The tokens are the steps of a program that sets 16 variables and reads them. At
each read the model says which of four values the variable has. It was set
at most 64 tokens before, so it is enough to see 64. With attention
to all positions, the weights of one layer alone would take 4 GB.

    python examples/long_sequences.py

Promise: less than two minutes on two CPU cores, and 2 GB of memory; over 99 of
100 reads are right.
"""

import os

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np

from keras_transformer import (
    EncoderLayer,
    PositionalEmbedding,
    TransformerSchedule,
)

VARIABLES, VALUES, DISTANCE = 16, 4, 64
# Ids: 1 does nothing; then come the reads, and the settings.
IDLE, READ, SET = 1, 2, 2 + VARIABLES
VOCAB_SIZE = SET + VARIABLES * VALUES


def programs(count, length, seed):
    """Returns ids `(count, length)` and the value of each read, elsewhere -1.

    A variable is set again when it was set more than `DISTANCE` tokens before.
    """
    rng = np.random.default_rng(seed)
    ids = np.full((count, length), IDLE)
    values = np.full((count, length), -1)
    for row in range(count):
        value = np.zeros(VARIABLES, int)
        set_at = np.full(VARIABLES, -DISTANCE - 1)
        names = rng.integers(VARIABLES, size=length)
        new = rng.integers(VALUES, size=length)
        for t in np.flatnonzero(rng.random(length) < 0.6):
            name = names[t]
            if t - set_at[name] <= DISTANCE:
                ids[row, t] = READ + name
                values[row, t] = value[name]
            else:
                ids[row, t] = SET + name * VALUES + new[t]
                value[name], set_at[name] = new[t], t
    return ids, values


def build(width=64):
    ids = keras.Input((None,), dtype="int32")
    x = PositionalEmbedding(VOCAB_SIZE, width, dropout_rate=0.0)(ids)
    for _ in range(2):
        x = EncoderLayer(
            width,
            num_heads=4,
            d_ff=2 * width,
            dropout_rate=0.0,
            sliding_window=DISTANCE + 1,
        )(x, use_causal_mask=True)
    return keras.Model(ids, keras.layers.Dense(VALUES)(x))


def main(length=16_384, steps=200):
    keras.utils.set_random_seed(1)
    model = build()
    model.compile(
        keras.optimizers.Adam(
            TransformerSchedule(64, warmup_steps=40, scale=0.2), beta_2=0.98
        ),
        # The reads alone are counted.
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=-1
        ),
    )
    ids, values = programs(steps, length, seed=1)
    model.fit(ids, values, batch_size=1, verbose=2)
    ids, values = programs(8, length, seed=2)
    said = model.predict(ids, batch_size=1, verbose=0).argmax(axis=-1)
    reads = values >= 0
    right = (said == values)[reads].mean()
    print(f"{right:.1%} of {reads.sum():,} reads are right")
    return right


if __name__ == "__main__":
    main()
