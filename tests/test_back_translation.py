"""Checks pairs that runs make of text in one language."""

import dataclasses
import gzip
import itertools
import json

import numpy as np
import pytest
import tensorflow as tf
from conftest import translator_of

from keras_transformer.data import load_pairs
from keras_transformer.inference import SearchSettings
from keras_transformer.training import (
    Recipe,
    SyntheticPairs,
    back_translate,
    back_translation,
    distill,
    start_run,
    train,
)

FIRST = {"one": "eins", "two": "zwei", "three": "drei"}
SECOND = {"red": "rot", "blue": "blau", "gray": "grau"}
PAIRS = [
    (f"{a} {b} {b} {a}".capitalize(), f"{x} {y} {y} {x}".capitalize())
    for (a, x), (b, y) in itertools.product(FIRST.items(), SECOND.items())
]
ENGLISH = [source for source, _ in PAIRS]
GERMAN = dict(PAIRS)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Returns a run that has learned nine sentences by heart."""
    folder = tmp_path_factory.mktemp("by-heart")
    for split in ("train", "validation"):
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in PAIRS)
            (folder / f"{split}.{language}").write_text(text)
    recipe = Recipe(
        corpus=str(folder),
        vocab_size=320,
        steps=200,
        validate_every=100,
        warmup_steps=60,
        learning_rate_scale=0.3,
        dtype_policy="float32",
    )
    shape = {"num_layers": 1, "d_model": 34, "num_heads": 2, "d_ff": 41}
    run = start_run(folder / "run", "tiny", recipe, **shape)
    train(run, verbose=0)
    return run


@pytest.fixture
def text(tmp_path):
    """Returns two files of 29 lines, some of them blank."""
    lines = [*ENGLISH * 3, "", "  "]
    plain, zipped = tmp_path / "text.en", tmp_path / "more.en.gz"
    plain.write_text("".join(f"{line}\n" for line in lines[:17]))
    more = "".join(f"{line}\n" for line in lines[17:])
    zipped.write_bytes(gzip.compress(more.encode()))
    return [plain, zipped]


def test_sources_are_made_for_given_targets(learned, text, tmp_path):
    folder = back_translate(learned, text, tmp_path / "back")
    pairs = load_pairs(str(folder), "train", source="de", target="en")
    assert pairs.target == ENGLISH * 3
    assert pairs.source == [f">>bt<< {GERMAN[line]}" for line in ENGLISH * 3]
    plain = SyntheticPairs(tag="", source="x", target="y", split="mono")
    folder = back_translate([learned], text[:1], tmp_path / "plain", plain)
    pairs = load_pairs(str(folder), "mono", source="x", target="y")
    assert pairs.source == [GERMAN[line] for line in pairs.target]


def test_targets_are_made_for_given_sources(learned, text, tmp_path):
    settings = SyntheticPairs(per_line=2, beam_size=3)
    folder = distill(learned, text, tmp_path / "made", settings)
    pairs = load_pairs(str(folder), "train", source="en", target="de")
    search = SearchSettings(beam_size=3)
    found = translator_of(learned, search).n_best(tf.constant(ENGLISH), 3, 0.6)
    candidates, cut = (found[x].numpy() for x in ("translation", "incomplete"))
    expected = {
        line: [x.decode() for x in row[~bad] if x][:2]
        for line, row, bad in zip(ENGLISH, candidates, cut, strict=True)
    }
    for line in ENGLISH:
        made = zip(pairs.source, pairs.target, strict=True)
        made = [target for source, target in made if source == line]
        assert made == 3 * expected[line]
        assert made[0] == GERMAN[line]


def test_the_translation_nearest_to_the_reference_is_taken(
    learned, text, tmp_path
):
    """References are the second translations of the beams."""
    search = SearchSettings(beam_size=4)
    translator = translator_of(learned, search)
    found = translator.n_best(tf.constant(ENGLISH), 4, 0.6)["translation"]
    found = [row[1].decode() for row in found.numpy()]
    second = dict(zip(ENGLISH, found, strict=True))
    path = tmp_path / "text.de"
    lines = text[0].read_text().splitlines()
    path.write_text("".join(second[line] + "\n" for line in lines))
    folder = distill(learned, text[:1], tmp_path / "made", references=[path])
    pairs = load_pairs(str(folder), "train", source="en", target="de")
    made = dict(zip(pairs.source, pairs.target, strict=True))
    assert made != GERMAN
    for line in made:
        if second[line]:
            assert made[line] == second[line]
    with pytest.raises(ValueError, match="the same number of lines"):
        distill(learned, text[:1], tmp_path / "b", references=text[1:])


@pytest.mark.parametrize("sampling", [False, True])
def test_a_stopped_one_goes_on_to_the_same_bytes(
    learned, text, tmp_path, monkeypatch, sampling, capsys
):
    settings = SyntheticPairs(sampling=sampling, seed=7)
    monkeypatch.setattr(back_translation, "LINES", 6)
    whole = back_translate(learned, text, tmp_path / "whole", settings)
    translate_lines, calls = back_translation.translate_lines, []

    def stopped(translate, lines, **options):
        calls.append(len(lines))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return translate_lines(translate, lines, **options)

    monkeypatch.setattr(back_translation, "translate_lines", stopped)
    with pytest.raises(KeyboardInterrupt):
        back_translate(learned, text, tmp_path / "parts", settings)
    assert not (tmp_path / "parts").exists()
    parts = back_translate(learned, text, tmp_path / "parts", settings)
    assert calls == [6, 6, 6, 6, 6, 5]  # the first two were not done again
    assert capsys.readouterr().out.count("29 lines read") == 2
    files = {path.name: path.read_bytes() for path in parts.iterdir()}
    assert files == {path.name: path.read_bytes() for path in whole.iterdir()}
    assert len(files) == 11

    # Other settings are another job: nothing of it is taken.
    del calls[:]
    with pytest.raises(KeyboardInterrupt):
        back_translate(learned, text, tmp_path / "other", settings)
    other = dataclasses.replace(settings, seed=8)
    back_translate(learned, text, tmp_path / "other", other)
    assert calls == [6, 6, 6, 6, 6, 6, 6, 5]


def test_samples_are_drawn_by_their_probability(learned, tmp_path):
    path = tmp_path / "text.en"
    path.write_text((ENGLISH[0] + "\n") * 300)
    found = []
    for seed in (1, 2):
        settings = SyntheticPairs(sampling=True, seed=seed, tag="")
        folder = back_translate(learned, [path], tmp_path / f"{seed}", settings)
        pairs = load_pairs(str(folder), "train", source="de", target="en")
        found.append(pairs.source)
    assert found[0] != found[1]
    # The most probable translation is drawn as often as it is probable.
    translator = translator_of(learned)
    best = GERMAN[ENGLISH[0]]
    scored = translator.score(tf.constant(ENGLISH[:1]), tf.constant([best]))
    odds = float(np.exp(scored["score"][0]))
    assert 0.05 < odds < 0.999
    count = sum(line == best for lines in found for line in lines)
    spread = np.sqrt(odds * (1 - odds) / 600)
    assert abs(count / 600 - odds) < 5 * spread


def test_improbable_translations_are_left_out(learned, text, tmp_path):
    settings = SyntheticPairs(per_line=4, beam_size=4)
    every = distill(learned, text, tmp_path / "every", settings)
    pairs = load_pairs(str(every), "train", source="en", target="de")
    found = translator_of(learned).score(
        tf.constant(pairs.source), tf.constant(pairs.target)
    )
    means = found["score"].numpy() / found["pieces"].numpy()
    limit = np.sort(np.unique(means.round(4)))
    limit = float(limit[len(limit) // 2 :][:2].mean())  # between two scores
    settings = dataclasses.replace(settings, min_score=limit)
    some = distill(learned, text, tmp_path / "some", settings)
    kept = load_pairs(str(some), "train", source="en", target="de")
    assert kept.target == [
        line
        for line, mean in zip(pairs.target, means, strict=True)
        if mean >= limit
    ]
    assert 0 < len(kept) < len(pairs)
    settings = dataclasses.replace(settings, min_score=0.0)
    with pytest.raises(ValueError, match="No pair was made"):
        distill(learned, text, tmp_path / "none", settings)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["every", "some", *(path.name for path in text)]
    )


def test_several_runs_are_an_ensemble(learned, run, text, tmp_path):
    folder = distill([learned, learned], text, tmp_path / "both")
    pairs = load_pairs(str(folder), "train", source="en", target="de")
    assert pairs.target == [GERMAN[line] for line in pairs.source]
    record = json.loads((folder / "made.json").read_text())
    assert len(record["models"]) == 2
    with pytest.raises(ValueError, match="the same vocabularies"):
        distill([learned, run], text, tmp_path / "other")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tag": "a b"}, "tag='a b'"),
        ({"per_line": 0}, "per_line=0"),
        ({"sampling": True, "per_line": 2}, "per_line=2"),
        ({"seed": -1}, "seed=-1"),
        ({"beam_size": 0}, "beam_size=0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, expected):
    with pytest.raises(ValueError, match=f"Received: {expected}"):
        SyntheticPairs(**settings)


def test_what_cannot_be_read_is_refused(learned, text, tmp_path):
    with pytest.raises(ValueError, match="a run and a list of files"):
        distill(learned, [], tmp_path / "a")
    with pytest.raises(ValueError, match="Each file needs its references"):
        distill(learned, text, tmp_path / "a", references=text[:1])
    with pytest.raises(ValueError, match="which does not exist"):
        distill(learned, [tmp_path / "none"], tmp_path / "a")
    with pytest.raises(ValueError, match="must not exist"):
        distill(learned, text, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(text)
