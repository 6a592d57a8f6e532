"""A text classifier: the encoder alone, from strings to classes.

Where does the journey go? Every sentence names two cities, and only the order
of the words tells the destination, so the model must use its positions. The
tokenizer is a part of the model, and of its file.

    python examples/text_classifier.py

Promise: less than a minute on two CPU cores; accuracy over 98 %.
"""

import itertools
import os
import pathlib
import tempfile

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np

from keras_transformer import TextClassifier, TransformerConfig
from keras_transformer.data import train_tokenizer
from keras_transformer.data.builtin.grammar import sentence_pairs
from keras_transformer.inference import TextTokenizer
from keras_transformer.testing import assert_no_leak


def sentences(count, seed=1):
    """Sentences about journeys, and the city that each goes to."""
    lines = (
        english
        for english, _ in sentence_pairs(seed)
        if english.startswith("The journey")
    )
    lines = list(itertools.islice(lines, count))
    return lines, [line.split(" to ")[1].split(" takes")[0] for line in lines]


def build(lines, classes):
    tokenizer = TextTokenizer(train_tokenizer(lines, vocab_size=400))
    shape = {"num_layers": 2, "d_model": 32, "num_heads": 4, "d_ff": 64}
    config = TransformerConfig(tokenizer.vocab_size, **shape)
    model = TextClassifier(config, classes, tokenizer)
    # From the ids on, it is a model of ids.
    of_ids = keras.Model(model.embedding.input, model.output)
    assert_no_leak(of_ids, tokenizer(lines[:4]))
    return model


def main(count=6000, epochs=8):
    keras.utils.set_random_seed(1)
    lines, cities = sentences(count)
    names = sorted(set(cities))
    labels = np.array([names.index(city) for city in cities])
    held_out = count // 6
    model = build(lines[held_out:], len(names))
    texts = np.array(lines, object)
    model.compile(
        keras.optimizers.Adam(2e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        texts[held_out:],
        labels[held_out:],
        batch_size=64,
        epochs=epochs,
        validation_data=(texts[:held_out], labels[:held_out]),
        verbose=2,
    )
    accuracy = history.history["val_accuracy"][-1]
    print(f"{accuracy:.1%} of destinations found among {len(names)} cities")

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "classifier.keras")
        model.save(file)
        again = keras.models.load_model(file)
    a, b = names[:2]
    journeys = [
        f"The journey from {x} to {y} takes two hours."
        for x, y in ((a, b), (b, a))
    ]
    best = keras.ops.argmax(again(journeys), axis=1)
    for journey, i in zip(journeys, best, strict=True):
        print(f"{journey} → {names[i]}")
    return accuracy


if __name__ == "__main__":
    main()
