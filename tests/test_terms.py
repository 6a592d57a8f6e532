"""Compares searches with required and avoided terms with enumeration."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from keras import ops
from test_decoding import END, TableModel, search

from keras_transformer import beam_search
from keras_transformer.search.terms import EXTRA_PREFIXES, wide_beam

TOKENS = [0, 1, 2]  # of a vocabulary of 4


def padded(phrases, width=3):
    """Returns phrases of each sentence as `(B, C, width)`, padded with -1."""
    count = max(map(len, phrases), default=0)
    table = np.full((len(phrases), count, width), -1, "int32")
    for b, row in enumerate(phrases):
        for c, phrase in enumerate(row):
            table[b, c, : len(phrase)] = phrase
    return table


def has(tokens, phrase, continuations=()):
    """Returns whether tokens have a phrase that no continuation follows."""
    return not phrase or any(
        tokens[i : i + len(phrase)] == tuple(phrase)
        and tokens[i + len(phrase)] not in continuations
        for i in range(len(tokens) - len(phrase))
    )


def allowed(everything, limit, terms, avoid, continuations=()):
    """Returns the scored sequences that a search may return."""
    everything = [
        x for x in everything if not any(has(x[1], phrase) for phrase in avoid)
    ]
    complete = [
        (score, tokens)
        for score, tokens in everything
        if all(has(tokens, phrase, continuations) for phrase in terms)
    ]
    return complete or [x for x in everything if len(x[1]) == limit]


phrase = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=3)
sentence = st.tuples(
    st.integers(1, 5),  # maximum length
    st.lists(phrase, max_size=2),
    st.lists(phrase, max_size=2),
)


@settings(max_examples=40, deadline=None, phases=[Phase.generate])
@given(
    seed=st.integers(0, 10**6),
    sentences=st.lists(sentence, min_size=1, max_size=3),
    continuations=st.sets(st.sampled_from(TOKENS)),
)
def test_a_wide_beam_finds_the_best_sequences_with_all_terms(
    seed, sentences, continuations
):
    """Where none is complete at the maximum length, it finds others."""
    model = TableModel(seed, len(sentences), vocab_size=4)
    limits, terms, avoid = zip(*sentences, strict=True)
    beam = 108  # as many as there are continuations: 3 · 3 · 3 · 4
    ids, scores = search(
        model.step,
        model.start(beam),
        list(limits),
        beam,
        terms=padded(terms),
        avoid=padded(avoid),
        word_continuations=[t in continuations for t in range(4)],
    )
    assert ids.shape[:2] == scores.shape == (len(sentences), beam)
    for b, limit in enumerate(limits):
        everything = model.all_finished(b, limit, 0.6)
        rules = limit, terms[b], avoid[b], continuations
        expected = allowed(everything, *rules)[:beam]
        found = [float(x) for x in scores[b] if np.isfinite(x)]
        assert found == pytest.approx([s for s, _ in expected], abs=1e-4)
        if expected:
            row = tuple(ids[b, 0, : len(expected[0][1])].tolist())
            assert row in [tokens for _, tokens in expected[:2]]


@pytest.mark.parametrize("rule", ["never", "heuristic", "filled"])
@pytest.mark.parametrize("hypotheses", [1, 3])
def test_terms_are_met_by_a_narrow_beam(rule, hypotheses):
    model = TableModel(5, 4, vocab_size=11)
    terms = padded([[[4, 5, 6], [7]], [[8, 8, 9]], [], [[4], [4, 10]]])
    avoid = padded([[[5, 7]], [[4, 4]], [[4, 5], [1]], []])
    beam = int(wide_beam(ops.convert_to_tensor(terms), hypotheses))
    assert beam == EXTRA_PREFIXES + hypotheses
    limits = [13, 11, 7, 9]

    def found(rows):
        rows = list(rows)
        one = TableModel(5, 4, vocab_size=11)
        one.table = one.table[rows]
        return search(
            one.step,
            one.start(beam),
            [limits[b] for b in rows],
            beam,
            early_stopping=rule,
            terms=terms[rows],
            avoid=avoid[rows],
            hypotheses=hypotheses,
        )

    ids, scores = found(range(4))
    assert np.isfinite(scores[:, 0]).all()
    for b in range(4):
        for k in range(np.isfinite(scores[b]).sum()):
            tokens = ids[b, k].tolist()
            tokens = tuple(tokens[: tokens.index(END) + 1])
            for row in terms[b]:
                assert has(tokens, [t for t in row.tolist() if t >= 0])
            for row in avoid[b]:
                term = [t for t in row.tolist() if t >= 0]
                assert not term or not has(tokens, term)
            own = model.log_probability(b, tokens) / float(
                ((5 + len(tokens)) / 6) ** 0.6
            )
            assert own == pytest.approx(float(scores[b, k]), abs=1e-4)
        # No sentence changes another one.
        alone, score = found([b])
        np.testing.assert_array_equal(alone[0], ids[b, :, : alone.shape[-1]])
        np.testing.assert_allclose(score[0], scores[b], rtol=1e-5)


@pytest.mark.parametrize("hypotheses", [1, 3])
@pytest.mark.parametrize("rule", ["never", "heuristic", "filled"])
def test_sentences_without_terms_are_searched_as_before(rule, hypotheses):
    model, limits = TableModel(5, 3, vocab_size=11), [13, 11, 7]
    arguments = {"alpha": 0.7, "early_stopping": rule}
    plain, plain_scores = search(
        model.step, model.start(hypotheses), limits, hypotheses, **arguments
    )
    for beam, terms in (
        (hypotheses, padded([[], [], []])),
        (hypotheses + EXTRA_PREFIXES, padded([[], [], []])),
        (hypotheses + EXTRA_PREFIXES, padded([[], [[4, 5]], []])),
    ):
        ids, scores = search(
            model.step,
            model.start(beam),
            limits,
            beam,
            **arguments,
            terms=terms,
            hypotheses=hypotheses,
        )
        rows = [0, 2] if terms.size else [0, 1, 2]
        np.testing.assert_array_equal(ids[rows], plain[rows])
        np.testing.assert_allclose(scores[rows], plain_scores[rows], rtol=1e-5)


def test_terms_may_be_tensors_of_a_graph():
    model, limits, beam = TableModel(5, 5, vocab_size=7), [9, 11, 5, 9, 7], 7
    terms = padded([[[4, 5]], [], [[6], [5, 6]], [[1, 1, 4]], []])
    avoid = padded([[[4, 4]]])
    expected, scores = search(
        model.step,
        model.start(beam),
        limits,
        beam,
        terms=terms,
        avoid=avoid,
        hypotheses=2,
    )

    def keep(cache, sentences):
        def of(x):
            x = ops.reshape(x, (-1, beam, 1))
            return ops.reshape(ops.take(x, sentences, axis=0), (-1, 1))

        return keras.tree.map_structure(of, cache)

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([None, None, None], tf.int32)] * 2
        + [tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)],
    )
    def found(terms, avoid, limits, hypotheses):
        rows = tf.range(tf.size(limits) * beam)
        cache = {
            name: tf.ensure_shape(tf.gather(x, rows), [None, 1])
            for name, x in model.start(beam).items()
        }
        return beam_search(
            model.step,
            cache,
            limits,
            beam,
            terms=terms,
            avoid=avoid,
            hypotheses=hypotheses,
            select_rows=keep,
        )

    ids, others = found(terms, avoid, limits, tf.constant(2))
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(others, scores, atol=1e-4)


def test_a_repeated_beginning_of_a_term_is_followed():
    """A prefix 4 4 4 ends with the first two tokens of 4 4 5."""
    table = np.full((6, 6), -9.0, "float32")
    table[[2, 4, 5], [4, 4, END]] = 5
    forced = [[4, 4, 4, -1]]

    def step(tokens, cache, index):
        return ops.take(ops.convert_to_tensor(table), tokens, axis=0), cache

    ids, _ = search(
        step, {}, [5], 5, prefix=forced, terms=[[[4, 4, 5]]], hypotheses=1
    )
    assert ids[0, 0].tolist() == [4, 4, 4, 5, END]


def test_terms_of_another_shape_are_refused():
    model = TableModel(3, 1, 7)
    arguments = model.step, model.start(4), [5], 4
    for name in ("terms", "avoid"):
        with pytest.raises(ValueError, match=rf"`{name}` must have shape"):
            beam_search(*arguments, **{name: [[4, 5]]})
    with pytest.raises(ValueError, match=r"hypotheses=5, beam_size=4"):
        beam_search(*arguments, hypotheses=5)
