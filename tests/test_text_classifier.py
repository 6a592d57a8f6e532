"""Checks the classifier of ids and of strings, and its tokenizer.

Shapes: B batch, T = 7 positions, D = 22, C = 5 classes, V = 347.
"""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance import with_seeded_weights

from keras_transformer import TextClassifier, TransformerConfig
from keras_transformer.data import train_tokenizer
from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.ids import END, PAD
from keras_transformer.inference import TextTokenizer
from keras_transformer.inference.lines import encoded

V, C = 347, 5
SHAPE = {"num_layers": 2, "d_model": 22, "num_heads": 2, "d_ff": 17}
IDS = np.array([[5, 9, 4, 7, 3, 0, 0], [6, 3, 0, 0, 0, 0, 0], [0] * 7])
TEXTS = ["the clock", "", "🦄 e\u0301\t\u3000x", b"\xff\xfe", "a\0b\ud800"]


@pytest.fixture(scope="module")
def tokenizer():
    lines = [line for pair in pairs_of_split("train", 200) for line in pair]
    return train_tokenizer(lines, V)


@pytest.fixture(scope="module")
def model(tokenizer):
    """A classifier of strings, which tests must not change."""
    return classifier(TextTokenizer(tokenizer, max_length=31))


def classifier(tokenizer=None, vocab_size=V, dtype=None, **options):
    config = TransformerConfig(vocab_size, **SHAPE, **options)
    model = TextClassifier(config, C, tokenizer, seed=1, dtype=dtype)
    return with_seeded_weights(model)


def tensor(texts):
    return tf.constant([encoded(text) for text in texts], tf.string)


def assert_close(found, expected, tolerance=1e-6):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


# === Tokenizer ===


@pytest.mark.parametrize("max_length", [2, 11, 997])
def test_ids_are_those_of_the_tokenizer_up_to_the_limit(tokenizer, max_length):
    texts = [*TEXTS, "is " * 5000, "ab" * 5000, " " * 5000 + "."]
    layer = TextTokenizer(tokenizer, max_length)
    rows = [row[:-1][: max_length - 1] for row in tokenizer.encode(texts)]
    longest = 1 + max(map(len, rows))
    expected = [[*r, END] + [PAD] * (longest - 1 - len(r)) for r in rows]
    compiled = tf.function(
        layer, input_signature=[tf.TensorSpec([None], "string")]
    )
    for found in (layer(texts), layer(tensor(texts)), compiled(tensor(texts))):
        assert found.dtype == tf.int32
        np.testing.assert_array_equal(found, expected)
    assert layer.decode(found) == tokenizer.decode(rows)


def test_no_strings_have_no_ids(model):
    for texts in ([], tensor([]), np.array([], object)):
        assert model.tokenizer(texts).shape == (0, 0)
        assert model(texts).shape == (0, C)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda t, m: TextTokenizer(b"model"), "`Tokenizer`.*b'model'"),
        (lambda t, m: TextTokenizer(t, max_length=1), "max_length=1"),
        (lambda t, m: TextTokenizer(t)("a"), r"'a'. Give `\[text\]`"),
        (lambda t, m: TextTokenizer(t)(tensor(["a"])[None]), r"\(1, 1\)"),
        (lambda t, m: TextTokenizer(t)(keras.Input((3,))), "float32"),
        (lambda t, m: classifier(t), "TextTokenizer.*Received: tokenizer=<"),
        (
            lambda t, m: classifier(m.tokenizer, V + 2),
            "vocab_size=349 and 347 pieces",
        ),
        (
            lambda t, m: classifier(
                m.tokenizer, positions="learned", max_length=7
            ),
            "max_length=7 and 31",
        ),
        (lambda t, m: TextClassifier("tiny", C), "config='tiny'"),
        (lambda t, m: TextClassifier(m.config, 0), "num_classes=0"),
        (lambda t, m: classifier(source_vocab_size=9), "source_vocab_size=9"),
        (lambda t, m: classifier(source_features=9), "source_features=9"),
        (lambda t, m: classifier(num_encoder_layers=9), "encoder_layers=9"),
        (lambda t, m: classifier(num_decoder_layers=9), "decoder_layers=9"),
    ],
)
def test_errors_name_what_was_received(use, expected, tokenizer, model):
    with pytest.raises(ValueError, match=f"(?s){expected}"):
        use(tokenizer, model)


# === Logits ===


@pytest.mark.parametrize("norm_first", [False, True])
def test_logits_are_those_of_the_layers_and_a_mean_in_numpy(norm_first):
    model = classifier(norm_first=norm_first)
    x = model.embedding(IDS)
    for layer in model.encoder_layers:
        x = layer(x, mask=IDS != PAD)
    x = np.asarray(model.encoder_norm(x) if norm_first else x)
    assert (model.encoder_norm is not None) == norm_first
    means = [x[0, :5].mean(0), x[1, :2].mean(0), np.zeros(22)]
    kernel, bias = model.projection.get_weights()
    found = model(IDS)
    assert_close(found, means @ kernel + bias, 1e-5)
    assert_close(model(np.zeros((2, 0), int)), [bias, bias])
    assert_close(model(IDS[:, :5]), found)


def test_the_order_of_words_matters(model):
    a, b = np.asarray(model(["the clock is slow", "slow is the clock"]))
    assert np.abs(a - b).max() > 1e-3


def test_strings_are_taken_in_every_form(model):
    texts = ["the clock is slow", "no", "yes"]
    expected = model(texts)
    bare = classifier()
    assert_close(bare(model.tokenizer(texts)), expected)
    forms = [np.array(texts, object), tensor(texts)]
    for form in (*forms, tf.data.Dataset.from_tensors(tensor(texts))):
        assert_close(model.predict(form, verbose=0), expected)
    for form in (*forms, texts, tuple(texts), np.array(texts)):
        assert_close(model(form), expected)


def test_half_precision_is_close_and_its_logits_are_float32(model):
    half = classifier(model.tokenizer, dtype="mixed_bfloat16")
    found = half(TEXTS)
    assert found.dtype == tf.float32
    assert {w.dtype for w in half.weights} == {"float32"}
    assert half.encoder_layers[0].compute_dtype == "bfloat16"
    assert model.tokenizer(TEXTS).dtype == tf.int32
    error = np.linalg.norm(found - model(TEXTS))
    assert 0 < error < 0.05 * np.linalg.norm(model(TEXTS))


def test_it_learns_from_strings(model):
    learner = classifier(model.tokenizer)
    learner.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    texts = np.array(["yes", "no", "the clock"] * 5, object)
    labels = np.array([0, 4, 2] * 5)
    held_out = texts[:3], labels[:3]
    before = learner.evaluate(*held_out, verbose=0)
    options = {"epochs": 7, "validation_data": held_out, "verbose": 0}
    log = learner.fit(texts, labels, **options)
    assert log.history["val_loss"][-1] < 0.5 * before


# === Copies and files ===


def test_copies_have_the_tokenizer_and_no_weights(model, tmp_path):
    model.save_weights(tmp_path / "a.weights.h5")
    fresh = TextClassifier.from_config(model.get_config())
    clone = keras.models.clone_model(model)
    own = model.tokenizer.tokenizer
    assert fresh.tokenizer.tokenizer.model == own.model
    for copy in (fresh, clone):
        assert np.abs(copy(tensor(TEXTS)) - model(TEXTS)).max() > 1e-3
        copy.load_weights(tmp_path / "a.weights.h5")
        assert_close(copy(tensor(TEXTS)), model(TEXTS))


def test_frozen_parts_stay_frozen_in_a_file(model, tmp_path):
    other = classifier(model.tokenizer)
    other.embedding.trainable = False
    other.encoder_layers[1].self_attention.trainable = False
    other.save(tmp_path / "a.keras")
    again = keras.models.load_model(tmp_path / "a.keras")
    assert len(again.trainable_weights) == len(other.trainable_weights)
    assert not again.embedding.trainable
    assert not again.encoder_layers[1].self_attention.trainable


READ = """
import keras, keras_transformer
import numpy as np

model = keras.models.load_model("a.keras")
np.save("a.npy", model(["the clock is slow", "", "🦄"]))
"""


@pytest.mark.programs
@pytest.mark.usefixtures("optimized_graphs")
def test_another_program_says_the_same(model, tmp_path):
    texts = ["the clock is slow", "", "🦄"]
    model.save(tmp_path / "a.keras")
    subprocess.run(
        [sys.executable, "-c", READ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert_close(np.load(tmp_path / "a.npy"), model(texts))
    model.export(tmp_path / "export", verbose=False)
    exported = tf.saved_model.load(tmp_path / "export")
    assert_close(exported.serve(tensor(texts)), model(texts))
