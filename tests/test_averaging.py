import shutil

import numpy as np
import pytest

from keras_transformer.training import checkpoints, score, weights_choice
from keras_transformer.training.models import load_model
from keras_transformer.training.progress import Best, write_validated
from keras_transformer.training.run import open_run


def copy_of(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    return open_run(tmp_path / "run")


def scores(monkeypatch, *values):
    """Candidates get these BLEUs, in their order."""
    left = list(values)
    monkeypatch.setattr(score, "translate_lines", lambda *_, **__: [])
    monkeypatch.setattr(
        score.evaluation, "score", lambda *_: {"bleu": left.pop(0)}
    )


def test_an_average_is_the_mean_of_the_weights(run):
    paths = [path for _, path in checkpoints.steps(run.checkpoints)]
    name, found = weights_choice._candidates(run, load_model(run), 2).popitem()
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
        # "Kept if validation BLEU does not fall":
        ((2.0, 3.0, 3.0), "average of 2, steps 4 to 8"),
    ],
)
def test_validation_chooses(run, tmp_path, monkeypatch, bleu, chosen):
    mine = copy_of(run, tmp_path)
    write_validated(mine, 8, Best(step=4))
    scores(monkeypatch, *bleu)
    model = weights_choice.choose_weights(mine)
    about, arrays = checkpoints.read(mine.weights)
    assert about["chosen"] == chosen
    assert about["val_bleu"] == max(bleu)
    # And this is what the run's model is, also when it is loaded.
    for candidate in (model, load_model(mine)):
        for name, value in checkpoints.state_of(candidate)["weights"].items():
            np.testing.assert_array_equal(arrays[f"weights/{name}"], value)


def test_a_damaged_checkpoint_is_passed_over(run, tmp_path, monkeypatch):
    mine = copy_of(run, tmp_path)
    dict(checkpoints.steps(mine.checkpoints))[8].write_bytes(b"")
    scores(monkeypatch, 1.0)
    with pytest.warns(UserWarning, match=r"step-00000008.*damaged"):
        weights_choice.choose_weights(mine)
    assert checkpoints.read(mine.weights)[0]["chosen"] == "step 4"
