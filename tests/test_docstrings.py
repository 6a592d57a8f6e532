"""Every public name has an example, and it runs.

The examples of what needs TensorFlow tell one story, in a folder with a small
corpus: a run is trained and exported, and it translates.
"""

import contextlib
import doctest
import pathlib
import shutil
import sys

import pytest

import keras_transformer
from keras_transformer import data, export, inference, layers, training
from keras_transformer.integrations import marian
from keras_transformer.testing import assert_no_leak

# Those of layers that are not public at the top.
OF_LAYERS = sorted(
    name
    for name, value in vars(layers).items()
    if callable(value) and name not in keras_transformer.__all__
)
ROOMS = (data, training, inference, export, marian)
MARIAN = pathlib.Path(__file__).parent / "pretrained" / "opus-mt-tiny"
PAIRS = {
    "Good morning.": "Guten Morgen.",
    "Room 7 is on the third floor.": "Zimmer 7 ist im dritten Stock.",
    "The clock is slow.": "Die Uhr geht nach.",
}


def names_of(*modules):
    return [getattr(m, name) for m in modules for name in m.__all__]


def failures(public, names):
    """Runs the example of a public name; returns where it fails."""
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(public, public.__name__, globs=dict(names))
    assert test.examples, f"{public.__name__} has no example"
    report = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append)
    return "".join(report)


def failures_alone(public):
    """As a user's, the example has to import all names but its own."""
    return failures(public, {public.__name__: public})


@pytest.mark.parametrize(
    "public",
    [
        *names_of(keras_transformer),
        *(getattr(layers, name) for name in OF_LAYERS),
        assert_no_leak,
    ],
    ids=lambda public: public.__name__,
)
def test_the_example_runs(public):
    found = failures(public, vars(sys.modules[public.__module__]))
    assert not found, found


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A folder in which the examples of `train` and `export` were run, the
    others need what they wrote; and where these two failed."""
    folder = tmp_path_factory.mktemp("story")
    shutil.copytree(MARIAN, folder / "opus-mt-en-de")
    (folder / "corpus").mkdir()
    for split in ("train", "validation", "test"):
        for language, lines in (("en", PAIRS), ("de", PAIRS.values())):
            text = "".join(line + "\n" for line in lines)
            path = folder / "corpus" / f"{split}.{language}"
            path.write_text(text, "utf-8")
    recipe = training.Recipe(
        corpus="corpus",
        vocab_size=300,
        warmup_steps=20,
        learning_rate_scale=0.2,
        label_smoothing=0.0,
        dtype_policy="float32",
        validate_every=40,
        steps=80,
    )
    shape = {"num_layers": 1, "d_model": 32, "num_heads": 2, "d_ff": 64}
    with contextlib.chdir(folder):
        training.start_run(
            "runs/demo", "tiny", recipe, **shape, dropout_rate=0.0
        )
        first = (training.train, export.export)
        return folder, {public: failures_alone(public) for public in first}


@pytest.mark.parametrize(
    "public",
    names_of(*ROOMS),
    ids=lambda public: f"{public.__module__.split('.')[1]}-{public.__name__}",
)
def test_the_example_runs_after_training(public, story, monkeypatch):
    folder, found_before = story
    monkeypatch.chdir(folder)
    found = found_before.get(public)
    if found is None:
        found = failures_alone(public)
    assert not found, found


@pytest.mark.parametrize(
    ("module", "names"),
    [
        *((m, m.__all__) for m in (keras_transformer, *ROOMS)),
        (layers, OF_LAYERS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_public_name_is_in_the_documentation(module, names):
    page = pathlib.Path(__file__).parents[1] / "docs" / "api.md"
    listed = page.read_text("utf-8").split()
    for name in names:
        assert f"{module.__name__}.{name}" in listed, f"add {name} to {page}"
