"""Checks the contract of the exported model, in this process and in others."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from conftest import translator_of
from hypothesis import given, settings
from hypothesis import strategies as st
from look_alikes import look_alikes

from keras_transformer.data.prepared_corpus import PreparedCorpus
from keras_transformer.export import saved_model
from keras_transformer.export.files import METADATA, SUMS, write_sums
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.ids import END, START
from keras_transformer.inference import evaluation
from keras_transformer.inference.lines import translate_lines
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.inference.translator import Translator
from keras_transformer.training import checkpoints
from keras_transformer.training.model_card import MODEL_CARD, write_model_card
from keras_transformer.training.models import load_model
from keras_transformer.training.run import open_run

pytestmark = pytest.mark.usefixtures("optimized_graphs")

HARD_INPUTS = [
    b"",
    b"   ",
    "\u00a0\u3000\u2581".encode(),
    b"The meeting is on the 3rd of May.",
    b"\n\r\t",
    "🦄👩‍👩‍👧 \u202eright to left עברית العربية".encode(),
    "e\u0301 combining".encode(),
    b"a\x00b",
    b"\xff\xfe invalid \xc3",
    b"</s> <s> <unk> <pad>",
    "\u2047".encode(),
    b"",
]


@pytest.fixture(scope="module")
def loaded(exported):
    return SavedTranslator(exported)


def translate(loaded, texts):
    found = loaded.translate(tf.constant(texts, tf.string))
    return found["translation"].numpy().tolist(), found["score"].numpy()


def test_each_hard_input_has_one_valid_answer(loaded):
    translations, scores = translate(loaded, HARD_INPUTS)
    assert len(translations) == len(scores) == len(HARD_INPUTS)
    for text, translation, score in zip(
        HARD_INPUTS, translations, scores, strict=True
    ):
        translation.decode("utf-8")
        if not text.decode("utf-8", "replace").replace("\u2581", "").strip():
            assert (translation, score) == (b"", 0.0), text
        assert np.isfinite(score)


@pytest.mark.parametrize("size", [0, 1, 300])
def test_a_batch_of_any_size_keeps_its_order(loaded, size):
    texts = [b"" if i % 3 == 1 else b"room %d" % (i % 7) for i in range(size)]
    translations, scores = translate(loaded, texts)
    assert len(translations) == len(scores) == size
    alone = {text: translate(loaded, [text]) for text in sorted(set(texts))}
    for text, translation, score in zip(
        texts, translations, scores, strict=True
    ):
        expected, expected_score = alone[text]
        assert translation == expected[0]
        np.testing.assert_allclose(score, expected_score[0], atol=1e-5)


def test_an_empty_list_is_a_batch_in_python(run):
    translator = translator_of(run, SearchSettings(extra_length=2))
    assert translator.translate([])["translation"].shape == (0,)
    assert translator.score([], [])["score"].shape == (0,)
    assert translator.explain([])["attention"].shape[0] == 0


def test_a_batch_of_empty_rows_has_empty_translations(loaded):
    translations, scores = translate(loaded, [b"", b" ", b""])
    assert translations == [b"", b"", b""]
    np.testing.assert_array_equal(scores, [0, 0, 0])


@pytest.mark.parametrize(
    "sentence",
    [
        "Room 17 is on the third floor.",
        "My sister bought a beautiful lamp for €1,249.50.",
        "Zoë's café is – for 2½ hours – closed.",
    ],
)
def test_what_looks_the_same_is_translated_the_same(loaded, sentence):
    texts = [sentence, *look_alikes(sentence).values()]
    translations, scores = translate(loaded, [t.encode() for t in texts])
    assert translations == [translations[0]] * len(texts)
    np.testing.assert_allclose(scores, scores[0], rtol=1e-5)


def test_invisible_texts_have_empty_translations(loaded):
    texts = ["\u200b", "\ufeff\u00a0", "\0\x07", "\ufe0f", "\u3000\u00ad "]
    translations, scores = translate(loaded, [t.encode() for t in texts])
    assert translations == [b""] * len(texts)
    np.testing.assert_array_equal(scores, 0)


def test_a_translation_that_reaches_its_limit_is_incomplete(run):
    """The limit is the source's length and some more, or a number if less."""

    class FoundBefore(Translator):
        def search(self, source, beam_size, alpha, max_length, rules=None):
            ids = np.zeros((source.shape[0], 2, 13), "int32")
            for beam, length in enumerate(lengths):
                ids[:, beam, : length - 1] = 50
                ids[:, beam, length - 1] = END
            return tf.constant(ids), tf.zeros(ids.shape[:2])

    lengths = (7, 11)
    translator = FoundBefore(
        load_model(run),
        run.source_tokenizer,
        run.target_tokenizer,
        SearchSettings(beam_size=2, extra_length=5),
    )
    texts = tf.constant(["room", " ", "one two three four"])
    pieces = [len(ids) for ids in run.source_tokenizer.encode(texts.numpy())]
    for max_length in (6, 7, 8, 11, 12, 500):
        found = translator.n_best(texts, 2, 0.6, max_length)
        expected = [
            [count > 1 and x >= min(count + 5, max_length) for x in lengths]
            for count in pieces
        ]
        assert found["incomplete"].numpy().tolist() == expected
    translator.settings = SearchSettings(2, extra_length=5, max_length=7)
    for function in (translator.translate, translator.explain):
        incomplete = function(texts)["incomplete"].numpy().tolist()
        assert incomplete == [True, False, True]


def test_every_translation_of_one_piece_is_incomplete(run, exported):
    found = SavedTranslator(exported).loaded.signatures["n_best"](
        text=tf.constant(["room 7", ""]),
        beam_size=tf.constant(2),
        alpha=tf.constant(0.6),
        max_length=tf.constant(1),
    )
    assert found["incomplete"].numpy()[:, 0].tolist() == [True, False]


def test_a_text_of_a_hundred_thousand_characters_is_truncated(run, loaded):
    long = b"room 7 " * 15_000
    translations, _ = translate(loaded, [long, b"room 7"])
    assert translations[1] == translate(loaded, [b"room 7"])[0][0]
    cap = SearchSettings().max_source_length
    found = loaded.translate(tf.constant([long, b"room 7"]))
    assert found["truncated"].numpy().tolist() == [True, False]
    (ids,) = run.source_tokenizer.encode([long])
    assert len(ids) > cap + 1
    pieces = loaded.explain(long.decode())["source_pieces"]
    cut = run.source_tokenizer.pieces(ids[:cap])
    assert pieces == [*cut, "</s>"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=4))
def test_any_bytes_give_valid_answers(loaded, texts):
    translations, scores = translate(loaded, texts)
    assert len(translations) == len(texts)
    assert np.isfinite(scores).all()
    for translation in translations:
        translation.decode("utf-8")


def test_rank_and_type_are_enforced(loaded):
    serve = loaded.loaded.signatures["serving_default"]
    with pytest.raises(tf.errors.InvalidArgumentError):
        serve(text=tf.constant([["two", "dimensions"]]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        serve(text=tf.constant("none"))
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        serve(text=tf.constant([1, 2]))


def test_the_signature_is_as_documented(loaded):
    serve = loaded.loaded.signatures["serving_default"]
    _, inputs = serve.structured_input_signature
    assert inputs == {"text": tf.TensorSpec([None], tf.string, "text")}
    outputs = serve.structured_outputs
    names = {"translation", "score", "truncated", "incomplete"}
    assert set(outputs) == names
    assert outputs["incomplete"].dtype == tf.bool
    assert outputs["truncated"].dtype == tf.bool
    assert outputs["translation"].dtype == tf.string
    assert outputs["score"].dtype == tf.float32
    assert outputs["score"].shape.as_list() == [None]


@pytest.mark.programs
def test_python_a_fresh_process_and_a_session_translate_the_same(
    run, exported, tmp_path
):
    # JSON has no NUL.
    texts = [text for text in HARD_INPUTS if text != b"a\x00b"]
    found = translator_of(run).translate(tf.constant(texts))
    python = found["translation"].numpy().tolist()
    here = SavedTranslator(exported).translate(tf.constant(texts))
    assert here["translation"].numpy().tolist() == python
    np.testing.assert_allclose(here["score"], found["score"], atol=1e-5)
    program = tmp_path / "client.py"
    program.write_text(CLIENT_PROGRAM)
    np.savez(tmp_path / "texts.npz", *texts)
    result = subprocess.run(
        [sys.executable, "-I", program, exported, tmp_path],
        check=True,
        capture_output=True,
        cwd=tmp_path,
    )
    for way, (translations, scores) in json.loads(result.stdout).items():
        assert [t.encode() for t in translations] == python, way
        # The graph is the same, so every bit is.
        np.testing.assert_array_equal(np.float32(scores), here["score"])


CLIENT_PROGRAM = """
import json, sys
import numpy as np
import tensorflow as tf
import tensorflow_text
path, folder = sys.argv[1:]
texts = [a.item() for a in np.load(folder + "/texts.npz").values()]
outputs = ("translation", "score")
found = {}
v1 = tf.compat.v1
with v1.Session(graph=tf.Graph()) as session:
    meta = v1.saved_model.load(session, ["serve"], path)
    signature = meta.signature_def["serving_default"]
    found["session"] = session.run(
        [signature.outputs[k].name for k in outputs],
        {signature.inputs["text"].name: texts},
    )
serve = tf.saved_model.load(path).signatures["serving_default"]
result = serve(text=tf.constant(texts))
found["load"] = [result[k].numpy() for k in outputs]
assert "keras_transformer" not in sys.modules
for way, (translations, scores) in found.items():
    found[way] = [t.decode() for t in translations], scores.tolist()
print(json.dumps(found))
"""


@pytest.mark.programs
def test_models_with_frozen_weights_do_not_share_them(run, exported, tmp_path):
    """TF_ONEDNN_ASSUME_FROZEN_WEIGHTS caches weights, one cache per model.

    The models are called with batches of several sizes, from several threads.
    """
    other = translator_of(run)
    for weight in other.model.weights:
        weight.assign(1.1 * weight + 0.01)
    saved_model.write(other, tmp_path / "other")
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            FROZEN_WEIGHTS_PROGRAM,
            exported,
            tmp_path / "other",
        ],
        check=True,
        capture_output=True,
        env=os.environ | {"TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1"},
    )
    found = json.loads(result.stdout)
    models = [
        tf.saved_model.load(path) for path in (exported, tmp_path / "other")
    ]
    for (which, size), (translations, scores) in found:
        text = tf.constant([f"room {i}" for i in range(size)])
        expected = models[which].signatures["serving_default"](text=text)
        assert [t.encode() for t in translations] == expected[
            "translation"
        ].numpy().tolist()
        np.testing.assert_allclose(scores, expected["score"], atol=1e-4)
    assert found[0][1] != found[1][1]


FROZEN_WEIGHTS_PROGRAM = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import tensorflow as tf
import tensorflow_text
models = [tf.saved_model.load(path) for path in sys.argv[1:]]

def translated(case):
    which, size = case
    text = tf.constant([f"room {i}" for i in range(size)])
    best = models[which].signatures["serving_default"](text=text)
    translations = [t.decode() for t in best["translation"].numpy()]
    return case, [translations, best["score"].numpy().tolist()]

cases = [(which, size) for size in (3, 29, 1, 3) for which in (0, 1)]
with ThreadPoolExecutor(3) as pool:  # they fill the caches, too
    print(json.dumps(list(pool.map(translated, cases))))
"""


def test_n_best_begins_with_the_best(loaded):
    text = tf.constant([b"room 7", b"", b"office 9"])
    best = loaded.translate(text)
    found = loaded.loaded.signatures["n_best"](
        text=text,
        beam_size=tf.constant(4),
        alpha=tf.constant(0.6),
        max_length=tf.constant(563),
    )
    assert found["translation"].shape == (3, 4)
    np.testing.assert_array_equal(
        found["translation"][:, 0], best["translation"]
    )
    scores = found["score"].numpy()
    assert (np.diff(scores, axis=1) <= 0).all()


def test_a_score_is_the_models_log_probability(loaded, run):
    pairs = [("one two", "eins zwei"), ("room 7", "Zimmer 7"), ("a b", "")]
    sources, targets = zip(*pairs, strict=True)
    score = loaded.loaded.signatures["score"]
    found = score(text=tf.constant(sources), translation=tf.constant(targets))
    model = load_model(run)
    for i, (source, target) in enumerate(pairs):
        ids = np.array(run.target_tokenizer.encode([target]))
        logits = model(
            {
                "source": np.array(run.source_tokenizer.encode([source])),
                "target": np.insert(ids[:, :-1], 0, START, axis=1),
            }
        )
        each = tf.gather(tf.nn.log_softmax(logits), ids, batch_dims=2)
        expected = tf.reduce_sum(each)
        np.testing.assert_allclose(found["score"][i], expected, atol=1e-4)
        assert int(found["pieces"][i]) == each.shape[1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number"):
        score(text=tf.constant(sources), translation=tf.constant(["a"]))
    nothing = tf.constant([], tf.string)
    assert score(text=nothing, translation=nothing)["score"].shape == (0,)


def test_a_long_translation_is_scored_to_its_end(loaded, run):
    """A translation may have 563 pieces, more than a source."""
    text = "7"
    while (count := len(run.target_tokenizer.encode([text])[0])) < 540:
        text += " 7" * 7
    assert count < 563
    score = loaded.loaded.signatures["score"]
    found = score(text=tf.constant(["7"]), translation=tf.constant([text]))
    assert int(found["pieces"][0]) == count
    assert not found["truncated"].numpy()[0]


def test_an_explanation_belongs_to_its_translation(loaded, run):
    texts = tf.constant(["one two three", "", "room 7"])
    found = loaded.loaded.signatures["explain"](text=texts)
    plain = loaded.translate(texts)
    np.testing.assert_array_equal(found["translation"], plain["translation"])
    np.testing.assert_allclose(found["score"], plain["score"], rtol=1e-5)
    batch, layers, heads, length, width = found["attention"].shape
    assert (batch, layers, heads) == (3, 2, 2)
    assert found["target_pieces"].shape == (3, length)
    assert found["source_pieces"].shape == (3, width)
    total = tf.reduce_sum(found["attention"], axis=-1)
    np.testing.assert_allclose(tf.gather(total, [0, 2]), 1, atol=1e-5)
    encoder = found["encoder_attention"].numpy()
    assert encoder.shape == (3, layers, heads, width, width)
    is_real = found["source_pieces"].numpy() != b""
    for weights, real in zip(encoder, is_real, strict=True):
        np.testing.assert_allclose(weights[..., real, :].sum(-1), 1, atol=1e-5)
        assert not weights[..., ~real, :].any()
        assert not weights[..., ~real].any()
    # The explanation of a blank text is empty.
    assert not found["attention"].numpy()[1].any()
    for side in ("source_pieces", "target_pieces"):
        assert not any(found[side].numpy()[1])
    pieces = [p for p in found["source_pieces"].numpy()[2] if p]
    assert b"".join(pieces).decode() == "▁room▁7</s>"
    empty = loaded.loaded.signatures["explain"](text=tf.constant([], tf.string))
    assert empty["translation"].shape == (0,)


def test_an_explanation_does_not_depend_on_its_batch(loaded, run):
    """Python, the export, and a batch that is padded find the same weights."""
    text = "room 7"
    alone = loaded.explain(text)
    length = len(alone["source_pieces"])
    assert alone["encoder_attention"].shape == (2, 2, length, length)
    batch = tf.constant(["one two three four five", text])
    for explain in (
        loaded.loaded.signatures["explain"],
        translator_of(run).explain,
    ):
        found = explain(text=batch)["encoder_attention"].numpy()[1]
        assert found.shape[-1] > length
        np.testing.assert_allclose(
            found[..., :length, :length], alone["encoder_attention"], atol=1e-5
        )


def test_an_explanation_is_as_long_as_the_longest_translation(run):
    translator = translator_of(run)
    source = tf.constant([[9, 8, 3], [7, 3, 0], [3, 0, 0]])
    target = tf.constant([[5, 3, 0, 0, 0], [6, 7, 3, 0, 0], [4, 4, 4, 4, 3]])
    blank = tf.constant([False, False, True])
    found = translator._with_attention(source, target, blank)
    assert found["target_pieces"].shape == (3, 3)
    assert found["attention"].shape[3] == 3
    assert found["target_pieces"].numpy()[1].all()


@pytest.mark.parametrize(
    ("beam", "alpha"),
    [(3, 1.0), pytest.param(1, 0.6, marks=pytest.mark.programs)],
)
def test_an_export_can_search_with_another_beam_and_alpha(
    run, loaded, beam, alpha
):
    text = tf.constant([b"room 7 is on the third floor", b""])
    translator = translator_of(run, SearchSettings(beam, alpha))
    expected = translator.compiled()(text)
    found = loaded.searched_with(beam, alpha)(text)
    np.testing.assert_array_equal(found["translation"], expected["translation"])
    np.testing.assert_allclose(found["score"], expected["score"], atol=1e-5)


def test_the_description_names_departures_from_the_papers_block(
    recipe, tmp_path
):
    from keras_transformer.export.description import signature
    from keras_transformer.training import start_run

    described = {
        preset: signature(start_run(tmp_path / preset, preset, recipe))
        for preset in ("tiny", "modern")
    }
    options = "num_key_value_heads:2|normalization:rms|feed_forward:swiglu"
    assert f"|positions:rotary|{options}|tied:yes|" in described["modern"]
    assert "|positions:sinusoidal|tied:yes|" in described["tiny"]


def test_metadata_and_evaluations_are_stored_beside_the_model(
    exported, tmp_path
):
    exported = shutil.copytree(exported, tmp_path / "1")
    metadata = json.loads((exported / METADATA).read_text())
    assert metadata["search"]["beam_size"] == 4
    assert (metadata["source"], metadata["target"]) == ("en", "de")
    assert "layers:2|d_model:22" in metadata["signature"]
    assert "|vocab:bpe-400|" in metadata["signature"]
    evaluation.remember(exported, {"bleu": 1.0})
    evaluation.remember(exported, {"bleu": 2.0})
    lines = (exported / evaluation.STORE).read_text().splitlines()
    assert [json.loads(line)["bleu"] for line in lines] == [1.0, 2.0]


def test_a_version_is_a_number_and_is_not_overwritten(run, exported, tmp_path):
    for number in ("small", "01", str(2**63)):
        with pytest.raises(ValueError, match="ends in a version number"):
            saved_model.export(run, tmp_path / number)
    with pytest.raises(ValueError, match="exists"):
        saved_model.export(run, exported)
    with pytest.raises(
        ValueError, match=r"one of auto, float32, bfloat16, int8.*'int4'"
    ):
        saved_model.export(run, tmp_path / "2", dtype="int4")
    assert not list(tmp_path.iterdir())


def test_an_export_needs_a_name_that_servers_accept(
    run, exported, tmp_path, monkeypatch
):
    for name in ("two words", "it's"):
        with pytest.raises(ValueError, match=f"made of letters.*{name}"):
            saved_model.export(run, tmp_path / name / "1")
    for folder in ("a[b]", "a\\b"):  # TensorFlow reads nothing there
        path = tmp_path / folder / "demo" / "1"
        path.mkdir(parents=True)
        (path / "saved_model.pb").touch()
        with pytest.raises(ValueError, match="no SavedModel from a path with"):
            SavedTranslator(path)
        with pytest.raises(ValueError, match="no SavedModel from a path with"):
            saved_model.export(run, path.with_name("2"))
    folder = tmp_path / "demo"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(
        saved_model,
        "write",
        lambda translator, path, dtype, control: shutil.copytree(
            exported,
            path,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("assets.extra", SUMS),
        ),
    )
    path = saved_model.export(run, "2")
    assert (path / "README.md").read_text().startswith("# demo, version 2")


def test_an_export_has_a_card_of_what_it_is(run, exported):
    card = (exported / MODEL_CARD).read_text("utf-8")
    assert card.startswith("---\nlanguage: [en, de]\n")
    assert re.search(r"\| d_model, d_ff, heads \| 22, 31, 2 \|", card)
    pairs = len(PreparedCorpus(run.data))
    assert f"split `train`, {pairs:,} sentence pairs; " in card
    chosen = checkpoints.read_metadata(run.weights)["chosen"]
    assert f"Weights: {chosen}." in card
    assert str(pathlib.Path(run.recipe.corpus).parent) not in card
    assert f"  {MODEL_CARD}\n" in (exported / SUMS).read_text()


def test_a_card_has_the_scores_of_a_run(run, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    (folder / "evaluations.jsonl").unlink(missing_ok=True)
    result = evaluation.score(*[["Zimmer 7 ist im Keller."] * 1234] * 2)
    evaluation.remember(folder, result | {"split": "test"})
    write_model_card(open_run(folder), tmp_path / "card.md")
    text = (tmp_path / "card.md").read_text("utf-8")
    assert "| test | 1,234 | 100.0 | 100.0 |" in text
    assert result["bleu_signature"] in text


@pytest.mark.programs
def test_a_bfloat16_export_is_smaller_and_says_so(run, exported, tmp_path):
    path = saved_model.export(run, tmp_path / "1", dtype="bfloat16")
    loaded = SavedTranslator(path)
    assert loaded.metadata["dtype"] == "bfloat16"
    found = loaded.translate(tf.constant(["room 7", ""]))
    expected = SavedTranslator(exported).translate(tf.constant(["room 7", ""]))
    np.testing.assert_allclose(found["score"], expected["score"], rtol=0.02)
    sizes = [
        sum(f.stat().st_size for f in folder.glob("variables/*"))
        for folder in (path, exported)
    ]
    assert sizes[0] < 0.75 * sizes[1]


def test_a_damaged_export_is_named(exported, tmp_path):
    """Both our loader and `sha256sum` find the damage."""
    copy = tmp_path / "1"
    shutil.copytree(exported, copy)
    check = ["sha256sum", "--check", "--quiet", SUMS]
    subprocess.run(check, cwd=copy, check=True)
    listed = (copy / SUMS).read_text()
    assert "variables/variables.data-00000-of-00001" in listed
    assert METADATA in listed
    graph = copy / "saved_model.pb"
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    graph.write_bytes(data)
    with pytest.raises(ValueError, match=r"saved_model.pb' is not what was"):
        SavedTranslator(copy)
    assert subprocess.run(check, cwd=copy, check=False).returncode == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text + "\n",
        lambda text: text.replace("  ", " *"),  # of `sha256sum --binary`
        lambda text: text.upper(),
        lambda text: "".join(
            line
            for line in text.splitlines(keepends=True)
            if "variables.data" not in line
        ),
        lambda text: text[:-9],
    ],
)
def test_checksums_that_do_not_cover_an_export_are_named(
    exported, tmp_path, change
):
    copy = tmp_path / "1"
    shutil.copytree(exported, copy)
    (copy / "evaluations.jsonl").write_text("{}\n")  # which `evaluate` adds
    (copy / "mine.txt").touch()
    SavedTranslator(copy)
    (copy / SUMS).write_text(change((copy / SUMS).read_text()))
    with pytest.raises(ValueError, match=rf"{SUMS} must have|is not what was"):
        SavedTranslator(copy)


def test_an_export_of_another_format_is_named(exported, tmp_path):
    copy = tmp_path / "1"
    shutil.copytree(exported, copy)
    metadata = json.loads((copy / METADATA).read_text())
    assert metadata["format"] == 5
    for other in (3, None):
        text = json.dumps(metadata | {"format": other})
        (copy / METADATA).write_text(text)
        (copy / SUMS).unlink()
        write_sums(copy)
        with pytest.raises(ValueError, match=f"format 5. Received.*={other}"):
            SavedTranslator(copy)


def test_a_folder_without_a_saved_model_is_named(tmp_path):
    with pytest.raises(ValueError, match="No export in"):
        SavedTranslator(tmp_path)


def test_a_vocabulary_of_another_size_is_refused(run):
    from keras_transformer.data.tokenizer import train_tokenizer

    other = train_tokenizer(["some other text here"] * 9, 290)
    with pytest.raises(ValueError, match="290 word pieces for a model of 400"):
        Translator(load_model(run), other, other)


@pytest.mark.parametrize(("workers", "share"), [(1, 13), (3, 5), (29, 1)])
def test_lines_come_back_in_their_order(workers, share):
    seen = []

    def echo(batch):
        seen.append(len(batch))
        return {"translation": batch}

    lines = [f"{'x' * (i % 7)}{i}" for i in range(101)]
    done = []
    found = translate_lines(echo, lines, 13, done.append, workers)
    assert found == lines
    assert sum(seen) == 101
    assert max(seen) == share
    assert done == sorted(set(done))
    assert done[-1] == 101
    assert translate_lines(echo, [], workers=workers) == []
    with pytest.raises(ValueError, match="batch_size=-1"):
        translate_lines(echo, lines, -1)
    with pytest.raises(ValueError, match="workers=0"):
        translate_lines(echo, lines, workers=0)


def test_an_error_in_a_worker_is_raised():
    seen = []

    def fail(batch):
        seen.append(len(batch))
        time.sleep(0.01)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        translate_lines(fail, ["line"] * 1_000, 4, workers=2)
    # There are 500 batches; those that have not started are cancelled.
    assert len(seen) < 250


def test_the_number_of_workers_changes_no_translation(loaded):
    """Several threads call one model at once, as in the command."""
    lines = [f"room {i % 11} {'and room 8 ' * (i % 5)}" for i in range(47)]
    alone = translate_lines(loaded.translate, lines, 12)
    assert translate_lines(loaded.translate, lines, 12, workers=3) == alone


def test_learned_positions_are_never_exceeded(run):
    from keras_transformer import Transformer, TransformerConfig

    config = TransformerConfig.from_dict(
        {**run.config.to_dict(), "positions": "learned", "max_length": 11}
    )
    translator = Translator(
        Transformer(config), run.source_tokenizer, run.target_tokenizer
    )
    found = translator.translate(tf.constant([b"room 7 " * 40, b"room 7"]))
    assert np.isfinite(found["score"]).all()


def test_n_best_in_python_has_the_limits_of_a_server(run):
    translator = translator_of(run, SearchSettings(extra_length=3))
    text = tf.constant(["room 7"])
    with pytest.raises(ValueError, match="beam_size=33"):
        translator.n_best(text, 33, 0.6)
    with pytest.raises(ValueError, match="max_length=0"):
        translator.n_best(text, 4, 0.6, 0)
    # A tensor of another dtype is taken, but not what is left of its value.
    found = translator.n_best(text, tf.constant(3, tf.int64), np.float64(0.6))
    expected = translator.n_best(text, 3, 0.6)
    np.testing.assert_array_equal(found["score"], expected["score"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 32"):
        translator.n_best(text, tf.constant(2**32 + 1, tf.int64), 0.6)
    with pytest.raises(ValueError, match="must be an integer"):
        translator.n_best(text, tf.constant(2.9), 0.6)


def test_a_translation_is_one_line(run):
    tokenizer = run.target_tokenizer
    assert tokenizer.pieces(tokenizer.line_breaks) == ["<0x0A>", "<0x0D>"]
    translator = translator_of(run, SearchSettings(extra_length=5))
    # In this model, one of the line breaks always has the highest logit.
    table = translator.model.target_embedding.embeddings
    wanted = np.array(table)
    wanted[tokenizer.line_breaks] = 100 * np.stack([wanted[5], -wanted[5]])
    table.assign(wanted)
    for line in translator.translate(tf.constant([b"a", b"room 7"]))[
        "translation"
    ].numpy():
        assert b"\n" not in line
        assert b"\r" not in line


def test_blank_texts_are_never_cut(loaded):
    found = loaded.translate(tf.constant(["\n" * 5000, "\u3000" * 5000]))
    assert not found["truncated"].numpy().any()
    found = loaded.explain("")
    assert found["attention"].shape[2:] == (0, 0)


def test_text_without_utf_8_is_translated_as_another(loaded):
    """A surrogate alone, as of a broken pair in JSON."""
    lines = ["room 7", "\udcff"]
    found = translate_lines(loaded.translate, lines)
    assert found[0] == translate_lines(loaded.translate, lines[:1])[0]
    assert loaded.explain("\udcff")["source_pieces"]


def test_lines_are_any_iterable_but_a_string(loaded):
    lines = ["room 7", "a"]
    found = translate_lines(loaded.translate, (line for line in lines))
    assert found == translate_lines(loaded.translate, lines)
    with pytest.raises(ValueError, match="a single one"):
        translate_lines(loaded.translate, "room 7")


@pytest.mark.parametrize(
    "wrong",
    [{"beam_size": 2.0}, {"max_length": 7.5}, {"extra_length": None}],
    ids=str,
)
def test_settings_of_the_search_are_integers(wrong):
    with pytest.raises(ValueError, match="must be an integer"):
        SearchSettings(**wrong)
    assert type(SearchSettings(beam_size=np.int64(3)).beam_size) is int


@pytest.mark.parametrize("alpha", ["0.6", float("inf"), float("nan"), None])
def test_alpha_is_a_finite_number(alpha):
    with pytest.raises(ValueError, match=r"`alpha` must be a .*number"):
        SearchSettings(alpha=alpha)
    for number in (np.float32(0.5), np.float64(0.5), np.int64(1)):
        assert type(SearchSettings(alpha=number).alpha) is float
