"""Which tokens come next: the most probable ones, or one that is drawn.

Shapes: N rows, V vocabulary.
"""

from keras import ops

from keras_transformer.search.batched_take import batched_take

MINUS_INFINITY = float("-inf")


def most_probable(logits, count, forced, early, end_id):
    """Finds the most probable next tokens of each row.

    Args:
        logits: `(N, V)`.
        count: how many tokens to find.
        forced: integers `(N,)`, the only token allowed, -1 for any.
        early: booleans `(N,)`, which rows may not end yet, or `None`.
        end_id: the end token.

    Returns:
        float32 log-probabilities and int32 tokens, both `(N, count)`. Where a
        token is forced, the others have log-probability -inf.
    """
    logits = ops.cast(logits, "float32")
    allowed = logits if early is None else _without_end(logits, early, end_id)
    best, tokens = _top_k(allowed, count)
    likely = tokens[:, 0]
    if early is not None:
        end = logits[:, end_id]
        likely = ops.where(end > best[:, 0], end_id, likely)
    total = _log_sum_exp(logits, likely)
    first = ops.equal(ops.arange(count), 0)
    is_forced = ops.expand_dims(forced >= 0, -1)
    only = ops.where(first, _at_token(logits, forced), MINUS_INFINITY)
    best = ops.where(is_forced, only, best)
    tokens = ops.where(is_forced, forced[:, None], tokens)
    return best - total, tokens


def draw(logits, forced, early, end_id, chances, temperature, top_k, top_p):
    """Draws the next token of each row.

    Args:
        logits, forced, early, end_id: as in `most_probable`.
        chances: float32 `(N,)` in [0, 1), which decide what is drawn.
        temperature, top_k, top_p: as in `sampling.sample`.

    Returns:
        float32 log-probabilities in the model's distribution and int32
        tokens, both `(N,)`.
    """
    logits = ops.cast(logits, "float32")
    allowed = logits if early is None else _without_end(logits, early, end_id)
    width = logits.shape[-1]
    if top_k is None and top_p is None:
        tokens = ops.arange(width, dtype="int32")[None]
        best = allowed
    else:  # most probable first
        best, tokens = _top_k(allowed, min(top_k or width, width))
    largest = ops.max(best, axis=-1, keepdims=True)
    weights = ops.exp((best - largest) / max(temperature, 1e-6))
    below = ops.cumsum(weights, axis=-1)
    if top_p is not None:
        kept = below - weights < top_p * below[:, -1:]  # the first always
        weights = ops.where(kept, weights, 0.0)
        below = ops.cumsum(weights, axis=-1)
    # The first whose sum is above the chance, among those that have a weight.
    above = (below > chances[:, None] * below[:, -1:]) & (weights > 0)
    found = ops.cast(ops.argmax(above, axis=-1), "int32")[:, None]
    tokens = ops.broadcast_to(tokens, ops.shape(best))
    drawn = batched_take(tokens, found)[:, 0]
    # Where all else is too early or impossible, what is left.
    possible = ops.any(weights > 0, axis=-1)
    drawn = ops.where(
        possible, drawn, ops.cast(ops.argmax(logits, axis=-1), "int32")
    )
    drawn = ops.where(forced >= 0, forced, drawn)
    total = _log_sum_exp(logits, ops.argmax(logits, axis=-1))
    return (_at_token(logits, drawn) - total)[:, 0], drawn


def _without_end(logits, early, end_id):
    """Returns the logits `(N, V)` with -inf for an end that is too early."""
    end = ops.equal(ops.arange(logits.shape[-1]), end_id)
    return ops.where(early[:, None] & end, MINUS_INFINITY, logits)


def _at_token(values, tokens):
    """Takes one value of each row, `(N, 1)`; negative tokens count as 0."""
    return batched_take(values, ops.maximum(tokens, 0)[:, None])


def _log_sum_exp(logits, likely):
    """Returns log Σ exp of each row, `(N, 1)`.

    It is computed from the softmax of a probable token, `likely` `(N,)`: one
    pass over the logits, and a logarithm that is exact.
    """
    probability = _at_token(ops.softmax(logits, axis=-1), likely)
    return _at_token(logits, likely) - ops.log(probability)


def _top_k(logits, count):
    """Returns the values and tokens of `ops.top_k` for wide rows `(N, V)`.

    The greatest values are in the chunks with the greatest maxima, and a
    maximum is much faster to find.
    """
    width = logits.shape[-1]
    chunk = max(n for n in range(1, 129) if width % n == 0)
    if chunk < 16 or width // chunk < 32:
        best, tokens = ops.top_k(logits, count)
        return best, ops.cast(tokens, "int32")
    chunks = width // chunk
    logits = ops.reshape(logits, (-1, chunks, chunk))
    maxima = ops.max(logits, axis=-1)
    several = at_most(count, chunks)
    # In order, so that of equals the first is found.
    where = ops.sort(ops.cast(ops.top_k(maxima, several)[1], "int32"), axis=-1)
    candidates = batched_take(logits, where)
    best, found = ops.top_k(
        ops.reshape(candidates, (-1, several * chunk)), count
    )
    found = ops.cast(found, "int32")
    where = batched_take(where, found // chunk)
    return best, where * chunk + found % chunk


def at_most(count, most):
    """Returns the smaller one of an integer or a tensor, and an integer."""
    if isinstance(count, int):
        return min(count, most)
    return ops.minimum(count, most)
