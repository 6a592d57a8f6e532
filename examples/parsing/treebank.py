"""Trees of a treebank: reading, preparing, writing as symbols, scoring.

A tree is a tuple of a label and its children; a word is a tuple of its tag and
a string. `train.py` uses this module.
"""

import collections
import gzip
import pathlib
import re

TRACE = "-NONE-"
ROOTS = {"TOP", "ROOT"}
# Evaluation leaves out punctuation, and counts PRT as ADVP, as EVALB does with
# the parameters of Collins that all published figures use.
PUNCTUATION = {",", ":", "``", "''", "."}
SAME_LABEL = {"PRT": "ADVP"}


def read_trees(path):
    """Returns the trees of a file, or of all files of a folder.

    Penn brackets in text or `.gz`; a tree may span several lines.

    Raises:
        ValueError: if there is no file, or if one has other text.
    """
    path = pathlib.Path(path)
    files = [
        file
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.is_file()
        and not any(p.startswith(".") for p in file.relative_to(path).parts)
    ]
    if not files:
        raise ValueError(
            f"No such file of trees. Received: {str(path)!r}. Name a file or a "
            "folder of Penn brackets."
        )
    trees = []
    for file in files:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
        try:
            found = parse(content.decode())
            trees += [t for expression in found for t in trees_in(expression)]
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
    trees = [cleaned(tree) for tree in trees]
    return [tree for tree in trees if tree is not None]


def parse(text):
    """Returns the expressions of a text in brackets, as nested tuples.

    Raises:
        ValueError: if the brackets do not match.
    """
    open_lists = [[]]
    # Some words contain other spaces of Unicode.
    for token in re.findall(r"[()]|[^ \t\r\n()]+", text):
        if token == "(":
            open_lists.append([])
        elif token == ")" and len(open_lists) > 1:
            done = tuple(open_lists.pop())
            open_lists[-1].append(done)
        elif token != ")":
            open_lists[-1].append(token)
        else:
            raise ValueError("A bracket closes that was never opened.")
    if len(open_lists) > 1:
        raise ValueError(f"{len(open_lists) - 1} brackets are never closed.")
    return open_lists[0]


def trees_in(expression):
    """Returns the trees of an expression, without brackets around them that
    have no label or that of a root.

    Raises:
        ValueError: if it is no tree.
    """
    if isinstance(expression, str):
        raise ValueError(f"Text outside of all brackets: {expression!r}.")
    if expression and isinstance(expression[0], str):
        if expression[0] not in ROOTS:
            check_tree(expression)
            return [expression]
        expression = expression[1:]
    return [tree for part in expression for tree in trees_in(part)]


def check_tree(tree):
    """Checks that a constituent has constituents, or one word.

    Raises:
        ValueError: if it has not.
    """
    has_label = len(tree) > 1 and isinstance(tree[0], str)
    words = [child for child in tree[1:] if isinstance(child, str)]
    if not has_label or (words and len(tree) > 2):
        raise ValueError(
            "A constituent must have a label, and constituents or one word. "
            f"Received: {tree}"
        )
    for child in tree[1:]:
        if not isinstance(child, str):
            check_tree(child)


def is_word(tree):
    return isinstance(tree[1], str)


def cleaned(tree):
    """Returns the tree without traces and functional tags, or `None` if no
    word is left: the usual preparation."""
    label, *children = tree
    if label == TRACE:
        return None
    if is_word(tree):
        return tree
    children = [cleaned(child) for child in children]
    children = [child for child in children if child is not None]
    # NP-SBJ-1 and NP=2 become NP.
    return (re.split("[-=]", label)[0], *children) if children else None


def words_of(tree):
    """Returns the words from left to right."""
    if is_word(tree):
        return [tree[1]]
    return [word for child in tree[1:] for word in words_of(child)]


def symbols_of(tree):
    """Writes a tree as symbols, without its words (Vinyals et al., 2015).

    A constituent is `(NP … )NP`, a word is its tag.
    """
    label, *children = tree
    if is_word(tree):
        return [label]
    inside = [symbol for child in children for symbol in symbols_of(child)]
    return [f"({label}", *inside, f"){label}"]


def tree_of(symbols, words):
    """Returns the tree that symbols write over the words, or `None` if they
    are not balanced or have another number of words."""
    rest = iter(words)
    open_lists = [[]]
    for symbol in symbols:
        if symbol.startswith("("):
            open_lists.append([symbol[1:]])
        elif symbol.startswith(")"):
            done = tuple(open_lists.pop())
            if not open_lists or done[0] != symbol[1:] or len(done) == 1:
                return None
            open_lists[-1].append(done)
        else:
            word = next(rest, None)
            if word is None or len(open_lists) == 1:
                return None
            open_lists[-1].append((symbol, word))
    whole = len(open_lists) == 1 and len(open_lists[0]) == 1
    return open_lists[0][0] if whole and next(rest, None) is None else None


def tags_of(symbols):
    """Returns the tags among symbols."""
    return [symbol for symbol in symbols if symbol[0] not in "()"]


def is_balanced(symbols):
    """Returns whether symbols write a tree, over however many words."""
    return tree_of(symbols, tags_of(symbols)) is not None


def with_tags(tree, tags):
    """Returns the tree with other tags.

    With those of the treebank, punctuation is the same in both trees, whatever
    tags were found.
    """
    tags = iter(tags)

    def changed(tree):
        if is_word(tree):
            return (next(tags), tree[1])
        return (tree[0], *map(changed, tree[1:]))

    return changed(tree)


def brackets(tree):
    """Counts the constituents `(label, start, end)` of a tree.

    Positions count words without punctuation; a constituent of punctuation
    alone does not count.
    """
    found = collections.Counter()

    def visit(tree, start):
        if is_word(tree):
            return start + (tree[0] not in PUNCTUATION)
        end = start
        for child in tree[1:]:
            end = visit(child, end)
        if end > start:
            found[SAME_LABEL.get(tree[0], tree[0]), start, end] += 1
        return end

    visit(tree, 0)
    return found


def bracket_scores(trees, found):
    """Returns labelled precision, recall and F1.

    Brackets are counted as EVALB does. Unlike EVALB, punctuation is found by
    the tags of the treebank in both trees, and no sentence is left out.

    Args:
        trees: the trees of the treebank.
        found: a tree for each, or `None`, which has no brackets.
    """
    right = expected = given = 0
    for tree, other in zip(trees, found, strict=True):
        gold = brackets(tree)
        guess = collections.Counter()
        if other is not None:
            guess = brackets(with_tags(other, tags_of(symbols_of(tree))))
        right += (gold & guess).total()
        expected += gold.total()
        given += guess.total()
    precision = right / given if given else 0.0
    recall = right / expected if expected else 0.0
    total = precision + recall
    return precision, recall, 2 * precision * recall / total if total else 0.0
