"""Checks scores against those of sacreBLEU."""

import pytest
import sacrebleu

from keras_transformer.inference.evaluation import score

LINES = ["Am 3. Mai um Viertel nach fünf.", "Zimmer 7 ist im ersten Stock."]


def test_perfect_translations_score_a_hundred_and_have_a_signature():
    found = score(LINES, LINES)
    assert found["bleu"] == found["chrf"] == 100.0
    assert found["sentences"] == 2
    version = sacrebleu.__version__
    assert found["bleu_signature"] == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    )


def test_the_score_equals_that_of_sacrebleu():
    guesses = ["Am 4. Mai um halb fünf.", "Büro 7 ist im ersten Stock."]
    found = score(guesses, LINES)
    expected = sacrebleu.corpus_bleu(guesses, [LINES]).score
    assert found["bleu"] == round(expected, 2)
    assert 0 < found["bleu"] < 100


def test_the_tokenizer_shows_in_the_signature():
    assert "tok:none" in score(LINES, LINES, "none")["bleu_signature"]


@pytest.mark.parametrize(
    ("hypotheses", "tokenize", "message"),
    [
        (LINES[:1], "13a", "1 sentences, 2 references"),
        (LINES, "moses", "'moses'"),
    ],
)
def test_errors_name_what_was_received(hypotheses, tokenize, message):
    with pytest.raises(ValueError, match=message):
        score(hypotheses, LINES, tokenize)
