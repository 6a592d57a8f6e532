"""Checks translations that are as they are asked to be, by request."""

import io
import json
import re
import shutil
import sys
import types
import urllib.request
from unittest import mock

import grpc
import numpy as np
import pytest
import tensorflow as tf
from conftest import translator_of
from serving import Server
from tensorflow_serving.apis import (
    model_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from keras_transformer.cli import main as command
from keras_transformer.export import saved_model
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.ids import END
from keras_transformer.inference import SearchSettings
from keras_transformer.inference.graph_model import InferenceModel

TEXTS = ["one two three", "", "room 7", "ROOM SEVEN", "nine"]
PREFIXES = ["zwei", "drei", "", "ZIMMER", "zimmer 7 ei"]
TERMS = ["Tür\nvier", "Haus", "", "Zug\r\n\n", "eins"]
AVOID = ["", "", "zwei\nzimmer", "ein", ""]
SHORT = SearchSettings(extra_length=8)


@pytest.fixture(scope="module")
def path(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("control") / "1"
    return saved_model.export(run, folder, SHORT, control=True)


@pytest.fixture(scope="module")
def loaded(path):
    return SavedTranslator(path)


@pytest.fixture(scope="module")
def translator(run):
    return translator_of(run, SHORT)


def found_by(translator, prefixes=None, beam_size=3, texts=TEXTS, **options):
    prefixes = prefixes or [""] * len(texts)
    arguments = tf.constant(texts), tf.constant(prefixes), beam_size, 0.6
    found = translator.control(*arguments, **options)
    return {name: value.numpy() for name, value in found.items()}


@pytest.mark.parametrize("beam_size", [1, 3])
def test_nothing_asked_for_is_a_plain_search(translator, beam_size):
    found = found_by(translator, beam_size=beam_size)
    plain = translator.n_best(tf.constant(TEXTS), beam_size, 0.6)
    assert found.keys() == plain.keys()
    for name in ("translation", "truncated", "incomplete"):
        np.testing.assert_array_equal(found[name], plain[name])
    np.testing.assert_allclose(found["score"], plain["score"], rtol=1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_every_hypothesis_begins_as_it_is_asked_to(translator, beam_size):
    found = found_by(translator, PREFIXES, beam_size)["translation"]
    assert found.shape == (len(TEXTS), beam_size)
    for text, prefix, row in zip(TEXTS, PREFIXES, found, strict=True):
        if text:
            starts = [x.decode().startswith(prefix) for x in row]
            assert all(starts), (prefix, row)
        else:
            assert not any(row)
    # It changes something, and no row changes another one.
    plain = found_by(translator, None, beam_size)["translation"]
    assert (found[[0, 3, 4]] != plain[[0, 3, 4]]).any(axis=1).all()
    np.testing.assert_array_equal(found[2], plain[2])
    for i in (0, 3):
        alone = found_by(
            translator, PREFIXES[i : i + 1], beam_size, TEXTS[i : i + 1]
        )
        np.testing.assert_array_equal(alone["translation"][0], found[i])


def test_a_prefix_ends_where_a_piece_is_never_generated(run):
    """A search that must take such a piece would find nothing."""
    tokenizer = run.target_tokenizer
    never = tokenizer.encode(["zwei"])[0][-2]
    own = tokenizer.suppressed_ids
    with mock.patch.object(
        tokenizer, "suppressed_ids", lambda *a: [*own(*a), never]
    ):
        broken = translator_of(run, SHORT)
        found = found_by(broken, ["one zwei three"], texts=["nine"])
    start = tokenizer.decode([tokenizer.encode(["one zwei"])[0][:-2]])[0]
    assert np.isfinite(found["score"]).all()
    for line in found["translation"][0]:
        assert line.decode().startswith(start)
        assert not line.decode().startswith("one zwei")


def test_a_prefix_that_is_too_long_is_cut(translator):
    found = found_by(translator, ["one " * 600], texts=["nine"])
    assert found["incomplete"][0, 0]
    assert found["translation"][0, 0].startswith(b"one one")


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize(
    "rules",
    [
        {"min_length": 7},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_rules_of_a_request_are_those_of_an_export(
    run, beam_size, rules, monkeypatch
):
    logits = InferenceModel._logits

    def short(model, x, memory):  # the model itself hardly ends
        is_end = tf.one_hot(END, model.config.vocab_size)
        return logits(model, x, memory) + 5 * is_end

    if "min_length" in rules:
        monkeypatch.setattr(InferenceModel, "_logits", short)
    asked = translator_of(run, SHORT)
    fixed = translator_of(run, SearchSettings(extra_length=8, **rules))
    options = {name: tf.constant(value) for name, value in rules.items()}
    found = found_by(asked, beam_size=beam_size, **options)
    expected = fixed.n_best(tf.constant(TEXTS), beam_size, 0.6)
    np.testing.assert_array_equal(found["translation"], expected["translation"])
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-4)
    plain = found_by(asked, beam_size=beam_size)["score"]
    assert (found["score"] != plain).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_length": -1}, "`min_length` must be at least 0"),
        ({"no_repeat_ngram_size": 1.5}, "`no_repeat_ngram_size` must be an"),
        ({"min_length": 2.5}, "`min_length` must be an integer"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` must be at least"),
    ],
)
def test_what_is_out_of_range_is_refused(translator, options, message):
    options = {name: tf.constant(value) for name, value in options.items()}
    errors = ValueError, tf.errors.InvalidArgumentError
    with pytest.raises(errors, match=message):
        found_by(translator, **options)
    with pytest.raises(errors, match="the same number of strings"):
        found_by(translator, ["one"])


@pytest.mark.parametrize("beam_size", [1, 3])
def test_translations_have_their_terms_and_not_what_is_avoided(
    translator, beam_size
):
    options = {"terms": tf.constant(TERMS), "avoid": tf.constant(AVOID)}
    found = found_by(translator, beam_size=beam_size, **options)
    assert found["unmet"].shape == (len(TEXTS), beam_size)
    best = [x.decode() for x in found["translation"][:, 0]]
    assert found["unmet"][:, 0].tolist() == [b"", b"Haus", b"", b"", b""]
    assert best[1] == ""  # nothing to translate
    for term, line in (("Tür", 0), ("vier", 0), ("ZUG", 3), ("eins", 4)):
        assert re.search(rf"(?<!\w){term}(?!\w)", best[line]), best[line]
    for term in ("zwei", "Zwei", "zimmer", "Zimmer"):
        assert term not in best[2].split()
    # Other texts are translated as before, and no row changes another one.
    plain = found_by(translator, beam_size=beam_size)
    none = [""] * len(TEXTS)
    blank = found_by(translator, beam_size=beam_size, terms=none, avoid=none)
    assert blank.keys() == plain.keys() | {"unmet"}
    np.testing.assert_array_equal(blank["translation"], plain["translation"])
    np.testing.assert_allclose(blank["score"], plain["score"], rtol=1e-4)
    for i in (0, 2):
        one = {name: tf.constant(x)[i : i + 1] for name, x in options.items()}
        alone = found_by(
            translator, beam_size=beam_size, texts=TEXTS[i : i + 1], **one
        )
        np.testing.assert_array_equal(
            alone["translation"][0], found["translation"][i]
        )


def test_what_is_unmet_is_said(translator):
    """A term that no translation may have, and one that is to be avoided."""
    pieces = translator.target_tokenizer
    assert pieces.encode(["\N{SNOWMAN}" * 40])[0][:-1]  # more than a term has
    found = found_by(
        translator,
        texts=["nine", "nine"],
        terms=tf.constant(["\N{SNOWMAN}" * 40, "eins"]),
        avoid=tf.constant(["", "eins"]),
        max_length=9,
    )
    unmet = found["unmet"][:, 0].tolist()
    assert unmet == ["\N{SNOWMAN}".encode() * 40, b"eins"]
    # Such a term is not searched for, which would take until the maximum.
    without = found_by(
        translator,
        texts=["nine", "nine"],
        avoid=tf.constant(["", "eins"]),
        max_length=9,
    )
    np.testing.assert_allclose(
        found["score"][:, 0], without["score"][:, 0], rtol=1e-4
    )


def test_too_many_terms_are_refused(translator):
    errors = ValueError, tf.errors.InvalidArgumentError
    for name in ("terms", "avoid"):
        options = {name: tf.constant(["\n".join("abcde" * 13)])}
        with pytest.raises(errors, match=f"`{name}` of a text must be at most"):
            found_by(translator, texts=["nine"], **options)
        with pytest.raises(errors, match=f"`text` and `{name}` must have"):
            found_by(translator, **options)


@pytest.mark.usefixtures("optimized_graphs")
def test_an_export_controls_as_python_does(path, translator):
    assert "\n| `control` |" in (path / "README.md").read_text()
    loaded = SavedTranslator(path)
    options = {"min_length": 4, "beam_size": 3}
    found = loaded.control(TEXTS, PREFIXES, **options)
    expected = found_by(translator, PREFIXES, **options)
    # The model is so bad that many hypotheses are nearly as good.
    np.testing.assert_allclose(
        found["score"], expected["score"][:, 0], rtol=1e-3
    )
    for prefix, line in zip(
        PREFIXES, found["translation"].numpy(), strict=True
    ):
        assert not line or line.decode().startswith(prefix)
    terms = {"terms": TERMS, "avoid": AVOID}
    found = loaded.control(TEXTS, **terms, **options)
    expected = found_by(translator, **terms, **options)
    np.testing.assert_array_equal(found["unmet"], expected["unmet"][:, 0])
    np.testing.assert_allclose(
        found["score"], expected["score"][:, 0], rtol=1e-2
    )
    # Other requests are answered as before.
    plain = loaded.translate(TEXTS)
    asked = loaded.control(TEXTS)
    np.testing.assert_array_equal(asked["translation"], plain["translation"])
    np.testing.assert_allclose(asked["score"], plain["score"], rtol=1e-5)
    with pytest.raises(ValueError, match="repetition_penalty"):
        loaded.control(TEXTS, repetition_penalty=-1.0)


def test_a_v1_session_knows_the_defaults(path, loaded):
    v1 = tf.compat.v1
    with v1.Session(graph=tf.Graph()) as session:
        meta = v1.saved_model.load(session, ["serve"], str(path))
        signature = meta.signature_def["control"]
        assert signature.defaults.keys() == {
            *("alpha", "beam_size", "max_length", "min_length"),
            *("no_repeat_ngram_size", "repetition_penalty"),
        }
        values = {
            name: tf.make_ndarray(value)
            for name, value in signature.defaults.items()
        }
        values |= {"text": TEXTS, "target_prefix": PREFIXES}
        values |= {"terms": TERMS, "avoid": AVOID}
        found = session.run(
            signature.outputs["translation"].name,
            {signature.inputs[n].name: x for n, x in values.items()},
        )
    expected = loaded.control(TEXTS, PREFIXES, terms=TERMS, avoid=AVOID)
    np.testing.assert_array_equal(found[:, 0], expected["translation"])


def test_other_exports_have_nothing_of_it(exported, run, tmp_path):
    loaded = SavedTranslator(exported)
    assert "control" not in loaded.loaded.signatures
    assert "`control`" not in (exported / "README.md").read_text()
    with pytest.raises(ValueError, match=r"no signature `control`.*--control"):
        loaded.control(TEXTS)
    assert b"StatelessWhile" not in (exported / "saved_model.pb").read_bytes()
    with pytest.raises(ValueError, match="control=True, shortlist=5"):
        saved_model.export(run, tmp_path / "1", control=True, shortlist=5)


def test_the_command_begins_lines_as_a_file_says(
    path, loaded, capsys, monkeypatch, tmp_path
):
    def translate(*options):
        data = io.BytesIO("\n".join([*TEXTS, ""]).encode())
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=data))
        return command.main(["translate", str(path), *options])

    file = tmp_path / "beginnings"
    file.write_text("\n".join([*PREFIXES, ""]))
    options = [f"--prefix-file={file}", "--min-length=4"]
    assert translate(*options, f"--alignment={tmp_path / 'links'}") == 0
    lines = capsys.readouterr().out.split("\n")[:-1]
    found = loaded.control(TEXTS, PREFIXES, min_length=4)["translation"]
    assert lines == [x.decode() for x in found.numpy()]
    expected = loaded.score(TEXTS, lines)["alignment"].numpy().tolist()
    links = (tmp_path / "links").read_bytes().split(b"\n")[:-1]
    assert links == expected
    for some, said in (("one\ntwo\n", "fewer"), ("\n" * 9, "more")):
        (tmp_path / "links").unlink(missing_ok=True)
        file.write_text(some)
        asked = [*options, f"--alignment={tmp_path / 'links'}"]
        assert translate(*asked) == 1
        assert f"Received: {said} lines" in capsys.readouterr().err
        assert [x.name for x in tmp_path.iterdir()] == ["beginnings"]
    assert translate(*options, "--document") == 1
    assert "--prefix-file" in capsys.readouterr().err


def test_the_command_takes_a_glossary_and_words_to_avoid(
    path, loaded, capsys, monkeypatch, tmp_path
):
    def translate(*options):
        data = io.BytesIO("\n".join([*TEXTS, ""]).encode())
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=data))
        return command.main(["translate", str(path), *options])

    glossary, avoid = tmp_path / "terms.tsv", tmp_path / "avoid"
    glossary.write_text("two Three\tTür\n\nTwo\tHaus\nroom\tZug\n")
    avoid.write_text("zimmer\n\nzwei\n")
    options = [f"--glossary={glossary}", f"--avoid={avoid}"]
    assert translate(*options) == 0
    lines = capsys.readouterr().out.split("\n")[:-1]
    found = loaded.control(
        TEXTS,
        terms=["Tür", "", "Zug", "Zug", ""],
        avoid=["zimmer\nzwei"] * len(TEXTS),
    )
    assert lines == [x.decode() for x in found["translation"].numpy()]
    assert translate(*options, "--document") == 0
    capsys.readouterr()
    avoid.write_text("Zug\n")
    assert translate(*options) == 0
    assert "lacks a required term, or has one to avoid: 2" in (
        capsys.readouterr().err
    )
    for line in ("one", "one\t", "\teins", "one\ta\tb", "room\tRaum"):
        glossary.write_text(f"room\tZug\n{line}\n")
        assert translate(*options) == 1
        assert "Received: line 2 of" in capsys.readouterr().err
    assert translate(*options, "--markup=html") == 1
    assert "--avoid" in capsys.readouterr().err


@pytest.mark.programs
def test_the_server_answers_by_rest_and_by_grpc(path, loaded, tmp_path):
    """Over gRPC, inputs with defaults may be left out; rows may be batched."""
    options = {
        "beam_size": 3,
        "alpha": 0.6,
        "max_length": 60,
        "min_length": 4,
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.0,
    }
    shutil.copytree(path, tmp_path / "model" / "1")
    server = Server(tmp_path / "model", tmp_path / "log.txt")
    try:
        inputs = {"text": TEXTS, "target_prefix": PREFIXES}
        inputs |= {"terms": TERMS, "avoid": AVOID}
        body = {"signature_name": "control", "inputs": inputs | options}
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/v1/models/model:predict",
            json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request) as answer:
            found = json.load(answer)["outputs"]
        rules = {
            name: options[name]
            for name in ("beam_size", "min_length", "no_repeat_ngram_size")
        }
        asked = {"terms": TERMS, "avoid": AVOID}
        expected = loaded.control(TEXTS, PREFIXES, **asked, **rules)
        # The server batches by length, and many hypotheses are as good.
        best = [row[0] for row in found["score"]]
        np.testing.assert_allclose(best, expected["score"], rtol=0.05)
        for prefix, row in zip(PREFIXES, found["translation"], strict=True):
            assert all(x.startswith(prefix) or not x for x in row)
        with grpc.insecure_channel(server.grpc_address) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            spec = model_pb2.ModelSpec(name="model", signature_name="control")
            found = stub.Predict(
                predict_pb2.PredictRequest(
                    model_spec=spec,
                    inputs={
                        name: tf.make_tensor_proto(value, tf.string)
                        for name, value in inputs.items()
                    },
                )
            ).outputs["score"]
        expected = loaded.control(TEXTS, PREFIXES, **asked)["score"]
        best = tf.make_ndarray(found)[:, 0]
        np.testing.assert_allclose(best, expected, rtol=0.05)
    finally:
        server.stop()
