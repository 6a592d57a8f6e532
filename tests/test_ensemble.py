"""Checks ensembles: several models that translate as one."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from conftest import translator_of

from keras_transformer import Transformer
from keras_transformer.export import saved_model
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.ids import END, PAD, START
from keras_transformer.inference import EnsembleDecoding, SearchSettings
from keras_transformer.training import run_of_model
from keras_transformer.training.run_translators import decoding_of

TEXTS = ["The meeting is on the 3rd of May.", "", "a", "It costs 7 euros."]
SURE = 1e-3  # of log-probabilities; choices that are nearer are not compared


def new_run(run, folder, seed, **shape):
    """Returns a run of an untrained model with the vocabulary of another."""
    config = dataclasses.replace(run.config, **shape)
    model = Transformer(config, seed=seed)
    for weight in model.weights:  # far from even probabilities
        weight.assign(2 * weight)
    tokenizers = run.source_tokenizer, run.target_tokenizer
    return run_of_model(model, folder, *tokenizers)


@pytest.fixture(scope="module")
def other(run, tmp_path_factory):
    """Returns a run of another model, whose decoder is deeper."""
    shape = {"d_model": 26, "d_ff": 29, "norm_first": True}
    folder = tmp_path_factory.mktemp("runs") / "other"
    return new_run(run, folder, 2, num_decoder_layers=3, **shape)


def ensemble(run, *others, **settings):
    decoding = decoding_of(run, others)
    return translator_of(run, SearchSettings(**settings), decoding)


def test_it_translates_by_the_plain_mean_of_probabilities(run, other, tmp_path):
    first = new_run(run, tmp_path / "first", 3)
    translator = ensemble(first, other)
    models = [translator.model, *translator.decoding.others]
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 9, 200)
    source = np.zeros((200, 9), "int32")
    for row, length in zip(source, lengths, strict=True):
        row[:length] = [*rng.integers(4, 400, length - 1), END]
    longest = 7
    ids, scores = translator.search(source, 1, 0.0, longest)
    ids = tf.pad(ids[:, 0], [[0, 0], [0, longest - ids.shape[2]]]).numpy()

    suppressed = run.target_tokenizer.suppressed_ids()
    target = np.full((200, 1), START, "int32")
    total, is_over = np.zeros(200), np.zeros(200, bool)
    is_compared = np.ones(200, bool)
    for step in range(longest):
        mean = 0.0
        for model in models:
            logits = np.array(model({"source": source, "target": target}))[
                :, -1
            ].astype("float64")
            logits[:, suppressed] = -np.inf
            odds = np.exp(logits - logits.max(axis=1, keepdims=True))
            mean += odds / odds.sum(axis=1, keepdims=True) / len(models)
        limit = np.minimum(lengths + 50, longest)
        is_last = step + 1 == limit
        best = np.sort(np.log(np.maximum(mean, 1e-99)), axis=1)[:, -2:]
        is_compared &= is_over | is_last | (best[:, 1] - best[:, 0] > SURE)
        tokens = np.where(is_last, END, mean.argmax(axis=1))
        total += np.where(is_over, 0, np.log(mean[range(200), tokens]))
        tokens = np.where(is_over, PAD, tokens)
        np.testing.assert_array_equal(
            ids[is_compared, step], tokens[is_compared]
        )
        target = np.concatenate([target, tokens[:, None]], axis=1)
        is_over |= tokens == END
    assert is_compared.sum() > 150
    found = scores[:, 0].numpy()
    np.testing.assert_allclose(found[is_compared], total[is_compared], 1e-4)
    # Each model alone says something else.
    for alone in (first, other):
        own, _ = translator_of(alone).search(source, 1, 0.0, longest)
        own = tf.pad(own[:, 0], [[0, 0], [0, longest - own.shape[2]]])
        assert (own.numpy() != ids).any(axis=1).mean() > 0.1


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_model_with_itself_is_the_model(run, beam_size):
    settings = {"beam_size": beam_size}
    alone = translator_of(run, SearchSettings(**settings))
    both = ensemble(run, run, **settings)
    expected, found = (x.compiled()(tf.constant(TEXTS)) for x in (alone, both))
    for name in ("translation", "truncated", "incomplete"):
        np.testing.assert_array_equal(found[name], expected[name])
    np.testing.assert_allclose(found["score"], expected["score"], atol=1e-4)


@pytest.mark.usefixtures("optimized_graphs")
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("int8", marks=pytest.mark.programs)]
)
def test_an_export_is_one_saved_model(run, other, tmp_path, dtype):
    path = saved_model.export(
        run, tmp_path / "both" / "1", dtype=dtype, ensemble=[other]
    )
    loaded = SavedTranslator(path)
    own = ensemble(run, other).fixed(dtype)
    found = loaded.translate(TEXTS)
    expected = own.compiled()(tf.constant(TEXTS))
    np.testing.assert_array_equal(found["translation"], expected["translation"])
    np.testing.assert_allclose(found["score"], expected["score"], atol=1e-4)
    assert "ensemble:2" in loaded.metadata["signature"]
    assert "An ensemble of 2 models" in (path / "MODEL_CARD.md").read_text()

    # It scores what it finds, and its attention is the first model's.
    scored = loaded.loaded.signatures["score"](
        text=tf.constant(TEXTS[:1]), translation=found["translation"][:1]
    )
    alone = translator_of(run).fixed(dtype)
    expected = own.score(tf.constant(TEXTS[:1]), found["translation"][:1])
    np.testing.assert_allclose(scored["score"], expected["score"], atol=1e-4)
    explained = loaded.explain(TEXTS[0])
    attention = alone.explain(tf.constant(TEXTS[:1]))["encoder_attention"][0]
    np.testing.assert_allclose(
        explained["encoder_attention"], attention, atol=1e-5
    )


def test_models_of_other_vocabularies_are_refused(run, other, tmp_path):
    folder = tmp_path / "run"
    tokenizer = run.source_tokenizer.with_rule("target")
    target = run.target_tokenizer
    third = run_of_model(Transformer(run.config), folder, tokenizer, target)
    path = tmp_path / "both" / "1"
    with pytest.raises(ValueError, match="the same vocabularies"):
        saved_model.export(run, path, ensemble=[other, third])
    with pytest.raises(ValueError, match="Choose one"):
        saved_model.export(run, path, ensemble=[other], shortlist=5)
    with pytest.raises(ValueError, match="second model"):
        EnsembleDecoding([])
    config = dataclasses.replace(
        run.config, vocab_size=run.config.vocab_size + 1
    )
    smaller = EnsembleDecoding([Transformer(config)])
    with pytest.raises(ValueError, match="agree in `vocab_size`"):
        translator_of(run, decoding=smaller).inference_model()
    assert not path.exists()
