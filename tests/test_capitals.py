"""Checks that text in capitals is translated as the sentence that it is."""

import doctest

import pytest
import tensorflow as tf
from conftest import translator_of
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.inference import capitals
from keras_transformer.inference.capitals import as_sentence, is_in_capitals
from keras_transformer.inference.search_settings import SearchSettings

SENTENCES = ["Room 17 is on the third floor.", "Über uns: nächste tage!"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("THE ROOM IS FREE.", True),
        ("STRASSE 7, ÄÖÜ!", True),
        ("\nNO WAY\n", True),
        ("ДВА СЛОВА", True),
        ("WHO", False),  # may be an abbreviation
        ("A B C 7", False),
        ("THE ROOM iS FREE", False),
        ("Room 7", False),
        ("12 34 !?", False),
        ("一二 三四", False),
        ("", False),
    ],
)
def test_two_words_of_capitals_are_text_in_capitals(text, expected):
    assert is_in_capitals(tf.constant([text])).numpy().tolist() == [expected]


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_a_sentence_is_small_but_for_its_start(text):
    text = text.encode("utf-8", "ignore").decode()
    (found,) = as_sentence(tf.constant([text])).numpy()
    small = tf.strings.lower(text, "utf-8").numpy().decode()
    first = tf.strings.upper(small[:1], "utf-8").numpy().decode()
    assert found.decode() == first + small[1:]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(), max_size=4))
def test_any_bytes_become_valid_text(texts):
    found = as_sentence(tf.constant(texts, tf.string)).numpy().tolist()
    assert len(found) == len(texts)
    for text in found:
        text.decode("utf-8")


def test_capitals_are_translated_as_a_sentence(run):
    translator = translator_of(run, SearchSettings(beam_size=2))
    upper = [text.upper() for text in SENTENCES]
    found = translator.n_best(tf.constant([*SENTENCES, *upper, ""]), 2, 0.6)
    texts = [[x.decode() for x in row] for row in found["translation"].numpy()]
    scores = found["score"].numpy().tolist()
    for i, (plain, capital) in enumerate(
        zip(texts[:2], texts[2:4], strict=True)
    ):
        assert capital == [
            tf.strings.upper(x, "utf-8").numpy().decode() for x in plain
        ]
        assert scores[i] == pytest.approx(scores[i + 2], rel=1e-4)
    assert texts[4] == ["", ""]
    explained = translator.explain(tf.constant(upper))
    best = [row[0].encode() for row in texts[2:4]]
    assert explained["translation"].numpy().tolist() == best


def test_capitals_may_be_kept(run):
    keeping = SearchSettings(beam_size=1, recase_capitals=False)
    translator = translator_of(run, keeping)
    pieces = translator.explain(tf.constant(["ROOM SEVEN"]))["source_pieces"]
    text = b"".join(pieces.numpy()[0]).decode()
    assert "ROOM" in text.replace("▁", "")


def test_the_example_runs():
    result = doctest.testmod(capitals)
    assert result.attempted
    assert not result.failed
