"""Checks that CTranslate2, an independent engine, agrees with our model."""

import dataclasses
import io
import shutil
import sys

import ctranslate2
import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from test_inference import random_model

from keras_transformer.cli.main import main
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.ids import END, START
from keras_transformer.inference.layer_translator import LayerTranslator
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.integrations import ctranslate2 as interop
from keras_transformer.integrations import ctranslate2_engine
from keras_transformer.integrations.ctranslate2_engine import (
    CTranslate2Translator,
)
from keras_transformer.serve import worker
from keras_transformer.training import load_model, run_of_model


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
        "SHA256SUMS",
        "config.json",
        "keras_transformer.json",
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


ENGINE_LINES = [
    "one two three",
    "ROOM 7 IS ON THE THIRD FLOOR",
    "",
    " \u200b",
    "so\u00adft €5",
    "a " * 600,
]
FEW_PIECES = SearchSettings(max_source_length=53, extra_length=11)


@pytest.fixture(scope="module")
def sure_run(run, tmp_path_factory):
    """Returns a run of random weights whose translations end."""
    tokenizers = run.source_tokenizer, run.target_tokenizer
    size = tokenizers[0].vocab_size
    model = random_model(vocab_size=size, use_logits_bias=True, d_model=24)
    bias = np.zeros(size)
    bias[END] = 6
    model.target_embedding.logits_bias.assign(bias)
    folder = tmp_path_factory.mktemp("runs") / "random"
    return run_of_model(model, folder, *tokenizers)


@pytest.fixture(scope="module")
def engine(sure_run, tmp_path_factory):
    """Returns a translator of the run's export."""
    path = tmp_path_factory.mktemp("engines") / "small" / "1"
    return CTranslate2Translator(
        interop.export(sure_run, path, settings=FEW_PIECES)
    )


@pytest.mark.parametrize(
    "search",
    [
        {"beam_size": 1},
        {"beam_size": 3, "alpha": 1.3},
        {"beam_size": 3, "length_penalty": "power"},
        {"beam_size": 2, "no_repeat_ngram_size": 2},
    ],
    ids=str,
)
def test_the_engine_finds_what_the_layers_find(sure_run, engine, search):
    """A random model has near ties, so scores are compared."""
    settings = dataclasses.replace(FEW_PIECES, **search)
    by_layers = LayerTranslator(
        load_model(sure_run),
        sure_run.source_tokenizer,
        sure_run.target_tokenizer,
        settings,
    ).n_best(ENGINE_LINES)
    found = engine.n_best(ENGINE_LINES, settings=settings)
    cut = [beam[0] for beam in by_layers["incomplete"]]
    assert [beam[0] for beam in found["incomplete"]] == cut
    assert sum(cut) < 3
    for i, is_cut in enumerate(cut):
        one, other = found["score"][i][0], by_layers["score"][i][0]
        # Only our search adds the end token of what is cut.
        np.testing.assert_allclose(one, other, atol=2 if is_cut else 1e-3)
    assert found["truncated"] == by_layers["truncated"]
    assert found["truncated"] == [False] * 5 + [True]
    assert found["translation"][2] == [""] * settings.beam_size
    assert found["incomplete"][2] == [False] * settings.beam_size
    loud = found["translation"][1]
    assert loud == [x.upper() for x in loud]


def test_the_engine_keeps_to_least_and_most_lengths(engine):
    ids = engine.source_tokenizer.encode(["one two three", "a", "€5"])
    limits = [13, 29, 17]
    settings = SearchSettings(beam_size=3, min_length=11)
    for beam, limit in zip(
        engine.search(ids, limits, settings), limits, strict=True
    ):
        assert len(beam) == 3
        assert all(11 <= len(row) <= limit for row, _ in beam)


def test_a_translation_of_the_engine_does_not_depend_on_others(engine):
    together = engine.n_best(ENGINE_LINES)
    for i, line in enumerate(ENGINE_LINES):
        alone = engine.n_best([line])
        for name in ("translation", "incomplete", "truncated"):
            assert alone[name][0] == together[name][i]
        np.testing.assert_allclose(
            alone["score"][0], together["score"][i], atol=1e-4
        )


def test_functions_of_the_engine_give_what_its_signatures_say(engine):
    functions = ctranslate2_engine.load(str(engine.path), 2)
    found = ctranslate2_engine.signatures(engine.path)
    assert functions.keys() == found.keys()
    text = {"text": np.array([b"one two", b"", b"a"], object)}
    for name, signature in found.items():
        defaults = {
            key: tf.make_ndarray(value)
            for key, value in signature.defaults.items()
        }
        assert signature.inputs.keys() == text.keys() | defaults.keys()
        for inputs in (text, {"text": np.array([], object)}):
            outputs = functions[name]({**defaults, **inputs})
            assert outputs.keys() == signature.outputs.keys()
            for key, value in outputs.items():
                info = signature.outputs[key]
                shape = tf.TensorShape(info.tensor_shape)
                assert shape.is_compatible_with(value.shape), key
                assert tf.as_dtype(value.dtype) == tf.as_dtype(info.dtype)
                assert len(value) == len(inputs["text"])


def test_bad_inputs_of_the_engine_are_named(engine, tmp_path):
    functions = ctranslate2_engine.load(str(engine.path), 1)
    good = {
        "text": np.array([b"a"], object),
        "beam_size": np.int32(2),
        "alpha": np.float32(0.6),
        "max_length": np.int32(9),
    }
    for name, value in (
        ("beam_size", np.int32(1000)),
        ("alpha", np.float32(-1)),
        ("max_length", np.int32(0)),
    ):
        kind, (code, text) = worker.answer(
            functions, "n_best", good | {name: value}
        )
        assert (kind, code) == ("error", "INVALID_ARGUMENT")
        assert f"Received: {name}=" in text
    with pytest.raises(ValueError, match=r"may be none\. Received: .*'fr'"):
        engine("a", "fr")
    with pytest.raises(ValueError, match=r"`alpha` must be"):
        engine.searched_with(alpha=-1)


def test_exports_of_one_engine_are_refused_by_the_other(exported, engine):
    with pytest.raises(ValueError, match=r"tensorflow computes .*ctranslate2"):
        SavedTranslator(engine.path)
    with pytest.raises(ValueError, match=r"ctranslate2 computes .*tensorflow"):
        CTranslate2Translator(exported)


@pytest.mark.parametrize("name", ["model.bin", "target.model"])
def test_a_damaged_export_is_not_loaded(engine, tmp_path, name):
    copy = shutil.copytree(engine.path, tmp_path / "1")
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name}' is not what was exported"):
        CTranslate2Translator(copy)


def test_the_command_translates_with_the_engine(engine, capsys, monkeypatch):
    lines = ["one two", "", "ROOM 7 IS HERE"]
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode()))
    )
    command = ["translate", str(engine.path.parent), "--engine", "ctranslate2"]
    assert main([*command, "--beam-size", "2"]) == 0
    expected = engine.searched_with(beam_size=2)(lines)["translation"]
    assert capsys.readouterr().out.splitlines() == expected
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode()))
    )
    assert main([*command, "--min-length", "9"]) == 0
    expected = engine.searched_with(min_length=9)(lines)["translation"]
    assert capsys.readouterr().out.splitlines() == expected
    assert main([*command, "--explain", "x.png"]) == 1
    assert "does not support" in capsys.readouterr().err
    assert main([*command, "--alignment", "x.txt"]) == 1
    assert "Received: --alignment" in capsys.readouterr().err


def test_punctuation_is_replaced_as_in_a_graph(run, tmp_path):
    """Imported OPUS-MT models ask for it."""
    search = {"replace_punctuation": True, "normalize_punctuation": "en"}
    settings = dataclasses.replace(run.search, **search)
    path = interop.export(run, tmp_path / "1", settings=settings)
    text = ["“It’s late…” ( 10 % ) ."]
    assert CTranslate2Translator(path).clean(text) == ['"It\'s late..." (10%).']
