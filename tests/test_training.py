"""Checks runs: how they start, train, stop and resume."""

import dataclasses
import json
import os
import re
import shutil
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import SMALL, all_of_one_bleu

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data.preparation import prepare
from keras_transformer.data.prepared_corpus import PreparedCorpus
from keras_transformer.data.tokenizer import train_tokenizer
from keras_transformer.inference.lines import translate_lines
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.lock import lock
from keras_transformer.training import callbacks, checkpoints, run_data
from keras_transformer.training.callbacks import read_log, steps_of
from keras_transformer.training.checkpoint_averaging import choose_weights
from keras_transformer.training.loop import TrainingInterrupted
from keras_transformer.training.models import (
    load_model,
    load_teachers,
    make_model,
    with_other_depth,
)
from keras_transformer.training.new_run import start_run
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.resume import (
    Best,
    ResumePoint,
    read_validated,
    resume,
)
from keras_transformer.training.run import (
    open_run,
    record_start,
    steps_to_train,
)
from keras_transformer.training.train_run import evaluate, train


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    """Returns a run of eight uninterrupted steps."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run = start_run(folder, "tiny", recipe, **SMALL)
    with all_of_one_bleu():
        train(run, 8, verbose=0)
    return run


@pytest.fixture
def copied(run, tmp_path):
    """Returns a copy of the run, to be changed."""
    return open_run(shutil.copytree(run.folder, tmp_path / "copied"))


def weights_at(run, step):
    path = dict(checkpoints.steps(run.checkpoints))[step]
    _, arrays = checkpoints.read(path)
    return arrays


@pytest.mark.parametrize("policy", ["float16", "mixed_bfloat16"])
def test_weights_are_not_rounded_under_any_policy(run, policy):
    expected = load_model(run).get_weights()
    keras.config.set_dtype_policy(policy)
    try:
        model = load_model(run)
    finally:
        keras.config.set_dtype_policy("float32")
    dtype = "bfloat16" if policy == "mixed_bfloat16" else "float32"
    assert model.compute_dtype == dtype
    for found, weight in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(found, weight)


def test_a_run_whose_pairs_are_incomplete_is_refused_at_once(copied):
    (copied.data / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"data' has no manifest\.json"):
        run_data.load_training_pairs(copied)
    shutil.rmtree(copied.data)
    with pytest.raises(ValueError, match=r"data' has no manifest\.json"):
        train(copied, 9)


def test_a_run_of_another_format_is_refused(copied):
    path = copied.folder / "run.json"
    record = json.loads(path.read_text()) | {"format": 1}
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"has format 1, .*Train again"):
        open_run(copied.folder)


@pytest.mark.parametrize("part", ["transformer", "recipe", "search"])
def test_a_field_of_a_newer_version_is_named(copied, part):
    path = copied.folder / "run.json"
    record = json.loads(path.read_text())
    record[part]["new_thing"] = 1
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"new_thing") as caught:
        open_run(copied.folder)
    assert "\n" not in str(caught.value)


def test_a_run_folder_has_all_its_files(run):
    metadata = json.loads((run.folder / "run.json").read_text())
    assert metadata["transformer"]["d_model"] == 22
    assert metadata["recipe"]["vocab_size"] == 400
    for name in ("log.jsonl", "logs", "training.png", "weights.npz"):
        assert (run.folder / name).exists()
    assert [s for s, _ in checkpoints.steps(run.checkpoints)] == [4, 8]
    lines = (run.folder / "starts.jsonl").read_text().splitlines()
    start = json.loads(lines[0])
    assert start["backend"] == f"tensorflow {tf.__version__}"
    assert start["dtype_policy"] == "float32"
    assert start["devices"] == 1
    assert start["processor"]
    again = open_run(run.folder)
    assert again.recipe == run.recipe
    assert again.config == run.config


def assert_same_weights(run, other, step):
    expected, found = weights_at(run, step), weights_at(other, step)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.usefixtures("unscored")
def test_a_resumed_run_equals_an_uninterrupted_one_bitwise(
    run, copied, corpus, recipe, tmp_path
):
    """It resumes at the end of an epoch and inside one, after it was killed.

    Neither checkpoints between validations nor a corpus whose text has changed
    since the run began make a difference.
    """

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if steps_of(self.model) == 6:
                raise KeyboardInterrupt

    changed = shutil.copytree(corpus, tmp_path / "corpus")
    for path in changed.glob("train.*"):
        path.unlink()
    often = dataclasses.replace(
        recipe, corpus=str(changed), save_every_minutes=1e-9
    )
    copied.weights.unlink()
    dict(checkpoints.steps(copied.checkpoints))[8].unlink()
    other = dataclasses.replace(copied, recipe=often)
    with pytest.raises(KeyboardInterrupt):
        train(other, 8, verbose=0, callbacks=[Kill()])
    assert [s for s, _ in checkpoints.steps(other.checkpoints)] == [4, 6]
    train(open_run(copied.folder), 8, verbose=0)
    assert [s for s, _ in checkpoints.steps(other.checkpoints)] == [4, 8]
    assert_same_weights(run, copied, 8)


def test_a_run_that_was_given_more_steps_keeps_them(copied, capsys):
    recipe = dataclasses.replace(copied.recipe, steps=5)
    run = dataclasses.replace(copied, recipe=recipe)
    train(run, verbose=0)
    assert "Nothing to do: the run has its 8 steps." in capsys.readouterr().out
    record_start(run, "float32", devices=1, steps=3)
    assert steps_to_train(run) == 8
    record_start(run, "float32", devices=1, steps=11)
    assert steps_to_train(run) == 11


@pytest.mark.usefixtures("unscored")  # no BLEU is better than the first
def test_patience_ends_a_run(copied, capsys):
    """Weights that are chosen while a run trains do not end it."""
    chosen = []

    class Choose(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if not chosen:
                choose_weights(run)
                chosen.append(checkpoints.read_metadata(run.weights)["chosen"])

    recipe = dataclasses.replace(copied.recipe, patience=2, steps=20)
    run = dataclasses.replace(copied, recipe=recipe)
    train(run, verbose=0, callbacks=[Choose()])
    assert chosen == ["average of 2, steps 4 to 8"]
    assert "of step 4 for 2 validations: done." in capsys.readouterr().out
    assert max(dict(checkpoints.steps(run.checkpoints))) == 12
    metadata = checkpoints.read_metadata(run.weights)
    assert metadata["chosen"] == "average of 3, steps 4 to 12"
    train(run, verbose=0)
    out = capsys.readouterr().out
    assert "no better BLEU in 2 validations. To train on, start a new" in out


def test_validations_without_any_bleu_do_not_end_a_run(copied, monkeypatch):
    """A run hardly begun has no right word for a while."""
    monkeypatch.setattr(
        callbacks, "translate_lines", lambda _, lines, **__: list(lines)
    )
    monkeypatch.setattr(callbacks.evaluation, "score", lambda *_: {"bleu": 0.0})
    recipe = dataclasses.replace(
        copied.recipe, patience=1, steps=12, validate_every=2
    )
    run = dataclasses.replace(copied, recipe=recipe)
    shutil.rmtree(run.checkpoints)
    train(run, verbose=0)
    assert max(dict(checkpoints.steps(run.checkpoints))) == 12


def test_checkpoints_of_another_run_are_refused(copied):
    path = copied.folder / "run.json"
    record = json.loads(path.read_text())
    record["recipe"]["seed"] = 2
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="belong to another run"):
        train(copied, 12, verbose=0)


class Signal(keras.callbacks.Callback):
    """Raises SIGTERM once: after a step, or during its validation."""

    def __init__(self, step, event):
        super().__init__()
        self.step = step
        self.event = event

    def at(self, event):
        if event == self.event and steps_of(self.model) == self.step:
            self.event = None
            signal.raise_signal(signal.SIGTERM)

    def on_train_batch_end(self, batch, logs=None):
        self.at("step")

    def on_test_begin(self, logs=None):
        self.at("validation")


@pytest.mark.programs
def test_an_interrupted_validation_is_repeated_on_resume(
    recipe, tmp_path, monkeypatch
):
    """Weights, validations and log are then those of an uninterrupted run."""
    run, other = (
        start_run(tmp_path / name, "tiny", recipe, **SMALL)
        for name in ("run", "other")
    )
    train(run, 8, verbose=0)
    for step, event in ((4, "step"), (4, "validation"), (8, "translation")):
        sender = Signal(step, event)

        def translate(*args, sender=sender, **kwargs):
            sender.at("translation")
            return translate_lines(*args, **kwargs)

        monkeypatch.setattr(callbacks, "translate_lines", translate)
        with pytest.raises(TrainingInterrupted, match=f"after step {step};"):
            train(open_run(other.folder), 8, verbose=0, callbacks=[sender])
        assert [s for s, _ in checkpoints.steps(other.checkpoints)][-1] == step
        # Training stopped without completing the validation.
        assert step not in read_validated(other)
    train(open_run(other.folder), 8, verbose=0)
    for step in (4, 8):
        assert_same_weights(run, other, step)
    assert read_validated(other) == read_validated(run)
    lines = [read_log(each.folder) for each in (run, other)]
    for line in [*lines[0], *lines[1]]:
        del line["tokens/s"]
    assert lines[0] == lines[1]


def test_only_one_process_at_a_time_trains_a_run(run):
    """A second process is refused. Files that a killed one left are removed."""
    partial = run.checkpoints / ".step-00000012.npz.4711-89abcdef"
    partial.write_bytes(b"half")
    with (
        lock(run.folder, "train a run"),
        pytest.raises(ValueError, match="another process works"),
    ):
        train(open_run(run.folder), 8, verbose=0)
    assert partial.exists()
    train(open_run(run.folder), 8, verbose=0)
    assert not partial.exists()


def test_validation_translates_greedily_by_the_search_of_the_run(run):
    search = SearchSettings(extra_length=7, max_source_length=999)
    other = dataclasses.replace(run, search=search)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            callbacks, "make_translate", lambda *args: seen.append(args[2])
        )
        pairs = run_data.SentencePairs([], [])
        callbacks.TranslationQuality(other, None, pairs)
    assert seen == [dataclasses.replace(search, beam_size=1)]


def test_pairs_without_a_loss_are_counted(run, capsys):
    lengths = run_data.load_split(run, "validation").encoded.lengths
    most = int(np.median(lengths.max(axis=1)))
    recipe = dataclasses.replace(run.recipe, max_length=most)
    found = run_data.load_split(
        dataclasses.replace(run, recipe=recipe), "validation"
    )
    long = len(found.pairs) - len(found.encoded)
    assert long > 0
    assert (
        f"validation: 61 pairs; left out 0 blank and, from the loss alone, "
        f"{long} longer than {most} word pieces." in capsys.readouterr().out
    )


def test_a_failing_plot_is_a_warning(run, monkeypatch):
    def fail(_):
        raise OSError("no room for a picture")

    monkeypatch.setattr(callbacks, "plot_training", fail)
    with pytest.warns(UserWarning, match="no room for a picture") as warned:
        callbacks.TrainingCurves(run).on_train_end()
    # The command shows the warnings of its own modules only.
    assert warned[0].filename == callbacks.__file__


@pytest.mark.usefixtures("unscored")
def test_a_run_ends_after_the_steps_of_its_recipe(recipe, tmp_path, capsys):
    """Here with separate vocabularies."""
    short = dataclasses.replace(recipe, steps=3, shared_vocabulary=False)
    run = start_run(tmp_path / "run", "tiny", short, **SMALL)
    model = train(run, verbose=0)
    assert run.source_tokenizer.model != run.target_tokenizer.model
    assert model.config.source_vocab_size == run.source_tokenizer.vocab_size
    assert [s for s, _ in checkpoints.steps(run.checkpoints)] == [3]
    # A validation after an early stop does not count as the best.
    metadata, _ = checkpoints.read(checkpoints.steps(run.checkpoints)[0][1])
    assert metadata["best"]["step"] == 0
    train(open_run(run.folder), verbose=0)
    assert "has its 3 steps" in capsys.readouterr().out


def test_pairs_that_are_left_out_are_counted(copied, recipe, tmp_path, capsys):
    short = dataclasses.replace(recipe, max_length=25, validate_every=1)
    run = start_run(tmp_path / "run", "tiny", short, **SMALL)
    out = capsys.readouterr().out
    pairs = PreparedCorpus(run.data)
    missing = 700 - len(pairs)
    assert missing > 0
    assert f"train: {len(pairs)} pairs; left out: {missing} too long.\n" in out
    assert pairs.read(np.arange(len(pairs)), 0).lengths.max() <= 25
    # Another run is not trained on these pairs.
    shutil.rmtree(copied.data)
    run.data.rename(copied.data)
    with pytest.raises(ValueError, match="has changed"):
        train(copied, 9, verbose=0)


def test_another_vocabulary_is_refused(copied):
    other = train_tokenizer(["eins zwei drei"] * 9, 290)
    (copied.folder / "target.model").write_bytes(other.model)
    with pytest.raises(ValueError, match=r"target.model.*not the vocabulary"):
        open_run(copied.folder)


def test_an_existing_folder_is_never_overwritten(run, recipe):
    with pytest.raises(ValueError, match="must not exist"):
        start_run(run.folder, "tiny", recipe, **SMALL)


def test_a_start_that_fails_leaves_nothing(recipe, tmp_path):
    greedy = dataclasses.replace(recipe, vocab_size=10**6)
    with pytest.raises(ValueError, match="vocab_size=1000000"):
        start_run(tmp_path / "run", "tiny", greedy, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_learned_positions_are_as_many_as_a_sentence_may_have(recipe, tmp_path):
    shape = {**SMALL, "positions": "learned", "key_dim": 7}
    run = start_run(tmp_path / "run", "tiny", recipe, **shape)
    assert run.config.max_length == recipe.max_length
    weights = {w.path: w.shape for w in make_model(run.config, recipe).weights}
    assert weights["embedding/position_embeddings"] == (recipe.max_length, 22)
    assert open_run(run.folder).config == run.config


def at_the_start(run):
    """Returns a model with the weights that a run begins with."""
    model = make_model(run.config, run.recipe)
    assert resume(run, model, 1) == ResumePoint(0, Best())
    return model


def test_a_run_can_start_with_the_weights_of_another(copied, recipe, tmp_path):
    """It copies weights and vocabulary; its data and dropout are its own."""
    expected = load_model(copied).get_weights()
    tuned = dataclasses.replace(
        recipe, initial_run=str(copied.folder), train_split="validation"
    )
    other = start_run(
        tmp_path / "run", "tiny", tuned, **SMALL, dropout_rate=0.2
    )
    shutil.rmtree(copied.folder)
    other = open_run(other.folder)
    model = at_the_start(other)
    assert other.target_tokenizer.model == copied.target_tokenizer.model
    assert len(run_data.load_training_pairs(other)) == 61
    assert model.config.dropout_rate == 0.2
    for found, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(found, value)


def test_an_initial_run_may_have_another_depth(run, recipe, tmp_path):
    tuned = dataclasses.replace(recipe, initial_run=str(run.folder))
    other = start_run(tmp_path / "run", None, tuned, num_encoder_layers=3)
    model = at_the_start(other)
    expected = with_other_depth(load_model(run), model.config, recipe.seed)
    assert len(model.encoder_layers) == 3
    for found, value in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(found, value)
    checkpoints.save(other.checkpoints, model, step=0)
    again = dataclasses.replace(tuned, initial_run=str(other.folder))
    whole = other.config.to_dict() | {"num_layers": 2}
    del whole["num_encoder_layers"], whole["num_decoder_layers"]
    deeper = start_run(tmp_path / "deeper", None, again, **whole)
    assert deeper.config.encoder_depth == deeper.config.decoder_depth == 2


@pytest.mark.programs
@pytest.mark.usefixtures("unscored")
def test_a_run_keeps_its_teacher(run, recipe, tmp_path):
    """It resumes without the teacher's run and ends as if not stopped; without
    a teacher it learns something else."""
    initial = tmp_path / "initial"
    shutil.copytree(run.folder, initial)
    taught = dataclasses.replace(
        recipe, initial_run=str(initial), teacher_weight=0.5
    )
    untaught = dataclasses.replace(taught, teacher_weight=0.0)
    for name in ("whole", "stopped", "untaught"):
        recipe = untaught if name == "untaught" else taught
        start_run(tmp_path / name, None, recipe, num_decoder_layers=2)
    shutil.rmtree(initial)
    train(open_run(tmp_path / "stopped"), 2, verbose=0)
    weights = {
        name: train(open_run(tmp_path / name), 4, verbose=0).get_weights()
        for name in ("whole", "stopped", "untaught")
    }
    (teacher,) = load_teachers(open_run(tmp_path / "whole"))
    for found, value in zip(
        teacher.get_weights(), load_model(run).get_weights(), strict=True
    ):
        np.testing.assert_array_equal(found, value)
    for one, other in zip(weights["whole"], weights["stopped"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert not (tmp_path / "untaught" / "teachers").exists()
    assert np.abs(weights["whole"][0] - weights["untaught"][0]).max() > 1e-6


def test_a_teacher_needs_a_run_and_a_weight(recipe):
    with pytest.raises(ValueError, match=r"weight=0\.5, initial_run=None"):
        dataclasses.replace(recipe, teacher_weight=0.5)
    with pytest.raises(ValueError, match=r"teachers=\('a',\), teacher_weight"):
        dataclasses.replace(recipe, teachers=["a"])


def test_several_teachers_teach_a_run_of_another_shape(run, recipe, tmp_path):
    """They are copied, and need the vocabulary of the run."""
    shape = {"d_model": 26, "num_heads": 2, "d_ff": 29, "num_layers": 1}
    names = {"teachers": [str(run.folder)] * 2, "teacher_weight": 0.5}
    tokenizers = run.source_tokenizer, run.target_tokenizer
    prepared = prepare(recipe.corpus, tmp_path / "p", tokenizers=tokenizers)
    corpus = str(prepared.folder)
    taught = dataclasses.replace(recipe, corpus=corpus, **names)
    new = start_run(tmp_path / "taught", "tiny", taught, **shape)
    assert open_run(new.folder).recipe.teachers == (str(run.folder),) * 2
    for teacher in load_teachers(open_run(new.folder)):
        assert teacher.config == run.config
    other = dataclasses.replace(taught, corpus=recipe.corpus, vocab_size=390)
    with pytest.raises(ValueError, match="vocabularies of the run"):
        start_run(tmp_path / "other", "tiny", other, **shape)
    assert not (tmp_path / "other").exists()


def test_a_model_of_another_depth_has_the_same_first_layers():
    config = TransformerConfig(
        31, num_layers=2, d_model=8, num_heads=2, d_ff=11, norm_first=True
    )
    model = Transformer(config, seed=1)
    for weight in model.weights:  # norms, too
        weight.assign(np.random.default_rng(2).normal(size=weight.shape))
    other = with_other_depth(
        model,
        dataclasses.replace(config, num_encoder_layers=3, num_decoder_layers=1),
        seed=5,
    )
    assert len(other.encoder_layers) == 3
    assert len(other.decoder_layers) == 1
    kept = [
        (other.target_embedding, model.target_embedding),
        (other.encoder_norm, model.encoder_norm),
        (other.decoder_norm, model.decoder_norm),
        (other.decoder_layers[0], model.decoder_layers[0]),
        *zip(other.encoder_layers[:2], model.encoder_layers, strict=True),
    ]
    for layer, trained in kept:
        for found, value in zip(layer.weights, trained.weights, strict=True):
            np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_layers": 2, "lora_rank": 2}, "num_layers=2, .* has 1"),
        ({"num_heads": 1}, "num_heads=1, .* has 2"),
        ({"norm_first": True}, "norm_first=True, .* has False"),
        ({"vocab_size": 390}, "vocab_size=390, .* has 400"),
        ({"initial_run": "/nowhere"}, "Not the folder of a run: '/nowhere'"),
    ],
    ids=str,
)
def test_an_initial_run_must_have_the_same_model(
    run, recipe, tmp_path, changes, expected
):
    shape, settings = dict(SMALL), {"initial_run": str(run.folder)}
    for name, value in changes.items():
        (settings if hasattr(recipe, name) else shape)[name] = value
    tuned = dataclasses.replace(recipe, **settings)
    with pytest.raises(ValueError, match=expected):
        start_run(tmp_path / "run", "tiny", tuned, **shape)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"vocab_size": 390}, "vocab_size=390. Leave it out"),
        ({"source_vocab_size": 50}, "source_vocab_size=50. Leave it out"),
        ({"source_features": 5}, "source_features=5. Leave it out"),
        ({"num_layer": 2}, "Unknown fields.*num_layer"),
    ],
    ids=str,
)
@pytest.mark.parametrize("preset", ["tiny", None])
def test_fields_that_no_run_can_have_are_refused(
    run, recipe, tmp_path, preset, changes, expected
):
    tuned = dataclasses.replace(recipe, initial_run=run.folder)  # a `Path`
    with pytest.raises(ValueError, match=expected):
        start_run(tmp_path / "run", preset, tuned, **SMALL | changes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 1e5}, {"keep_checkpoints": 5.0}, {"max_length": 64.5}],
    ids=str,
)
def test_numbers_of_steps_and_lengths_are_integers(run, wrong):
    with pytest.raises(ValueError, match="must be an integer"):
        Recipe(**wrong)
    with pytest.raises(ValueError, match=r"an integer.*steps=12\.0"):
        train(run, 12.0)


def test_what_is_not_chosen_is_not_scored(copied):
    model = load_model(copied)
    copied.weights.unlink()
    with pytest.raises(ValueError, match=r"none yet\. Call `train`"):
        evaluate(copied, model, "test")


@pytest.mark.parametrize(
    "content",
    [b'{"4": {"step": 4', b"[]", b'{"4": 5}', b'{"4": {"step": "x"}}', b"\xff"],
)
def test_a_damaged_record_of_validations_is_named(copied, content):
    (copied.checkpoints / "validated.json").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"validated\.json' is damaged.*Remove"
    ):
        train(copied, 12, verbose=0)


@pytest.mark.parametrize(
    "content",
    [b'{"format": 2', b"[5]", b"\xff", b'{"format": [[[[[[[5]]]]]]]}'],
)
def test_a_damaged_record_of_a_run_is_named(copied, content):
    (copied.folder / "run.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"(run\.json' is damaged|has format)"):
        open_run(copied.folder)


def test_parts_of_a_run_that_are_missing_are_named(copied):
    path = copied.folder / "run.json"
    record = json.loads(path.read_text())
    for name in record:
        changed = [{k: v for k, v in record.items() if k != name}]
        changed += [record | {name: x} for x in (5, None, [], "x", {"y": 1})]
        for other in changed:
            path.write_text(json.dumps(other))
            if name == "keras_transformer" or other.get(name) == record[name]:
                continue
            if name == "training_data" and name in other:
                # Compared with the data when training begins.
                assert open_run(copied.folder).data_fingerprint == other[name]
                continue
            with pytest.raises(ValueError, match=re.escape(str(copied.folder))):
                open_run(copied.folder)


def test_a_damaged_record_of_starts_is_named(copied):
    path = copied.folder / "starts.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(
        ValueError, match=r"starts\.jsonl' is damaged in line \d"
    ):
        train(copied, verbose=0)


def test_files_of_killed_processes_are_swept(copied):
    """But nothing else that begins with a dot."""
    left = [
        copied.folder / ".log.jsonl.123-0123abcd",
        copied.checkpoints / ".step-00000008.npz.123-0123abcd",
    ]
    others = [copied.folder / ".notes", copied.folder / ".notes.123"]
    for path in (*left, *others):
        path.write_text("")
    train(copied, 8, verbose=0)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_split_of_long_lines_leaves_no_folder(
    recipe, corpus, tmp_path, split
):
    folder = shutil.copytree(corpus, tmp_path / "corpus")
    for language in (recipe.source, recipe.target):
        (folder / f"{split}.{language}").write_text("word " * 300 + "\n")
    long = dataclasses.replace(
        recipe, corpus=str(folder), max_length=100, test_split="test"
    )
    with pytest.raises(ValueError, match=f"'{split}' has no pair left"):
        start_run(tmp_path / "runs" / "run", "tiny", long, **SMALL)
    assert os.listdir(tmp_path) == ["corpus"]


def test_a_signal_that_is_ignored_does_not_stop_training(copied):
    """As SIGINT is in what a shell runs in the background."""

    class Send(keras.callbacks.Callback):
        def __init__(self, number):
            self.number = number

        def on_epoch_begin(self, epoch, logs=None):
            os.kill(os.getpid(), self.number)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        train(copied, 12, verbose=0, callbacks=Send(signal.SIGINT))
        with pytest.raises(TrainingInterrupted) as caught:
            train(copied, 16, verbose=0, callbacks=Send(signal.SIGHUP))
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught.value.signal == signal.SIGHUP
    assert checkpoints.steps(copied.checkpoints)[-1][0] == caught.value.step


def test_damaged_initial_weights_are_an_error(run, recipe, tmp_path):
    tuned = dataclasses.replace(recipe, initial_run=str(run.folder))
    other = start_run(tmp_path / "run", "tiny", tuned, **SMALL)
    (path,) = other.initial.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    with (
        pytest.warns(UserWarning, match="initial"),
        pytest.raises(ValueError, match="initial"),
    ):
        train(other, 1, verbose=0)
