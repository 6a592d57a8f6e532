"""Beam search over any step function: section 6.1.

Shapes: B batch, K beam size, N = B·K rows, L maximum length, V vocabulary.
Step functions are described in `sampling`.
"""

import dataclasses
from collections.abc import Callable

import keras
from keras import KerasTensor, ops

from keras_transformer.ids import END, PAD, START
from keras_transformer.search.constraints import (
    FORMULAS,
    Constraints,
    length_penalty,
)
from keras_transformer.search.next_token import (
    MINUS_INFINITY,
    at_most,
    batched_take,
    check_cache,
    check_logits,
    checked_scores,
    most_probable,
    python_number,
    run_steps,
)
from keras_transformer.search.repetition import Repetition
from keras_transformer.search.sampling import (
    Cache,
    StepFunction,
    greedy_search,
)
from keras_transformer.search.terms import Terms

EARLY_STOPPING = ("never", "heuristic", "filled")


def beam_search(
    step_fn: StepFunction,
    cache: Cache,
    max_lengths: KerasTensor,
    beam_size: int | KerasTensor = 4,
    alpha: float | KerasTensor = 0.6,
    start_id: int = START,
    end_id: int = END,
    reorder_cache: Callable[[Cache, KerasTensor], Cache] | None = None,
    min_lengths: KerasTensor | None = None,
    prefix: KerasTensor | None = None,
    select_rows: Callable[[Cache, KerasTensor], Cache] | None = None,
    length_penalty: str = "gnmt",
    early_stopping: str = "never",
    longest: int | KerasTensor | None = None,
    no_repeat_ngram_size: int | KerasTensor = 0,
    repetition_penalty: float | KerasTensor = 1.0,
    terms: KerasTensor | None = None,
    avoid: KerasTensor | None = None,
    word_continuations: KerasTensor | None = None,
    hypotheses: int | KerasTensor | None = None,
) -> tuple[KerasTensor, KerasTensor]:
    """Finds probable sequences by beam search: section 6.1.

    The search keeps the `beam_size` most probable prefixes at each step.

    Example:

    >>> from keras import ops
    >>> table = ops.convert_to_tensor([[0.0, 0, 0, 1, 9], [0.0, 0, 0, 9, 1]])
    >>> def step(tokens, cache, index):  # token 4, then the end token 3
    ...     row = ops.cast(tokens == 4, "int32")
    ...     return ops.take(table, row, axis=0), cache
    >>> ids, scores = beam_search(step, {}, max_lengths=[5], beam_size=2)
    >>> print(ops.convert_to_numpy(ids)[0, 0])
    [4 3 0 0 0]

    A hypothesis is finished when its end token is among the K best
    continuations. Its score is log P / `length_penalty`, and it is kept if it
    is among the K best finished so far. A sentence stops when its most
    probable prefix, divided by the largest penalty it could reach, cannot beat
    the worst kept hypothesis; see `early_stopping` for other rules. With K = 1,
    which is greedy search, it stops at its first end token. A stopped sentence
    does not change any more, so its result does not depend on the other
    sentences of the batch. At the maximum length only the end token is allowed,
    so every hypothesis is finished.

    Args:
        step_fn: step function `(tokens, cache, step) -> (logits, cache)`.
            Tokens are int32 `(N,)`, the step is a scalar, logits are `(N, V)`.
        cache: initial cache, a nested structure of tensors `(N, …)`.
        max_lengths: integers `(B,)`, the maximum number of tokens of each
            sentence, end token included. At least 1.
        beam_size: K, an integer; in a TensorFlow graph also a tensor. Defaults
            to 4.
        alpha: α ≥ 0 of the length penalty. Defaults to 0.6.
        start_id: the start token. Defaults to the package's.
        end_id: the end token. Defaults to the package's.
        reorder_cache: function `(cache, beams) -> cache` that selects beams.
            `beams` are integers `(B, K)`: for each new beam, the beam that it
            continues. Defaults to taking rows of every tensor.
        min_lengths: integers `(B,)`, the minimum number of tokens of each
            sentence, end token included, or `None`. A smaller maximum takes
            precedence.
        prefix: integers `(B, P)`, the tokens that every hypothesis of a
            sentence begins with, -1 where any token is allowed, or `None`.
        select_rows: function `(cache, sentences) -> cache` that selects
            sentences, integers `(n,)`. With it, finished sentences leave the
            batch, and step functions get fewer rows. It works on TensorFlow
            only, in a graph whose B is not static.
        length_penalty: formula of the penalty, "gnmt" (default) or "power"; see
            the function of this name.
        early_stopping: when a sentence stops: "never" (default) before no
            prefix can win any more; "heuristic" when the most probable prefix,
            divided by the penalty of its present length, does not beat the
            worst of K finished hypotheses, as in transformers with
            `early_stopping=False`; "filled" as soon as K hypotheses are
            finished.
        longest: L, at least the largest of `max_lengths`. `jax.jit` needs it,
            unless `max_lengths` are numbers of Python or NumPy. Defaults to the
            largest of `max_lengths`.
        no_repeat_ngram_size: as in `greedy_search`.
        repetition_penalty: factor on the log-probabilities of tokens that the
            hypothesis has already; with K = 1, as in `greedy_search`. Defaults
            to 1, no penalty. Scores are those of what is left, as in
            transformers with `renormalize_logits=True`.
        terms: integers `(B, C, n)` or `(1, C, n)`, C terms of at most n tokens
            each, padded with -1, which each hypothesis of a sentence must have,
            or `None`. The beam is shared among prefixes with more and with
            fewer of their tokens (Post and Vilar, 2018), so it should be wide.
            Where no hypothesis has all terms at the maximum length, those with
            some are returned. With terms, "filled" is like "heuristic".
        avoid: integers `(B, A, n)` or `(1, A, n)`, A sequences of tokens that
            no hypothesis may have, padded with -1, or `None`. Probabilities of
            other tokens stay as they are.
        word_continuations: booleans `(V,)`, True for tokens that continue a
            word: a term that one of them follows is not there, since it is the
            beginning of a longer word. Defaults to none.
        hypotheses: K of the results, at most `beam_size`, and the number of
            prefixes of sentences without a term. Defaults to `beam_size`.

    Returns:
        ids `(B, K, L)`, best first, padded with 0 after the end token, and
        float32 scores `(B, K)`. Where fewer than K hypotheses exist, the rest
        are padding with score -inf.

    Raises:
        ValueError: if `beam_size` < 1 or `alpha` < 0, if `length_penalty`
            or `early_stopping` is unknown, if `hypotheses` is more than
            `beam_size`, if a shape is another, or if a logit is NaN, as far as
            is known before the program runs.
    """
    check_cache(cache)
    beam_size, alpha = python_number(beam_size), python_number(alpha)
    if isinstance(beam_size, float) or any(
        isinstance(x, int | float) and not x >= low  # nor if it is NaN
        for x, low in ((beam_size, 1), (alpha, 0))
    ):
        raise ValueError(
            "`beam_size` must be an integer of at least 1, and `alpha` at "
            f"least 0. Received: beam_size={beam_size}, alpha={alpha}"
        )
    for name, value, known in (
        ("length_penalty", length_penalty, FORMULAS),
        ("early_stopping", early_stopping, EARLY_STOPPING),
    ):
        if value not in known:
            raise ValueError(
                f"`{name}` must be one of {', '.join(known)}. "
                f"Received: {name}={value!r}"
            )
    kept = python_number(beam_size if hypotheses is None else hypotheses)
    are_known = isinstance(kept, int) and isinstance(beam_size, int)
    if are_known and not 1 <= kept <= beam_size:
        raise ValueError(
            "`hypotheses` must be at least 1, at most `beam_size`. Received: "
            f"hypotheses={hypotheses}, beam_size={beam_size}"
        )
    constraints = Constraints(max_lengths, min_lengths, prefix, end_id, longest)
    batch = ops.shape(constraints.max_lengths)[0]
    has_terms = terms is not None or avoid is not None
    repetition = Repetition(no_repeat_ngram_size, repetition_penalty)
    search = _Search(
        step_fn,
        reorder_cache or _take_beams,
        beam_size,
        alpha,
        length_penalty,
        early_stopping,
        constraints,
        repetition,
        kept,
        Terms(terms, avoid, word_continuations, batch, kept)
        if has_terms
        else None,
    )
    if isinstance(beam_size, int) and beam_size == 1 and not has_terms:
        sequences, scores = greedy_search(
            step_fn,
            cache,
            max_lengths,
            start_id,
            end_id,
            min_lengths,
            prefix,
            longest,
            repetition.ngram_size,
            repetition.penalty,
        )
        # Every row has an end token, at its limit at the latest.
        lengths = ops.argmax(ops.equal(sequences, end_id), axis=-1) + 1
        scores = scores / search.penalty(lengths)
        return sequences[:, None], scores[:, None]

    if reorder_cache is None:
        _check_rows(cache, batch, beam_size)
    no_scores = ops.full((batch, beam_size), MINUS_INFINITY, dtype="float32")
    empty = ops.full(
        (batch, beam_size, constraints.longest), PAD, dtype="int32"
    )
    nothing = empty, no_scores
    if hypotheses is not None:
        nothing = empty[:, :kept], no_scores[:, :kept]
    # All beams are the same at first.
    first_only = ops.arange(beam_size, dtype="int32") > 0
    state = (
        ops.cast(0, "int32"),
        ops.full((batch, beam_size), start_id, dtype="int32"),
        empty,
        ops.where(first_only, no_scores, 0.0),
        *nothing,
        search.terms.start(beam_size) if search.terms else (),
        cache,
    )
    if select_rows is None:
        _, _, _, log_probs, done, scores, *_ = search.steps(state, until=0)
        checked_scores(log_probs)
        return done, scores

    # Finished sentences leave the batch. `all_done` and `all_scores` keep the
    # results of all sentences.
    def until_a_quarter_ended(rows, all_done, all_scores, *state):
        rows_search = dataclasses.replace(
            search,
            constraints=constraints.take(rows),
            terms=search.terms.take(rows) if search.terms else None,
        )
        state = rows_search.steps(state, until=ops.size(rows) * 3 // 4)
        index, *parts, cache = state
        _, _, log_probs, done, scores, _ = parts
        all_done = ops.scatter_update(all_done, rows[:, None], done)
        all_scores = ops.scatter_update(all_scores, rows[:, None], scores)
        unfinished = rows_search.unfinished(index, log_probs, scores)
        unfinished = ops.nonzero(unfinished)[0]
        unfinished = ops.cast(unfinished, "int32")
        rows, *parts = keras.tree.map_structure(
            lambda x: ops.take(x, unfinished, axis=0), [rows, *parts]
        )
        return (
            rows,
            all_done,
            all_scores,
            index,
            *parts,
            select_rows(cache, unfinished),
        )

    def some_are_left(rows, all_done, all_scores, index, *_):
        return (index < constraints.longest) & (ops.size(rows) > 0)

    _, done, scores, *_ = run_steps(
        some_are_left,
        until_a_quarter_ended,
        (ops.arange(batch, dtype="int32"), *nothing, *state),
    )
    return done, scores


@dataclasses.dataclass(frozen=True)
class _Search:
    """Runs the steps of a beam search for the sentences of `constraints`."""

    step_fn: StepFunction
    reorder_cache: Callable[[Cache, KerasTensor], Cache]
    beam_size: int | KerasTensor
    alpha: float | KerasTensor
    length_penalty: str
    early_stopping: str
    constraints: Constraints
    repetition: Repetition
    hypotheses: int | KerasTensor  # K of the results
    terms: Terms | None

    def unfinished(self, index, log_probs, scores):
        """Returns booleans `(B,)`, True for sentences that go on at step
        `index`."""
        best, worst = log_probs[:, 0], scores[:, -1]  # the best come first
        is_full = ops.not_equal(worst, MINUS_INFINITY)
        # Greedy search ends with its first hypothesis.
        ends_when_full = (self.early_stopping == "filled") | (
            self.hypotheses == 1
        )
        length = self.constraints.max_lengths
        uses_heuristic = self.early_stopping == "heuristic"
        if self.terms is not None:
            best = ops.max(log_probs, axis=1)  # they come in turn
            uses_heuristic = self.early_stopping != "never"
            # The first that end may have their terms anywhere.
            has_none = ops.equal(self.terms.total[:, 0], 0)
            ends_when_full = ends_when_full & has_none
        if uses_heuristic:
            length = ops.maximum(index, 1)
        can_win = best / self.penalty(length) > worst
        return can_win & ~(is_full & ends_when_full)

    def penalty(self, length):
        return length_penalty(length, self.alpha, self.length_penalty)

    def steps(self, state, until):
        """Runs steps until at most `until` sentences are unfinished.

        Returns:
            The new state, a tuple like `state`.
        """
        constraints, beam_size = self.constraints, self.beam_size
        terms, hypotheses = self.terms, self.hypotheses
        batch = ops.shape(constraints.max_lengths)[0]
        positions = ops.arange(constraints.longest, dtype="int32")

        def some_are_unfinished(
            index, tokens, alive, log_probs, done, scores, *_
        ):
            unfinished = self.unfinished(index, log_probs, scores)
            unfinished = ops.cast(unfinished, "int32")
            return (index < constraints.longest) & (ops.sum(unfinished) > until)

        def step(index, tokens, alive, log_probs, done, scores, marks, cache):
            running = self.unfinished(index, log_probs, scores)[:, None]
            logits, cache = self.step_fn(
                ops.reshape(tokens, (-1,)), cache, index
            )
            check_logits(logits, ("rows", "vocabulary"))
            # 2K candidates are enough, for a beam and for a sentence: at most
            # K of them are end tokens. More beams, for terms, need fewer each.
            several = 2 * beam_size if terms is None else hypotheses + 1
            several = at_most(several, ops.shape(logits)[-1])
            before_min_length = constraints.before_min_length(index)
            if before_min_length is not None:
                before_min_length = ops.repeat(before_min_length, beam_size)
            forced = ops.repeat(constraints.forced_tokens(index), beam_size)
            if self.repetition.is_active:
                logits = ops.log_softmax(ops.cast(logits, "float32"))
                before = ops.reshape(alive, (-1, constraints.longest))
                logits = self.repetition(logits, before, forced, index)
            banned = offered = None
            if terms is not None:
                banned = terms.banned(marks)
                offered = terms.offered(marks)
                lacks = ops.reshape(~terms.have_all(marks), (-1,))
                before_min_length = (
                    lacks
                    if before_min_length is None
                    else before_min_length | lacks
                )
            gained, tokens = most_probable(
                logits,
                several,
                forced,
                before_min_length,
                constraints.end_id,
                banned,
                offered,
            )
            if offered is not None:
                several = several + ops.shape(offered)[1]
            shape = (batch, beam_size * several)
            candidates = ops.reshape(log_probs, (-1, 1)) + gained
            candidates = ops.reshape(candidates, shape)
            tokens = ops.reshape(tokens, shape)
            if terms is None:
                best, found = ops.top_k(candidates, 2 * beam_size)  # [B, 2K]
                found = ops.cast(found, "int32")
            else:
                best, found = terms.best(
                    candidates, tokens, marks, 2 * beam_size
                )
            tokens = batched_take(tokens, found)
            beams = found // several
            ends = ops.equal(tokens, constraints.end_id)

            is_index = ops.equal(positions, index)
            extended = ops.where(
                is_index, tokens[..., None], batched_take(alive, beams)
            )  # [B, 2K, L]

            # Finished hypotheses: those that end among the K best candidates.
            # The kept ones come first, so that a tie changes nothing.
            finishing = ends[:, :beam_size] & running
            if terms is not None:
                finishing = terms.finishing(
                    finishing & (best[:, :beam_size] > MINUS_INFINITY),
                    marks,
                    beams[:, :beam_size],
                    scores,
                )
            new_scores = ops.where(
                finishing,
                best[:, :beam_size] / self.penalty(index + 1),
                MINUS_INFINITY,
            )
            new_done = ops.where(
                (new_scores > MINUS_INFINITY)[..., None],
                extended[:, :beam_size],
                PAD,
            )
            scores, kept = ops.top_k(
                ops.concatenate([scores, new_scores], axis=1), hypotheses
            )
            done = batched_take(
                ops.concatenate([done, new_done], axis=1),
                ops.cast(kept, "int32"),
            )

            # Alive prefixes: the K best candidates that do not end.
            continuing = running & ~ends
            best = ops.where(continuing, best, MINUS_INFINITY)
            if terms is None:
                log_probs, kept = ops.top_k(best, beam_size)
                kept = ops.cast(kept, "int32")
            else:
                log_probs, kept = terms.first(best, beam_size)
            alive = batched_take(extended, kept)
            tokens = batched_take(tokens, kept)
            beams = batched_take(beams, kept)
            if terms is not None:
                marks = terms.advance(terms.of_beams(marks, beams), tokens)
            cache = self.reorder_cache(cache, beams)
            state = tokens, alive, log_probs, done, scores, marks, cache
            return index + 1, *state

        return run_steps(some_are_unfinished, step, state)


def _check_rows(cache, batch, beam_size):
    """Checks that tensors have a row for each beam, as far as is known."""
    if not (isinstance(batch, int) and isinstance(beam_size, int)):
        return
    for value in keras.tree.flatten(cache):
        rows = (*ops.shape(value), None)[0]
        if isinstance(rows, int) and rows != batch * beam_size:
            raise ValueError(
                "The tensors of `cache` must have a row for each beam of each "
                f"sentence, {batch} · {beam_size}. Received: a shape "
                f"{tuple(value.shape)}. Repeat the rows, or give"
                " `reorder_cache`."
            )


def _take_beams(cache, beams):
    """Takes the rows of beams `(B, K)` of every tensor `(B·K, …)`."""
    batch, beam_size = ops.shape(beams)
    rows = ops.arange(batch, dtype="int32")[:, None] * beam_size
    origin = ops.reshape(beams + rows, (-1,))
    return keras.tree.map_structure(
        lambda x: ops.take(x, origin, axis=0), cache
    )
