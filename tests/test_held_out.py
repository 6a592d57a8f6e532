"""Checks that pairs are held out of training to validate on, and no others."""

import json
import shutil

import pytest

from keras_transformer.cli.main import main
from keras_transformer.cli.run_options import _language_of
from keras_transformer.data import Preparation, load_pairs, prepare
from keras_transformer.data.corpus import absolute
from keras_transformer.data.held_out import draw_pairs, without
from keras_transformer.data.text_files import (
    DamagedLineError,
    MissingSplitError,
    PairStream,
)
from keras_transformer.training import Recipe, open_run, start_run
from keras_transformer.training.run_data import load_split, load_training_pairs


def stream(pairs):
    return PairStream("made here", lambda: iter(pairs))


def hold_out(stream, count, seed):
    """Returns what is left to train on, and what is held out."""
    held = draw_pairs(stream, count, seed)
    return without(stream, held), held


def numbered(count):
    return [(f"line {i}", f"Zeile {i}") for i in range(count)]


@pytest.mark.parametrize(
    ("pairs", "count", "expected"),
    [
        (2, None, 1),
        (20, None, 1),
        (200, None, 10),
        (20000, None, 500),
        (20, 19, 19),
        (20000, 700, 700),
    ],
)
def test_so_many_are_held_out(pairs, count, expected):
    pairs = numbered(pairs)
    rest, held = hold_out(stream(pairs), count, seed=1)
    assert len(held) == len(set(held)) == expected
    assert list(rest) == [pair for pair in pairs if pair not in held]


def test_none_of_them_is_left_to_train_on():
    """Not even with other white space, and however often it is there."""
    pairs = numbered(7) * 3 + [
        (f" line  {i}", f"Zeile {i}\t") for i in range(7)
    ]
    rest, held = hold_out(stream(pairs), 3, seed=1)
    assert len({source.split()[1] for source, _ in held}) == 3
    left = {source.split()[1] for source, _ in rest}
    assert left == {str(i) for i in range(7)} - {s.split()[1] for s, _ in held}


def test_the_choice_depends_on_seed_and_text_alone():
    pairs = numbered(100)
    _, held = hold_out(stream(pairs), 10, seed=1)
    _, again = hold_out(stream(pairs[::-1] + pairs), 10, seed=1)
    _, other = hold_out(stream(pairs), 10, seed=2)
    assert held == again
    assert held != other


def test_blank_and_damaged_pairs_are_not_held_out():
    damaged = DamagedLineError("Line 3 is damaged.")
    pairs = [("", "leer"), damaged, ("a", " "), ("b", "c"), ("d", "e")]
    rest, held = hold_out(stream(pairs), None, seed=1)
    assert held[0] in (("b", "c"), ("d", "e"))
    assert list(rest.read()) == [pair for pair in pairs if pair != held[0]]


@pytest.mark.parametrize(
    ("pairs", "count"),
    [
        ([], None),
        (numbered(1), None),
        (numbered(1) * 9, None),
        (numbered(5), 5),
        (numbered(5), 500),
    ],
)
def test_a_pair_must_be_left_to_train_on(pairs, count):
    with pytest.raises(ValueError, match=f"Received: {len(pairs)} pairs"):
        hold_out(stream(pairs), count, seed=1)


@pytest.fixture
def two_files(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    for i, language in enumerate(("en", "de")):
        lines = [pair[i] for pair in numbered(40)]
        text = "\n".join(lines) + "\n"
        (folder / f"train.{language}").write_text(text, "utf-8")
    return folder


def texts(pairs):
    return set(zip(pairs.source, pairs.target, strict=True))


def test_a_run_holds_pairs_out_and_keeps_them(two_files, tmp_path, capsys):
    recipe = Recipe(corpus=str(two_files), seed=7)
    run = start_run(tmp_path / "run", "tiny", recipe)
    out = capsys.readouterr().out
    assert "Held 2 pairs out of training" in out
    assert f"allows {run.config.vocab_size:,} word pieces instead of" in out
    again = open_run(tmp_path / "run")
    assert again.recipe.validation_pairs == 2
    assert again.recipe.vocab_size == run.target_tokenizer.vocab_size
    held = texts(load_split(again, "validation").pairs)
    assert len(held) == 2
    assert held < texts(load_pairs(str(two_files), "train", "en", "de"))
    assert len(load_training_pairs(again)) == 38


def test_a_prepared_corpus_has_what_was_held_out(two_files, tmp_path):
    settings = Preparation(validation_pairs=3)
    found = prepare(str(two_files), tmp_path / "prepared", settings)
    assert len(found) == 37
    assert len(load_pairs(str(found.folder), "validation", "en", "de")) == 3
    recipe = Recipe(corpus=str(found.folder))
    run = start_run(tmp_path / "run", "tiny", recipe)
    assert len(load_split(run, "validation").pairs) == 3


def test_no_other_corpus_has_them_either(two_files, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(two_files, copy)
    settings = Preparation(validation_pairs=3)
    found = prepare([str(two_files), str(copy)], tmp_path / "both", settings)
    assert len(found) == 2 * 37


def test_a_prepared_corpus_keeps_what_it_holds_out(two_files, tmp_path):
    settings = Preparation(validation_pairs=3)
    found = prepare(str(two_files), tmp_path / "prepared", settings)
    recipe = Recipe(corpus=str(found.folder), validation_pairs=4)
    with pytest.raises(ValueError, match=r"validation_pairs=4, .* has 3"):
        start_run(tmp_path / "run", "tiny", recipe)


def test_only_the_default_vocabulary_becomes_smaller(two_files, tmp_path):
    settings = Preparation(vocab_size=7999)
    with pytest.raises(ValueError, match="Choose at most"):
        prepare(str(two_files), tmp_path / "prepared", settings)


def test_a_corpus_with_a_split_is_left_whole(corpus, tmp_path, capsys):
    start_run(tmp_path / "run", "tiny", Recipe(corpus=corpus))
    assert "Held" not in capsys.readouterr().out


def test_a_split_that_is_named_must_be_there(two_files, tmp_path):
    recipe = Recipe(corpus=str(two_files), validation_split="devtest")
    with pytest.raises(MissingSplitError, match="'devtest'"):
        start_run(tmp_path / "run", "tiny", recipe)


def test_a_table_is_divided_too(two_files, tmp_path):
    columns = [(two_files / f"train.{x}").read_text() for x in ("en", "de")]
    rows = zip(*(c.splitlines() for c in columns), strict=True)
    for path in two_files.iterdir():
        path.unlink()
    text = "\n".join(["en\tde", *map("\t".join, rows)]) + "\n"
    (two_files / "train.tsv").write_text(text)
    recipe = Recipe(corpus=str(two_files), validation_pairs=4)
    run = start_run(tmp_path / "run", "tiny", recipe)
    assert len(load_split(run, "validation").pairs) == 4
    assert len(load_training_pairs(run)) == 36


def test_any_two_files_are_trained_on(two_files, tmp_path, capsys):
    one, other = two_files / "a.txt", two_files / "b.text.de"
    (two_files / "train.en").rename(one)
    (two_files / "train.de").rename(other)
    folder = tmp_path / "run"
    command = ["train", "--train-files", str(one), str(other)]
    command += ["--out", str(folder), "--steps", "0"]
    assert main(command) == 1  # no step, no training: but the files are read
    assert "steps" in capsys.readouterr().err
    recipe = Recipe(corpus=f"files:{one}:{other}")
    run = start_run(folder, "tiny", recipe)
    assert len(load_training_pairs(run)) == 38
    assert json.loads((folder / "run.json").read_text())
    with pytest.raises(MissingSplitError, match="split='test'"):
        load_pairs(recipe.corpus, "test", "en", "de")
    assert absolute("files:a:b").count("/") > 1
    with pytest.raises(ValueError, match="no colon"):
        absolute("files:a")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train.en", "en"),
        ("a/b.pt_BR.gz", "pt_BR"),
        ("a.txt", None),
        ("de", None),
        ("a.7", None),
        ("europarl.de-en.de", "de"),
    ],
)
def test_a_file_is_named_after_its_language(name, expected):
    assert _language_of(name) == expected
