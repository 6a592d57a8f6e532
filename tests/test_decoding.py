"""Compares the searches with exhaustive enumeration, on small random models."""

import itertools

import numpy as np
import paper
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_transformer import (
    beam_search,
    greedy_search,
    length_penalty,
    sample,
)
from keras_transformer.search import next_token

START, END = 2, 3


def search(*arguments, **settings):
    """Returns the sequences and scores of `beam_search` as arrays of NumPy."""
    found = beam_search(*arguments, **settings)
    return [ops.convert_to_numpy(x) for x in found]


class TableModel:
    """A model whose logits depend on the sentence and its last two tokens.

    They come from a random table. The cache holds the token before the last, so
    a wrongly reordered cache gives wrong probabilities.
    """

    def __init__(self, seed, sentences, vocab_size):
        rng = np.random.default_rng(seed)
        shape = (sentences, vocab_size, vocab_size, vocab_size)
        self.table = rng.normal(scale=2, size=shape).astype("float32")
        self.log_probs = np.log(paper.softmax(self.table.astype("float64")))

    def start(self, beam_size):
        rows = len(self.table) * beam_size
        return {
            "before": np.full((rows, 1), START, "int32"),
            "sentence": np.repeat(
                np.arange(len(self.table), dtype="int32"), beam_size
            )[:, None],
        }

    def step(self, tokens, cache, index):
        table = ops.convert_to_tensor(self.table)
        size = self.table.shape[-1]
        place = (cache["sentence"][:, 0] * size + cache["before"][:, 0]) * size
        logits = ops.take(
            ops.reshape(table, (-1, size)), place + tokens, axis=0
        )
        return logits, {**cache, "before": tokens[:, None]}

    def log_probability(self, sentence, tokens):
        before, last, total = START, START, 0.0
        for token in tokens:
            total += self.log_probs[sentence, before, last, token]
            before, last = last, token
        return total

    def all_finished(self, sentence, limit, alpha, formula="gnmt"):
        """Returns all finished sequences within the limit, the best first."""
        others = [t for t in range(self.table.shape[-1]) if t != END]
        scored = []
        for length in range(limit):
            for tokens in itertools.product(others, repeat=length):
                tokens = (*tokens, END)
                score = self.log_probability(sentence, tokens)
                score /= paper.length_penalty(len(tokens), alpha, formula)
                scored.append((score, tokens))
        return sorted(scored, reverse=True)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
    formula=st.sampled_from(["gnmt", "power"]),
    limits=st.lists(st.integers(1, 4), min_size=1, max_size=3),
)
def test_a_wide_beam_finds_what_enumeration_finds(seed, alpha, formula, limits):
    model = TableModel(seed, len(limits), vocab_size=4)
    beam = 36  # as many as there are continuations: 3 · 3 · 4
    ids, scores = search(
        model.step,
        model.start(beam),
        limits,
        beam,
        alpha,
        length_penalty=formula,
    )
    for b, limit in enumerate(limits):
        expected = model.all_finished(b, limit, alpha, formula)[:beam]
        for k, (score, tokens) in enumerate(expected):
            assert float(scores[b, k]) == pytest.approx(score, abs=1e-4)
            if k == 0:
                found = [int(t) for t in ids[b, 0] if t != 0]
                assert found == [t for t in tokens if t != 0]


def plain_beam_search(model, sentence, limit, beam, alpha, formula, rule):
    """Searches one sentence step by step, with Python's lists."""
    alive, done = [(0.0, ())], []

    def goes_on(length):
        worst = done[-1][0] if len(done) == beam else -np.inf
        if rule == "filled" and len(done) == beam:
            return False
        if rule == "never":  # the largest penalty that a prefix may reach
            length = limit
        penalty = paper.length_penalty(max(length, 1), alpha, formula)
        return bool(alive) and alive[0][0] / penalty > worst

    for length in range(1, limit + 1):
        if not goes_on(length - 1):
            break
        tokens = range(model.table.shape[-1]) if length < limit else [END]
        candidates = sorted(
            (
                (model.log_probability(sentence, (*prefix, t)), (*prefix, t))
                for _, prefix in alive
                for t in tokens
            ),
            reverse=True,
        )[: 2 * beam]
        penalty = paper.length_penalty(length, alpha, formula)
        ended = [c for c in candidates[:beam] if c[1][-1] == END]
        done += [(score / penalty, tokens) for score, tokens in ended]
        done = sorted(done, reverse=True)[:beam]
        alive = [c for c in candidates if c[1][-1] != END][:beam]
    return done


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    beam=st.integers(2, 4),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
    formula=st.sampled_from(["gnmt", "power"]),
    rule=st.sampled_from(["never", "heuristic", "filled"]),
    limits=st.lists(st.integers(2, 7), min_size=1, max_size=3),
)
def test_each_rule_stops_the_search_as_it_says(
    seed, beam, alpha, formula, rule, limits
):
    model = TableModel(seed, len(limits), vocab_size=5)
    ids, scores = search(
        model.step,
        model.start(beam),
        limits,
        beam,
        alpha,
        length_penalty=formula,
        early_stopping=rule,
    )
    for b, limit in enumerate(limits):
        expected = plain_beam_search(
            model, b, limit, beam, alpha, formula, rule
        )
        found = np.isfinite(scores[b]).sum()
        assert found == len(expected)
        rows = set()
        for k, (score, _) in enumerate(expected):
            assert float(scores[b, k]) == pytest.approx(score, abs=1e-4)
            # Sequences with the same steps in another order have one score.
            row = [int(t) for t in ids[b, k]]
            row = (*row[: row.index(END)], END)
            own = model.log_probability(b, row)
            own /= paper.length_penalty(len(row), alpha, formula)
            assert own == pytest.approx(score, abs=1e-4)
            rows.add(row)
        assert len(rows) == len(expected)


def test_the_rules_differ():
    """Otherwise the test above could not tell them apart."""
    lengths = {"never": 0, "heuristic": 0, "filled": 0}
    for seed in range(30):
        model = TableModel(seed, 1, vocab_size=5)
        for rule in lengths:
            found = plain_beam_search(model, 0, 7, 2, 3.0, "power", rule)
            lengths[rule] += len(found[0][1])
    assert lengths["filled"] < lengths["heuristic"] < lengths["never"]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    limits=st.lists(st.integers(2, 4), min_size=1, max_size=3),
    minimum=st.integers(1, 4),
    prefix=st.lists(st.sampled_from([-1, 0, 1, 2]), max_size=3),
)
def test_a_wide_beam_with_constraints_finds_what_enumeration_finds(
    seed, limits, minimum, prefix
):
    """The length limit takes precedence over minimum length and prefix."""
    model = TableModel(seed, len(limits), vocab_size=4)
    beam = 36

    def allowed(tokens, limit):
        forced = [(i, t) for i, t in enumerate(prefix) if t >= 0]
        needed = max([minimum, *(i + 2 for i, _ in forced)])
        if len(tokens) < min(needed, limit):
            return False
        return all(tokens[i] == t for i, t in forced if i + 1 < limit)

    ids, scores = search(
        model.step,
        model.start(beam),
        limits,
        beam,
        min_lengths=[minimum] * len(limits),
        prefix=np.array([prefix] * len(limits), "int32").reshape(
            len(limits), -1
        ),
    )
    for b, limit in enumerate(limits):
        everything = model.all_finished(b, limit, 0.6)
        expected = [x for x in everything if allowed(x[1], limit)][:beam]
        for k, (score, tokens) in enumerate(expected):
            assert float(scores[b, k]) == pytest.approx(score, abs=1e-4)
            if k == 0:
                found = ids[b, 0, : len(tokens)]
                np.testing.assert_array_equal(found, tokens)
        assert np.isneginf(scores[b, len(expected) :]).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_beam_of_one_equals_greedy_search(seed, alpha):
    model = TableModel(seed, 3, vocab_size=11)
    limits = [2, 13, 7]
    ids, scores = greedy_search(model.step, model.start(1), limits)
    one = beam_search(model.step, model.start(1), limits, 1, alpha)
    np.testing.assert_array_equal(one[0][:, 0], ids)
    # A beam size that is a tensor takes the general path.
    one_beam = tf.constant(1)
    general = beam_search(model.step, model.start(1), limits, one_beam, alpha)
    for b in range(3):
        length = np.asarray(ids[b]).tolist().index(END) + 1
        expected = scores[b] / paper.length_penalty(length, alpha)
        assert float(one[1][b, 0]) == pytest.approx(float(expected), rel=1e-5)
        np.testing.assert_array_equal(general[0][b, 0], one[0][b, 0])


def test_the_end_token_may_be_zero():
    model = TableModel(3, 2, vocab_size=7)
    arguments = ([5, 9], 1, 0.6, 1, 0)
    one = beam_search(model.step, model.start(1), *arguments)
    limits, _, *rest = arguments
    general = beam_search(
        model.step, model.start(1), limits, tf.constant(1), *rest
    )
    np.testing.assert_array_equal(one[0], general[0])
    np.testing.assert_allclose(one[1], general[1], rtol=1e-5)


@pytest.mark.parametrize("beam", [1, 2, 5, 13])
def test_a_sentence_does_not_depend_on_its_batch_mates(beam):
    model = TableModel(8, 4, vocab_size=7)
    limits = np.array([9, 2, 17, 5])
    ids, scores = beam_search(model.step, model.start(beam), limits, beam)
    for b in range(4):
        alone = TableModel(8, 4, vocab_size=7)
        alone.table = alone.table[b : b + 1]
        one, score = beam_search(
            alone.step, alone.start(beam), limits[b : b + 1], beam
        )
        width = one.shape[-1]
        np.testing.assert_array_equal(ids[b, :, :width], one[0])
        assert (np.asarray(ids[b, :, width:]) == 0).all()
        np.testing.assert_allclose(scores[b], score[0], rtol=1e-5)


@pytest.mark.parametrize("beam", [2, 5])
def test_finished_sentences_may_leave_the_batch(beam):
    """The result stays the same, also with constraints for each sentence."""
    model = TableModel(8, 7, vocab_size=7)
    limits = [9, 2, 17, 5, 3, 11, 1]
    rules = {
        "min_lengths": [1, 2, 7, 4, 1, 11, 1],
        "prefix": [[-1], [5], [4], [-1], [6], [-1], [5]],
    }
    rows = []

    def step(tokens, cache, index):
        rows.append(len(tokens))
        return model.step(tokens, cache, index)

    def keep(cache, sentences):
        def of(x):
            x = ops.reshape(x, (-1, beam, 1))
            return ops.reshape(ops.take(x, sentences, axis=0), (-1, 1))

        return {name: of(x) for name, x in cache.items()}

    start = model.start(beam)
    ids, scores = beam_search(step, start, limits, beam, **rules)
    assert set(rows) == {7 * beam}
    steps, rows = len(rows), []
    found, found_scores = beam_search(
        step, start, limits, beam, **rules, select_rows=keep
    )
    np.testing.assert_array_equal(found, ids)
    np.testing.assert_allclose(found_scores, scores, rtol=1e-5)
    assert len(rows) == steps
    assert sorted(rows, reverse=True) == rows
    assert 7 * beam == rows[0] > rows[-1]


def test_no_sentences_give_no_translations():
    model = TableModel(5, 1, vocab_size=7)
    model.table = model.table[:0]

    def never(tokens, cache, index):
        return ops.zeros((0, 7)), cache

    ids, scores = beam_search(never, {}, np.zeros((0,), "int32"), 3)
    assert ids.shape[:2] == scores.shape == (0, 3)


@pytest.mark.parametrize("width", [31, 101, 6000])
@pytest.mark.parametrize("count", [1, 3, 8, 49, 6000])
def test_top_k_in_chunks_equals_top_k(width, count):
    """The first ones of equal values are chosen, as by `top_k`."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(5, width)).round(1).astype("float32")
    count = min(count, width)
    expected, places = ops.top_k(logits, count)
    found, tokens = next_token._top_k(ops.convert_to_tensor(logits), count)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(tokens, places)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (1, 1.0),
        (2, 1.09690262),
        (10, 1.73286211),
        (100, 5.56958491),
    ],
)
def test_the_length_penalty_has_known_values(length, expected):
    assert float(length_penalty(length, 0.6)) == pytest.approx(expected)


def test_the_length_penalty_of_other_systems_is_a_power():
    assert float(length_penalty(7, 2.0, "power")) == pytest.approx(49)
    with pytest.raises(ValueError, match="formula='n'"):
        length_penalty(7, 2.0, "n")


def test_errors_name_what_was_received():
    with pytest.raises(ValueError, match=r"beam_size=0, alpha=0.6"):
        beam_search(None, {}, [1], 0)
    with pytest.raises(ValueError, match=r"beam_size=4, alpha=-1"):
        beam_search(None, {}, [1], 4, -1)
    with pytest.raises(ValueError, match=r"alpha=nan"):
        beam_search(None, {}, [1], 4, float("nan"))


def test_limits_may_be_a_list_of_tensors_in_a_graph():
    model = TableModel(3, 2, 6)

    @tf.function
    def search(limit):
        cache = {k: tf.constant(x) for k, x in model.start(1).items()}
        return greedy_search(model.step, cache, [limit, limit])

    found, _ = search(tf.constant(5))
    expected, _ = greedy_search(model.step, model.start(1), [5, 5])
    np.testing.assert_array_equal(found, expected)


def test_a_prefix_without_a_way_on_leaves_the_others():
    """The more probable first token leads to one after which all logits are
    -inf."""
    never = -np.inf
    table = np.zeros((6, 6), "float32")
    table[START] = [never, never, never, never, 1, 0.9]
    table[4] = never
    table[5] = [never, never, never, 0, never, never]

    def step(tokens, cache, index):
        return ops.take(ops.convert_to_tensor(table), tokens, axis=0), cache

    ids, scores = beam_search(step, {}, [5], 2, 0.0)
    assert ids[0, 0].numpy().tolist() == [5, END, 0, 0, 0]
    expected = 0.9 - np.log(np.exp(1) + np.exp(0.9))
    assert float(scores[0, 0]) == pytest.approx(expected, rel=1e-5)
    assert float(greedy_search(step, {}, [5])[1][0]) == never
    assert float(sample(step, {}, [5], top_k=1)[1][0]) == never


def test_arguments_may_be_numbers_of_numpy():
    model = TableModel(3, 2, 7)
    expected = beam_search(model.step, model.start(3), [5, 9], 3, 0.7)
    found = beam_search(
        model.step, model.start(3), [5, 9], np.int64(3), np.float64(0.7)
    )
    np.testing.assert_array_equal(found[0], expected[0])
    for beam_size, alpha in (
        (np.int64(0), 0.6),
        (2.0, 0.6),
        (2, np.float32(-1)),
    ):
        with pytest.raises(ValueError, match="`beam_size` must be an integer"):
            beam_search(model.step, model.start(2), [5], beam_size, alpha)
    penalties = {
        float(length_penalty(7, tf.constant(1, dtype)))
        for dtype in (tf.int32, tf.float16, tf.float32, tf.float64)
    }
    assert penalties == {2.0}


def test_one_row_of_lengths_and_prefixes_is_for_all_sentences():
    model = TableModel(3, 2, 7)
    several = {"min_lengths": [4, 4], "prefix": [[5, -1], [5, -1]]}
    one = {"min_lengths": [4], "prefix": [[5, -1]]}
    for beams, search in ((1, greedy_search), (3, beam_search)):
        more = {"beam_size": beams} if beams > 1 else {}
        found, expected = (
            search(model.step, model.start(beams), [5, 9], **more, **rules)[0]
            for rules in (one, several)
        )
        np.testing.assert_array_equal(found, expected)
