"""Prints how far each option of today's block is from the equations.

`python tests/block_table.py` prints a table in Markdown of the largest
differences in float32 and, after a comma, in bfloat16. Layers are compared with
the oracle in NumPy. Logits of the fast forward pass, and log-probabilities of
whole translations by an export, are compared with the Keras model in float64.
`KERAS_BACKEND` chooses the backend; those are for TensorFlow alone.
"""

import functools
import pathlib
import tempfile

import keras
import numpy as np
from block_oracle import (
    MEMORY,
    MEMORY_MASK,
    OPTIONS,
    X_MASK,
    T,
    X,
    oracle,
    seeded_layer,
    self_mask,
    stepwise,
)
from conformance import compiled_on_jax, numpy_of
from keras import ops

BACKEND = keras.backend.backend()
WINDOW = {"sliding_window": 4}
VOCAB_SIZE = 400


def difference(found, expected):
    found = numpy_of(ops.cast(found, "float32"))
    return np.abs(found - expected).max()


def whole(options, dtype):
    """Returns the error of an encoder and of a decoder layer under masks."""
    errors = []
    for is_decoder in (False, True):
        layer = seeded_layer(is_decoder, dtype=dtype, **options)
        own = self_mask(X_MASK, is_decoder, options.get("sliding_window"))
        memory = {"memory_mask": MEMORY_MASK} if is_decoder else {}
        expected = oracle(layer, options, own, **memory)
        call = functools.partial(layer, mask=X_MASK, **memory)
        inputs = [X, MEMORY][: 1 + is_decoder]
        found = compiled_on_jax(call)(*inputs)
        errors.append(difference(found, expected))
    return max(errors)


def steps(options, dtype):
    """Returns the error of a decoder layer in steps of one and several."""
    layer = seeded_layer(True, dtype=dtype, **options)
    own = self_mask(np.ones_like(X_MASK), True, options.get("sliding_window"))
    expected = oracle(layer, options, own)
    return max(
        difference(stepwise(layer, X, ends, MEMORY), expected)
        for ends in (range(1, T + 1), [2, 3, 8, T])
    )


def window(options, dtype):
    """Returns the error of both with a window."""
    options = options | WINDOW
    return max(whole(options, dtype), steps(options, dtype))


def random_model(options, **shape):
    from test_inference import random_model

    # Heads for groups of three, of an even width.
    shape = {"num_heads": 6, "key_dim": 10} | shape
    return random_model(**shape | options)


def fast(options, dtype):
    """Returns the error of the fast model's logits along random beams."""
    from test_inference import logits_along_random_beams

    pairs = logits_along_random_beams(
        random_model(options), dtype.removeprefix("mixed_")
    )
    return max(difference(found, expected) for found, expected in pairs)


def exported(options, dtype):
    """Returns the error of an export's log-probabilities of translations."""
    import tensorflow as tf

    from keras_transformer import Transformer
    from keras_transformer.data.builtin.phrases import pairs_of_split
    from keras_transformer.data.tokenizer import train_tokenizer
    from keras_transformer.export import saved_model
    from keras_transformer.inference.translator import Translator

    sides = list(zip(*pairs_of_split("train", 300), strict=True))
    tokenizers = [train_tokenizer(side, VOCAB_SIZE) for side in sides]
    model = random_model(
        options, vocab_size=VOCAB_SIZE, source_vocab_size=VOCAB_SIZE
    )
    exact = Transformer(model.config, dtype="float64")
    exact.set_weights(model.get_weights())
    texts = [side[:5] for side in sides]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "1"
        translator = Translator(model, *tokenizers)
        saved_model.write(translator, path, dtype.removeprefix("mixed_"))
        score = tf.saved_model.load(path).signatures["score"]
        found = score(
            text=tf.constant(texts[0]), translation=tf.constant(texts[1])
        )
    source, target = (
        tf.ragged.constant(tokenizer.encode(text)).to_tensor().numpy()
        for tokenizer, text in zip(tokenizers, texts, strict=True)
    )
    before = np.pad(target[:, :-1], [[0, 0], [1, 0]], constant_values=2)
    logits = exact({"source": source, "target": before})
    every = numpy_of(ops.log_softmax(logits))
    each = np.take_along_axis(every, target[..., None], axis=2)[..., 0]
    return difference(found["score"], (each * (target != 0)).sum(axis=1))


COLUMNS = {"whole pass": whole, "cached steps": steps, "window": window}
if BACKEND == "tensorflow":
    COLUMNS |= {"fast path": fast, "SavedModel": exported}


def measured(column, options):
    errors = []
    for dtype in ("float32", "mixed_bfloat16"):
        keras.utils.set_random_seed(1706)
        errors.append(f"{column(options, dtype):.0e}")
    return ", ".join(errors)


def main():
    print(f"| {BACKEND} |", " | ".join(COLUMNS), "|")
    print("|---" * (1 + len(COLUMNS)) + "|")
    for name, options in OPTIONS.items():
        cells = [measured(column, options) for column in COLUMNS.values()]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
