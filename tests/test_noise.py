"""Checks the noisy copies of a corpus: what they are; they only add to it."""

import numpy as np
import pytest
from test_prepare import text_of, write_pairs

from keras_transformer.data import noise
from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.data.noise import KINDS, noisy_copies
from keras_transformer.data.options import Preparation
from keras_transformer.data.preparation import prepare, total_noise

PAIR = ('He said: "It\'s late."', "Er sagte: „Es ist spät.“")


@pytest.mark.parametrize(
    ("kind", "pair", "source", "target"),
    [
        ("upper_case", ("a ß.", "ein ß."), "A SS.", "EIN SS."),
        (
            "lower_case",
            ("Max met Li.", "Max traf Li."),
            "Max met li.",
            "Max traf Li.",
        ),
        ("title_case", ("it's a well-lit room", "das"), None, "Das"),
        ("no_final_punctuation", ("One?! ", "Eins."), "One?!"[:-2], "Eins"),
        ("no_final_punctuation", ("One…", "Eins"), "One", "Eins"),
        ("typographic_quotes", PAIR, "He said: “It’s late.”", PAIR[1]),
        ("typographic_quotes", ("“a ‘b’”", "x"), "\"a 'b'\"", "x"),
    ],
)
def test_each_kind_changes_what_it_says(kind, pair, source, target):
    rng = np.random.default_rng(1)
    source = source or "It's A Well-lit Room"
    assert KINDS[kind](*pair, rng) == (source, target)


def test_stray_spaces_stand_before_punctuation():
    rng = np.random.default_rng(1)
    pair = "One, two: 3.5 is it!", "Eins"
    found = {noise.stray_spaces(*pair, rng) for _ in range(200)}
    assert len(found) == 2**3 - 1  # at least one space
    assert {source.replace(" ", "") for source, _ in found} == {
        pair[0].replace(" ", "")
    }
    assert all("3.5 is" in source for source, _ in found)
    assert {target for _, target in found} == {"Eins"}


def test_a_pair_that_nothing_changes_has_no_copy():
    copies, counts = noisy_copies([("一二三", "eins")] * 7, 1.0, [1])
    assert (copies, dict(counts)) == ([], {})


def test_all_kinds_come_in_equal_shares():
    pairs = [
        ('"It\'s late", he told Li.', "„Es ist spät“, sagte er Li.")
    ] * 5000
    copies, counts = noisy_copies(pairs, 0.4, [3])
    assert len(copies) == counts.total()
    assert abs(counts.total() - 2000) < 150
    assert counts.keys() == KINDS.keys()
    assert all(abs(count - 333) < 80 for count in counts.values())


def test_copies_are_added_and_nothing_is_lost(tmp_path):
    pairs = list(pairs_of_split("train", 400))
    corpus = write_pairs(tmp_path / "corpus", pairs)
    write_pairs(tmp_path / "corpus", pairs[:3], "validation")
    settings = Preparation(vocab_size=700, noise=0.25)
    one, other = (
        prepare(corpus, tmp_path / name, settings) for name in ("one", "other")
    )
    assert one.digest == other.digest
    found = text_of(one)
    assert found[:400] == pairs
    (record,) = one.manifest["corpora"]
    assert record["pairs_read"] == 400
    assert record["pairs"] == len(found) == 400 + sum(record["noise"].values())
    assert 70 < sum(record["noise"].values()) < 130
    assert f"{record['noise']['upper_case']} upper case" in total_noise(
        one.manifest
    )
    upper = {(source.upper(), target.upper()) for source, target in pairs}
    found = [pair for pair in found[400:] if pair in upper]
    assert len(found) == record["noise"]["upper_case"]
    # They take no pieces of the vocabulary.
    plain = prepare(corpus, tmp_path / "plain", Preparation(vocab_size=700))
    assert plain.source_tokenizer.model == one.source_tokenizer.model


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_noise_is_a_share(share):
    with pytest.raises(ValueError, match=r"`noise` must be in \[0, 1\]"):
        Preparation(noise=share)
