"""Checks what public functions say to arguments of other kinds."""

import pathlib
import pickle
import random
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import SMALL

from keras_transformer import (
    Transformer,
    TransformerConfig,
    beam_search,
    blockwise_search,
    greedy_search,
    sample,
)
from keras_transformer.data import (
    Preparation,
    SentencePairs,
    load_pairs,
    prepare,
    train_tokenizer,
)
from keras_transformer.export import SavedTranslator, export
from keras_transformer.inference import GraphTokenizer, SearchSettings, score
from keras_transformer.training import (
    Recipe,
    TrainingInterrupted,
    choose_weights,
    start_run,
    train,
    train_draft_head,
)
from keras_transformer.training.models import with_other_depth

SHAPE = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 11}


def step(tokens, cache, index):
    return tf.zeros([len(tokens), 7]), cache


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: Recipe(label_smoothing="a"), "a number.*label_smoothing='a'"),
        (lambda: Recipe(teacher_weight=True), "a number.*teacher_weight=True"),
        (lambda: Recipe(shared_vocabulary="no"), "True or False.*='no'"),
        (lambda: Recipe(source=None), "a string.*source=None"),
        (lambda: Recipe(steps=None, seed=None), "an integer.*seed=None"),
        (lambda: Preparation(drop_duplicates=1), "True or False.*=1"),
        (lambda: SearchSettings(allow_unknown="no"), "True or False.*='no'"),
        (lambda: SearchSettings(normalize_punctuation=True), "a string.*=True"),
        (lambda: TransformerConfig(31, dropout_rate="0"), "a number.*='0'"),
        (lambda: Transformer({"d_model": 8}), "a `TransformerConfig`.*d_model"),
        (lambda: SentencePairs(["a", "b"], ["c"]), "2 sentences, 1 trans"),
        (lambda: load_pairs(None, "train", "en", "de"), "Received: a NoneType"),
        (lambda: train_tokenizer("corpus/train.en", 300), "several strings"),
        (lambda: train_tokenizer(["", " "], 300), "no text.*not blank"),
        (lambda: train_tokenizer([], 300), "no text.*not blank"),
        (lambda: train_tokenizer(["a"], 300.0), r"integer.*vocab_size=300\.0"),
        (lambda: score("abc", "abc"), "single string"),
        (lambda: train("runs/demo"), "a `Run`.*'runs/demo'.*`open_run`"),
        (lambda: export("runs/demo", "m/1"), "a `Run`.*'runs/demo'.*open_run"),
        (lambda: prepare("c", "f", {"seed": 1}), "a `Preparation`"),
        (lambda: start_run("r", "tiny", {"seed": 1}), "a `Recipe`"),
        (lambda: greedy_search(step, {}, 5), r"`max_lengths` must.*\(batch\)"),
        (
            lambda: beam_search(step, {}, [5], prefix=[4, 5]),
            r"`prefix` must have shape \(batch, length\).*\(2,\)",
        ),
        (
            lambda: sample(step, {}, [5], min_lengths=2),
            "`min_lengths` must have shape",
        ),
        (
            lambda: blockwise_search(None, None, {}, [5], 3.0),
            r"integer.*block_size=3\.0",
        ),
        (
            lambda: beam_search(step, {"a": np.zeros((2, 3))}, [4, 5], 2),
            r"each beam of each sentence, 2 · 2.*\(2, 3\)",
        ),
    ],
)
def test_the_argument_is_named(call, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=expected):
        call()
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_become_pythons():
    recipe = Recipe(
        learning_rate_scale=np.float32(0.5), save_every_minutes=np.int64(3)
    )
    assert type(recipe.learning_rate_scale) is float
    assert TransformerConfig(31, dropout_rate=np.float16(0)).dropout_rate == 0


def test_an_unknown_activation_is_refused_before_the_corpus_is_read(
    recipe, tmp_path
):
    with pytest.raises(ValueError, match="bogus"):
        start_run(tmp_path / "run", "tiny", recipe, activation="bogus")
    with pytest.raises(ValueError, match="a `SearchSettings`"):
        start_run(tmp_path / "run", "tiny", recipe, search={"beam_size": 2})
    assert not list(tmp_path.iterdir())


def test_fractions_are_refused_before_anything_is_learned(run, capsys):
    for call in (
        lambda: train_draft_head(run, 2, steps=1.5),
        lambda: train_draft_head(run, 2.0),
        lambda: choose_weights(run, 2.5),
        lambda: export(run, "m/1", shortlist=2.5),
        lambda: export(run, "m/1", draft_tokens=2.0),
    ):
        with pytest.raises(ValueError, match="must be an integer"):
            call()
    assert capsys.readouterr().out == ""


def test_a_single_string_is_no_batch(run, exported):
    pieces, saved = run.source_tokenizer, SavedTranslator(exported)
    encode = GraphTokenizer(pieces).encode
    for call in (encode, saved.translate, saved.searched_with()):
        with pytest.raises(ValueError, match=r"shape=\(\). Give `\[text\]`"):
            call("Hello")
    with pytest.raises(ValueError, match=r"one string.* a list"):
        saved.explain(["Hello"])
    assert saved.translate([])["translation"].shape == (0,)
    assert encode([]).shape[0] == 0
    assert pieces.encode([]) == []


def test_ids_to_decode_are_integers_of_any_dtype(run):
    pieces = GraphTokenizer(run.source_tokenizer)
    ids = pieces.encode(["Room 7", "No"]).to_tensor().numpy()
    for given in (
        ids.astype("int64"),
        ids.tolist(),
        tf.constant(ids, "uint16"),
    ):
        assert pieces.decode(given).numpy().tolist() == [b"Room 7", b"No"]
        assert pieces.tokenizer.decode(np.array(given)) == ["Room 7", "No"]
    with pytest.raises(ValueError, match=r"Give `ids\[None\]` for one row"):
        pieces.decode(ids[0])


def test_an_interruption_can_be_pickled():
    error = pickle.loads(pickle.dumps(TrainingInterrupted(5, signal.SIGTERM)))
    assert (error.step, error.signal) == (5, signal.SIGTERM)
    assert "SIGTERM after step 5" in str(error)


@pytest.mark.usefixtures("unscored")
def test_training_does_not_reset_the_callers_random_numbers(run):
    """A random search would draw the same settings again and again."""
    model = Transformer(TransformerConfig(31, **SHAPE), seed=1)
    deeper = TransformerConfig(31, **SHAPE | {"num_layers": 2})

    def numbers():
        train(run, 8, verbose=0)
        with_other_depth(model, deeper, seed=1)
        return random.random(), np.random.random(), keras.random.uniform([])

    for one, other in zip(numbers(), numbers(), strict=True):
        assert float(one) != float(other)


def test_one_callback_is_a_list_of_one(recipe, tmp_path):
    """It stops the run at its first step."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    run = start_run(pathlib.Path(tmp_path, "run"), "tiny", recipe, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        train(run, 8, verbose=0, callbacks=Stop())
