"""Checks BPE-dropout.

At rate 0 it segments as SentencePiece does, at any rate it keeps the text, and
seed and epoch determine the result.
"""

import dataclasses
import random

import numpy as np
import pytest
import sentencepiece
from conftest import SMALL
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.data import bpe_dropout
from keras_transformer.data.batches import encode_pairs
from keras_transformer.data.bpe_dropout import SampledPairs, segment
from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.data.cleaning import clean
from keras_transformer.data.corpus import SentencePairs
from keras_transformer.data.prepared_corpus import PreparedCorpus
from keras_transformer.data.tokenizer import train_tokenizer
from keras_transformer.ids import END
from keras_transformer.training.new_run import start_run
from keras_transformer.training.run_data import load_training_pairs, read_pairs

PAIRS = SentencePairs(
    *(list(side) for side in zip(*pairs_of_split("train", 331), strict=True))
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([*PAIRS.source, *PAIRS.target], 700)


def usual(tokenizer, pairs=PAIRS):
    return encode_pairs(pairs.source, pairs.target, tokenizer, tokenizer)


def sampled(tokenizer, rate=0.1, seed=3, max_length=256, pairs=PAIRS):
    encoded = usual(tokenizer, pairs)
    return SampledPairs(encoded, tokenizer, tokenizer, rate, seed, max_length)


def epoch_of(pairs, epoch):
    return pairs.read(np.arange(len(pairs)), epoch)


def lists(encoded):
    return encoded.source.tolist(), encoded.target.tolist()


@settings(max_examples=100, deadline=None)
@given(st.text() | st.text(alphabet="▁ a1ß\n"))
def test_rate_zero_segments_any_text_as_sentencepiece_does(tokenizer, text):
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(tokenizer.model)
    pairs = SentencePairs([text], [text])
    found = epoch_of(sampled(tokenizer, 0.0, 3, 10**6, pairs), 0)
    (row,), _ = lists(found)
    assert row == [*processor.encode(clean(text, "source")), END]


def test_every_epoch_has_the_same_text_in_other_pieces(tokenizer):
    pairs = sampled(tokenizer)
    epochs = [epoch_of(pairs, number) for number in range(3)]
    for epoch in epochs:
        source, target = map(tokenizer.decode, lists(epoch))
        assert SentencePairs(source, target) == PAIRS
        assert epoch.lengths.sum() > 1.05 * usual(tokenizer).lengths.sum()
    assert lists(epochs[0]) != lists(epochs[1]) != lists(epochs[2])


def test_seed_and_epoch_determine_the_pieces(tokenizer):
    pairs, again, other = (sampled(tokenizer, seed=seed) for seed in (3, 3, 4))
    assert lists(epoch_of(pairs, 7)) == lists(epoch_of(again, 7))
    assert lists(epoch_of(pairs, 7)) != lists(epoch_of(other, 7))


def test_a_sentence_that_sampling_makes_too_long_keeps_its_usual_pieces(
    tokenizer,
):
    expected = usual(tokenizer)
    longest = int(expected.lengths.max())
    found = epoch_of(sampled(tokenizer, 0.9, max_length=longest), 0)
    assert found.lengths.max() <= longest
    full = np.argmax(expected.source.lengths)
    assert lists(found)[0][full] == lists(expected)[0][full]
    kept = found.source.lengths == expected.source.lengths
    assert 0 < kept.sum() < len(PAIRS)


def test_what_is_forgotten_does_not_change_the_pieces(tokenizer, monkeypatch):
    """Segmentations are drawn again when they are needed again."""
    pairs = sampled(tokenizer)
    expected = [lists(epoch_of(pairs, number)) for number in range(3)]
    monkeypatch.setattr(bpe_dropout, "WORDS", 1)
    pairs = sampled(tokenizer)
    assert [lists(epoch_of(pairs, n)) for n in range(3)] == expected


def test_a_merge_is_skipped_as_often_as_the_rate_says(tokenizer):
    rng, merges = random.Random(1), {"ab": -1.0}
    left = sum(
        segment("ab", merges, 0.3, rng) == ["a", "b"] for _ in range(10_000)
    )
    assert left / 10_000 == pytest.approx(0.3, abs=0.02)
    # The same rate shows in an epoch whose words are one merge and a digit.
    pair = next(p for p in tokenizer.merges() if len(p) == 2 and p[0] == "▁")
    words = [pair[1] + digit for digit in "0123456789"] * 300
    some = SentencePairs([" ".join(words)] * 2, [" ".join(words)] * 2)
    found = epoch_of(sampled(tokenizer, 0.3, 3, 10**6, some), 0)
    # A digit is a piece of its own, so a word has two pieces, or three if its
    # merge is skipped.
    three = (found.lengths[0, 0] - 1) / len(words) - 2
    assert three == pytest.approx(0.3, abs=0.1)


def test_a_run_samples_pieces_of_its_own_text(corpus, recipe, tmp_path):
    """Here source and target have separate vocabularies."""
    recipe = dataclasses.replace(
        recipe, bpe_dropout=0.1, shared_vocabulary=False, vocab_size=380
    )
    run = start_run(tmp_path / "run", "tiny", recipe, **SMALL)
    text, whole = read_pairs(recipe, "train"), PreparedCorpus(run.data)
    epoch = epoch_of(load_training_pairs(run), 0)
    assert epoch.lengths.sum() > epoch_of(whole, 0).lengths.sum()
    source, target = lists(epoch)
    assert run.source_tokenizer.decode(source) == text.source
    assert run.target_tokenizer.decode(target) == text.target
