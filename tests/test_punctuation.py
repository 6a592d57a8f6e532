"""Checks the normalised punctuation against sacremoses.

`pretrained/make_punctuation.py` wrote the texts and what sacremoses makes of
them.
"""

import collections
import doctest
import json
import pathlib
import re
import unicodedata

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.data import cleaning
from keras_transformer.export import tensorflow_serving as serving
from keras_transformer.inference import punctuation
from keras_transformer.inference.punctuation import (
    normalize_punctuation,
    replace_punctuation,
)

PATH = pathlib.Path(__file__).parent / "pretrained" / "punctuation.json"
CASES = collections.defaultdict(list)
for case in json.loads(PATH.read_text("utf-8")):
    CASES[case["language"]].append((case["text"], case["expected"]))


def normalize(texts, language):
    texts = tf.constant(texts, tf.string)
    return normalize_punctuation(texts, language).numpy().tolist()


@pytest.mark.parametrize("language", CASES)
def test_texts_become_what_sacremoses_makes_of_them(language):
    texts, expected = zip(*CASES[language], strict=True)
    found = [text.decode() for text in normalize(texts, language)]
    wrong = [
        row
        for row in zip(texts, expected, found, strict=True)
        if row[1] != row[2]
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", '"one," 1.000 "two."'),
        ("de", '"one", 1,000 "two."'),
        ("es", '"one", 1,000 "two."'),
        ("cs", '"one", 1,000 "two."'),
        ("cz", '"one", 1,000 "two."'),
        ("xx", '"one", 1.000 "two."'),
    ],
)
def test_the_language_decides_about_commas_and_numbers(language, expected):
    text = "“one”, 1\u00a0000 “two.”"
    assert normalize([text], language) == [expected.encode()]


SCRIPT = [  # of Moses, replace-unicode-punctuation.perl, but for １ (see below)
    *["，,", "、,", '”"', '“"', "∶:", "：:", "？?", '《"', '》"', "）)", "！!"],
    *["（(", "；;", '」"', '「"', "０0", "３3", "２2", "５5", "６6", "９9"],
    *[
        "７7",
        "８8",
        "４4",
        "～~",
        "’'",
        "━-",
        "〈<",
        "〉>",
        "【[",
        "】]",
        "％%",
    ],
    "１1",  # the script has a quotation mark here
]


def transcription(text):
    """Does what the two scripts do, character by character."""
    text = re.sub("[。．] *", ". ", text).replace("…", "...")
    for before, after in SCRIPT:
        text = text.replace(before, after)
    # remove-non-printing-char.perl; line ends are no text to it.
    return "".join(
        " " if unicodedata.category(c)[0] == "C" and c != "\n" else c
        for c in text
    )


@settings(max_examples=200, deadline=None)
@given(
    st.text(
        st.characters(exclude_categories=("Cs", "Cn"))
        | st.sampled_from(
            "，。、”“∶：？《》）！（；１」「０３．～’…━〈〉【】％ \u200c"
        )
    )
)
def test_punctuation_is_replaced_as_by_moses(text):
    (found,) = replace_punctuation(tf.constant([text])).numpy()
    # Invisible characters are removed before, and leave no space.
    invisible = {chr(c) for c in cleaning._code_points(cleaning.INVISIBLE)}
    visible = "".join(c for c in text if c not in invisible)
    assert found.decode() == transcription(visible)


def test_servers_know_the_operations(tmp_path):
    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def __call__(self, text):
            texts = [normalize_punctuation(text, name) for name in CASES]
            return tf.stack(texts)

    tf.saved_model.save(Module(), str(tmp_path))
    serving.check_operations(tmp_path)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1))
def test_any_bytes_are_accepted(texts):
    for language in CASES:
        assert len(normalize(texts, language)) == len(texts)


def test_invalid_bytes_stay():
    found = normalize([b"\xff( a\xc2 ) \xe2\x80"], "en")
    assert found == [b"\xff (a\xc2) \xe2\x80"]


def test_an_empty_batch_stays_empty():
    assert normalize([], "en") == []


def test_the_example_runs():
    result = doctest.testmod(punctuation)
    assert result.attempted
    assert not result.failed
