"""Checks the English and German of the built-in corpus."""

import itertools
import random

import pytest

from keras_transformer.data.builtin import grammar
from keras_transformer.data.builtin.phrases import (
    SIZES,
    pairs_of_split,
    split_of,
)

NUMBERS = [
    (0, "zero", "null"),
    (1, "one", "eins"),
    (12, "twelve", "zwölf"),
    (17, "seventeen", "siebzehn"),
    (21, "twenty-one", "einundzwanzig"),
    (30, "thirty", "dreißig"),
    (66, "sixty-six", "sechsundsechzig"),
    (101, "one hundred and one", "einhunderteins"),
    (217, "two hundred and seventeen", "zweihundertsiebzehn"),
    (1001, "one thousand and one", "eintausendeins"),
    (
        9876,
        "nine thousand eight hundred and seventy-six",
        "neuntausendachthundertsechsundsiebzig",
    ),
]


@pytest.mark.parametrize(("n", "english", "german"), NUMBERS)
def test_numbers_are_written_in_words(n, english, german):
    assert grammar.english_number(n) == english
    assert grammar.german_number(n) == german


def test_every_number_has_its_own_word():
    assert len({grammar.english_number(n) for n in range(10_000)}) == 10_000
    assert len({grammar.german_number(n) for n in range(10_000)}) == 10_000


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (11, "11th"),
        (12, "12th"),
        (13, "13th"),
        (21, "21st"),
        (23, "23rd"),
    ],
)
def test_ordinals_have_their_endings(n, text):
    assert grammar.english_ordinal(n) == text


# The German of each time, whatever the words around it.
TIMES = {
    "one o'clock": "ein Uhr",
    "quarter past one": "Viertel nach eins",
    "half past twelve": "halb eins",
    "half past five": "halb sechs",
    "quarter to one": "Viertel vor eins",
    "twenty to three": "zwanzig vor drei",
    "ten past four": "zehn nach vier",
    "12:05 a.m.": "0:05 Uhr",
    "12:30 p.m.": "12:30 Uhr",
    "5:40 p.m.": "17:40 Uhr",
}


def test_clock_times_are_translated():
    rng = random.Random(1)
    said = dict(grammar.clock(rng) for _ in range(60_000))
    assert {time: said[time] for time in TIMES} == TIMES


def test_prices_are_translated():
    rng = random.Random(1)
    said = dict(grammar.price(rng) for _ in range(200_000))
    assert said["€47"] == "47 Euro"
    assert said["€1,250"] == "1.250 Euro"
    for english, german in itertools.islice(said.items(), 1000):
        swapped = english[1:].translate(str.maketrans(",.", ".,"))
        assert german == f"{swapped} Euro"


def test_gender_and_case_agree():
    """Der Tisch, die Lampe, das Buch; the object of "bought" is accusative."""
    german = [pair[1] for pair in pairs_of_split("train", 20_000)]
    endings = {
        "Ein .er Tisch kostet": "Ein roter Tisch kostet",
        "Eine .e Lampe kostet": "Eine rote Lampe kostet",
        "Ein .es Buch kostet": "Ein rotes Buch kostet",
        "einen .en Tisch": "einen roten Tisch",
        "eine .e Lampe": "eine rote Lampe",
        "ein .es Buch": "ein rotes Buch",
    }
    for example in endings.values():
        assert any(example in line for line in german), example
    for wrong in ("einen rote ", "ein roter Buch", "Die rote Tisch"):
        assert not any(wrong in line for line in german), wrong


def test_the_same_seed_gives_the_same_pairs():
    first, second, other = (
        list(itertools.islice(grammar.sentence_pairs(seed), 50))
        for seed in (5, 5, 6)
    )
    assert first == second != other


def test_no_source_is_in_two_splits_or_twice_in_one():
    sources = {
        split: [p[0] for p in pairs_of_split(split, min(size, 20_000))]
        for split, size in SIZES.items()
    }
    for split, lines in sources.items():
        assert len(set(lines)) == len(lines)
        assert {split_of(line) for line in lines} == {split}


def test_there_are_millions_of_sentences():
    """Estimates their number from how few of many draws coincide."""
    rng = random.Random(3)
    draws = [grammar.sentence_pair(rng)[0] for _ in range(50_000)]
    long = [d for d in draws if "bought" in d or "costs" in d or " at " in d]
    coincidences = len(long) - len(set(long))
    assert len(long) ** 2 / 2 / max(1, coincidences) > 2_000_000


def test_one_source_has_one_translation():
    rng = random.Random(3)
    seen = {}
    for _ in range(50_000):
        english, german = grammar.sentence_pair(rng)
        assert seen.setdefault(english, german) == german
