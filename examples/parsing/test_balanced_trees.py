"""Checks that a search finds balanced trees, and that it can find them all."""

import keras
import numpy as np
import pytest
from balanced_trees import BalancedTrees
from keras import ops

from keras_transformer import beam_search, greedy_search, sample
from keras_transformer.ids import END

pytestmark = pytest.mark.programs

OPENINGS, CLOSINGS, WORDS = (4, 5), (7, 6), (8, 9)
V = 10
TREES = BalancedTrees(OPENINGS, CLOSINGS, WORDS, max_depth=4)


class Model:
    """Logits that depend on the row and on the last token, and a cache that
    counts the steps of each row."""

    def __init__(self, seed, rows):
        rng = np.random.default_rng(seed)
        self.table = rng.normal(scale=2, size=(rows, V, V)).astype("float32")

    def start(self, counts, limits, beam_size=1):
        rows = np.repeat(np.arange(len(self.table), dtype="int32"), beam_size)
        return TREES.cache(
            {"row": rows[:, None]},
            np.repeat(counts, beam_size),
            np.repeat(limits, beam_size),
        )

    def step(self, tokens, cache, index):
        table = ops.reshape(ops.convert_to_tensor(self.table), (-1, V))
        return ops.take(table, cache["row"][:, 0] * V + tokens, axis=0), cache


def all_trees(words, tokens, depth):
    """Lists all trees over so many words, of so many tokens at most."""
    if depth == 0 or words == 0:
        return []
    return [
        (opening, *inside, closing)
        for opening, closing in zip(OPENINGS, CLOSINGS, strict=True)
        for inside in all_forests(words, tokens - 2, depth - 1)
    ]


def all_forests(words, tokens, depth):
    """Lists all rows of words and trees over exactly so many words."""
    if words == 0:
        return [()]
    if tokens < words:
        return []
    found = [
        (word, *rest)
        for word in WORDS
        for rest in all_forests(words - 1, tokens - 1, depth)
    ]
    for first in range(1, words + 1):
        for tree in all_trees(first, tokens - (words - first), depth):
            left = tokens - len(tree)
            found += [
                (*tree, *rest)
                for rest in all_forests(words - first, left, depth)
            ]
    return found


def sequences(words, limit):
    """Lists what a search may find: all trees with their end token."""
    return [(*t, END) for t in all_trees(words, limit - 1, TREES.max_depth)]


@pytest.mark.parametrize(("words", "limit"), [(1, 10), (2, 9), (3, 8), (2, 5)])
def test_exactly_the_tokens_that_lead_to_a_tree_are_allowed(words, limit):
    expected = {}
    for sequence in sequences(words, limit):
        for i, token in enumerate(sequence):
            expected.setdefault(sequence[:i], set()).add(token)
    assert len(expected) > 10
    step = TREES.wrap(
        lambda tokens, cache, index: (np.zeros((len(tokens), V)), cache)
    )
    prefixes, found = [()], {}
    cache = TREES.cache({}, [words], [limit])
    for index in range(limit):  # all prefixes of one length at once
        last = [(2, *prefix)[-1] for prefix in prefixes]
        logits, cache = step(np.array(last, "int32"), cache, index)
        allowed = np.isfinite(ops.convert_to_numpy(logits))
        for prefix, row in zip(prefixes, allowed, strict=True):
            found[prefix] = set(np.flatnonzero(row).tolist())
        rows, tokens = np.nonzero(allowed & (np.arange(V) != END))
        prefixes = [
            (*prefixes[row], token)
            for row, token in zip(rows, tokens.tolist(), strict=True)
        ]
        if not prefixes:
            break
        cache = keras.tree.map_structure(
            lambda x, rows=rows: ops.take(x, rows, axis=0), cache
        )
    assert found == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_finds_all_trees(seed):
    """Their probabilities are those of the model among the allowed tokens."""
    limits, counts = [7, 6], [2, 1]
    model, beam = Model(seed, 2), 200
    ids, scores = beam_search(
        TREES.wrap(model.step),
        model.start(counts, limits, beam),
        limits,
        beam,
        alpha=0.0,
    )
    ids, scores = ops.convert_to_numpy(ids), ops.convert_to_numpy(scores)
    for row, (words, limit) in enumerate(zip(counts, limits, strict=True)):
        every = sequences(words, limit)
        expected = {}
        for sequence in every:
            total, before = 0.0, 2
            for i, token in enumerate(sequence):
                allowed = {s[i] for s in every if s[:i] == sequence[:i]}
                allowed = sorted(allowed)
                logits = model.table[row, before, allowed].astype("float64")
                chances = np.exp(logits - np.logaddexp.reduce(logits))
                total += np.log(chances[allowed.index(token)])
                before = token
            expected[sequence] = total
        found = {
            tuple(sequence[sequence > 0].tolist()): score
            for sequence, score in zip(ids[row], scores[row], strict=True)
            if np.isfinite(score)
        }
        assert found.keys() == expected.keys()
        for sequence, score in found.items():
            assert score == pytest.approx(expected[sequence], abs=1e-4)


@pytest.mark.parametrize(
    "search",
    [
        lambda step, start, limits: greedy_search(step, start(1), limits)[0],
        lambda step, start, limits: sample(step, start(1), limits, seed=7)[0],
        lambda step, start, limits: ops.reshape(
            beam_search(step, start(3), limits, beam_size=3)[0][:, 0],
            (len(limits), -1),
        ),
    ],
    ids=["greedy", "sample", "beam"],
)
def test_every_search_finds_trees(search):
    counts = [1, 2, 3, 5, 13]
    limits = [4, 30, 6, 11, 40]
    for seed in range(2):
        model = Model(seed, 5)
        ids = search(
            TREES.wrap(model.step),
            lambda beams, model=model: model.start(counts, limits, beams),
            limits,
        )
        for found, words in zip(
            ops.convert_to_numpy(ids).tolist(), counts, strict=True
        ):
            tree = found[: found.index(END)]
            assert is_tree(tree, words), tree


def is_tree(tokens, words):
    """Reduces innermost constituents until one word is left."""
    count = sum(token in WORDS for token in tokens)
    signs = {4: "[", 7: "]", 5: "{", 6: "}", 8: "w", 9: "w"}
    text = "".join(signs[token] for token in tokens)
    before = None
    while before != text:
        before = text
        text = text.replace("ww", "w").replace("[w]", "w").replace("{w}", "w")
    return text == "w" and count == words and tokens[0] in OPENINGS


def test_the_start_token_may_be_any_number():
    trees = BalancedTrees(openings=[2], closings=[4], words=[5])
    search = greedy_search(
        trees.wrap(lambda tokens, *cache: (np.zeros((1, 6)), cache[0])),
        trees.cache({}, [2], [5]),
        max_lengths=[5],
        start_id=2,
    )
    assert ops.convert_to_numpy(search[0]).tolist() == [[2, 5, 5, 4, 3]]


def test_sentences_that_are_kept_keep_their_trees():
    cache = TREES.cache({"row": np.arange(6)}, np.arange(6), np.arange(10, 16))
    keep = TREES.select_rows(
        lambda cache, sentences: {"row": ops.take(cache["row"], sentences)}, 2
    )
    kept = keep(cache, ops.convert_to_tensor([2, 0]))
    found = {name: ops.convert_to_numpy(x) for name, x in kept["tree"].items()}
    assert found["rest"].tolist() == [4, 5, 0, 1]
    assert found["max_lengths"].tolist() == [14, 15, 10, 11]
    assert found["labels"].shape == (4, 4)
    assert ops.convert_to_numpy(kept["model"]["row"]).tolist() == [2, 0]


def test_an_own_order_of_the_beams_is_obeyed():
    model, limits = Model(1, 2), [9, 9]
    calls = []

    def reorder(cache, beams):
        calls.append(1)
        rows = ops.arange(2)[:, None] * 3 + beams
        return {"row": ops.take(cache["row"], ops.reshape(rows, (-1,)), axis=0)}

    start = model.start([2, 3], limits, 3)
    expected = beam_search(TREES.wrap(model.step), start, limits, 3)
    found = beam_search(
        TREES.wrap(model.step),
        start,
        limits,
        3,
        reorder_cache=TREES.reorder_cache(reorder),
    )
    assert calls
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(
            ops.convert_to_numpy(one), ops.convert_to_numpy(other)
        )


def test_words_with_numbers_follow_each_other():
    """Word i has a token of list i modulo 3."""
    lists = [[8, 9], [10], [11, 12]]
    trees = BalancedTrees(OPENINGS, CLOSINGS, lists)
    rng = np.random.default_rng(3)
    table = rng.normal(size=(13, 13)).astype("float32")

    def step(tokens, cache, index):
        return ops.take(ops.convert_to_tensor(table), tokens, axis=0), cache

    counts, limits = [1, 3, 5, 7], [30] * 4
    for seed in range(3):
        ids, _ = sample(
            trees.wrap(step), trees.cache({}, counts, limits), limits, seed=seed
        )
        for row, count in zip(ops.convert_to_numpy(ids), counts, strict=True):
            found = [token for token in row.tolist() if token >= 8]
            assert len(found) == count
            assert all(token in lists[i % 3] for i, token in enumerate(found))


def test_labels_may_share_a_closing():
    trees = BalancedTrees([4, 5, 7], [6, 6, 10], WORDS)
    rng = np.random.default_rng(4)
    table = rng.normal(size=(11, 11)).astype("float32")

    def step(tokens, cache, index):
        return ops.take(ops.convert_to_tensor(table), tokens, axis=0), cache

    counts, limits = [2, 5, 7], [19, 13, 30]
    closing = {4: 6, 5: 6, 7: 10}
    closed = set()
    for seed in range(5):
        ids, _ = sample(
            trees.wrap(step), trees.cache({}, counts, limits), limits, seed=seed
        )
        for row, count in zip(ops.convert_to_numpy(ids), counts, strict=True):
            open_labels, row = [], row.tolist()
            for token in row[: row.index(END)]:
                if token in closing:
                    open_labels.append(token)
                elif token not in WORDS:
                    label = open_labels.pop()
                    assert token == closing[label]
                    closed.add(label)
            assert not open_labels
            assert sum(token in WORDS for token in row) == count
    assert closed == {4, 5, 7}


@pytest.mark.parametrize(("words", "limit"), [(0, 9), (3, 5)])
def test_where_no_tree_is_possible_the_sequence_is_empty(words, limit):
    model = Model(1, 1)
    ids, _ = greedy_search(
        TREES.wrap(model.step), model.start([words], [limit]), [limit]
    )
    assert ops.convert_to_numpy(ids)[0, 0] == END


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (([4], [5, 6], [7]), "1 openings, 2 closings"),
        (([], [], [7]), "0 openings"),
        (([4], [5], []), "0 words"),
        ((np.array([], int), np.array([], int), np.array([7])), "0 openings"),
        (([4], [5], [[6], []]), "1 words"),
        (([4], [5], [4]), r"twice: \[4\]"),
        (([4, 7], [5, 5], [6, 5]), r"twice: \[5\]"),
        (([4], [5], [3]), r"twice: \[3\]"),
        (([4], [5], [6], 3, 0), "max_depth=0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        BalancedTrees(*arguments)
