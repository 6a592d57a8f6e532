"""Checks shortlists: what they learn and hold, and the search in them."""

import json

import numpy as np
import pytest
import tensorflow as tf
from conftest import translator_of

from keras_transformer import beam_search
from keras_transformer.data.batches import EncodedPairs, Rows
from keras_transformer.export import saved_model
from keras_transformer.export.files import METADATA
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.ids import END
from keras_transformer.inference import GraphTokenizer
from keras_transformer.inference import shortlist as module
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.inference.shortlist import Shortlist, ShortlistDecoding

V = 37
TEXTS = [
    "The meeting is on the 3rd of May.",
    "",
    "a",
    "The house was built in 1987 and the bridge in 2003.",
]


def pairs_of_a_dictionary(count, seed=1):
    """Returns sentences whose word i is word V + 3 - i in the translation."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 8, count)
    source = [rng.integers(4, V, n).tolist() for n in lengths]
    target = [rng.permutation(V + 3 - np.array(row)).tolist() for row in source]
    return EncodedPairs(
        *(Rows.of([[*row, END] for row in side]) for side in (source, target))
    )


def test_a_dictionary_is_learned_from_its_sentences():
    found = Shortlist.learn(pairs_of_a_dictionary(2000), V, V, size=2)
    words = np.arange(4, V)
    np.testing.assert_array_equal(found.likely[words, 0], V + 3 - words)
    assert not found.likely[[0, 1, 2]].any()  # occur nowhere
    every = Shortlist.learn(pairs_of_a_dictionary(9), V, V, size=100 * V)
    assert every.likely.shape == (V, V)


def test_the_most_frequent_pieces_are_common(monkeypatch):
    monkeypatch.setattr(module, "COMMON", 6)
    rows = Rows.of([[9, 9, 5, END], [9, 5, 7, 9, END], [5, 8, END]])
    found = Shortlist.learn(EncodedPairs(rows, rows), V, V, size=3)
    np.testing.assert_array_equal(found.common, [0, 1, 2, 3, 5, 9])


def test_of_a_large_corpus_a_part_is_read(monkeypatch):
    pairs = pairs_of_a_dictionary(500)
    whole = np.prod(pairs.lengths, axis=1).sum()
    read = []

    class Pairs:
        def __len__(self):
            return len(pairs)

        def read(self, rows, epoch):
            read.append(rows)
            return pairs.read(rows, epoch)

    monkeypatch.setattr(module, "MAX_LINKS", whole // 3)
    Shortlist.learn(Pairs(), V, V, size=2)
    chosen = read[-1]
    links = np.prod(pairs.lengths[chosen], axis=1).sum()
    assert 0.9 * whole / 3 < links <= whole / 3
    assert len(set(chosen.tolist())) == len(chosen)


@pytest.mark.parametrize("size", [0, -3])
def test_a_shortlist_without_pieces_is_refused(size):
    with pytest.raises(ValueError, match=f"size={size}"):
        Shortlist.learn(pairs_of_a_dictionary(5), V, V, size=size)


def shortlist(run, size):
    return saved_model.learn_shortlist(run, size)


def translator(run, chosen, **settings):
    decoding = chosen and ShortlistDecoding(chosen)
    search = SearchSettings(**settings)
    return translator_of(run, search, decoding)


def test_a_list_has_the_pieces_of_its_own_sentence(run):
    chosen = shortlist(run, 5)
    model = translator(run, chosen).inference_model()
    source = GraphTokenizer(run.source_tokenizer).encode(TEXTS).to_tensor()
    lists = model.lists(source).numpy()
    for row, ids in zip(lists, source.numpy(), strict=True):
        expected = {*chosen.common, *chosen.likely[ids].ravel()}
        assert row[: len(expected)].tolist() == sorted(expected)
        assert not row[len(expected) :].any()
    assert lists[:, :4].tolist() == [[0, 1, 2, 3]] * len(TEXTS)


@pytest.mark.parametrize(
    "beam_size", [4, pytest.param(1, marks=pytest.mark.programs)]
)
def test_a_shortlist_of_all_pieces_changes_nothing(run, beam_size):
    size = run.config.vocab_size
    pieces = np.arange(size, dtype=np.int32)
    every = Shortlist(np.zeros((size, 1), np.int32), pieces)
    expected, found = (
        translator(run, chosen, beam_size=beam_size).compiled()(
            tf.constant(TEXTS)
        )
        for chosen in (None, every)
    )
    for name in ("translation", "truncated"):
        np.testing.assert_array_equal(found[name], expected[name])
    np.testing.assert_allclose(found["score"], expected["score"], atol=1e-5)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_search_finds_what_it_would_if_other_pieces_were_suppressed(
    run, beam_size
):
    model = translator(run, shortlist(run, 5)).inference_model()
    plain = InferenceModel(model.config, model.weights)
    source = GraphTokenizer(run.source_tokenizer).encode(TEXTS).to_tensor()
    memory = model.encode(source)
    width = model.config.vocab_size
    is_listed = tf.reduce_any(
        tf.one_hot(memory["lists"], width, True, False), axis=1
    )
    is_listed = tf.repeat(is_listed, beam_size, axis=0)
    limits = [13, 5, 7, 17]

    def step(tokens, cache, index):
        tokens = tf.reshape(tokens, [-1, beam_size])
        logits, cache = plain.step(tokens, cache, index)
        return tf.where(is_listed, logits, -np.inf), cache

    def listed_step(tokens, cache, index):
        return model.step(tf.reshape(tokens, [-1, beam_size]), cache, index)

    expected, expected_scores = beam_search(
        step,
        plain.empty_cache(plain.encode(source), beam_size),
        limits,
        beam_size,
        reorder_cache=plain.reorder_cache,
    )
    found, scores = beam_search(
        listed_step,
        model.empty_cache(memory, beam_size),
        limits,
        beam_size,
        reorder_cache=model.reorder_cache,
    )
    np.testing.assert_array_equal(model.pieces(found, memory), expected)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


def test_an_answer_does_not_depend_on_the_sentences_beside_it(run):
    translate = translator(run, shortlist(run, 5)).compiled()
    together = translate(tf.constant(TEXTS))
    for i, text in enumerate(TEXTS):
        alone = translate(tf.constant([text]))
        assert alone["translation"][0] == together["translation"][i]
        np.testing.assert_allclose(
            alone["score"][0], together["score"][i], atol=1e-5
        )


@pytest.mark.usefixtures("optimized_graphs")
@pytest.mark.parametrize(
    ("dtype", "beam_size"),
    [
        ("float32", 4),
        pytest.param("int8", 1, marks=pytest.mark.programs),
    ],
)
def test_an_export_has_its_shortlist(run, tmp_path, dtype, beam_size):
    settings = SearchSettings(beam_size)
    path = saved_model.export(
        run, tmp_path / "model" / "1", settings, dtype, shortlist=5
    )
    loaded = SavedTranslator(path)
    assert loaded.metadata["shortlist"] == 5
    found = loaded.translate(tf.constant(TEXTS))
    own = translator(run, shortlist(run, 5), beam_size=beam_size).fixed(dtype)
    expected = own.compiled()(tf.constant(TEXTS))
    for name in ("translation", "truncated"):
        np.testing.assert_array_equal(found[name], expected[name])
    np.testing.assert_allclose(found["score"], expected["score"], atol=1e-5)


def test_an_export_without_one_says_so(exported):
    metadata = json.loads((exported / METADATA).read_text())
    assert metadata["shortlist"] is None


def test_an_export_fails_before_anything_is_written(run, tmp_path):
    with pytest.raises(ValueError, match="shortlist=0"):
        saved_model.export(run, tmp_path / "model" / "1", shortlist=0)
    assert not list(tmp_path.iterdir())
