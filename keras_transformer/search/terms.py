"""Required and avoided phrases in a beam search.

The search for sequences with required phrases shares its beam among banks by
the number of their tokens that a hypothesis has: dynamic beam allocation of
Post and Vilar (2018), https://arxiv.org/abs/1804.06609.

Shapes: B batch, M hypotheses, C phrases of a sentence, L their length.
"""

import copy
from typing import Any

import keras
from keras import KerasTensor, ops

from keras_transformer.search.constraints import as_integers
from keras_transformer.search.next_token import (
    MINUS_INFINITY,
    batched_take,
)

# Prefixes of a sentence with terms, besides the K of others. With more of them
# translations are hardly better, and take longer.
EXTRA_PREFIXES = 2


class Phrases:
    """Follows phrases through hypotheses that grow by one token at a time.

    Its state is a pair: booleans `(B, M, C, L + 1)`, whether the last m tokens
    of a hypothesis are the first m of a phrase, for m of 0 to L; and booleans
    `(B, M, C)`, whether the phrase came before.

    Args:
        name: argument that the phrases come from.
        ids: integers `(B, C, L)` or `(1, C, L)`, padded with -1.
        batch: B.
        word_continuations: booleans `(V,)`, True for tokens that continue a
            word. What they follow has not been the phrase. Defaults to none.
    """

    def __init__(
        self,
        name: str,
        ids: KerasTensor,
        batch: int | KerasTensor,
        word_continuations: KerasTensor | None = None,
    ):
        ids = as_integers(name, ids, ["batch", "phrases", "length"])
        # One more column, so that L is never 0.
        ids = ops.pad(ids, ((0, 0), (0, 0), (0, 1)), constant_values=-1)
        self.ids = ops.broadcast_to(ids, (batch, *ops.shape(ids)[1:]))
        self.word_continuations = word_continuations

    def take(self, rows: KerasTensor) -> "Phrases":
        """Returns the phrases of some sentences only."""
        phrases = copy.copy(self)
        phrases.ids = ops.take(self.ids, rows, axis=0)
        return phrases

    @property
    def lengths(self) -> KerasTensor:
        """Returns the lengths of the phrases, int32 `(B, 1, C)`."""
        return _count(self.ids >= 0, axis=-1)[:, None]

    @property
    def _sizes(self):
        """Returns the numbers m of the state, `(L + 1,)`."""
        return ops.arange(ops.shape(self.ids)[-1], dtype="int32")

    def start(self, count: int | KerasTensor) -> tuple:
        """Returns the state of M = `count` hypotheses without a token."""
        batch, phrases, width = ops.shape(self.ids)
        matched = ops.equal(self._sizes, 0)
        shape = (batch, count, phrases)
        return (
            ops.broadcast_to(matched, (*shape, width)),
            ops.broadcast_to(ops.equal(self.lengths, 0), shape),
        )

    def advance(self, state: tuple, tokens: KerasTensor) -> tuple:
        """Returns the state after one more token of each, `(B, M)`."""
        matched, met = state
        hits = matched & ops.equal(self.ids[:, None], tokens[..., None, None])
        ended = ops.equal(self._sizes, self.lengths[..., None])
        ended = ops.any(matched & ended, axis=-1)
        if self.word_continuations is not None:
            goes_on = ops.take(self.word_continuations, tokens, axis=0)
            ended = ended & ~goes_on[..., None]
        empty = hits[..., :1] | True  # the first 0 tokens of a phrase
        return ops.concatenate([empty, hits[..., :-1]], axis=-1), met | ended

    def found(self, state: tuple) -> KerasTensor:
        """Returns how many tokens of each phrase are there, `(B, M, C)`: all,
        or those that the hypothesis ends with."""
        matched, met = state
        last = _largest(ops.where(matched, self._sizes, -1))
        return ops.where(met, self.lengths, last)

    def next_tokens(self, state: tuple) -> KerasTensor:
        """Returns the tokens that go on with phrases, `(B, M, C)`, -1 for those
        that are met."""
        is_next = ops.equal(self._sizes, self.found(state)[..., None])
        return _largest(ops.where(is_next, self.ids[:, None], -1))

    def last_tokens(self, state: tuple) -> KerasTensor:
        """Returns the tokens that would complete a phrase, `(B, M, C)`, -1
        where none would."""
        is_last = ops.equal(self._sizes, self.lengths[..., None] - 1)
        is_last = is_last & state[0]
        return _largest(ops.where(is_last, self.ids[:, None], -1))


class Terms:
    """Requires some phrases of hypotheses, and avoids others.

    Its state is a pair, that of the required `Phrases` and that of the avoided.

    Args:
        terms, avoid, word_continuations: as for `beam_search`.
        batch: B.
        beam_size: K, the number of prefixes of sentences without a term.
    """

    def __init__(
        self,
        terms: KerasTensor | None,
        avoid: KerasTensor | None,
        word_continuations: KerasTensor | None,
        batch: int | KerasTensor,
        beam_size: int | KerasTensor,
    ):
        none = ops.zeros((1, 0, 0), "int32")
        terms = none if terms is None else terms
        avoid = none if avoid is None else avoid
        self.required = Phrases("terms", terms, batch, word_continuations)
        self.avoided = Phrases("avoid", avoid, batch)
        self.beam_size = beam_size

    def take(self, rows: KerasTensor) -> "Terms":
        """Returns the terms of some sentences only."""
        terms = copy.copy(self)
        terms.required = self.required.take(rows)
        terms.avoided = self.avoided.take(rows)
        return terms

    @property
    def total(self) -> KerasTensor:
        """Returns the number of required tokens, `(B, 1)`."""
        return ops.sum(self.required.lengths, axis=-1)

    @property
    def widths(self) -> KerasTensor:
        """Returns the number of prefixes of each sentence, `(B, 1)`."""
        return _widths(self.total, self.beam_size)

    def start(self, count: int | KerasTensor) -> tuple:
        """Returns the state of M = `count` hypotheses without a token."""
        return self.required.start(count), self.avoided.start(count)

    def advance(self, state: tuple, tokens: KerasTensor) -> tuple:
        """Returns the state after one more token of each, `(B, M)`."""
        required, avoided = state
        return (
            self.required.advance(required, tokens),
            self.avoided.advance(avoided, tokens),
        )

    def of_beams(self, state: tuple, beams: KerasTensor) -> tuple:
        """Returns the state of hypotheses that continue `(B, M)`."""
        return keras.tree.map_structure(lambda x: batched_take(x, beams), state)

    def have_all(self, state: tuple) -> KerasTensor:
        """Returns which hypotheses have all required phrases, `(B, M)`."""
        found = self.required.found(state[0])
        return ops.all(ops.equal(found, self.required.lengths), axis=-1)

    def offered(self, state: tuple) -> KerasTensor:
        """Returns tokens of required phrases, `(B·M, C)`, or -1."""
        return _rows(self.required.next_tokens(state[0]))

    def banned(self, state: tuple) -> KerasTensor:
        """Returns tokens that would complete what is avoided, `(B·M, A)`, or
        -1."""
        return _rows(self.avoided.last_tokens(state[1]))

    def best(
        self,
        scores: KerasTensor,
        tokens: KerasTensor,
        state: tuple,
        count: int | KerasTensor,
    ) -> tuple[KerasTensor, KerasTensor]:
        """Returns the best candidates, those of several banks in turn.

        A bank has the candidates with the same number of required tokens. The
        best of each bank come first, the bank with the most tokens at the
        head; then the second best of each; and so on.

        Args:
            scores, tokens: of the candidates, `(B, M · n)`, n of each.
            state: that of M hypotheses.
            count: number of candidates to return.

        Returns:
            The scores and the indices of the candidates, `(B, count)`.
        """
        several = ops.shape(scores)[1]
        required, _ = state
        each = several // ops.shape(required[1])[1]
        origin = ops.arange(several, dtype="int32") // each
        required = tuple(ops.take(x, origin, axis=1) for x in required)
        required = self.required.advance(required, tokens)
        counts = ops.sum(self.required.found(required), axis=-1)

        scores, order = ops.top_k(scores, several)
        order = ops.cast(order, "int32")
        counts = batched_take(counts, order)
        _, phrases, length = ops.shape(self.required.ids)
        banks = phrases * length + 1
        bank = ops.one_hot(counts, banks, dtype="int32")  # [B, M · n, banks]
        rank = ops.sum(ops.cumsum(bank, axis=1) * bank, axis=-1)
        turn = rank * banks - counts
        turn = ops.where(
            ops.equal(scores, MINUS_INFINITY), (several + 1) * banks, turn
        )
        _, chosen = ops.top_k(-turn, count)
        chosen = ops.cast(chosen, "int32")
        return batched_take(scores, chosen), batched_take(order, chosen)

    def first(
        self, scores: KerasTensor, count: int | KerasTensor
    ) -> tuple[KerasTensor, KerasTensor]:
        """Returns the scores and indices of those that are left of the best.

        Args:
            scores: of candidates in their order, `(B, n)`, or -inf.
            count: M, number of candidates to return. Fewer go on, if a sentence
                has fewer prefixes.
        """
        places = ops.arange(ops.shape(scores)[1], dtype="int32")
        is_left = scores > MINUS_INFINITY
        turn = ops.where(is_left, places, places + ops.shape(scores)[1])
        _, kept = ops.top_k(-turn, count)
        kept = ops.cast(kept, "int32")
        is_wide = places[:count] < self.widths
        scores = batched_take(scores, kept)
        return ops.where(is_wide, scores, MINUS_INFINITY), kept

    def finishing(
        self,
        ends: KerasTensor,
        state: tuple,
        beams: KerasTensor,
        scores: KerasTensor,
    ) -> KerasTensor:
        """Returns which of the best candidates are finished hypotheses.

        Args:
            ends: booleans `(B, M)`, which of them end.
            state: that of all prefixes.
            beams: integers `(B, M)`, the prefixes that they continue.
            scores: of earlier finished hypotheses, `(B, K)`.
        """
        places = ops.arange(ops.shape(ends)[1], dtype="int32")
        ends = ends & (places < self.widths)
        has_all = ends & batched_take(self.have_all(state), beams)
        # At the maximum length the others end, too.
        some = ops.any(has_all, axis=1, keepdims=True)
        some = some | (scores[:, :1] > MINUS_INFINITY)
        return has_all | (ends & ~some)


def wide_beam(
    terms: KerasTensor, beam_size: int | KerasTensor
) -> int | KerasTensor:
    """Returns how many prefixes a search with terms keeps.

    Args:
        terms: integers `(B, C, L)`, padded with -1.
        beam_size: K, the number of prefixes of sentences without a term.
    """
    widths = _widths(_count(terms >= 0, axis=(1, 2)), beam_size)
    return ops.max(widths, initial=1)


def _widths(total, beam_size):
    """Returns the numbers of prefixes for numbers of required tokens."""
    return ops.where(total > 0, beam_size + EXTRA_PREFIXES, beam_size)


def _count(marks: Any, axis: Any) -> Any:
    return ops.sum(ops.cast(marks, "int32"), axis=axis)


def _largest(values):
    """Returns the maxima of the last axis; -1 keeps TensorFlow from an error
    where there is no phrase."""
    return ops.max(values, axis=-1, initial=-1)


def _rows(values):
    """Returns `(B, M, C)` as `(B·M, C)`."""
    batch, count, width = ops.shape(values)
    return ops.reshape(values, (batch * count, width))
