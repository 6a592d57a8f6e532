"""A constraint of the search: sequences that write a balanced tree.

Shapes: N rows, V vocabulary, O labels of constituents, M maximum depth, L
lists of tokens of words.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import KerasTensor, ops

from keras_transformer.ids import END
from keras_transformer.search.next_token import MINUS_INFINITY, batched_take
from keras_transformer.search.sampling import Cache, StepFunction

NO_TOKEN = -1


class BalancedTrees:
    """Allows a search only sequences that write a tree over given words.

    A tree is written as in "Grammar as a Foreign Language" (Vinyals et al.,
    2015), which section 6.3 of the paper follows: `(S (NP DT NN )NP … )S`, with
    an opening and a closing bracket for each constituent and one token for each
    word. The brackets match by their labels, no constituent is empty, one
    constituent holds all others, there is a token for every word, and the tree
    is complete within the maximum length.

    `wrap` makes a step function of another one; it serves `beam_search`,
    `greedy_search` and `sample`, without `min_lengths` or `prefix`: they may
    force what is no tree. The probabilities of the tokens that a step allows
    add up to 1.

    Example:

    >>> import numpy as np
    >>> from keras_transformer import greedy_search
    >>> def step(tokens, cache, index):  # has no preference
    ...     return np.zeros((len(tokens), 7), "float32"), cache
    >>> trees = BalancedTrees(openings=[4], closings=[5], words=[6])
    >>> cache = trees.cache({}, word_counts=[2], max_lengths=[5])
    >>> ids, _ = greedy_search(trees.wrap(step), cache, max_lengths=[5])
    >>> print(np.asarray(ids))
    [[4 6 6 5 3]]

    Args:
        openings: the O tokens that open a constituent, one for each label.
        closings: for each of them, the token that closes it. Several labels
            may share it.
        words: the tokens that stand for a word, such as parts of speech. Or L
            lists of them, where word i has a token of list i modulo L: tokens
            with numbers show a model at which word it is.
        end_id: the end token. Defaults to the package's.
        max_depth: M, how many constituents may be open at once. Defaults to 64.

    Raises:
        ValueError: if there is no label or no token of a word, if there are
            not as many closings as openings, if a token has two meanings, or if
            `max_depth` is not positive.
    """

    def __init__(
        self,
        openings: Sequence[int],
        closings: Sequence[int],
        words: Sequence[int] | Sequence[Sequence[int]],
        end_id: int = END,
        max_depth: int = 64,
    ):
        lists = _as_lists(words)
        words = [token for some in lists for token in some]
        counts = [len(some) for some in (openings, *lists)]
        if len(openings) != len(closings) or 0 in counts:
            raise ValueError(
                "`openings` and `closings` must have a token for each label, "
                "and `words`, or each list of it, at least one. Received: "
                f"{len(openings)} openings, {len(closings)} closings, "
                f"{len(words)} words"
            )
        counted = collections.Counter(
            [*openings, *dict.fromkeys(closings), *words, end_id]
        )
        twice = sorted(token for token, count in counted.items() if count > 1)
        if twice:
            raise ValueError(
                "A token must be in one of `openings`, `closings`, `words` and "
                "`end_id`, and only closings may repeat. Received twice: "
                f"{twice}"
            )
        if max_depth < 1:
            raise ValueError(
                f"`max_depth` must be at least 1. Received: {max_depth=}"
            )
        self.openings = np.array(openings, "int32")
        self.closings = np.array(closings, "int32")
        self.words = np.array(words, "int32")
        self.word_lists = lists
        self.end_id = end_id
        self.max_depth = max_depth

    def cache(
        self, cache: Cache, word_counts: KerasTensor, max_lengths: KerasTensor
    ) -> Cache:
        """Returns the cache for a search with the wrapped step function.

        Args:
            cache: the cache of the step function that is wrapped.
            word_counts: integers `(N,)`, how many words each row has. A row
                without words has an empty sequence.
            max_lengths: integers `(N,)`, those of the search. A tree needs at
                least three tokens more than it has words; where the maximum is
                smaller, the sequence is empty.
        """
        rest = ops.cast(word_counts, "int32")
        labels = ops.zeros((ops.shape(rest)[0], self.max_depth), "int32")
        tree = {
            "labels": labels,  # open constituents, outermost first
            "depth": ops.zeros_like(rest),
            "read": ops.zeros_like(rest),  # how many words have a token
            "rest": rest,  # how many words are still to come
            "max_lengths": ops.cast(max_lengths, "int32"),
        }
        return {"model": cache, "tree": tree}

    def wrap(self, step_fn: StepFunction) -> StepFunction:
        """Returns a step function that allows only what completes to a tree."""

        def step(tokens, cache, index):
            # The start token, which comes first, may be any number.
            rows = ops.where(index > 0, ops.reshape(tokens, (-1,)), NO_TOKEN)
            tree = self._after(rows, cache["tree"])
            logits, model = step_fn(tokens, cache["model"], index)
            allowed = self._allowed(rows, tree, index, logits.shape[-1])
            logits = ops.where(
                allowed, ops.cast(logits, "float32"), MINUS_INFINITY
            )
            return logits, {"model": model, "tree": tree}

        return step

    def reorder_cache(
        self, reorder_cache: Callable[[Cache, KerasTensor], Cache]
    ) -> Callable[[Cache, KerasTensor], Cache]:
        """Returns the `reorder_cache` of `beam_search` for a step function that
        has one of its own."""

        def reordered(cache, beams):
            batch, beam_size = ops.shape(beams)

            def of_beams(x):
                shape = ops.shape(x)[1:]
                x = ops.reshape(x, (batch, beam_size, *shape))
                return ops.reshape(batched_take(x, beams), (-1, *shape))

            tree = {name: of_beams(x) for name, x in cache["tree"].items()}
            return {"model": reorder_cache(cache["model"], beams), "tree": tree}

        return reordered

    def select_rows(
        self,
        select_rows: Callable[[Cache, KerasTensor], Cache],
        beam_size: int,
    ) -> Callable[[Cache, KerasTensor], Cache]:
        """Returns the `select_rows` of `beam_search` for a step function that
        has one of its own."""

        def selected(cache, sentences):
            def of_sentences(x):
                shape = ops.shape(x)[1:]
                x = ops.reshape(x, (-1, beam_size, *shape))
                return ops.reshape(ops.take(x, sentences, axis=0), (-1, *shape))

            tree = {name: of_sentences(x) for name, x in cache["tree"].items()}
            return {
                "model": select_rows(cache["model"], sentences),
                "tree": tree,
            }

        return selected

    def _after(self, tokens, tree):
        """Returns the tree after one more token of each row."""
        labels, depth = tree["labels"], tree["depth"]
        opens = ops.equal(tokens[:, None], self.openings)  # [N, O]
        label = ops.cast(ops.argmax(opens, axis=-1), "int32")
        opens = ops.any(opens, axis=-1)
        is_next = ops.equal(np.arange(self.max_depth), depth[:, None])
        change = ops.cast(opens, "int32") - _is_one_of(tokens, self.closings)
        word = _is_one_of(tokens, self.words)
        return {
            "labels": ops.where(
                opens[:, None] & is_next, label[:, None], labels
            ),
            # A beam without probability may hold anything.
            "depth": ops.maximum(depth + change, 0),
            "read": tree["read"] + word,
            "rest": tree["rest"] - word,
            "max_lengths": tree["max_lengths"],
        }

    def _allowed(self, tokens, tree, index, width):
        """Returns which tokens may follow, booleans `(N, V)`.

        Args:
            tokens: the last tokens `(N,)`.
            tree: the tree after them.
            index: the step, a scalar.
            width: V.
        """
        depth, rest = tree["depth"], tree["rest"]
        is_open, has_words = depth > 0, rest > 0
        # A tree still needs its words, its closings and the end token.
        spare = tree["max_lengths"] - index - (rest + depth + 1)
        opens = has_words & (is_open | ops.equal(index, 0))
        opens = opens & (depth < self.max_depth) & (spare >= 2)
        continues = has_words & is_open
        is_empty = ops.cast(_is_one_of(tokens, self.openings), "bool")
        closes = is_open & ~is_empty & ((depth > 1) | ~has_words)
        innermost = ops.equal(np.arange(self.max_depth), depth[:, None] - 1)
        label = ops.max(ops.where(innermost, tree["labels"], 0), axis=-1)
        closing = ops.take(self.closings, label)[:, None]  # [N, 1]
        ids = np.arange(width, dtype="int32")
        is_opening, is_end = (
            ops.convert_to_tensor(np.isin(ids, some))
            for some in (self.openings, self.end_id)
        )
        is_word = np.stack([np.isin(ids, some) for some in self.word_lists])
        next_list = tree["read"] % len(self.word_lists)
        is_word = ops.take(is_word, next_list, axis=0)  # [N, V]
        return (
            (opens[:, None] & is_opening)
            | (continues[:, None] & is_word)
            | (closes[:, None] & ops.equal(closing, ids))
            | (~(opens | continues | closes)[:, None] & is_end)
        )


def _as_lists(words: Any) -> list[list[int]]:
    """Returns the lists of tokens of words, one list if they have no number."""
    has_lists = np.ndim(next(iter(words), 0)) > 0
    return [list(some) for some in (words if has_lists else [words])]


def _is_one_of(tokens, choices):
    """Returns 1 for tokens among the choices, 0 for others, int32 `(N,)`."""
    found = ops.any(ops.equal(tokens[:, None], choices), axis=-1)
    return ops.cast(found, "int32")
