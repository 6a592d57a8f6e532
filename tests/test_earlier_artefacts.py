"""Checks that files of an earlier commit, f0b0749, give the same numbers."""

import importlib
import pathlib
import tarfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import moved
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.training import checkpoints
from keras_transformer.training.models import load_model
from keras_transformer.training.run import open_run
from keras_transformer.training.train_run import train

ARCHIVE = pathlib.Path(__file__).parent / "earlier" / "f0b0749.tar.xz"
LINES = ["The meeting is on Monday.", "I bought a red car.", ""]
TRANSLATIONS = ["Am Montag.", "Ein Auto.", "x"]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def expected(earlier):
    return dict(np.load(earlier / "expected.npz"))


def test_the_keras_file_of_a_transformer_loads(earlier, expected):
    """It was compiled with our Adam, which is found by its old path."""
    model = keras.models.load_model(earlier / "transformer.keras")
    ids = {name: expected[name] for name in ("source", "target")}
    np.testing.assert_allclose(model(ids), expected["logits"], atol=1e-5)
    assert type(model.optimizer).__name__ == "Adam"
    assert type(model.optimizer).__module__.startswith("keras_transformer")


def test_the_keras_file_of_composed_layers_loads(earlier, expected):
    model = keras.models.load_model(earlier / "composed.keras")
    found = model([expected["s"], expected["t"]])
    np.testing.assert_allclose(found, expected["composed"], atol=1e-5)


def test_the_export_translates_and_scores_as_it_did(earlier, expected):
    model = SavedTranslator(earlier / "model" / "1")
    found = model.translate(tf.constant(LINES))
    assert found["translation"].numpy().tolist() == [
        *expected["translation"].tolist()
    ]
    assert any(found["translation"].numpy())
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-4)
    scored = model.loaded.signatures["score"](
        text=tf.constant(LINES), translation=tf.constant(TRANSLATIONS)
    )
    np.testing.assert_allclose(scored["score"], expected["scored"], rtol=1e-4)


@pytest.mark.usefixtures("unscored")
def test_the_run_loads_and_resumes(earlier, expected, monkeypatch):
    """Two more steps lead about where they led then.

    They see other batches, of the same pairs. The best checkpoint was also
    stored as `best.npz`; now it has only the name of its step.
    """
    monkeypatch.chdir(earlier)  # its recipe names the corpus from there
    run = open_run("run")
    ids = {name: expected[name] for name in ("source", "target")}
    found = load_model(run)(ids)
    np.testing.assert_allclose(found, expected["logits"], atol=1e-5)
    assert (run.checkpoints / "best.npz").exists()
    train(run, 302, verbose=0)
    assert not (run.checkpoints / "best.npz").exists()
    assert {300, 302} <= dict(checkpoints.steps(run.checkpoints)).keys()
    model, paths = load_model(run), dict(checkpoints.steps(run.checkpoints))
    before, after = (
        checkpoints.read_weights(paths[step], model).values()
        for step in (300, 302)
    )
    # Arrays were numbered then, not named.
    names = sorted(name for name in expected if name.startswith("weights."))
    moved, apart = [], []
    for name, start, value in zip(names, before, after, strict=True):
        moved.append(np.abs(expected[name] - start).ravel())
        apart.append(np.abs(expected[name] - value).ravel())
    moved, apart = np.concatenate(moved), np.concatenate(apart)
    assert apart.mean() < 0.5 * moved.mean(), (apart.mean(), moved.mean())


def test_a_best_checkpoint_without_the_name_of_its_step_gets_it(
    earlier, tmp_path
):
    step, path = checkpoints.steps(earlier / "run" / "checkpoints")[0]
    (tmp_path / "best.npz").write_bytes(path.read_bytes())
    checkpoints.adopt_best(tmp_path)
    assert [found for found, _ in checkpoints.steps(tmp_path)] == [step]
    assert not (tmp_path / "best.npz").exists()


# Names that README, guides and examples imported at f0b0749.
NAMES = {
    "callbacks": ["read_log"],
    "checkpoints": ["read"],
    "checks": ["assert_no_leak"],
    "data.corpus": ["load_pairs"],
    "data.grammar": ["sentence_pairs"],
    "decoding": ["beam_search", "length_penalty"],
    "distribution": ["default_strategy"],
    "evaluation": ["score"],
    "interop.ctranslate2": ["export"],
    "lines": ["translate_lines"],
    "optimizer": ["Adam"],
    "plots": ["plot_attention", "plot_training"],
    "recipe": ["Recipe"],
    "run": ["Recipe", "open_run", "sha256", "start_run"],
    "sampling": ["greedy_search", "sample"],
    "saved_model": ["SavedTranslator", "digest", "export"],
    "training": ["evaluate", "make_model", "train"],
    "training_loop": ["TrainingInterrupted"],
    "translator": ["SearchSettings", "Translator"],
}


@pytest.mark.parametrize("module", NAMES)
def test_moved_names_can_be_imported_from_their_old_modules(module):
    found = importlib.import_module(f"keras_transformer.{module}")
    for name in NAMES[module]:
        assert callable(getattr(found, name)), name


def test_the_error_for_an_unknown_name_says_where_to_look():
    run = importlib.import_module("keras_transformer.run")
    with pytest.raises(AttributeError, match=r"moved to `keras_transf.*run`"):
        _ = run.no_such_name


def test_no_old_module_name_is_that_of_a_new_module():
    package = pathlib.Path(moved.__file__).parent
    for old in moved.MOVED:
        path = package.joinpath(*old.split("."))
        assert not path.with_suffix(".py").exists(), old
        assert not path.is_dir(), old
