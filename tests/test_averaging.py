"""Checks how a run chooses its final weights, and averages checkpoints."""

import shutil

import numpy as np
import pytest

from keras_transformer.training import checkpoint_averaging, checkpoints
from keras_transformer.training.models import load_model
from keras_transformer.training.resume import Best, write_validated
from keras_transformer.training.run import open_run


def copy_of(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    return open_run(tmp_path / "run")


def fake_bleu_scores(monkeypatch, *values):
    """Gives the candidates these BLEU scores, in order."""
    left = list(values)
    monkeypatch.setattr(
        checkpoint_averaging,
        "make_scorer",
        lambda *_: lambda: {"bleu": left.pop(0)},
    )


def test_an_average_is_the_mean_of_the_weights(run):
    paths = [path for _, path in checkpoints.steps(run.checkpoints)]
    name, found = checkpoint_averaging._candidates(
        run, load_model(run), 2
    ).popitem()
    assert name == "average of 2, steps 4 to 8"
    each = [checkpoints.read(path)[1] for path in paths]
    assert all(name.startswith("weights") for name in found)
    for name, value in found.items():
        expected = np.mean([arrays[name] for arrays in each], axis=0)
        np.testing.assert_allclose(value, expected, atol=1e-7)


@pytest.mark.parametrize(
    ("bleu", "chosen"),
    [
        ((3.0, 2.0, 1.0), "step 4"),
        ((2.0, 3.0, 1.0), "step 8"),
        ((2.0, 2.5, 3.0), "average of 2, steps 4 to 8"),
        # The average is preferred if its BLEU is equal:
        ((2.0, 3.0, 3.0), "average of 2, steps 4 to 8"),
    ],
)
def test_the_weights_with_the_best_validation_bleu_are_chosen(
    run, tmp_path, monkeypatch, bleu, chosen
):
    copied = copy_of(run, tmp_path)
    write_validated(copied, 8, Best(step=4))
    fake_bleu_scores(monkeypatch, *bleu)
    model = checkpoint_averaging.choose_weights(copied)
    metadata, arrays = checkpoints.read(copied.weights)
    assert metadata["chosen"] == chosen
    assert metadata["val_bleu"] == max(bleu)
    # The returned model and a loaded one both have the chosen weights.
    for candidate in (model, load_model(copied)):
        for name, value in checkpoints.state_of(candidate)["weights"].items():
            np.testing.assert_array_equal(arrays[f"weights/{name}"], value)


def test_a_damaged_checkpoint_is_reported_and_skipped(
    run, tmp_path, monkeypatch
):
    copied = copy_of(run, tmp_path)
    dict(checkpoints.steps(copied.checkpoints))[8].write_bytes(b"")
    fake_bleu_scores(monkeypatch, 1.0)
    with pytest.warns(UserWarning, match=r"step-00000008.*damaged"):
        checkpoint_averaging.choose_weights(copied)
    assert checkpoints.read(copied.weights)[0]["chosen"] == "step 4"
