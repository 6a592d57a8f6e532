"""Checks runs: how they start, train, stop and resume."""

import dataclasses
import json
import shutil
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import SMALL

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data.prepared_corpus import PreparedCorpus
from keras_transformer.inference.lines import translate_lines
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.lock import lock
from keras_transformer.training import callbacks, checkpoints, run_data
from keras_transformer.training.callbacks import read_log, steps_of
from keras_transformer.training.checkpoint_averaging import choose_weights
from keras_transformer.training.loop import TrainingInterrupted
from keras_transformer.training.models import (
    load_model,
    load_teacher,
    with_other_depth,
)
from keras_transformer.training.new_run import start_run
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.resume import read_validated
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
    train(run, 8, verbose=0)
    return run


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


def test_a_run_whose_pairs_are_incomplete_is_refused_at_once(run, tmp_path):
    copy = shutil.copytree(run.folder, tmp_path / "run")
    (copy / "data" / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"data' has no manifest\.json"):
        run_data.load_training_pairs(open_run(copy))


def test_a_run_folder_has_all_its_files(run):
    metadata = json.loads((run.folder / "run.json").read_text())
    assert metadata["transformer"]["d_model"] == 22
    assert metadata["recipe"]["vocab_size"] == 400
    assert {p.name for p in run.folder.iterdir()} == {
        "run.json",
        "data",
        "source.model",
        "target.model",
        ".lock",
        "checkpoints",
        "starts.jsonl",
        "log.jsonl",
        "logs",
        "training.png",
        "weights.npz",
    }
    assert [s for s, _ in checkpoints.steps(run.checkpoints)] == [4, 8]
    lines = (run.folder / "starts.jsonl").read_text().splitlines()
    start = json.loads(lines[0])
    assert start["tensorflow"] == tf.__version__
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
    run, recipe, tmp_path
):
    """The run resumes at the end of an epoch, and inside one."""
    other = start_run(tmp_path / "run", "tiny", recipe, **SMALL)
    for steps in (4, 6, 8):
        train(open_run(other.folder), steps, verbose=0)
    assert_same_weights(run, other, 8)


@pytest.mark.usefixtures("unscored")
def test_weights_chosen_while_a_run_trains_do_not_end_it(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    run = open_run(tmp_path / "run")
    looked = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            choose_weights(run)
            looked.append(checkpoints.read_metadata(run.weights)["chosen"])

    train(run, 9, verbose=0, callbacks=[Look()])
    assert looked == ["average of 2, steps 4 to 8"]
    chosen = checkpoints.read_metadata(run.weights)["chosen"]
    assert chosen == "average of 3, steps 4 to 9"


def test_a_run_that_was_given_more_steps_keeps_them(run, tmp_path, capsys):
    shutil.copytree(run.folder, tmp_path / "run")
    recipe = dataclasses.replace(run.recipe, steps=5)
    run = dataclasses.replace(run, folder=tmp_path / "run", recipe=recipe)
    train(run, verbose=0)
    assert "Nothing to do: the run has its 8 steps." in capsys.readouterr().out
    record_start(run, "float32", devices=1, steps=3)
    with open(run.folder / "starts.jsonl", "a") as file:
        file.write('{"devices": 1}\n{"steps": 9')  # as 0.1 wrote it; cut short
    assert steps_to_train(run) == 8
    record_start(run, "float32", devices=1, steps=11)
    assert steps_to_train(run) == 11


@pytest.mark.usefixtures("unscored")  # no BLEU is better than the first
def test_patience_ends_a_run(recipe, tmp_path, capsys):
    patient = dataclasses.replace(
        recipe, validate_every=2, patience=2, steps=20
    )
    run = start_run(tmp_path / "run", "tiny", patient, **SMALL)
    train(run, verbose=0)
    assert "of step 2 for 2 validations: done." in capsys.readouterr().out
    assert max(dict(checkpoints.steps(run.checkpoints))) == 6
    train(open_run(run.folder), verbose=0)
    out = capsys.readouterr().out
    assert "no better BLEU in 2 validations. To train on, start a new" in out


@pytest.mark.usefixtures("unscored")
def test_checkpoints_of_another_run_are_refused(run, recipe, tmp_path):
    others = dataclasses.replace(recipe, seed=2)
    other = start_run(tmp_path / "run", "tiny", others, **SMALL)
    shutil.copytree(run.checkpoints, other.checkpoints)
    with pytest.raises(ValueError, match="belong to another run"):
        train(other, 12, verbose=0)


@pytest.mark.usefixtures("unscored")
def test_checkpoints_between_validations_do_not_change_a_run(
    run, recipe, tmp_path
):
    """Saves after every step, and interrupts the run after the sixth."""

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if steps_of(self.model) == 6:
                raise KeyboardInterrupt

    often = dataclasses.replace(recipe, save_every_minutes=1e-9)
    other = start_run(tmp_path / "run", "tiny", often, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        train(other, 8, verbose=0, callbacks=[Kill()])
    assert [s for s, _ in checkpoints.steps(other.checkpoints)] == [4, 6]
    train(open_run(other.folder), 8, verbose=0)
    assert [s for s, _ in checkpoints.steps(other.checkpoints)] == [4, 8]
    assert_same_weights(run, other, 8)


def test_a_run_without_the_newest_settings_still_opens(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    metadata = json.loads(path.read_text())
    del metadata["recipe"]["save_every_minutes"]
    metadata["recipe"]["warmup_steps"] = float(run.recipe.warmup_steps)
    path.write_text(json.dumps(metadata))
    recipe = open_run(path.parent).recipe
    assert recipe == run.recipe
    assert type(recipe.warmup_steps) is int


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
    run, recipe, tmp_path, monkeypatch
):
    """Weights, validations and log are then those of an uninterrupted run."""
    other = start_run(tmp_path / "run", "tiny", recipe, **SMALL)
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


def test_a_finished_run_is_not_changed(run, capsys):
    before = weights_at(run, 8)
    train(open_run(run.folder), 8, verbose=0)
    assert "Nothing to do" in capsys.readouterr().out
    after = weights_at(run, 8)
    np.testing.assert_array_equal(
        before["weights/embedding/embeddings"],
        after["weights/embedding/embeddings"],
    )


def test_only_one_process_at_a_time_trains_a_run(run):
    """A second process is refused. Files that a killed one left are removed."""
    partial = run.checkpoints / ".step-00000012.npz.4711"
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
            callbacks, "make_scorer", lambda *args: seen.append(args[3])
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
    run = start_run(
        tmp_path / "run", "tiny", dataclasses.replace(recipe, steps=3), **SMALL
    )
    train(run, verbose=0)
    assert [s for s, _ in checkpoints.steps(run.checkpoints)] == [3]
    # A validation after an early stop does not count as the best.
    metadata, _ = checkpoints.read(checkpoints.steps(run.checkpoints)[0][1])
    assert metadata["best"]["step"] == 0
    train(open_run(run.folder), verbose=0)
    assert "has its 3 steps" in capsys.readouterr().out


@pytest.mark.usefixtures("unscored")
def test_separate_vocabularies_train_and_translate(recipe, tmp_path):
    from keras_transformer.inference.translator import Translator

    separate = dataclasses.replace(
        recipe, shared_vocabulary=False, validate_every=2
    )
    run = start_run(tmp_path / "run", "tiny", separate, **SMALL)
    model = train(run, 2, verbose=0)
    assert run.source_tokenizer.model != run.target_tokenizer.model
    translator = Translator(model, run.source_tokenizer, run.target_tokenizer)
    found = translator.compiled()(tf.constant(["one", ""]))
    assert found["translation"].shape == (2,)


def test_pairs_that_are_left_out_are_counted(corpus, recipe, tmp_path, capsys):
    short = dataclasses.replace(recipe, max_length=25, validate_every=1)
    run = start_run(tmp_path / "run", "tiny", short, **SMALL)
    out = capsys.readouterr().out
    pairs = PreparedCorpus(run.data)
    missing = 700 - len(pairs)
    assert missing > 0
    assert f"train: {len(pairs)} pairs; left out: {missing} too long.\n" in out
    assert pairs.read(np.arange(len(pairs)), 0).lengths.max() <= 25


@pytest.mark.usefixtures("unscored")
def test_a_run_keeps_the_pairs_that_it_began_with(
    run, corpus, recipe, tmp_path
):
    """Its training goes on as before when the corpus has changed."""
    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy)
    own = dataclasses.replace(recipe, corpus=str(copy))
    other = start_run(tmp_path / "run", "tiny", own, **SMALL)
    for language in ("en", "de"):
        (copy / f"train.{language}.gz").unlink()
    train(open_run(other.folder), 8, verbose=0)
    expected, found = (
        checkpoints.read_weights(run.weights, load_model(run)).values()
        for run in (run, other)
    )
    for x, y in zip(expected, found, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_flipped_byte_in_the_prepared_pairs_is_named(recipe, tmp_path):
    run = start_run(tmp_path / "run", "tiny", recipe, **SMALL)
    for path in run.data.glob("*.npy"):
        data = path.read_bytes()
        damaged = bytearray(data)
        damaged[len(data) // 2] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{path.name}' is damaged"):
            train(open_run(run.folder), 8, verbose=0)
        path.write_bytes(data)


def test_other_prepared_pairs_are_refused(recipe, tmp_path):
    runs = [
        start_run(tmp_path / str(n), "tiny", some, **SMALL)
        for n, some in enumerate(
            (recipe, dataclasses.replace(recipe, max_length=25))
        )
    ]
    shutil.rmtree(runs[0].data)
    runs[1].data.rename(runs[0].data)
    with pytest.raises(ValueError, match="has changed"):
        train(open_run(runs[0].folder), 8, verbose=0)


def test_the_vocabulary_of_another_run_is_refused(run, recipe, tmp_path):
    other = start_run(
        tmp_path / "run",
        "tiny",
        dataclasses.replace(recipe, vocab_size=390),
        **SMALL,
    )
    (other.folder / "target.model").write_bytes(run.target_tokenizer.model)
    with pytest.raises(ValueError, match=r"target.model.*not the vocabulary"):
        open_run(other.folder)


def test_an_existing_folder_is_never_overwritten(run, recipe):
    with pytest.raises(ValueError, match="must not exist"):
        start_run(run.folder, "tiny", recipe, **SMALL)


def test_a_start_that_fails_leaves_nothing(recipe, tmp_path):
    greedy = dataclasses.replace(recipe, vocab_size=10**6)
    with pytest.raises(ValueError, match="vocab_size=1000000"):
        start_run(tmp_path / "run", "tiny", greedy, **SMALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("unscored")
def test_a_run_can_start_with_the_weights_of_another(run, recipe, tmp_path):
    """It copies weights and vocabulary; its data and dropout are its own."""
    initial = tmp_path / "initial"
    shutil.copytree(run.folder, initial)
    tuned = dataclasses.replace(
        recipe,
        initial_run=str(initial),
        train_split="validation",
        learning_rate_scale=1e-9,
    )
    other = start_run(
        tmp_path / "run", "tiny", tuned, **SMALL, dropout_rate=0.2
    )
    shutil.rmtree(initial)
    model = train(open_run(other.folder), 1, verbose=0)
    assert other.target_tokenizer.model == run.target_tokenizer.model
    assert model.config.dropout_rate == 0.2
    expected = load_model(run).get_weights()
    for found, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, value, atol=1e-6)


@pytest.mark.usefixtures("unscored")
def test_an_initial_run_may_have_another_depth(run, recipe, tmp_path):
    tuned = dataclasses.replace(
        recipe, initial_run=str(run.folder), learning_rate_scale=1e-9
    )
    other = start_run(tmp_path / "run", None, tuned, num_encoder_layers=3)
    model = train(open_run(other.folder), 1, verbose=0)
    expected = with_other_depth(load_model(run), model.config, recipe.seed)
    assert len(model.encoder_layers) == 3
    again = dataclasses.replace(tuned, initial_run=str(other.folder))
    whole = other.config.to_dict() | {"num_layers": 2}
    del whole["num_encoder_layers"], whole["num_decoder_layers"]
    deeper = start_run(tmp_path / "deeper", None, again, **whole)
    assert deeper.config.encoder_depth == deeper.config.decoder_depth == 2
    for found, value in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_allclose(found, value, atol=1e-6)


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
    teacher = load_teacher(open_run(tmp_path / "whole"))
    for found, value in zip(
        teacher.get_weights(), load_model(run).get_weights(), strict=True
    ):
        np.testing.assert_array_equal(found, value)
    for one, other in zip(weights["whole"], weights["stopped"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert not (tmp_path / "untaught" / "teacher").exists()
    assert np.abs(weights["whole"][0] - weights["untaught"][0]).max() > 1e-6


def test_a_teacher_needs_an_initial_run(recipe):
    with pytest.raises(ValueError, match=r"weight=0\.5, initial_run=None"):
        dataclasses.replace(recipe, teacher_weight=0.5)


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


def test_what_is_not_chosen_is_not_scored(run, tmp_path):
    model = load_model(run)
    run = open_run(shutil.copytree(run.folder, tmp_path / "run"))
    run.weights.unlink()
    with pytest.raises(ValueError, match=r"none yet\. Call `train`"):
        evaluate(run, model, "test")


def test_a_damaged_record_of_validations_is_named(run, tmp_path):
    run = open_run(shutil.copytree(run.folder, tmp_path / "run"))
    path = run.checkpoints / "validated.json"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(
        ValueError, match=r"validated\.json' is damaged.*Remove"
    ):
        train(run, 12, verbose=0)


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
