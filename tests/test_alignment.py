"""Checks word alignments, and how sure a model is of its translations."""

import contextlib
import io
import json
import shutil
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from conftest import translator_of

from keras_transformer.cli import main as command
from keras_transformer.data.byte_pairs import learn_byte_pairs
from keras_transformer.data.sentencepiece_file import with_rule
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.inference import SearchSettings
from keras_transformer.inference.alignment import (
    align,
    piece_weights,
    word_numbers,
)
from keras_transformer.inference.certainty import certainty

TEXTS = ["one two three four", "", "room 7", "SEVEN ROOMS", "seven"]


def links(line):
    return [tuple(map(int, link.split("-"))) for link in line.split()]


def test_words_are_linked_to_those_that_their_pieces_look_at():
    """The source words have 2, 1 and 1 pieces, the target words 1, 2 and 1."""
    source = [[0, 0, 1, 2, -1], [0, -1, -1, -1, -1]]
    target = [[0, 1, 1, 2, -1], [0, 1, -1, -1, -1]]
    weights = np.zeros((2, 1, 5, 5), "float32")
    # 0 looks at word 2, 1 at word 0 with its second piece, 2 at word 1.
    for t, s in [(0, 3), (1, 4), (2, 1), (3, 2), (4, 4)]:
        weights[0, 0, t, s] = 1.0
    weights[1] = 0.2
    found = align([weights], tf.constant(source), tf.constant(target))
    assert found.numpy().tolist() == [b"0-1 1-2 2-0", b"0-0 0-1"]


def test_a_piece_that_all_look_at_does_not_attract():
    weights = np.full((1, 1, 3, 4), 0.1, "float32")
    weights[..., 3] = 0.5  # a full stop
    for i in range(3):
        weights[0, 0, i, i] = 0.3
    layers = [weights, np.full_like(weights, 0.25)]
    words = tf.range(4)[None]
    found = align(layers, words, words[:, :3]).numpy()[0].decode()
    assert links(found) == [(0, 0), (1, 1), (2, 2)]
    is_target = tf.constant([[True, True, False]])
    found = piece_weights(layers, is_target).numpy()[0]
    assert (found[:2] > 0).all()
    assert not found[2].any()


def test_a_text_without_words_has_no_links():
    none = tf.fill([1, 2], -1)
    found = align([np.ones((1, 1, 2, 2), "float32")], none, tf.range(2)[None])
    assert found.numpy().tolist() == [b""]


def test_white_space_separates_words_and_tags_are_none():
    tags = [">>de<<", ">>fr<<"]
    lines = ["the meeting is at 7, if not before ten"] * 9
    model = learn_byte_pairs(lines, 292, tags)
    tokenizer = Tokenizer(with_rule(model, "source"))
    for text in (
        "the meeting, at  tenten.",
        ">>de<< the meeting",
        ">>fr<<the \N{SNOWMAN} at",
        "",
    ):
        ids = tokenizer.encode([text])
        numbers = word_numbers(tf.constant(ids), tokenizer).numpy()[0]
        plain = text.removeprefix(">>de<<").removeprefix(">>fr<<")
        has_tag = plain != text
        assert numbers[-1] == -1  # the end
        assert numbers[0] == -1 or not has_tag
        words = numbers[numbers >= 0]
        assert sorted(set(words)) == list(range(len(plain.split())))
        assert (np.diff(words) >= 0).all()
        for i, word in enumerate(plain.split()):
            assert tokenizer.decode([np.array(ids[0])[numbers == i]]) == [word]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_explain_and_score_say_the_same(run, beam_size):
    translator = translator_of(run, SearchSettings(beam_size=beam_size))
    found = translator.explain(tf.constant(TEXTS))
    pieces = found["target_pieces"].numpy() != b""
    log_probs = found["log_probs"].numpy()
    assert log_probs.shape == pieces.shape
    assert (log_probs[pieces] < 0).all()
    assert not log_probs[~pieces].any()
    mean = log_probs.sum(axis=1) / np.maximum(pieces.sum(axis=1), 1)
    np.testing.assert_allclose(found["mean_log_prob"], mean, rtol=1e-5)
    assert found["mean_log_prob"].numpy()[1] == 0
    penalty = ((5 + pieces.sum(axis=1)) / 6) ** translator.settings.alpha
    # The search does not know the pieces that are suppressed.
    np.testing.assert_allclose(
        found["score"], log_probs.sum(axis=1) / penalty, rtol=0.01
    )
    # One by one, without padding, and by the other signature.
    for i, text in enumerate(TEXTS):
        alone = translator.explain(tf.constant([text]))
        assert alone["alignment"].numpy()[0] == found["alignment"].numpy()[i]
        translation = found["translation"].numpy()[i].decode()
        alignment = links(found["alignment"].numpy()[i].decode())
        assert len(alignment) == len(translation.split())  # one for each word
        assert all(s < len(text.split()) for s, _ in alignment)
        assert sorted(t for _, t in alignment) == list(range(len(alignment)))
    scored = translator.score(tf.constant(TEXTS), found["translation"])
    expected = found["alignment"].numpy().tolist()
    assert scored["alignment"].numpy().tolist() == expected
    assert expected[1] == b""


def test_the_command_writes_a_line_for_each(
    exported, capsys, monkeypatch, tmp_path
):
    file = tmp_path / "links.txt"
    data = io.BytesIO("\n".join([*TEXTS, ""]).encode())
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=data))
    arguments = ["translate", str(exported), f"--alignment={file}"]
    assert command.main([*arguments, "--batch-size=3"]) == 0
    lines = capsys.readouterr().out.split("\n")[:-1]
    loaded = SavedTranslator(exported)
    assert lines == loaded(TEXTS)
    expected = loaded.score(TEXTS, lines)["alignment"].numpy().tolist()
    assert file.read_bytes().split(b"\n")[:-1] == expected
    assert command.main([*arguments, "--document"]) == 1
    assert "--alignment" in capsys.readouterr().err


REFERENCES = [f"this is line number {i} of them" for i in range(12)]
SOURCES = [line.upper() for line in REFERENCES]


def test_sure_lines_that_are_good_correlate():
    guesses = [line[: 30 - i] for i, line in enumerate(REFERENCES)]
    sure = -np.arange(12) / 10
    found = certainty(SOURCES, guesses, REFERENCES, sure)
    assert found["spearman"] > 0.9
    assert found["pearson"] > 0.8
    turned = certainty(SOURCES, guesses, REFERENCES, -sure)
    assert turned["spearman"] == -found["spearman"]
    same = certainty(SOURCES, guesses, REFERENCES, np.zeros(12))
    assert same["pearson"] is same["spearman"] is None
    for name in ("copied", "empty", "odd_length"):
        assert found[name] == []


def test_lines_that_look_wrong_are_named():
    guesses = list(REFERENCES)
    guesses[2], guesses[4] = SOURCES[2], ""
    guesses[7], guesses[9] = "no", REFERENCES[9] * 4
    found = certainty(SOURCES, guesses, REFERENCES, [-0.1] * 12)
    assert found["copied"] == [3]
    assert found["empty"] == [5]
    assert found["odd_length"] == [8, 10]
    # Names and numbers are often the same in both languages.
    found = certainty(["Anna Bell", ""], ["Anna Bell", ""], ["A", ""], [0, 0])
    assert found["copied"] == found["empty"] == found["odd_length"] == []
    with pytest.raises(ValueError, match=r"1 references, 2 log-prob"):
        certainty(["a"], ["a"], ["a"], [0, 1])


def test_evaluate_prints_the_certainty(exported, capsys, tmp_path):
    copy = tmp_path / "copy" / "1"
    shutil.copytree(exported, copy)
    lines = ["one two three", "room 7", "nine"]
    for name in ("source", "reference"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    files = [f"--{x}-file={tmp_path / x}" for x in ("source", "reference")]
    assert command.main(["evaluate", str(copy), *files, "--certainty"]) == 0
    result = json.loads(capsys.readouterr().out)
    loaded = SavedTranslator(copy)
    guesses = loaded(lines)
    found = loaded.score(lines, guesses)
    sure = (found["score"] / found["pieces"].numpy()).numpy().tolist()
    expected = certainty(lines, guesses, lines, sure)
    for name in ("pearson", "spearman"):
        with contextlib.suppress(TypeError):  # both are None
            expected[name] = pytest.approx(expected[name], abs=0.01)
    assert result["certainty"] == expected
