"""Checks that CTranslate2, an independent engine, agrees with our model."""

import ctranslate2
import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from test_inference import random_model

from keras_transformer.ids import END, START
from keras_transformer.integrations import ctranslate2 as interop


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"norm_first": True},
        {"source_vocab_size": 43},
        {"positions": "learned", "max_length": 29},
        {"positions": None, "layer_norm_epsilon": 1e-2},
        {"use_bias": False},
        {"activation": "gelu"},
        {"activation": "silu"},
        {"positions": "sinusoidal_halves", "num_encoder_layers": 3},
        {"scale_embeddings": False, "num_decoder_layers": 1},
        {"tie_projection": False, "use_logits_bias": True},
        {"normalization": "rms", "norm_first": True},
        {"feed_forward": "swiglu", "activation": "tanh"},
        {"positions": "rotary", "d_model": 28},
        {"num_key_value_heads": 2, "num_heads": 6, "d_model": 30},
        {
            "norm_first": True,
            "normalization": "rms",
            "feed_forward": "swiglu",
            "positions": "rotary",
            "use_bias": False,
            "num_key_value_heads": 2,
            "num_heads": 6,
            "d_model": 36,
        },
    ],
    ids=str,
)
def test_each_token_has_the_same_probability_in_both_engines(tmp_path, config):
    """A mistake in positions, scaling, tying, end token or norms shows here."""
    model = random_model(**config)
    sizes = config.get("source_vocab_size", 41), 41
    names = [
        ["<pad>", "<unk>", "<s>", "</s>", *(f"{i}" for i in range(4, size))]
        for size in sizes
    ]
    spec = interop.specification(model, positions=29)
    spec.register_source_vocabulary(names[0])
    spec.register_target_vocabulary(names[1])
    spec.validate()
    spec.optimize()
    spec.save(str(tmp_path))
    engine = ctranslate2.Translator(str(tmp_path), inter_threads=1)
    rng = np.random.default_rng(2)
    rows = [
        (rng.integers(4, 41, size=n), rng.integers(4, 41, size=m))
        for n, m in ((7, 11), (23, 19), (1, 2))
    ]
    scored = engine.score_batch(
        [[names[0][i] for i in source] for source, _ in rows],
        [[names[1][i] for i in target] for _, target in rows],
    )
    for (source, target), result in zip(rows, scored, strict=True):
        logits = model(
            {
                "source": np.array([[*source, END]]),
                "target": np.array([[START, *target]]),
            }
        )
        log_probs = keras.ops.log_softmax(logits)[0].numpy()
        expected = log_probs[np.arange(len(target) + 1), [*target, END]]
        np.testing.assert_allclose(result.log_probs, expected, atol=1e-4)


def test_an_exported_run_gives_the_same_scores(run, exported, tmp_path):
    """The folder is all that CTranslate2 needs to give our probabilities."""
    path = interop.export(run, tmp_path / "engine")
    assert {p.name for p in path.iterdir()} == {
        "MODEL_CARD.md",
        "config.json",
        "model.bin",
        "shared_vocabulary.json",
        "source.model",
        "target.model",
    }
    source, target = (
        sentencepiece.SentencePieceProcessor(str(path / f"{side}.model"))
        for side in ("source", "target")
    )
    lines = ["one two", "room 7", "the 3 of May"]
    translations = ["eins zwei", "7", "der 3. Mai, und noch ein Satz"]
    results = ctranslate2.Translator(str(path)).score_batch(
        source.encode(lines, out_type=str),
        target.encode(translations, out_type=str),
    )
    served = tf.saved_model.load(exported).signatures["score"](
        text=tf.constant(lines), translation=tf.constant(translations)
    )
    expected = [sum(result.log_probs) for result in results]
    np.testing.assert_allclose(served["score"], expected, rtol=1e-4)


def test_an_export_is_refused_with_the_reason(run, tmp_path):
    with pytest.raises(ValueError, match="must not exist"):
        interop.export(run, tmp_path)
    with pytest.raises(ValueError, match=r"one of float32.*dtype='int4'"):
        interop.export(run, tmp_path / "engine", "int4")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="key_dim=7"):
        interop.specification(random_model(key_dim=7))
    with pytest.raises(ValueError, match="activation='tanh'"):
        interop.specification(random_model(activation="tanh"))
    with pytest.raises(ValueError, match="qk_norm=True"):
        interop.specification(random_model(qk_norm=True))
    with pytest.raises(ValueError, match="sliding_window=3"):
        interop.specification(random_model(sliding_window=3))


def test_unknown_positions_are_refused():
    """They would be written as zeros."""
    with pytest.raises(ValueError, match="positions='cubic'"):
        interop._positions("cubic", None, 7)
