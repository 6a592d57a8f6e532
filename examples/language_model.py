"""A small language model: decoder layers without a memory, and their text.

It learns German sentences by `fit`, continues some beginnings, comes back from
a `.keras` file, and is exported from text to text. All three say the same.

    python examples/language_model.py

Promise: three minutes on two CPU cores; perplexity below 2.5 a word piece.
"""

import itertools
import os
import pathlib
import tempfile

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import tensorflow as tf

from keras_transformer import (
    LabelSmoothedCrossEntropy,
    LanguageModel,
    Perplexity,
    TransformerConfig,
)
from keras_transformer.data import train_tokenizer
from keras_transformer.data.builtin.grammar import sentence_pairs
from keras_transformer.export import export_language_model
from keras_transformer.inference import TextTokenizer
from keras_transformer.testing import assert_no_leak

PROMPTS = ["Die Reise von", "Am Freitag", ""]


def main(count=12_000, epochs=5):
    keras.utils.set_random_seed(1)
    pairs = itertools.islice(sentence_pairs(seed=1), count)
    lines = [german for _, german in pairs]
    tokenizer = TextTokenizer(train_tokenizer(lines, 600))
    config = TransformerConfig.preset("modern", vocab_size=600, num_layers=2)
    model = LanguageModel(config, tokenizer)
    assert_no_leak(model, tokenizer(lines[:3]), causal=True)

    held_out = count // 12
    model.compile(
        keras.optimizers.Adam(2e-3),
        LabelSmoothedCrossEntropy(label_smoothing=0.0),
        metrics=[Perplexity()],
    )
    history = model.fit(
        *model.inputs_and_targets(lines[held_out:]),
        batch_size=64,
        epochs=epochs,
        validation_data=model.inputs_and_targets(lines[:held_out]),
        verbose=2,
    )
    texts = model.generate(PROMPTS)
    drawn = model.generate(PROMPTS, temperature=1.0, top_p=0.9, seed=1)
    for prompt, *found in zip(PROMPTS, texts, drawn, strict=True):
        print(f"{prompt!r}:", *found, sep="\n    ")

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "model.keras")
        model.save(file)
        again = keras.models.load_model(file)
        path = export_language_model(again, f"{folder}/language/1")
        served = tf.saved_model.load(path).signatures["serving_default"]
        exported = served(prompt=tf.constant(PROMPTS))["text"]
        assert again.generate(PROMPTS) == texts
        assert [text.decode() for text in exported.numpy()] == texts

    perplexity = history.history["val_perplexity"][-1]
    print(f"perplexity {perplexity:.3f} a word piece")
    return perplexity


if __name__ == "__main__":
    main()
