"""What may come next: the tokens that a search chooses from.

Shapes: B batch, N rows, V vocabulary.
"""

import copy

from keras import ops

from keras_transformer.gather import gather

NEVER = float("-inf")


class Rules:
    """What a step may not choose freely."""

    def __init__(self, limits, minima, prefix, end_id):
        self.limits = ops.cast(limits, "int32")
        self.minima = None if minima is None else ops.cast(minima, "int32")
        self.prefix = None
        self.end_id = end_id
        self.longest = ops.max(self.limits, initial=1)
        if prefix is not None:
            # One free column more: there is always one to look at.
            self.prefix = ops.pad(
                ops.cast(prefix, "int32"), ((0, 0), (0, 1)), constant_values=-1
            )
            length = ops.shape(self.prefix)[1]
            self.places = ops.arange(length, dtype="int32")
            # No row ends before what it must begin with.
            needed = ops.where(self.prefix >= 0, self.places + 2, 1)
            needed = ops.max(needed, axis=1)
            self.minima = (
                needed if minima is None else ops.maximum(self.minima, needed)
            )

    def of(self, rows):
        """The rules of some rows alone; `longest` stays that of all, since
        sequences keep their width."""
        some = copy.copy(self)
        for name in ("limits", "minima", "prefix"):
            of_all = getattr(self, name)
            if of_all is not None:
                setattr(some, name, ops.take(of_all, rows, axis=0))
        return some

    def forced(self, index):
        """The token of each row at this step, `(B,)`, -1 for any: the end
        token at the limit, and before it what the prefix says."""
        free = -1
        if self.prefix is not None:
            here = ops.equal(self.places, index)
            free = ops.max(ops.where(here, self.prefix, -1), axis=1)
        return ops.where(index + 1 >= self.limits, self.end_id, free)

    def early(self, index):
        """Which rows may not end at this step, `(B,)`, or `None`."""
        return None if self.minima is None else index + 1 < self.minima


def most_probable(logits, count, forced, early, end_id):
    """The best continuations of each row and their log-probabilities, both
    `(N, count)`; where a token is forced, that alone."""
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
    only = ops.where(first, _of_each(logits, forced), NEVER)
    best = ops.where(is_forced, only, best)
    tokens = ops.where(is_forced, forced[:, None], tokens)
    return best - total, tokens


def draw(logits, forced, early, end_id, chances, temperature, top_k, top_p):
    """Tokens drawn by `chances` in [0, 1), and their log-probabilities, both
    `(N,)`; where a token is forced, that."""
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
    drawn = gather(tokens, found)[:, 0]
    # Where all else is too early or impossible, what is left.
    possible = ops.any(weights > 0, axis=-1)
    drawn = ops.where(
        possible, drawn, ops.cast(ops.argmax(logits, axis=-1), "int32")
    )
    drawn = ops.where(forced >= 0, forced, drawn)
    total = _log_sum_exp(logits, ops.argmax(logits, axis=-1))
    return (_of_each(logits, drawn) - total)[:, 0], drawn


def _without_end(logits, early, end_id):
    """Logits `(N, V)` without the end token's where it is too early for it."""
    end = ops.equal(ops.arange(logits.shape[-1]), end_id)
    return ops.where(early[:, None] & end, NEVER, logits)


def _of_each(values, tokens):
    """`(N, V)` at one token of each row, `(N, 1)`; at any, if negative."""
    return gather(values, ops.maximum(tokens, 0)[:, None])


def _log_sum_exp(logits, likely):
    """log Σ exp of each row, `(N, 1)`, by the softmax of its most probable
    token: that is one pass, and its logarithm is exact."""
    probability = _of_each(ops.softmax(logits, axis=-1), likely)
    return _of_each(logits, likely) - ops.log(probability)


def _top_k(logits, count):
    """`ops.top_k` of wide rows `(N, V)`: the best are in the chunks whose
    maxima are best, and a maximum is much faster to find."""
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
    candidates = gather(logits, where)
    best, found = ops.top_k(
        ops.reshape(candidates, (-1, several * chunk)), count
    )
    found = ops.cast(found, "int32")
    where = gather(where, found // chunk)
    return best, where * chunk + found % chunk


def at_most(count, most):
    if isinstance(count, int):
        return min(count, most)
    return ops.minimum(count, most)
