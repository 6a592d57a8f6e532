"""A small language model: the decoder without a memory, composed by hand.

An encoder layer under a causal mask is the layer of a decoder-only model. It
learns German sentences letter by letter, and writes some: it draws one letter
at a time, with a cache.

    python examples/language_model.py

Promise: about two minutes on two CPU cores; perplexity below 1.8 a letter.
"""

import itertools
import os

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
from keras import ops

from keras_transformer import (
    EncoderLayer,
    LabelSmoothedCrossEntropy,
    Perplexity,
    PositionalEmbedding,
    sample,
)
from keras_transformer.data.builtin.grammar import sentence_pairs
from keras_transformer.testing import assert_no_leak

PAD, START, END = 0, 1, 2
D_MODEL, NUM_HEADS, D_FF, NUM_LAYERS = 64, 4, 128, 2


class LanguageModel(keras.Model):
    """Ids `(B, T)` to logits `(B, T, V)` of the next ones."""

    def __init__(self, vocab_size, **kwargs):
        super().__init__(**kwargs)
        self.embedding = PositionalEmbedding(vocab_size, D_MODEL)
        self.blocks = [
            EncoderLayer(D_MODEL, NUM_HEADS, D_FF) for _ in range(NUM_LAYERS)
        ]

    def call(self, ids, training=None):
        x = self.embedding(ids, training=training)
        for block in self.blocks:
            x = block(x, use_causal_mask=True, training=training)
        return self.embedding(x, reverse=True)

    def empty_cache(self, rows, length):
        return [block.empty_cache(rows, length) for block in self.blocks]

    def step(self, tokens, cache, index):
        """The step function that the search wants."""
        x = self.embedding(tokens[:, None], offset=index)
        caches = []
        for block, own in zip(self.blocks, cache, strict=True):
            x, own = block(x, cache=own, cache_index=index)
            caches.append(own)
        return self.embedding(x, reverse=True)[:, 0], caches


def encode(lines, letters):
    """Ids, each line between start and end token, padded."""
    rows = [[START, *(3 + letters.index(c) for c in x), END] for x in lines]
    longest = max(map(len, rows))
    return np.array([row + [PAD] * (longest - len(row)) for row in rows])


def main(count=12_000, epochs=4):
    keras.utils.set_random_seed(1)
    pairs = itertools.islice(sentence_pairs(seed=1), count)
    lines = [german for _, german in pairs]
    letters = sorted(set("".join(lines)))
    ids = encode(lines, letters)
    model = LanguageModel(vocab_size=3 + len(letters))
    assert_no_leak(model, ids[:3, :12], causal=True)

    held_out = count // 12
    model.compile(
        keras.optimizers.Adam(2e-3),
        LabelSmoothedCrossEntropy(label_smoothing=0.0),
        metrics=[Perplexity()],
    )
    history = model.fit(
        ids[held_out:, :-1],
        ids[held_out:, 1:],
        batch_size=64,
        epochs=epochs,
        validation_data=(ids[:held_out, :-1], ids[:held_out, 1:]),
        verbose=2,
    )
    count = 3
    written, scores = sample(
        model.step,
        model.empty_cache(count, 80),
        max_lengths=[80] * count,
        top_p=0.9,
        seed=1,
        start_id=START,
        end_id=END,
    )
    for row, score in zip(ops.convert_to_numpy(written), scores, strict=True):
        text = "".join(letters[i - 3] for i in row if i > END)
        print(f"{float(score):7.3f}  {text}")
    perplexity = history.history["val_perplexity"][-1]
    print(f"perplexity {perplexity:.3f} a letter, of {len(letters)} letters")
    return perplexity


if __name__ == "__main__":
    main()
