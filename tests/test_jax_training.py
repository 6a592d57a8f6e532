"""Trains on JAX, in processes in which TensorFlow cannot be imported."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.inference import capitals
from keras_transformer.inference.layer_translator import LayerTranslator
from keras_transformer.inference.line_translator import (
    as_sentence,
    is_in_capitals,
)
from keras_transformer.inference.translator import Translator
from keras_transformer.training import checkpoints, load_model, open_run

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
PROGRAM = """
import json, pathlib, signal, sys
sys.modules.update(tensorflow=None, tensorflow_text=None)
sys.modules.update(tensorflow_datasets=None)

import keras
from keras_transformer.training import (
    Recipe, TrainingInterrupted, load_model, open_run, start_run, train
)
from keras_transformer.training.callbacks import make_translate, steps_of
from keras_transformer.training.run_data import load_split

class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if steps_of(self.model) == 130:
            signal.raise_signal(signal.SIGTERM)

folder, settings = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
for name, callbacks in (("whole", ()), ("stopped", Stop())):
    recipe = Recipe(**settings)
    run = start_run(
        folder / name, "tiny", recipe, num_layers=1, d_model=34, num_heads=2,
        d_ff=41,
    )
    try:
        train(run, verbose=0, callbacks=callbacks)
    except TrainingInterrupted as stop:
        print(stop)
        train(open_run(folder / name), verbose=0)
run = open_run(folder / "whole")
sources = load_split(run, "test").pairs.source
translate = make_translate(run, load_model(run), run.search)
found = translate(["", *sources])["translation"]
(folder / "found.json").write_text(json.dumps(found))

from keras_transformer.training import SyntheticPairs, distill

(folder / "text.en").write_text("".join(line + "\\n" for line in sources[:5]))
distill(run, [folder / "text.en"], folder / "made", SyntheticPairs(beam_size=4))
"""


@pytest.mark.programs
def test_a_run_of_jax_resumes_bitwise_and_tensorflow_translates_alike(
    tmp_path,
):
    """It learns nine sentences by heart, so that no rounding decides."""
    pairs = [
        (f"{a} {b} {b} {a}".capitalize(), f"{x} {y} {y} {x}".capitalize())
        for a, x in (("one", "eins"), ("two", "zwei"), ("three", "drei"))
        for b, y in (("red", "rot"), ("blue", "blau"), ("gray", "grau"))
    ]
    for side, language in enumerate(("en", "de")):
        text = "".join(pair[side] + "\n" for pair in pairs)
        for split in ("train", "validation", "test"):
            (tmp_path / f"{split}.{language}").write_text(text)
    settings = {
        "corpus": str(tmp_path),
        "vocab_size": 320,
        "steps": 200,
        "validate_every": 100,
        "warmup_steps": 60,
        "learning_rate_scale": 0.3,
        "dtype_policy": "float32",
        "test_split": "test",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), json.dumps(settings)],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "PYTHONPATH": str(EXAMPLES),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Stopped by SIGTERM after step 131" in done.stdout
    whole, stopped = (open_run(tmp_path / x) for x in ("whole", "stopped"))
    for run in (whole, stopped):
        assert checkpoints.steps(run.checkpoints)[-1][0] == 200
        assert (run.folder / "training.png").exists()
    (_, one), (_, other) = (
        checkpoints.read(checkpoints.steps(run.checkpoints)[-1][1])
        for run in (whole, stopped)
    )
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)

    sources, targets = map(list, zip(*pairs, strict=True))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == ["", *targets]
    made = (tmp_path / "made" / "train-000000.de").read_text()
    assert made.splitlines() == targets[:5]
    # TensorFlow translates alike, in its graph and by the layers.
    most = len(whole.source_tokenizer.encode(sources)[0]) - 1
    search = dataclasses.replace(whole.search, max_source_length=most)
    tokenizers = whole.source_tokenizer, whole.target_tokenizer
    arguments = load_model(whole), *tokenizers, search
    texts = [sources[0], "", " \u200b", sources[0].upper(), f"{sources[0]} red"]
    expected = [targets[0], "", "", targets[0].upper(), targets[0]]
    by_layers = LayerTranslator(*arguments).translate(texts)
    assert by_layers["translation"] == expected
    found = Translator(*arguments).translate(texts)
    assert [x.decode() for x in found["translation"].numpy()] == expected
    np.testing.assert_allclose(by_layers["score"], found["score"], atol=1e-4)
    for name in ("truncated", "incomplete"):
        assert by_layers[name] == found[name].numpy().tolist()
    assert by_layers["truncated"] == [False] * 4 + [True]


@pytest.mark.parametrize(
    "text",
    ["ROOM 7 IS", "NATO", "NATO OK", "Room IS AT", "ÜBER ÄRGER", "ΟΔΟΣ ΑΒ", ""],
)
def test_capitals_are_what_the_graph_takes_for_them(text):
    one = capitals.is_in_capitals(tf.constant([text])).numpy()[0]
    assert is_in_capitals(text) == one
    assert as_sentence(text) == (
        capitals.as_sentence(tf.constant([text])).numpy()[0].decode()
    )
