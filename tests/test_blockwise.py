"""Compares blockwise parallel decoding with greedy search by one model."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import translator_of
from test_inference import SOURCE, random_model
from test_shortlist import TEXTS

from keras_transformer import greedy_search
from keras_transformer.data.batches import EncodedPairs, Rows
from keras_transformer.export import saved_model
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.ids import END, START
from keras_transformer.inference.blockwise import (
    BlockwiseDecoding,
    BlockwiseModel,
)
from keras_transformer.inference.draft_head import DraftHead
from keras_transformer.inference.graph_weights import inference_weights
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.training import draft_head
from keras_transformer.training.draft_head import train_draft_head
from keras_transformer.training.models import digest, load_model
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import open_run

LIMITS = [17, 11]


def random_head(config, draft_tokens, likely_pieces=None):
    head = DraftHead.for_model(config, draft_tokens)
    head.likely_pieces = likely_pieces
    rng = np.random.default_rng(7)
    head.set_weights([rng.normal(size=w.shape) for w in head.weights])
    return head


def blockwise(model, head):
    arguments = model, "float32", [0]
    weights = inference_weights(*arguments)
    weights |= BlockwiseDecoding(head).own_weights(*arguments)
    return BlockwiseModel(model.config, weights)


def greedy(model, memory):
    def step(tokens, cache, index):
        return model.step(tokens[:, None], cache, index)

    return greedy_search(step, model.empty_cache(memory, 1), LIMITS)


LEARNED = {"norm_first": True, "positions": "learned", "max_length": 17}
WINDOW = {"sliding_window": 4, "positions": None, "use_bias": False}
WIDTHS = {"positions": "sinusoidal_halves", "key_dim": 5, "value_dim": 7}
# Drafts 4 tokens by a matrix (256, 512), which `widened` widens.
WIDE = {"d_model": 128}
TODAY = {
    "norm_first": True,
    "normalization": "rms",
    "feed_forward": "swiglu",
    "positions": "rotary",
    "num_heads": 6,
    "num_key_value_heads": 2,
    "key_dim": 10,
    "qk_norm": True,
}
LIKELY = [5, 9, 2, 7]


@pytest.mark.parametrize(
    ("config", "draft_tokens", "likely_pieces"),
    [
        ({}, 1, None),
        ({}, 4, LIKELY),
        (LEARNED, 4, None),
        (WINDOW, 4, LIKELY),
        (WIDTHS, 1, LIKELY),
        (WIDE, 4, None),
        (TODAY, 3, None),
    ],
    ids=str,
)
def test_it_finds_what_greedy_search_finds(config, draft_tokens, likely_pieces):
    model = random_model(**config)
    head = random_head(model.config, draft_tokens, likely_pieces)
    model = blockwise(model, head)
    assert model.draft_tokens == draft_tokens
    memory = model.encode(SOURCE)
    expected, expected_scores = greedy(model, memory)
    found, scores = model.search(memory, LIMITS, SearchSettings(1), 1, 0.0)
    np.testing.assert_array_equal(found[:, 0], expected)
    np.testing.assert_allclose(scores[:, 0], expected_scores, atol=1e-5)


@pytest.mark.parametrize("config", [LEARNED, WINDOW, WIDTHS, WIDE], ids=str)
def test_it_drafts_what_the_layer_drafts(config):
    model = random_model(**config)
    layer = random_head(model.config, 3)
    fast = blockwise(model, layer)
    features = np.random.default_rng(2).normal(size=(2, model.config.d_model))
    tokens = np.array([7, 11])
    found = fast._draft_features(
        tf.constant(features, tf.float32), tokens, fast.encode(SOURCE)
    )
    scale = model.config.d_model**0.5 if model.config.scale_embeddings else 1
    embedded = keras.ops.take(model.target_embedding.embeddings, tokens, axis=0)
    expected = layer(
        features[:, None],
        embedded[:, None] * scale,
        model.encode(SOURCE),
        SOURCE != 0,
    )
    np.testing.assert_allclose(
        tf.reshape(found, expected.shape), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("config", [{}, {"use_logits_bias": True}], ids=str)
def test_it_drafts_the_most_probable_of_the_likely_pieces(config):
    model = random_model(**config)
    likely = np.array([11, 3, 8, 0, 5])
    any_piece, of_the_likely = (
        blockwise(model, random_head(model.config, 3, pieces))
        for pieces in (None, likely)
    )
    cache = {
        "memory": any_piece.encode(SOURCE),
        "features": keras.random.normal([2, 4, model.config.d_model]),
        "positions": tf.zeros([2, 4], tf.int32),
    }
    tokens, accepted = np.array([7, 11]), np.array([1, 3])
    x = tf.gather(cache["features"], accepted, batch_dims=1)
    x = any_piece._draft_features(x, tokens, cache["memory"])
    logits = any_piece._logits(x, cache["memory"]).numpy()
    found, _ = any_piece.draft(cache, accepted, tokens)
    np.testing.assert_array_equal(found, logits.argmax(1).reshape(2, 3))
    found, _ = of_the_likely.draft(cache, accepted, tokens)
    best = likely[logits[:, likely].argmax(1)]
    np.testing.assert_array_equal(found, best.reshape(2, 3))


def test_likely_pieces_are_the_fewest_of_98_in_100():
    tokens = np.repeat([7, 3, 11, 5, 9], [60, 30, 8, 1, 1])
    found = draft_head._likely_pieces(tokens)
    assert found.tolist() == [3, 7, 11]
    found = draft_head._likely_pieces(np.repeat([7, 3], [97, 3]))
    assert found.tolist() == [3, 7]


@pytest.mark.parametrize(
    "norm_first", [False, pytest.param(True, marks=pytest.mark.programs)]
)
def test_a_head_learns_what_follows(monkeypatch, norm_first):
    """In a cycle of ten words, each says which ones follow."""
    monkeypatch.setattr(draft_head, "LEARNING_RATE", 0.02)
    model = random_model(norm_first=norm_first)
    rng = np.random.default_rng(3)
    starts = rng.integers(10, size=(60, 1))
    rows = 4 + (starts + np.arange(9)) % 10
    target = Rows.of([[*row, END] for row in rows.tolist()])
    source = Rows.of([[5, END]] * len(rows))
    before = digest(model)
    layer = DraftHead.for_model(model.config, 3)
    draft_head._train(
        layer,
        model,
        EncodedPairs(source, target),
        Recipe(tokens_per_batch=200),
        steps=150,
    )
    assert digest(model) == before
    fast = blockwise(model, layer)
    cache = fast.empty_block_cache(fast.encode(np.array([[5, END]] * 60)))
    block = np.concatenate([np.full((60, 1), START), rows[:, :3]], axis=1)
    _, cache = fast.verify(
        tf.constant(block, tf.int32), cache, np.zeros(60, "int32")
    )
    # After the third word comes the fourth, and then those that are drafted.
    found, _ = fast.draft(cache, np.full(60, 3), rows[:, 3])
    is_right = found == rows[:, 4:7]
    assert np.mean(is_right) > 0.95


def test_a_head_is_trained_once(run, tmp_path, monkeypatch, capsys):
    run = open_run(shutil.copytree(run.folder, tmp_path / "run"))
    monkeypatch.setattr(draft_head, "PAIRS", 29)
    with pytest.raises(ValueError, match=r"at least 1\..*steps=0"):
        train_draft_head(run, 3, steps=0)
    pairs = draft_head._own_translations(run, load_model(run))
    assert len(pairs) == 29
    monkeypatch.setattr(draft_head, "_own_translations", lambda *_: pairs)
    first = train_draft_head(run, 3, steps=2)
    assert "Training a head" in capsys.readouterr().out
    learned = []
    monkeypatch.setattr(
        draft_head, "_train", lambda *args: learned.append(args)
    )
    again = train_draft_head(run, 3, steps=2)
    assert not learned
    assert "Training a head" not in capsys.readouterr().out
    for weight, other in zip(first.weights, again.weights, strict=True):
        np.testing.assert_array_equal(weight, other)
    assert 0 < len(first.likely_pieces) <= len(set(pairs.target.values))
    np.testing.assert_array_equal(first.likely_pieces, again.likely_pieces)
    (run.folder / "draft-head-3.npz").write_bytes(b"damaged")
    train_draft_head(run, 3, steps=1)
    assert len(learned) == 1
    assert "Training a head" in capsys.readouterr().out
    train_draft_head(run, 3, steps=2)  # others
    assert len(learned) == 2
    assert "Training a head" in capsys.readouterr().out


@pytest.mark.programs
@pytest.mark.usefixtures("optimized_graphs")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_an_export_finds_what_greedy_search_finds(
    run, tmp_path, dtype, monkeypatch
):
    monkeypatch.setattr(draft_head, "PAIRS", 97)
    monkeypatch.setattr(
        saved_model,
        "train_draft_head",
        lambda run, count: train_draft_head(run, count, steps=30),
    )
    path = saved_model.export(
        run, tmp_path / "model" / "1", SearchSettings(1), dtype, draft_tokens=2
    )
    loaded = SavedTranslator(path)
    assert loaded.metadata["draft_tokens"] == 2
    for beam_size in (1, 4):  # another search does without drafts
        search = SearchSettings(beam_size)
        own = translator_of(run, search).fixed(dtype)
        expected = own.compiled()(tf.constant(TEXTS))
        found = loaded.translate(tf.constant(TEXTS))
        if beam_size == 4:
            found = loaded.searched_with(beam_size=4)(tf.constant(TEXTS))
        for name in ("translation", "truncated"):
            np.testing.assert_array_equal(found[name], expected[name])
        # Blocks sum in another order.
        one, other = found["score"], expected["score"]
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-5)


def test_what_cannot_be_is_refused_before_anything_is_learned(run, tmp_path):
    path = tmp_path / "model" / "1"
    with pytest.raises(ValueError, match="draft_tokens=3, beam_size=4"):
        saved_model.export(run, path, draft_tokens=3)
    with pytest.raises(ValueError, match="draft_tokens=3, shortlist=5"):
        saved_model.export(
            run, path, SearchSettings(1), shortlist=5, draft_tokens=3
        )
    with pytest.raises(ValueError, match="draft_tokens=0"):
        saved_model.export(run, path, SearchSettings(1), draft_tokens=0)
    assert not list(tmp_path.iterdir())
