"""Checks that a model trained in another way becomes a run."""

import keras
import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data import train_tokenizer
from keras_transformer.inference import (
    SearchSettings,
)
from keras_transformer.training import (
    evaluate,
    load_model,
    lora,
    open_run,
    run_of_model,
)

LINES = ["The meeting is on the 3rd of May.", "", "Room 7"]


def make_model(size, **fields):
    config = TransformerConfig.preset(
        "tiny", vocab_size=size, num_layers=1, d_model=22, num_heads=2
    ).to_dict()
    return Transformer(TransformerConfig.from_dict(config | fields), seed=1)


SEARCH = SearchSettings(beam_size=3, extra_length=5)


def test_a_model_that_was_fitted_becomes_a_run(run, tmp_path):
    pieces = run.source_tokenizer
    model = make_model(pieces.vocab_size)
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    model.compile("adam", loss, run_eagerly=True)
    ids = np.array([[5, 7, 3], [9, 11, 3]])
    model.fit({"source": ids, "target": ids}, ids, verbose=0)
    made = run_of_model(
        model, tmp_path / "run", pieces, pieces, "fr", "it", SEARCH
    )
    opened = open_run(tmp_path / "run")
    assert opened.digest == made.digest
    assert opened.search == SEARCH
    assert (opened.recipe.source, opened.recipe.target) == ("fr", "it")
    for found, weight in zip(
        load_model(opened).get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(found, weight)
    with pytest.raises(ValueError, match="has no splits"):
        evaluate(opened, model, "test")


def test_two_vocabularies_stay_two(run, tmp_path):
    target = run.source_tokenizer
    source = train_tokenizer(LINES, 283)
    model = make_model(target.vocab_size, source_vocab_size=283)
    with pytest.raises(ValueError, match="The source vocabulary must be"):
        run_of_model(model, tmp_path / "run", target, source)
    made = run_of_model(model, tmp_path / "run", source, target)
    opened = open_run(made.folder)
    assert opened.source_tokenizer.model == source.model
    assert opened.target_tokenizer.model == target.model
    load_model(opened)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "one with a shared vocabulary has no other"),
        ({"source_features": 3}, "which reads vectors"),
        ({"vocab_size": 401}, "400 pieces, and a model of 401"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    run, tmp_path, fields, expected
):
    pieces = run.source_tokenizer
    model = make_model(400, **fields)
    two = (pieces,) if fields else (pieces, train_tokenizer(LINES, 283))
    with pytest.raises(ValueError, match=expected):
        run_of_model(model, tmp_path / "run", *two)
    assert not (tmp_path / "run").exists()


def test_weights_that_no_run_can_hold_are_refused(run, tmp_path):
    pieces = run.source_tokenizer
    model = make_model(400)
    name = "encoder_0/self_attention/query/bias"
    bias = next(v for v in model.weights if v.path.endswith(name))
    bias.assign(np.full(22, np.nan))
    with pytest.raises(ValueError, match=f"must be finite.*{name}"):
        run_of_model(model, tmp_path / "run", pieces)
    bias.assign(np.zeros(22))
    lora.enable(model, rank=2, seed=1)
    with pytest.raises(ValueError, match="without LoRA or quantization"):
        run_of_model(model, tmp_path / "run", pieces)
    with pytest.raises(ValueError, match="must be a `Tokenizer`"):
        run_of_model(model, tmp_path / "run", pieces.model)
    other = keras.Sequential([keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="is a `Transformer`"):
        run_of_model(other, tmp_path / "run", pieces)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match="must not exist"):
        run_of_model(model, tmp_path / "run", pieces)
