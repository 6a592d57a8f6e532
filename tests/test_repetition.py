"""Compares searches that avoid repetition with plain Python."""

import numpy as np
import paper
import pytest
import tensorflow as tf
from conftest import translator_of
from keras import ops
from test_decoding import END, START, TableModel, search

from keras_transformer import beam_search, greedy_search, sample
from keras_transformer.export import saved_model
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.inference import SearchSettings

SIZES = [(0, 1.5), (1, 1.0), (2, 1.0), (3, 0.7), (2, 1.3)]


def processed(scores, tokens, size, penalty):
    """Returns scores as transformers' two processors change them."""
    scores = scores.copy()
    for token in set(tokens):
        factor = penalty if scores[token] < 0 else 1 / penalty
        scores[token] *= factor
    for end in range(size - 1, len(tokens)):
        before = tokens[end - size + 1 : end]
        if size and before == tokens[len(tokens) - size + 1 :]:
            scores[tokens[end]] = -np.inf
    return scores


def plain_greedy(model, sentence, limit, size, penalty):
    before, last, tokens, total = START, START, (), 0.0
    while END not in tokens:
        logits = model.table[sentence, before, last].astype("float64")
        if len(tokens) + 1 < limit:
            logits = processed(logits, tokens, size, penalty)
            best = int(np.argmax(logits))
        else:
            best = END
        total += np.log(paper.softmax(logits)[best])
        before, last, tokens = last, best, (*tokens, best)
    return tokens, total


def plain_beams(model, sentence, limit, beam, size, penalty):
    """Searches as `early_stopping="filled"` does, until no beam is left."""
    alive, done = [(0.0, ())], []
    for length in range(1, limit + 1):
        candidates = []
        for total, prefix in alive:
            before, last = (START, START, *prefix)[-2:]
            row = model.log_probs[sentence, before, last]
            if length < limit:
                row = processed(row, prefix, size, penalty)
                row = np.log(paper.softmax(row) + 1e-99)
            tokens = range(len(row)) if length < limit else [END]
            candidates += [(total + row[t], (*prefix, t)) for t in tokens]
        candidates = sorted(candidates, reverse=True)[: 2 * beam]
        ended = [c for c in candidates[:beam] if c[1][-1] == END]
        done += [(s / paper.length_penalty(length, 0.6), t) for s, t in ended]
        done = sorted(done, reverse=True)[:beam]
        alive = [c for c in candidates if c[1][-1] != END][:beam]
        if len(done) == beam:
            break
    return done


def padded(tokens, length):
    return np.pad(tokens, (0, length - len(tokens)))


@pytest.mark.parametrize(("size", "penalty"), SIZES)
def test_greedy_search_takes_the_best_token_of_those_that_are_left(
    size, penalty
):
    limits = [13, 11, 5, 1]
    model = TableModel(3, len(limits), vocab_size=7)
    # A model that loves to repeat itself.
    model.table[:, :, range(7), range(7)] += 4
    model.log_probs = np.log(paper.softmax(model.table.astype("float64")))
    settings = {"no_repeat_ngram_size": size, "repetition_penalty": penalty}
    ids, scores = greedy_search(model.step, model.start(1), limits, **settings)
    plain, _ = greedy_search(model.step, model.start(1), limits)
    assert not np.array_equal(ids, plain)
    for b, limit in enumerate(limits):
        tokens, total = plain_greedy(model, b, limit, size, penalty)
        np.testing.assert_array_equal(ids[b], padded(tokens, 13))
        assert float(scores[b]) == pytest.approx(total, abs=1e-4)
    one = beam_search(model.step, model.start(1), limits, 1, **settings)[0]
    np.testing.assert_array_equal(one[:, 0], ids)


@pytest.mark.parametrize(("size", "penalty"), SIZES)
def test_beam_search_adds_up_the_scores_that_are_left(size, penalty):
    limits, beam = [13, 11, 5], 3
    model = TableModel(5, len(limits), vocab_size=7)
    ids, scores = search(
        model.step,
        model.start(beam),
        limits,
        beam,
        early_stopping="filled",
        no_repeat_ngram_size=size,
        repetition_penalty=penalty,
    )
    for b, limit in enumerate(limits):
        expected = plain_beams(model, b, limit, beam, size, penalty)
        for k, (score, tokens) in enumerate(expected):
            assert float(scores[b, k]) == pytest.approx(score, abs=1e-4)
            np.testing.assert_array_equal(ids[b, k], padded(tokens, 13))


def test_numbers_may_be_tensors_of_a_graph():
    model, limits = TableModel(5, 2, vocab_size=7), [13, 11]

    @tf.function(autograph=False)
    def found(size, penalty):
        return beam_search(
            model.step,
            model.start(3),
            tf.constant(limits),
            3,
            no_repeat_ngram_size=size,
            repetition_penalty=penalty,
        )

    for size, penalty in [(0, 1.0), *SIZES]:
        expected, scores = search(
            model.step,
            model.start(3),
            limits,
            3,
            no_repeat_ngram_size=size,
            repetition_penalty=penalty,
        )
        ids, others = found(tf.constant(size), tf.constant(penalty))
        np.testing.assert_array_equal(ids, expected)
        np.testing.assert_allclose(others, scores, atol=1e-4)


def test_samples_do_not_repeat_either():
    model = TableModel(7, 50, vocab_size=7)
    ids, _ = sample(
        model.step, model.start(1), [9] * 50, seed=1, no_repeat_ngram_size=1
    )
    for row in ops.convert_to_numpy(ids).tolist():
        tokens = row[: row.index(END) + 1]
        assert len(set(tokens)) == len(tokens)


def test_a_prefix_may_repeat_itself():
    """A search does not change what is given."""
    model = TableModel(5, 1, vocab_size=7)
    prefix = [[5, 5, 5, 5]]
    ids, scores = search(
        model.step,
        model.start(2),
        [9],
        2,
        prefix=prefix,
        no_repeat_ngram_size=2,
    )
    assert ids[0, 0, :4].tolist() == prefix[0]
    assert np.isfinite(scores[0, 0])


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size=-1"),
        ({"no_repeat_ngram_size": 2.5}, "no_repeat_ngram_size=2.5"),
        ({"no_repeat_ngram_size": True}, "no_repeat_ngram_size=True"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty=nan"),
    ],
)
def test_numbers_out_of_range_are_refused(setting, expected):
    model = TableModel(5, 1, vocab_size=7)
    for find in (beam_search, greedy_search, sample):
        with pytest.raises(ValueError, match=f"Received: {expected}"):
            find(model.step, model.start(4), [9], **setting)


@pytest.mark.usefixtures("optimized_graphs")
@pytest.mark.parametrize(
    "beam_size", [3, pytest.param(1, marks=pytest.mark.programs)]
)
def test_an_export_has_its_rules(run, tmp_path, beam_size):
    texts = ["The meeting is on the 3rd of May.", "", "It costs 7 euros."]
    rules = {"no_repeat_ngram_size": 1, "min_length": 5}
    settings = SearchSettings(beam_size, repetition_penalty=1.2, **rules)
    path = saved_model.export(run, tmp_path / "a" / "1", settings, "float32")
    found = SavedTranslator(path).translate(texts)["translation"].numpy()
    own = translator_of(run, settings)
    expected = own.compiled()(tf.constant(texts))["translation"].numpy()
    assert found.tolist() == expected.tolist()
    source = own._source(tf.constant(texts[:1]))[0].to_tensor()
    for ids in own.search(source, beam_size, 0.6, 60)[0][0].numpy().tolist():
        tokens = ids[: ids.index(END)]
        assert len(set(tokens)) == len(tokens) >= 4


def test_drafts_are_not_checked_for_repetition(run, tmp_path):
    settings = SearchSettings(1, no_repeat_ngram_size=2)
    path = tmp_path / "a" / "1"
    with pytest.raises(ValueError, match="Drafts are not checked"):
        saved_model.export(run, path, settings, draft_tokens=3)
    with pytest.raises(ValueError, match="repetition_penalty=0"):
        SearchSettings(repetition_penalty=0)
