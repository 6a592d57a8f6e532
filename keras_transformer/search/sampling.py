"""Greedy search and sampling over any step function, one hypothesis per row.

Shapes: B batch, N rows (here B), L maximum length, V vocabulary.

A step function takes the last tokens `(N,)`, a cache (any nested structure
of tensors whose first axis is N) and the step, and returns the logits `(N, V)`
of the next token and the new cache.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import KerasTensor, ops

from keras_transformer.ids import END, PAD, START
from keras_transformer.search.constraints import Constraints
from keras_transformer.search.next_token import (
    check_cache,
    check_logits,
    checked_scores,
    draw,
    most_probable,
    python_number,
    run_steps,
)
from keras_transformer.search.repetition import Repetition
from keras_transformer.validation import checked_integer

# A nested structure of tensors that the step function reads and writes.
Cache = Any
# (tokens, cache, step) -> (logits, new cache), see above.
StepFunction = Callable[
    [KerasTensor, Cache, KerasTensor], tuple[KerasTensor, Cache]
]


def greedy_search(
    step_fn: StepFunction,
    cache: Cache,
    max_lengths: KerasTensor,
    start_id: int = START,
    end_id: int = END,
    min_lengths: KerasTensor | None = None,
    prefix: KerasTensor | None = None,
    longest: int | KerasTensor | None = None,
    no_repeat_ngram_size: int | KerasTensor = 0,
    repetition_penalty: float | KerasTensor = 1.0,
) -> tuple[KerasTensor, KerasTensor]:
    """Finds sequences by taking the most probable token at each step.

    Example:

    >>> from keras import ops
    >>> table = ops.convert_to_tensor([[0.0, 0, 0, 1, 9], [0.0, 0, 0, 9, 1]])
    >>> def step(tokens, cache, index):  # token 4, then the end token 3
    ...     row = ops.cast(tokens == 4, "int32")
    ...     return ops.take(table, row, axis=0), cache
    >>> ids, scores = greedy_search(step, {}, max_lengths=[5])
    >>> print(ops.convert_to_numpy(ids))
    [[4 3 0 0 0]]

    Args:
        step_fn: step function `(tokens, cache, step) -> (logits, cache)`.
            Tokens are int32 `(B,)`, the step is a scalar, logits are `(B, V)`.
        cache: initial cache, a nested structure of tensors `(B, …)`.
        max_lengths: integers `(B,)`, the maximum number of tokens of each row,
            end token included; a row that reaches it ends there. At least 1.
        start_id: the start token. Defaults to the package's.
        end_id: the end token. Defaults to the package's.
        min_lengths: integers `(B,)`, the minimum number of tokens of each row,
            end token included, or `None`. A smaller maximum takes precedence.
        prefix: integers `(B, P)`, the tokens that each row begins with, -1
            where any token is allowed, or `None`.
        longest: L, at least the largest of `max_lengths`. `jax.jit` needs it,
            unless `max_lengths` are numbers of Python or NumPy. Defaults to the
            largest of `max_lengths`.
        no_repeat_ngram_size: n: no n tokens in a row occur twice in a
            sequence. Defaults to 0, no limit.
        repetition_penalty: divisor of the positive logits of tokens that the
            sequence has already, and factor on the negative ones. Defaults to
            1, no penalty. Both are as in transformers; log-probabilities are
            those of what is left.

    Returns:
        ids `(B, L)`, padded with 0 after the end token, and float32 scores
        `(B,)`, the log-probabilities of the rows.

    Raises:
        ValueError: if an argument is out of range.
    """

    def choose(logits, forced_tokens, before_min_length, index):
        gained, tokens = most_probable(
            logits, 1, forced_tokens, before_min_length, end_id
        )
        return gained[:, 0], tokens[:, 0]

    constraints = Constraints(max_lengths, min_lengths, prefix, end_id, longest)
    repetition = Repetition(no_repeat_ngram_size, repetition_penalty)
    return _one_by_one(
        step_fn, cache, constraints, choose, start_id, repetition
    )


def sample(
    step_fn: StepFunction,
    cache: Cache,
    max_lengths: KerasTensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | keras.random.SeedGenerator | None = None,
    start_id: int = START,
    end_id: int = END,
    min_lengths: KerasTensor | None = None,
    prefix: KerasTensor | None = None,
    longest: int | KerasTensor | None = None,
    no_repeat_ngram_size: int | KerasTensor = 0,
    repetition_penalty: float | KerasTensor = 1.0,
) -> tuple[KerasTensor, KerasTensor]:
    """Draws each token from the model's distribution.

    Example:

    >>> from keras import ops
    >>> table = ops.convert_to_tensor([[0.0, 0, 0, 1, 9], [0.0, 0, 0, 9, 1]])
    >>> def step(tokens, cache, index):  # token 4, then the end token 3
    ...     row = ops.cast(tokens == 4, "int32")
    ...     return ops.take(table, row, axis=0), cache
    >>> ids, scores = sample(step, {}, max_lengths=[5], top_k=1)
    >>> print(ops.convert_to_numpy(ids))
    [[4 3 0 0 0]]

    To draw several samples of a sentence, repeat its rows.

    Args:
        step_fn, cache, max_lengths: as in `greedy_search`.
        start_id, end_id, min_lengths, prefix, longest: as in `greedy_search`.
        temperature: number by which logits are divided. Values near 0 give
            greedy search. Defaults to 1.
        top_k: number of most probable tokens to draw from, or `None`.
        top_p: probability in (0, 1]; tokens are drawn from the most probable
            ones that together have this probability (Holtzman et al., 2020),
            or `None`.
        seed: an integer, a `keras.random.SeedGenerator`, or `None`. The same
            integer draws the same tokens.
        no_repeat_ngram_size, repetition_penalty: as in `greedy_search`.

    Returns:
        ids `(B, L)`, padded with 0 after the end token, and float32 scores
        `(B,)`, the log-probabilities of the rows in the model's distribution.

    Raises:
        ValueError: if an argument is out of range.
    """
    temperature, top_k, top_p = map(python_number, (temperature, top_k, top_p))
    if top_k is not None:
        top_k = checked_integer("top_k", top_k)
    for name, value, holds in (
        ("temperature", temperature, temperature > 0),
        ("top_p", top_p, top_p is None or 0 < top_p <= 1),
    ):
        if not holds:
            raise ValueError(
                "`temperature` must be positive, and `top_p` in (0, 1]. "
                f"Received: {name}={value}"
            )
    constraints = Constraints(max_lengths, min_lengths, prefix, end_id, longest)
    # Numbers for all steps are drawn at once: inside a loop a seed would draw
    # the same numbers at every step.
    shape = (constraints.longest, ops.shape(constraints.max_lengths)[0])
    chances = keras.random.uniform(shape, dtype="float32", seed=seed)

    def choose(logits, forced_tokens, before_min_length, index):
        return draw(
            logits,
            forced_tokens,
            before_min_length,
            end_id,
            ops.take(chances, index, axis=0),
            temperature,
            top_k,
            top_p,
        )

    repetition = Repetition(no_repeat_ngram_size, repetition_penalty)
    return _one_by_one(
        step_fn, cache, constraints, choose, start_id, repetition
    )


def _one_by_one(step_fn, cache, constraints, choose, start_id, repetition):
    """Runs greedy search or sampling: one token of each row per step.

    `choose(logits, forced_tokens, before_min_length, index)` returns the
    log-probabilities and the tokens of a step, both `(B,)`.
    """
    check_cache(cache)
    longest = constraints.longest
    batch = ops.shape(constraints.max_lengths)[0]
    sequences = ops.full((batch, longest), PAD, dtype="int32")
    positions = ops.arange(longest, dtype="int32")

    def unfinished(index, tokens, sequences, scores, done, cache):
        return (index < longest) & ~ops.all(done)

    def step(index, tokens, sequences, scores, done, cache):
        logits, cache = step_fn(tokens, cache, index)
        check_logits(logits, ("rows", "vocabulary"))
        forced = constraints.forced_tokens(index)
        if repetition.is_active:
            logits = ops.cast(logits, "float32")
            logits = repetition(logits, sequences, forced, index)
        before_min_length = constraints.before_min_length(index)
        gained, tokens = choose(logits, forced, before_min_length, index)
        scores = ops.where(done, scores, scores + gained)
        tokens = ops.where(done, PAD, tokens)
        is_index = ops.equal(positions, index)  # [L]
        sequences = ops.where(is_index, tokens[:, None], sequences)
        done = done | ops.equal(tokens, constraints.end_id)
        return index + 1, tokens, sequences, scores, done, cache

    _, _, sequences, scores, _, _ = run_steps(
        unfinished,
        step,
        (
            ops.cast(0, "int32"),
            ops.full((batch,), start_id, dtype="int32"),
            sequences,
            ops.zeros((batch,), "float32"),
            ops.zeros((batch,), "bool"),
            cache,
        ),
    )
    return sequences, checked_scores(scores)
