"""Checks models of several directions: their tags, from corpus to export."""

import asyncio
import dataclasses
import json

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from conftest import SMALL, translator_of
from test_serve import SearchingEngine, with_version

from keras_transformer.cli import main as command
from keras_transformer.data.bpe_dropout import SampledPairs
from keras_transformer.data.corpus import SentencePairs, load_pairs
from keras_transformer.data.options import Preparation
from keras_transformer.data.preparation import prepare
from keras_transformer.data.prepared_corpus import PreparedCorpus
from keras_transformer.export import saved_model
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.inference import GraphTokenizer
from keras_transformer.inference.layer_translator import LayerTranslator
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.serve import worker
from keras_transformer.serve.rest_json import read_predict_request
from keras_transformer.serve.signatures import read_signatures
from keras_transformer.training import callbacks, load_model
from keras_transformer.training.new_run import start_run
from keras_transformer.training.progress import Progress
from keras_transformer.training.train_run import train

BOTH = [("en", "de"), ("de", "en")]
LINES = ["Good morning.", "THE OLD SOFA", "", ">>x<< y"]


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory):
    """Returns the prepared corpus in both directions, made by the command."""
    folder = tmp_path_factory.mktemp("prepared") / "both"
    arguments = ["prepare", str(corpus), str(corpus), str(folder)]
    arguments += ["--languages", "en-de", "de-en", "--vocab-size=400"]
    assert command.main([*arguments, "--tags", "bt", "--test", "test"]) == 0
    return PreparedCorpus(folder)


@pytest.fixture(scope="module")
def run(prepared, recipe, tmp_path_factory):
    """Returns a run after four steps, with a validation of 14 pairs."""
    recipe = dataclasses.replace(recipe, corpus=str(prepared.folder))
    folder = tmp_path_factory.mktemp("runs") / "both"
    run = start_run(folder, "tiny", recipe, **SMALL)
    with pytest.MonkeyPatch.context() as patch:
        defaults = callbacks.TranslationQuality.__init__.__defaults__
        patch.setattr(
            callbacks.TranslationQuality.__init__,
            "__defaults__",
            (*defaults[:-1], 14),
        )
        train(run, 4, verbose=0)
    return run


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved_models") / "both" / "1"
    return saved_model.export(run, path, dtype="float32")


def test_each_direction_is_read_from_its_corpus(corpus, prepared):
    tokenizer = prepared.source_tokenizer
    found = prepared.read(np.arange(len(prepared)), 0)
    sources, targets = found.source.tolist(), found.target.tolist()
    tags = [tokenizer.pieces(ids[:1]) for ids in sources]
    assert tags == [[">>de<<"]] * 700 + [[">>en<<"]] * 700
    english = load_pairs(str(corpus), "train", "en", "de").source
    assert tokenizer.decode(sources[:700]) == english
    assert prepared.target_tokenizer.decode(targets[700:]) == english
    for split in ("validation", "test"):
        plain = load_pairs(str(corpus), split, "en", "de")
        both = load_pairs(str(prepared.folder), split, "en_de", "de_en")
        assert both.source == [
            *(f">>de<< {line}" for line in plain.source),
            *(f">>en<< {line}" for line in plain.target),
        ]
        assert both.target == [*plain.target, *plain.source]


@pytest.mark.parametrize("shared", [True, False])
def test_tags_are_pieces_that_nothing_is_learned_of(shared, tmp_path):
    rows = [
        {"en": f">>bt<< {i} in English", "de": f"{i} auf Deutsch"}
        for i in range(60)
    ]
    settings = Preparation(
        vocab_size=295, shared_vocabulary=shared, tags=["bt", "x-1"], noise=1.0
    )
    found = prepare([rows], tmp_path / "tagged", settings, evaluation={})
    source, target = found.source_tokenizer, found.target_tokenizer
    assert source.vocab_size == target.vocab_size == 295
    assert [*source.tags] == [">>bt<<", ">>x-1<<"]
    assert bool(target.tags) == shared
    assert not any("bt" in piece for piece in source.merges())
    # Noise leaves tags alone.
    ids = found.read(np.arange(len(found)), 0).source.tolist()
    assert len(ids) == 120
    assert {row[0] for row in ids} == {source.tags[">>bt<<"]}
    assert not set(source.tags.values()) & {i for row in ids for i in row[1:]}


def test_several_tags_begin_a_source(prepared):
    tokenizer = prepared.source_tokenizer
    library = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    for text, count, rest in (
        (">>de<< >>bt<< Yes.", 2, "Yes."),
        (">>bt<<\u00a0>>en<<>>de<<Yes.", 3, "Yes."),
        (">>de<< >>Yes<<, he said", 1, ">>Yes<<, he said"),
        (">>Yes<< >>de<<", 0, ">>Yes<< >>de<<"),
        (" >>de<< Yes.", 0, ">>de<< Yes."),
        (">>bt<<", 1, ""),
    ):
        (ids,) = tokenizer.encode([text])
        assert ids[count:-1] == library.encode(rest), text
        assert set(ids[:count]) <= set(tokenizer.tags.values())
        graph = GraphTokenizer(tokenizer)
        assert graph.encode([text]).to_list() == [ids]
        assert graph.encode_at_most(tf.constant([text]), 99)[0].to_list() == [
            ids
        ]
        assert bool(graph.is_blank(tf.constant([text]))[0]) == (not rest)


def test_bpe_dropout_leaves_tags_whole(prepared):
    tokenizers = prepared.source_tokenizer, prepared.target_tokenizer
    sampled = SampledPairs(prepared, *tokenizers, 0.5, seed=1, max_length=256)
    rows = np.arange(0, len(prepared), 100)
    usual, found = (
        pairs.read(rows, 0).source.tolist() for pairs in (prepared, sampled)
    )
    assert [row[0] for row in found] == [row[0] for row in usual]
    assert found != usual
    assert tokenizers[0].decode(found) == tokenizers[0].decode(usual)


def test_equal_pairs_of_other_directions_are_no_duplicates(tmp_path):
    rows = [{"en": "Paris", "de": "Paris", "fr": "Paris"}] * 2
    rows += [{side: f"{side} {i}" for side in rows[0]} for i in range(30)]
    settings = Preparation(vocab_size=300, drop_duplicates=True)
    languages = [("en", "de"), ("en", "fr")]
    found = prepare(
        [rows, rows],
        tmp_path / "both",
        settings,
        languages=languages,
        evaluation={"validation": [rows[-1:], rows[-2:]]},
    )
    assert [c["pairs"] for c in found.manifest["corpora"]] == [31, 31]
    validation = load_pairs(str(found.folder), "validation", "en", "de_fr")
    assert validation == SentencePairs(
        [">>de<< en 29", ">>fr<< en 28", ">>fr<< en 29"],
        ["de 29", "fr 28", "fr 29"],
    )


def test_no_direction_is_trained_on_pairs_that_another_holds_out(tmp_path):
    rows = [{"en": f"one {i}", "de": f"eins {i}"} for i in range(50)]
    settings = Preparation(vocab_size=285, validation_pairs=7)
    found = prepare([rows, rows], tmp_path / "both", settings, languages=BOTH)
    held_out = load_pairs(str(found.folder), "validation", "en_de", "de_en")
    tags = [source[:6] for source in held_out.source]
    assert sorted(tags) == [">>de<<"] * 4 + [">>en<<"] * 3
    ids = found.read(np.arange(len(found)), 0).source.tolist()
    texts = set(found.source_tokenizer.decode(ids))
    assert texts.isdisjoint(source[7:] for source in held_out.source)
    assert texts.isdisjoint(held_out.target)


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ([("en", "de")], "2 corpora, languages"),
        ([("en", "de"), ("en", "en")], "another target language"),
        ([("en", "de"), ("en",)], "another target language"),
        ([("en", "de"), ("en", "x/y")], "letters, digits"),
        ([("en", "de"), ("en", "x.y")], "`tags` must be names"),
    ],
)
def test_wrong_languages_are_named(corpus, languages, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        prepare([str(corpus)] * 2, tmp_path / "new", languages=languages)


def test_a_vocabulary_without_the_tags_is_refused(corpus, prepared, tmp_path):
    vocabulary = prepared.source_tokenizer, prepared.target_tokenizer
    arguments = str(corpus), tmp_path / "new"
    with pytest.raises(ValueError, match=r"tags bt, de, en, without fr\."):
        prepare(*arguments, tokenizers=vocabulary, languages=[("en", "fr")])
    kept = prepare(*arguments, tokenizers=vocabulary, languages=BOTH[:1])
    assert kept.source_tokenizer.model == vocabulary[0].model


def test_each_direction_has_a_score(prepared, run):
    line = callbacks.read_log(run.folder)[-1]
    assert {"val_bleu", "val_bleu_de", "val_bleu_en"} <= line.keys()
    pairs = load_pairs(str(prepared.folder), "validation", "en_de", "de_en")
    model = load_model(run)
    quality = callbacks.TranslationQuality(run, model, pairs, sentences=15)
    kept = quality.pairs.source
    assert kept == pairs.source[:7] + pairs.source[61:68]
    quality.translate = lambda text: {  # German alone is right
        "translation": [
            pairs.target[pairs.source.index(line.decode())]
            if line.startswith(b">>de")
            else "wrong"
            for line in text
        ]
    }
    logs = {}
    quality.on_epoch_end(0, logs)
    assert (logs["val_bleu_de"], logs["val_bleu_en"]) == (100.0, 0.0)
    assert 0 < logs["val_bleu"] < 100
    lines = []
    shown = Progress(4, 4, quality, verbose=2)
    shown.set_model(model)
    shown._print = lambda line, **_: lines.append(line)
    shown.step = shown.first_timed = shown.epoch_first = 4
    shown.on_epoch_end(0, logs)
    scores = f"BLEU {logs['val_bleu']:.1f}  BLEU de 100.0  BLEU en 0.0"
    assert scores in lines[0]
    assert callbacks.plot_training(run.folder).exists()


def test_a_target_language_is_a_tag_in_the_text(run, exported):
    model = SavedTranslator(exported)
    assert model.metadata["tags"] == ["bt", "de", "en"]
    translator = translator_of(run)
    scores = []
    for language in ("de", "en"):
        tagged = [f">>{language}<< {line}" for line in LINES]
        found = model.translate(LINES, language)
        scores.append(found["score"].numpy())
        expected = model.translate(tagged)
        of_graph = model.loaded.signatures["n_best"](
            text=tf.constant(LINES),
            beam_size=tf.constant(4),
            alpha=tf.constant(0.6),
            max_length=tf.constant(model.metadata["max_length"]),
            target_language=tf.constant(language),
        )
        in_python = translator.n_best(
            tf.constant(LINES), 4, 0.6, None, language
        )
        other = model.searched_with(beam_size=2)
        for one, two in (
            (found, expected),
            (saved_model.best_of(of_graph), expected),
            (saved_model.best_of(in_python), expected),
            (other(LINES, language), other(tagged)),
        ):
            np.testing.assert_array_equal(
                one["translation"], two["translation"]
            )
            np.testing.assert_allclose(one["score"], two["score"], atol=1e-5)
        texts = [x.decode() for x in expected["translation"].numpy()]
        assert model(LINES, language) == model(tagged) == texts
        assert texts[1].isupper()
        assert texts[2] == ""
        by_layers = LayerTranslator(
            load_model(run),
            run.source_tokenizer,
            run.target_tokenizer,
            SearchSettings(),
        )
        assert by_layers.translate(tagged)["translation"] == texts
        pieces = model.explain(LINES[0], language)["source_pieces"]
        assert pieces[0] == f">>{language}<<"
    assert not np.allclose(scores[0][:2], scores[1][:2])


def test_requests_over_both_protocols_have_a_target_language(exported):
    signatures = read_signatures(exported)
    default = signatures["n_best"].defaults["target_language"]
    assert tf.make_ndarray(default).tolist() == b""  # which gRPC looks at
    inputs = {"beam_size": 2, "alpha": 0.6, "max_length": 9}
    answers = []
    for text, language in ((">>en<< Ja.", ""), ("Ja.", "en")):
        body = inputs | {"text": [text], "target_language": language}
        document = {"signature_name": "n_best", "inputs": body}
        request = read_predict_request(document, signatures)
        model = SavedTranslator(exported).loaded
        kind, found = worker.answer(
            worker.functions_of(model.signatures), "n_best", request.inputs
        )
        assert kind == "outputs", found
        answers.append(found)
    for name, value in answers[0].items():
        np.testing.assert_array_equal(value, answers[1][name])


def test_an_unknown_target_language_is_named(run, exported):
    message = r"`target_language` may be bt, de, en\. Received: .*fr"
    model = SavedTranslator(exported)
    with pytest.raises(ValueError, match=message):
        model("Yes.", "fr")
    with pytest.raises(ValueError, match=message):
        translator_of(run).n_best(tf.constant(["Yes."]), 1, 0.6, None, "fr")
    signatures = model.loaded.signatures
    inputs = {
        "text": np.array([b"Yes."], object),
        "beam_size": np.int32(1),
        "alpha": np.float32(0.6),
        "max_length": np.int32(9),
        "target_language": np.array(b"fr", object),
    }
    kind, (code, text) = worker.answer(
        worker.functions_of(signatures), "n_best", inputs
    )
    assert (kind, code) == ("error", "INVALID_ARGUMENT")
    assert "may be bt, de, en" in text
    assert "fr" in text


def test_a_server_batches_requests_of_one_language(exported):
    engine = SearchingEngine()

    async def use(version):
        text = np.array([b"Yes."], object)
        languages = [x.encode() for x in ("de", "en", "de")]  # three objects
        inputs = [
            {"text": text, "target_language": np.array(x, object)}
            for x in languages
        ]
        inputs.append({"text": text})
        return await asyncio.gather(
            *(version.predict("n_best", one) for one in inputs)
        )

    with_version(exported, engine, use)
    batches = [
        (inputs["target_language"].tolist(), len(inputs["text"]))
        for _, inputs in engine.batches
    ]
    assert sorted(batches) == [(b"", 1), (b"de", 2), (b"en", 1)]


def test_the_command_translates_into_a_language(
    exported, tmp_path, monkeypatch, capsys
):
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_text("Yes.\n")
    reference.write_text("Ja.\n")
    files = [f"--source-file={source}", f"--reference-file={reference}"]
    arguments = ["evaluate", str(exported), *files, "--target-language"]
    assert command.main([*arguments, "de"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["target_language"] == "de"
    assert command.main([*arguments, "fr"]) == 1
    assert "may be bt, de, en. Received" in capsys.readouterr().err


def test_the_model_card_names_each_language_once(exported):
    card = (exported / "MODEL_CARD.md").read_text()
    assert card.startswith("---\nlanguage: [en, de]\n")
