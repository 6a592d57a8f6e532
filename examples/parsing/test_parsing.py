"""Checks the parsing example: trees, their scores, and the whole in small."""

import gzip
import random
import re

import pytest
import train as example
import treebank

pytestmark = pytest.mark.programs

DOG = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"


def read(text):
    (tree,) = treebank.parse(text)
    return tree


def test_a_tree_is_prepared_as_usual(tmp_path):
    """Without traces, constituents of traces alone, and functional tags."""
    path = tmp_path / "articles" / "one.tree.gz"
    path.parent.mkdir()
    text = """( (S (NP-SBJ-1 (-LRB- -LRB-) (NN Tyr\u2009c))
        (VP (VBD was) (VP (VBN seen) (NP-1 (-NONE- *)) (PP=2 (IN by)
        (NP (PRP us)))))) )\n( (NP-TTL (NN End)) )"""
    path.write_bytes(gzip.compress(text.encode()))
    first, second = treebank.read_trees(tmp_path)
    assert first == read(
        "(S (NP (-LRB- -LRB-) (NN Tyr\u2009c)) (VP (VBD was) (VP (VBN seen) "
        "(PP (IN by) (NP (PRP us))))))",
    )
    assert second == ("NP", ("NN", "End"))
    assert treebank.words_of(first)[:2] == ["-LRB-", "Tyr\u2009c"]


@pytest.mark.parametrize(
    "text",
    [
        "( (S (NN a) (. .)) )\n( (S (NN b) (. .)) )",
        "(S (NN a) (. .)) (S (NN b) (. .))",
        "( (S (NN a) (. .)) (S (NN b) (. .)) )",
        "(TOP (S (NN a) (. .))) ( (ROOT (S (NN b) (. .))) )",
    ],
)
def test_brackets_around_trees_may_be_of_several_kinds(tmp_path, text):
    (tmp_path / "without_suffix").write_text(text)
    assert treebank.read_trees(tmp_path) == [
        ("S", ("NN", "a"), (".", ".")),
        ("S", ("NN", "b"), (".", ".")),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a title ( (S (NN a)) )", "outside of all brackets: 'a'"),
        ("( (S (NP New York) (NN a)) )", "'New', 'York'"),
        ("( (S (NP (NN a) b)) )", "one word"),
        ("( (S (NP) (NN a)) )", r"\('NP',\)"),
        ("( (S ((NN a))) )", "label"),
    ],
)
def test_what_is_no_tree_is_named(tmp_path, text, problem):
    path = tmp_path / "some.tree"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"some\.tree: .*{problem}"):
        treebank.read_trees(path)


@pytest.mark.parametrize("text", ["((NN a)", "(NN a))"])
def test_brackets_that_do_not_match_are_named(tmp_path, text):
    path = tmp_path / "some.tree"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"some\.tree: .*never"):
        treebank.read_trees(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        treebank.read_trees(tmp_path / "none.tree")
    with pytest.raises(ValueError, match="No such file"):
        treebank.read_trees(tmp_path)


def test_symbols_write_a_tree_and_are_read_again():
    tree = read(DOG)
    symbols = ["(S", "(NP", "DT", "NN", ")NP", "(VP", "VBZ", ")VP", ".", ")S"]
    assert treebank.symbols_of(tree) == symbols
    words = ["The", "dog", "barks", "."]
    assert treebank.tree_of(symbols, words) == tree
    assert treebank.tags_of(symbols) == ["DT", "NN", "VBZ", "."]


@pytest.mark.parametrize(
    ("symbols", "balanced"),
    [
        ("(S DT NN )S", True),
        ("(S DT NN", False),
        ("(S DT NN )NP", False),
        ("(S DT )S )S", False),
        ("(S DT NN )S (S NN )S", False),
        ("(S )S", False),
        ("DT NN", False),
        ("", False),
    ],
)
def test_what_is_no_tree_is_noticed(symbols, balanced):
    symbols = symbols.split()
    assert treebank.is_balanced(symbols) == balanced
    assert (treebank.tree_of(symbols, ["a", "b"]) is not None) == balanced
    assert treebank.tree_of(symbols, ["a"]) is None


@pytest.mark.parametrize(
    ("found", "right", "given"),
    [
        (DOG, 3, 3),
        # S is right; NP and VP have another span.
        ("(S (NP (DT The)) (VP (NN dog) (VBZ barks)) (. .))", 1, 3),
        # Where punctuation stands does not matter, nor how it is tagged.
        ("(S (NP (DT The) (NN dog)) (VP (VBZ barks) (NN .)))", 3, 3),
        # A constituent counts once, and a wrong label is wrong.
        ("(S (NP (NP (DT The) (NN dog))) (PP (VBZ barks)) (. .))", 2, 4),
        ("(X (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))", 2, 3),
        (None, 0, 0),
    ],
)
def test_brackets_are_counted_as_by_hand(found, right, given):
    found = found and read(found)
    gold = read(DOG)
    precision, recall, f1 = treebank.bracket_scores([gold], [found])
    assert precision == pytest.approx(right / given if given else 0)
    assert recall == pytest.approx(right / 3)
    assert f1 == pytest.approx(2 * right / (given + 3))


LABELS = ["S", "NP", "VP", "PRT", "ADVP"]


def random_tree(words, rng):
    """Returns a tree over the words, with random labels and tags."""
    if len(words) == 1 and rng.random() < 0.8:
        tags = ["NN", "VB", "RP", ",", "."]
        return (rng.choice(tags), words[0])
    cuts = rng.sample(
        range(1, len(words)), min(len(words) - 1, rng.randint(0, 3))
    )
    starts = [0, *sorted(cuts)]
    label = rng.choice(LABELS)
    return (
        label,
        *(
            random_tree(words[start:end], rng)
            for start, end in zip(starts, [*starts[1:], None], strict=True)
        ),
    )


def with_mistakes(tree, rng):
    """Returns the tree with other labels, tags and brackets, a few of each."""
    label, *children = tree
    if isinstance(children[0], str):
        return (rng.choice([label, label, label, "NN", ","]), *children)
    if rng.random() < 0.1:
        label = rng.choice(LABELS)
    inside = []
    for child in children:
        child = with_mistakes(child, rng)
        flat = rng.random() < 0.1 and not isinstance(child[1], str)
        inside += child[1:] if flat else [child]
    return (label, *inside)


def written(tree):
    if isinstance(tree, str):
        return tree
    return f"({' '.join(map(written, tree))})"


def spans_in(text, punctuation):
    """Returns the constituents in a tree's text, such as `NP 0 2`.

    It shares nothing with `treebank.brackets`: no tree is built, the text is
    read once, with a stack.

    Args:
        text: the tree in Penn brackets.
        punctuation: for each word, whether it is left out.
    """
    place, word, opened, spans = 0, 0, [], []
    for piece in re.findall(r"\(\S+ [^\s()]+\)|\(\S+|\)", text):
        if piece == ")":
            label, start = opened.pop()
            if place > start:
                spans.append(f"{label} {start} {place}")
        elif piece.endswith(")"):
            place += not punctuation[word]
            word += 1
        else:
            opened.append((piece[1:].replace("PRT", "ADVP"), place))
    return spans


def test_brackets_are_counted_as_by_an_independent_count():
    """On 200 random trees, and on what a parser might find for them."""
    rng = random.Random(1)
    trees, found, right, expected, given = [], [], 0, 0, 0
    for number in range(200):
        words = [f"w{i}" for i in range(rng.randint(2, 23))]
        tree = ("S", random_tree(words, rng), ("NN", "last"))
        other = with_mistakes(tree, rng) if number % 11 else None
        trees.append(tree)
        found.append(other)

        text = written(tree)
        tags = re.findall(r"\((\S+) [^\s()]+\)", text)
        punctuation = [tag in {",", ".", ":", "``", "''"} for tag in tags]
        gold = spans_in(text, punctuation)
        guess = spans_in(written(other), punctuation) if other else []
        expected, given = expected + len(gold), given + len(guess)
        for span in guess:
            if span in gold:
                gold.remove(span)
                right += 1
    assert 0.5 * given < right < 0.95 * given  # neither is trivial
    precision, recall, f1 = treebank.bracket_scores(trees, found)
    assert precision == right / given
    assert recall == right / expected
    assert f1 == pytest.approx(2 * right / (given + expected))


def test_a_particle_counts_as_an_adverb():
    gold, found = (
        read(f"(VP (VB give) ({label} (RP up)))") for label in ("PRT", "ADVP")
    )
    assert treebank.bracket_scores([gold], [found]) == (1, 1, 1)


def test_a_unary_chain_counts_each_constituent():
    gold = read("(NP (NP (NN a)))")
    found = read("(NP (NN a))")
    assert treebank.bracket_scores([gold], [found])[:2] == (1, 0.5)


def small_treebank(path, count, seed):
    """Writes trees of a grammar that tells each structure by its words."""
    rng = random.Random(seed)

    def noun_phrase(depth):
        noun = rng.choice(["dog", "cat", "tree", "house", "river"])
        phrase = f"(NP (DT {rng.choice(['the', 'a'])}) (NN {noun}))"
        if depth and rng.random() < 0.4:
            preposition = rng.choice(["in", "near"])
            inner = noun_phrase(depth - 1)
            phrase = f"(NP {phrase} (PP (IN {preposition}) {inner}))"
        return phrase

    def sentence():
        verb = rng.choice(["sees", "likes", "draws"])
        whole = f"(VP (VBZ {verb}) {noun_phrase(1)})"
        return f"( (S {noun_phrase(1)} {whole} (. .)) )"

    path.write_text("\n".join(sentence() for _ in range(count)))
    return path


def test_brackets_are_numbered_by_depth_and_words_by_place():
    deep = "(NP " * 9 + "(NN a)" + ")" * 9
    tree = read(f"(S {deep} (VP (VBZ b)))")
    names = example.numbered(treebank.symbols_of(tree))
    assert names[:3] == ["(S 0", "(NP 1", "(NP 2"]
    assert names[8:11] == ["(NP 0", "(NP 1", "NN 0"]
    assert names[-4:] == ["(VP 1", "VBZ 1", ")VP 1", ")S 0"]


def test_a_constituent_has_the_label_of_its_opening_bracket():
    vocabulary = example.Vocabulary.learn([read(DOG)])
    symbols = ["(S", "(NP", "DT", "NN", ")VP", "(VP", "VBZ", ")NP", ".", ")S"]
    found = vocabulary.symbols_of(vocabulary.ids([symbols])[0])
    assert found == treebank.symbols_of(read(DOG))
    assert vocabulary.symbols_of(vocabulary.ids([[")S", "DT"]])[0]) == [
        ")S",
        "DT",
    ]


def test_parsing_learns_a_small_grammar(tmp_path, monkeypatch, capsys):
    small = {"d_model": 32, "num_heads": 2, "d_ff": 64, "dropout_rate": 0.0}
    small |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    monkeypatch.setattr(example, "SHAPE", {**example.SHAPE, **small})
    monkeypatch.setattr(example, "LEARNING_RATE", 5e-3)
    train = small_treebank(tmp_path / "train.tree", 400, seed=1)
    development = small_treebank(tmp_path / "development.tree", 20, seed=2)
    run = tmp_path / "run"
    options = {"epochs": 6, "tokens_per_batch": 200, "beam_sizes": (3,)}
    f1 = example.main(train, development, run, **options)
    assert f1 > 0.8
    printed = capsys.readouterr().out
    for name in ("beam 3:", "beam 3, trees only:"):
        assert name in printed
    assert "trees only: balanced 100.00, over the words 100.00" in printed
    assert (run / "attention.png").exists()
    # A second call takes the trained model.
    (tmp_path / "train.tree").unlink()
    assert example.main(train, development, run, **options) == f1
