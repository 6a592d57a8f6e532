"""Checks the model that comes with the repository, for image captions."""

import pathlib

import pytest

from keras_transformer.export.files import check_export
from keras_transformer.export.saved_translator import SavedTranslator

FOLDER = pathlib.Path(__file__).parents[1] / "saved_models" / "captions-en-de"
PATH = FOLDER / "1"


def test_it_is_whole_and_small():
    assert check_export(PATH)["dtype"] == "int8"
    files = [file for file in PATH.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 6_000_000


def test_its_card_says_what_it_is_for():
    card = (PATH / "MODEL_CARD.md").read_text("utf-8")
    for words in ("research and education", "Multi30k", "BLEU", "Limits"):
        assert words in card, words


@pytest.fixture(scope="module")
def translator():
    return SavedTranslator(FOLDER)


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("Two dogs are running in the snow.", ("Zwei Hunde", "Schnee")),
        ("A woman is reading a book.", ("Eine Frau", "Buch")),
        ("A man is riding a bicycle.", ("Ein Mann", "Fahrrad")),
        ("Children play soccer.", ("Kinder", "Fußball")),
    ],
)
def test_it_translates_captions(translator, english, german):
    """Looks for words that no rounding turns into others."""
    found = translator(english)
    for words in german:
        assert words in found


def test_it_aligns_words(translator):
    found = translator.explain("A dog is running.")
    words = found["translation"].split()
    links = [tuple(map(int, x.split("-"))) for x in found["alignment"].split()]
    assert words[1] == "Hund"
    assert (1, 1) in links  # dog, Hund
