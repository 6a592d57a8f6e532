"""Compares imported models with transformers.

`python tests/marian_reference.py all FOLDER` writes models and what
transformers computes with them, in an environment of its own. With that folder
in `MARIAN_REFERENCE`, `pytest tests/marian_parity.py` imports and compares
them. So neither process needs the other's packages. `make test-transformers`
runs both.
"""

import json
import os
import pathlib

import marian_checks
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.export import saved_model
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.inference import evaluation
from keras_transformer.inference.lines import translate_lines
from keras_transformer.integrations.marian.importer import import_marian

REFERENCE = pathlib.Path(os.environ["MARIAN_REFERENCE"])
FOLDERS = sorted(path.parent for path in REFERENCE.glob("*/reference.npz"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_logits_are_those_of_transformers(folder, tmp_path):
    run = import_marian(folder, tmp_path / "run", clean_sources=False)
    error = marian_checks.largest_error(run, folder)
    print(f"{folder.name}: {error:.1e}")
    assert error < 1e-4


@pytest.mark.parametrize("path", sorted(REFERENCE.glob("*.tokens.json")))
def test_ids_are_those_of_marian_tokenizer(path):
    rows = json.loads(path.read_text("utf-8"))
    folder = path.with_name(path.name.removesuffix(".tokens.json"))
    equal = marian_checks.check_tokens(folder, rows)
    print(f"{folder.name}: {equal:,} of {len(rows):,} strings have equal ids")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the export of the trained model, and the reference outputs."""
    folder = tmp_path_factory.mktemp("trained")
    run = import_marian(REFERENCE / "trained", folder / "run", False)
    path = saved_model.export(run, folder / "m" / "1", dtype="float32")
    outputs = json.loads(
        (REFERENCE / "trained.outputs.json").read_text("utf-8")
    )
    return SavedTranslator(path), outputs["rows"]


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_translations_are_those_of_generate(trained, search):
    """In batches of 32, as the reference; of one, and of another order."""
    translator, rows = trained
    beam_size = {"greedy": 1, "beam": 4}[search]
    translate = translator.searched_with(beam_size=beam_size)
    sources = [row["source"] for row in rows]
    expected = [row[search]["text"] for row in rows]
    found = translate_lines(translate, sources, 32)
    differ = [i for i in range(len(rows)) if found[i] != expected[i]]
    scores = np.concatenate(
        [translate(tf.constant([s]))["score"].numpy() for s in sources[:50]]
    )
    print(f"{search}: {len(rows) - len(differ)} of {len(rows)} equal")
    for i in differ:
        print(f"  {sources[i]}\n  ours   {found[i]}\n  theirs {expected[i]}")
    assert len(differ) <= (0 if search == "greedy" else 1)
    if search == "beam":
        theirs = [row["beam"]["score"] for row in rows[:50]]
        np.testing.assert_allclose(scores, theirs, atol=1e-4)
    references = (REFERENCE / "corpus" / "test.de").read_text("utf-8")
    references = references.splitlines()[: len(rows)]
    ours, theirs = (
        evaluation.score(lines, references)["bleu"]
        for lines in (found, expected)
    )
    print(f"BLEU {ours:.2f} and {theirs:.2f}")
    assert abs(ours - theirs) < 0.01 or differ
