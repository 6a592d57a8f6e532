"""The choice of the next tokens: the most probable ones, or a drawn one.

Shapes: N rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops

MINUS_INFINITY = float("-inf")


def run_steps(
    condition: Callable[..., KerasTensor],
    step: Callable[..., tuple],
    state: tuple,
) -> tuple:
    """Runs `ops.while_loop`, on JAX with the first step outside of the loop.

    There, a layer that is built inside a loop keeps numbers that exist only
    while the loop is compiled.
    """
    if keras.backend.backend() == "jax":
        try:
            if not bool(condition(*state)):
                return state
        except TypeError:  # this function itself is being compiled
            pass
        else:
            state = step(*state)
    return ops.while_loop(condition, step, state)


def check_cache(cache: Any) -> None:
    """Checks that a search has a cache, which may be empty.

    Raises:
        ValueError: if it is `None`.
    """
    if cache is None:
        raise ValueError(
            "`cache` must be a nested structure of tensors. Received: "
            "cache=None. A step function that needs none gets {}."
        )


def checked_scores(scores: KerasTensor) -> KerasTensor:
    """Returns the scores of a search.

    Raises:
        ValueError: if they are NaN, as far as is known before the program
            runs: then logits were.
    """
    try:
        is_nan = bool(np.isnan(ops.convert_to_numpy(scores)).any())
    except (TypeError, ValueError, AttributeError, NotImplementedError):
        return scores  # inside a compiled function
    if is_nan:
        raise ValueError(
            "Logits must be numbers. Received: NaN from the step function. "
            "Look at the model's weights, for example by "
            "`numpy.isfinite(weight)`."
        )
    return scores


def check_logits(logits: KerasTensor, axes: Sequence[str]) -> KerasTensor:
    """Returns the logits of a step function.

    Raises:
        ValueError: if they have not these axes.
    """
    if len(ops.shape(logits)) != len(axes):
        raise ValueError(
            "A step function must return logits of shape "
            f"({', '.join(axes)}). Received: logits.shape="
            f"{tuple(ops.shape(logits))}. Leave out other axes, for example by "
            "`logits[:, -1]`."
        )
    return logits


def most_probable(
    logits: KerasTensor,
    count: int | KerasTensor,
    forced_tokens: KerasTensor,
    before_min_length: KerasTensor | None,
    end_id: int,
    banned: KerasTensor | None = None,
    offered: KerasTensor | None = None,
) -> tuple[KerasTensor, KerasTensor]:
    """Returns the most probable next tokens of each row.

    Args:
        logits: `(N, V)`.
        count: number of tokens to return for each row.
        forced_tokens: integers `(N,)`, the only allowed token, or -1 if any
            token is allowed.
        before_min_length: booleans `(N,)`, True for rows that may not end yet,
            or `None`.
        end_id: the end token.
        banned: integers `(N, n)`, tokens that are not allowed, or -1. The
            probabilities of the others do not change. Defaults to none.
        offered: integers `(N, m)`, tokens to return besides, or -1. Those that
            are there already have log-probability -inf. Defaults to none.

    Returns:
        float32 log-probabilities and int32 tokens, both `(N, count + m)`. Where
        a token is forced, the others have log-probability -inf.
    """
    logits = ops.cast(logits, "float32")
    allowed = _without_early_end(logits, before_min_length, end_id)
    if banned is not None:
        # Most often there is none, and a pass over the logits takes time.
        allowed = ops.cond(
            ops.any(banned >= 0),
            lambda: ops.where(
                marked(banned, banned >= 0, allowed), MINUS_INFINITY, allowed
            ),
            lambda: allowed,
        )
    best, tokens = _top_k(allowed, count)
    likely = tokens[:, 0]
    if offered is not None:
        best, tokens = _with_offered(best, tokens, allowed, offered)
        count = ops.shape(tokens)[1]
    if banned is not None:
        ends = ops.full_like(tokens[:, :1], end_id)
        others = ops.maximum(banned, 0)
        among = ops.concatenate([tokens[:, :1], ends, others], axis=1)
        first = ops.argmax(batched_take(logits, among), axis=1)
        first = ops.cast(first, "int32")[:, None]
        likely = batched_take(among, first)[:, 0]
    elif before_min_length is not None:
        end = logits[:, end_id]
        likely = ops.where(end > best[:, 0], end_id, likely)
    total = _log_sum_exp(logits, likely)
    first = ops.equal(ops.arange(count, dtype="int32"), 0)
    is_forced = ops.expand_dims(forced_tokens >= 0, -1)
    only = ops.where(first, _at_token(logits, forced_tokens), MINUS_INFINITY)
    best = ops.where(is_forced, only, best)
    tokens = ops.where(is_forced, forced_tokens[:, None], tokens)
    return _log_probs(best, total), tokens


def _with_offered(best, tokens, logits, offered):
    """Returns logits and tokens with those that are offered, each once."""
    among = ops.concatenate([tokens, offered], axis=1)
    places = ops.arange(ops.shape(among)[1], dtype="int32")
    own = places[ops.shape(tokens)[1] :]  # the columns of `offered`
    is_same = ops.equal(offered[:, :, None], among[:, None])
    is_there = ops.any(is_same & (places < own[:, None]), axis=-1)
    values = batched_take(logits, ops.maximum(offered, 0))
    values = ops.where(is_there | (offered < 0), MINUS_INFINITY, values)
    # No token is negative, since others take values at them.
    return ops.concatenate([best, values], axis=1), ops.maximum(among, 0)


def draw(
    logits: KerasTensor,
    forced_tokens: KerasTensor,
    before_min_length: KerasTensor | None,
    end_id: int,
    chances: KerasTensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> tuple[KerasTensor, KerasTensor]:
    """Draws the next token of each row.

    Args:
        logits, forced_tokens, before_min_length, end_id: as in
            `most_probable`.
        chances: float32 `(N,)`, uniform random numbers in [0, 1).
        temperature, top_k, top_p: as in `sampling.sample`.

    Returns:
        float32 log-probabilities in the model's distribution and int32
        tokens, both `(N,)`.
    """
    logits = ops.cast(logits, "float32")
    allowed = _without_early_end(logits, before_min_length, end_id)
    width = ops.shape(logits)[-1]
    if top_k is None and top_p is None:
        tokens = ops.arange(width, dtype="int32")[None]
        best = allowed
    else:  # most probable first
        best, tokens = _top_k(allowed, at_most(top_k or width, width))
    largest = ops.max(best, axis=-1, keepdims=True)
    # Beyond these, the weights are 0 and 1 or all the same, or no numbers.
    weights = ops.exp((best - largest) / min(max(temperature, 1e-6), 1e30))
    below = ops.cumsum(weights, axis=-1)
    if top_p is not None:
        # The most probable token is always kept: below - weights is 0 there.
        kept = below - weights < top_p * below[:, -1:]
        weights = ops.where(kept, weights, 0.0)
        below = ops.cumsum(weights, axis=-1)
    # The first token with a weight whose cumulative sum exceeds the chance.
    above = (below > chances[:, None] * below[:, -1:]) & (weights > 0)
    found = ops.cast(ops.argmax(above, axis=-1), "int32")[:, None]
    tokens = ops.broadcast_to(tokens, ops.shape(best))
    drawn = batched_take(tokens, found)[:, 0]
    # Where no allowed token has a weight, the most probable of all tokens.
    possible = ops.any(weights > 0, axis=-1)
    drawn = ops.where(
        possible, drawn, ops.cast(ops.argmax(logits, axis=-1), "int32")
    )
    drawn = ops.where(forced_tokens >= 0, forced_tokens, drawn)
    total = _log_sum_exp(logits, ops.argmax(logits, axis=-1))
    return _log_probs(_at_token(logits, drawn), total)[:, 0], drawn


def _log_probs(logits, total):
    """Returns log-probabilities: -inf also in a row in which all logits are,
    whose `total`, the logarithm of its sum of exponentials, is no number."""
    is_suppressed = ops.equal(logits, MINUS_INFINITY)
    return ops.where(is_suppressed, MINUS_INFINITY, logits - total)


def python_number(value: Any) -> Any:
    """Returns a number of NumPy as one of Python, and all else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _without_early_end(logits, before_min_length, end_id):
    """Returns the logits `(N, V)`, with -inf for end tokens that come too
    early."""
    if before_min_length is None:
        return logits
    tokens = ops.arange(ops.shape(logits)[-1], dtype="int32")
    end = ops.equal(tokens, end_id)
    return ops.where(before_min_length[:, None] & end, MINUS_INFINITY, logits)


def _at_token(values, tokens):
    """Gathers one value per row, `(N, 1)`; negative tokens count as 0."""
    return batched_take(values, ops.maximum(tokens, 0)[:, None])


def _log_sum_exp(logits, likely):
    """Returns log Σ exp of each row, `(N, 1)`.

    It is computed from the softmax of a probable token, `likely` `(N,)`. That
    takes one pass over the logits, and the logarithm is exact.
    """
    probability = _at_token(ops.softmax(logits, axis=-1), likely)
    return _at_token(logits, likely) - ops.log(probability)


def _top_k(logits, count):
    """Returns the values and tokens of `ops.top_k` for wide rows `(N, V)`.

    The greatest values are in the chunks with the greatest maxima, and finding
    a maximum is much faster than `ops.top_k`.
    """
    width = logits.shape[-1] or 1  # a shortlist has no static width
    chunk = max(n for n in range(1, 129) if width % n == 0)
    if chunk < 16 or width // chunk < 32:
        best, tokens = ops.top_k(logits, count)
        return best, ops.cast(tokens, "int32")
    chunks = width // chunk
    logits = ops.reshape(logits, (-1, chunks, chunk))
    maxima = ops.max(logits, axis=-1)
    several = at_most(count, chunks)
    # Chunks are in order, so that the first of equal values is found.
    best_chunks = ops.cast(ops.top_k(maxima, several)[1], "int32")
    best_chunks = ops.sort(best_chunks, axis=-1)
    candidates = batched_take(logits, best_chunks)
    best, found = ops.top_k(
        ops.reshape(candidates, (-1, several * chunk)), count
    )
    found = ops.cast(found, "int32")
    best_chunks = batched_take(best_chunks, found // chunk)
    return best, best_chunks * chunk + found % chunk


def at_most(
    count: int | KerasTensor, maximum: int | KerasTensor
) -> int | KerasTensor:
    """Returns the smaller of `count` and `maximum`."""
    if isinstance(count, int) and isinstance(maximum, int):
        return min(count, maximum)
    return ops.minimum(count, maximum)


def batched_take(values: KerasTensor, indices: KerasTensor) -> KerasTensor:
    """Takes elements of each row by the row's own indices.

    Args:
        values: `(B, n, …)`.
        indices: integers `(B, m)` in [0, n).

    Returns:
        `(B, m, …)`, in the dtype of `values`.
    """
    if keras.backend.backend() == "tensorflow":
        # One operation. `take_along_axis` is 25 operations on TensorFlow, a
        # third of all operations in a step of a small model.
        import tensorflow as tf

        return tf.gather(values, indices, batch_dims=1)
    width = [1] * (len(values.shape) - 2)
    indices = ops.reshape(indices, (*ops.shape(indices), *width))
    return ops.take_along_axis(values, indices, axis=1)


def marked(
    tokens: KerasTensor, is_marked: KerasTensor, scores: KerasTensor
) -> KerasTensor:
    """Returns booleans `(N, V)`, as `scores` are, True at marked tokens of
    `(N, L)`."""
    rows, width = ops.shape(scores)
    length = ops.shape(tokens)[1]
    # Tokens that are not marked go to a column of their own.
    columns = ops.where(is_marked, tokens, width)
    lines = ops.arange(rows, dtype="int32")[:, None]
    lines = ops.broadcast_to(lines, (rows, length))
    indices = ops.stack([lines, columns], axis=-1)
    indices = ops.reshape(indices, (-1, 2))
    marks = ops.zeros((rows, width + 1), "int32")
    marks = ops.scatter_update(
        marks, indices, ops.ones((rows * length,), "int32")
    )
    return marks[:, :width] > 0
