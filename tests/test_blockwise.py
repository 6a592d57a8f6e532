"""Compares blockwise parallel decoding with greedy search by one model."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_inference import SOURCE, random_model

from keras_transformer import greedy_search
from keras_transformer.data.batches import EncodedPairs, Rows
from keras_transformer.export import saved_model
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.ids import END, START
from keras_transformer.inference.blockwise import BlockwiseModel
from keras_transformer.inference.draft_head import ProposalLayer
from keras_transformer.inference.graph_weights import inference_weights
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.inference.translator import Translator
from keras_transformer.training import draft_head
from keras_transformer.training.draft_head import learn_proposals
from keras_transformer.training.models import digest, load_model
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import open_run

LIMITS = [17, 11]


def random_proposals(config, block_size, likely_pieces=None):
    layer = ProposalLayer.for_model(config, block_size)
    layer.likely_pieces = likely_pieces
    rng = np.random.default_rng(7)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    return layer


def blockwise(model, proposals):
    weights = inference_weights(model, barred=[0], proposals=proposals)
    return BlockwiseModel(model.config, weights)


def greedy(model, memory):
    def step(tokens, cache, index):
        return model.step(tokens[:, None], cache, index)

    return greedy_search(step, model.empty_cache(memory, 1), LIMITS)


CONFIGS = pytest.mark.parametrize(
    "config",
    [
        {},
        {"norm_first": True, "positions": "learned", "max_length": 17},
        {"attention_window": 6, "positions": None, "use_bias": False},
        {"positions": "sinusoidal_halves", "key_dim": 5, "value_dim": 7},
        # Proposes 4 tokens by a matrix (256, 512), which `widened` widens.
        {"d_model": 128},
    ],
    ids=str,
)


@pytest.mark.parametrize(
    ("block_size", "likely_pieces"), [(2, None), (5, [5, 9, 2, 7])]
)
@CONFIGS
def test_it_finds_what_greedy_search_finds(config, block_size, likely_pieces):
    model = random_model(**config)
    proposals = random_proposals(model.config, block_size, likely_pieces)
    model = blockwise(model, proposals)
    assert model.block_size == block_size
    memory = model.encode(SOURCE)
    expected, expected_scores = greedy(model, memory)
    found, scores = model.search(memory, LIMITS, alpha=0.0, formula="gnmt")
    np.testing.assert_array_equal(found[:, 0], expected)
    np.testing.assert_allclose(scores[:, 0], expected_scores, atol=1e-5)


@CONFIGS
def test_it_proposes_what_the_layer_proposes(config):
    model = random_model(**config)
    layer = random_proposals(model.config, 4)
    fast = blockwise(model, layer)
    features = np.random.default_rng(2).normal(size=(2, model.config.d_model))
    tokens = np.array([7, 11])
    found = fast._proposed(
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
def test_it_proposes_the_most_probable_of_the_likely_pieces(config):
    model = random_model(**config)
    likely = np.array([11, 3, 8, 0, 5])
    any_piece, of_the_likely = (
        blockwise(model, random_proposals(model.config, 4, pieces))
        for pieces in (None, likely)
    )
    cache = {
        "memory": any_piece.encode(SOURCE),
        "features": keras.random.normal([2, 4, model.config.d_model]),
        "positions": tf.zeros([2, 4], tf.int32),
    }
    tokens, accepted = np.array([7, 11]), np.array([1, 3])
    x = tf.gather(cache["features"], accepted, batch_dims=1)
    x = any_piece._proposed(x, tokens, cache["memory"])
    logits = any_piece._logits(x, cache["memory"]).numpy()
    found, _ = any_piece.propose(cache, accepted, tokens)
    np.testing.assert_array_equal(found, logits.argmax(1).reshape(2, 3))
    found, _ = of_the_likely.propose(cache, accepted, tokens)
    best = likely[logits[:, likely].argmax(1)]
    np.testing.assert_array_equal(found, best.reshape(2, 3))


def test_likely_pieces_are_the_fewest_of_98_in_100():
    tokens = np.repeat([7, 3, 11, 5, 9], [60, 30, 8, 1, 1])
    found = draft_head._likely_pieces(tokens)
    assert found.tolist() == [3, 7, 11]
    found = draft_head._likely_pieces(np.repeat([7, 3], [97, 3]))
    assert found.tolist() == [3, 7]


TEXTS = [
    "The meeting is on the 3rd of May.",
    "",
    "a",
    "The house was built in 1987 and the bridge in 2003.",
]


def translator(run, **settings):
    return Translator(
        load_model(run),
        run.source_tokenizer,
        run.target_tokenizer,
        SearchSettings(**settings),
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_proposals_learn_what_follows(monkeypatch, norm_first):
    """In a cycle of ten words, each says which ones follow."""
    monkeypatch.setattr(draft_head, "LEARNING_RATE", 0.02)
    model = random_model(norm_first=norm_first)
    rng = np.random.default_rng(3)
    starts = rng.integers(10, size=(60, 1))
    rows = 4 + (starts + np.arange(9)) % 10
    target = Rows.of([[*row, END] for row in rows.tolist()])
    source = Rows.of([[5, END]] * len(rows))
    before = digest(model)
    layer = ProposalLayer.for_model(model.config, 4)
    draft_head._learn(
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
    # After the third word comes the fourth, and then those that are proposed.
    found, _ = fast.propose(cache, np.full(60, 3), rows[:, 3])
    is_right = found == rows[:, 4:7]
    assert np.mean(is_right) > 0.95


def test_proposals_are_learned_once(run, tmp_path, monkeypatch, capsys):
    run = open_run(shutil.copytree(run.folder, tmp_path / "run"))
    monkeypatch.setattr(draft_head, "PAIRS", 97)
    with pytest.raises(ValueError, match=r"at least 1\..*steps=0"):
        learn_proposals(run, 4, steps=0)
    first = learn_proposals(run, 4, steps=2)
    assert "Learning proposals" in capsys.readouterr().out
    learned = []
    pairs = draft_head._own_translations(run, load_model(run))
    monkeypatch.setattr(draft_head, "_own_translations", lambda *_: pairs)
    monkeypatch.setattr(
        draft_head, "_learn", lambda *args: learned.append(args)
    )
    again = learn_proposals(run, 4, steps=2)
    assert not learned
    assert "Learning proposals" not in capsys.readouterr().out
    for weight, other in zip(first.weights, again.weights, strict=True):
        np.testing.assert_array_equal(weight, other)
    assert 0 < len(first.likely_pieces) <= len(set(pairs.target.values))
    np.testing.assert_array_equal(first.likely_pieces, again.likely_pieces)
    (run.folder / "proposals-4.npz").write_bytes(b"damaged")
    learn_proposals(run, 4, steps=1)
    assert len(learned) == 1
    assert "Learning proposals" in capsys.readouterr().out
    learn_proposals(run, 4, steps=2)  # others
    assert len(learned) == 2
    assert "Learning proposals" in capsys.readouterr().out


@pytest.mark.programs
@pytest.mark.usefixtures("optimized_graphs")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_an_export_finds_what_greedy_search_finds(
    run, tmp_path, dtype, monkeypatch
):
    monkeypatch.setattr(draft_head, "PAIRS", 97)
    monkeypatch.setattr(
        saved_model,
        "learn_proposals",
        lambda run, block_size: learn_proposals(run, block_size, steps=30),
    )
    path = saved_model.export(
        run, tmp_path / "model" / "1", SearchSettings(1), dtype, block_size=3
    )
    loaded = SavedTranslator(path)
    assert loaded.metadata["block_size"] == 3
    for beam_size in (1, 4):  # another search does without proposals
        own = translator(run, beam_size=beam_size).fixed(dtype)
        expected = own.compiled()(tf.constant(TEXTS))
        found = loaded.translate(tf.constant(TEXTS))
        if beam_size == 4:
            found = loaded.searched_with(beam_size=4)(tf.constant(TEXTS))
        for name in ("translation", "truncated"):
            np.testing.assert_array_equal(found[name], expected[name])
        np.testing.assert_allclose(found["score"], expected["score"], atol=1e-5)


def test_what_cannot_be_is_refused_before_anything_is_learned(run, tmp_path):
    path = tmp_path / "model" / "1"
    with pytest.raises(ValueError, match="block_size=3, beam_size=4"):
        saved_model.export(run, path, block_size=3)
    with pytest.raises(ValueError, match="block_size=3, shortlist=5"):
        saved_model.export(
            run, path, SearchSettings(1), shortlist=5, block_size=3
        )
    with pytest.raises(ValueError, match="block_size=1"):
        saved_model.export(run, path, SearchSettings(1), block_size=1)
    with pytest.raises(ValueError, match="not from a shortlist"):
        Translator(
            load_model(run),
            run.source_tokenizer,
            run.target_tokenizer,
            shortlist=saved_model.learn_shortlist(run, 5),
            proposals=random_proposals(load_model(run).config, 3),
        )
    assert not list(tmp_path.iterdir())
