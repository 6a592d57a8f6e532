"""One hypothesis a row, over any step function: greedy search and sampling.

Shapes: B batch, N rows (here B), L length limit, V vocabulary.

A step function takes the last tokens `(N,)`, a cache (any nested structure
of tensors whose first axis is N) and the step, and gives the logits `(N, V)`
of the next token and the new cache.
"""

import keras
from keras import ops

from keras_transformer.config import END, PAD, START
from keras_transformer.search.constraints import Constraints
from keras_transformer.search.next_token import draw, most_probable


def greedy_search(
    step_fn,
    cache,
    limits,
    start_id=START,
    end_id=END,
    minima=None,
    prefix=None,
):
    """Takes the most probable token at each step.

    Example:

    >>> from keras import ops
    >>> table = ops.convert_to_tensor([[0.0, 0, 0, 1, 9], [0.0, 0, 0, 9, 1]])
    >>> def step(tokens, cache, index):  # token 4, then the end token 3
    ...     row = ops.cast(tokens == 4, "int32")
    ...     return ops.take(table, row, axis=0), cache
    >>> ids, scores = greedy_search(step, {}, limits=[5])
    >>> print(ops.convert_to_numpy(ids))
    [[4 3 0 0 0]]

    Args:
        step_fn: the step function, see above.
        cache: its first cache.
        limits: integers `(B,)`, the most tokens for each row, end token
            included; a row that reaches its limit ends there. At least 1.
        start_id, end_id: default to the package's.
        minima: integers `(B,)`, the fewest tokens, end token included, or
            `None`. Where a limit is smaller, it counts.
        prefix: integers `(B, P)`, the tokens that each row begins with, -1
            where it is free, or `None`.

    Returns:
        ids `(B, L)`, padded with 0 after the end token, and float32 scores
        `(B,)`, the log-probability of the row.
    """

    def choose(logits, forced, early, index):
        gained, tokens = most_probable(logits, 1, forced, early, end_id)
        return gained[:, 0], tokens[:, 0]

    constraints = Constraints(limits, minima, prefix, end_id)
    return _one_by_one(step_fn, cache, constraints, choose, start_id)


def sample(
    step_fn,
    cache,
    limits,
    temperature=1.0,
    top_k=None,
    top_p=None,
    seed=None,
    start_id=START,
    end_id=END,
    minima=None,
    prefix=None,
):
    """Draws each token from the model's distribution.

    Example:

    >>> from keras import ops
    >>> table = ops.convert_to_tensor([[0.0, 0, 0, 1, 9], [0.0, 0, 0, 9, 1]])
    >>> def step(tokens, cache, index):  # token 4, then the end token 3
    ...     row = ops.cast(tokens == 4, "int32")
    ...     return ops.take(table, row, axis=0), cache
    >>> ids, scores = sample(step, {}, limits=[5], top_k=1)
    >>> print(ops.convert_to_numpy(ids))
    [[4 3 0 0 0]]

    For several samples of a sentence repeat its rows.

    Args:
        step_fn: the step function, see above.
        cache: its first cache.
        limits, start_id, end_id, minima, prefix: as in `greedy_search`.
        temperature: logits are divided by it; near 0 it is greedy search.
        top_k: an integer, only so many tokens are drawn from, or `None`.
        top_p: in (0, 1], only the most probable tokens that together have
            this probability are drawn from, or `None` (Holtzman et al., 2020).
        seed: an integer, a `keras.random.SeedGenerator`, or `None`. The same
            integer draws the same.

    Returns:
        ids `(B, L)`, padded with 0 after the end token, and float32 scores
        `(B,)`, the log-probability of the row in the model's distribution.

    Raises:
        ValueError: if `temperature`, `top_k` or `top_p` is out of range.
    """
    for name, value, holds in (
        ("temperature", temperature, temperature > 0),
        ("top_k", top_k, top_k is None or top_k >= 1),
        ("top_p", top_p, top_p is None or 0 < top_p <= 1),
    ):
        if not holds:
            raise ValueError(
                "`temperature` and `top_k` must be positive, and `top_p` in "
                f"(0, 1]. Received: {name}={value}"
            )
    constraints = Constraints(limits, minima, prefix, end_id)
    # All at once: inside a loop a seed would draw the same again and again.
    shape = (constraints.longest, ops.shape(constraints.limits)[0])
    chances = keras.random.uniform(shape, seed=seed)

    def choose(logits, forced, early, index):
        return draw(
            logits,
            forced,
            early,
            end_id,
            ops.take(chances, index, axis=0),
            temperature,
            top_k,
            top_p,
        )

    return _one_by_one(step_fn, cache, constraints, choose, start_id)


def _one_by_one(step_fn, cache, constraints, choose, start_id):
    """The loop of greedy search and of sampling: one token of each row at each
    step, which `choose(logits, forced, early, index)` gives with its
    log-probability, both `(B,)`."""
    longest = constraints.longest
    batch = ops.shape(constraints.limits)[0]
    sequences = ops.full((batch, longest), PAD, dtype="int32")
    positions = ops.arange(longest, dtype="int32")

    def unfinished(index, tokens, sequences, scores, done, cache):
        return (index < longest) & ~ops.all(done)

    def step(index, tokens, sequences, scores, done, cache):
        logits, cache = step_fn(tokens, cache, index)
        gained, tokens = choose(
            logits,
            constraints.forced_tokens(index),
            constraints.too_early(index),
            index,
        )
        scores = ops.where(done, scores, scores + gained)
        tokens = ops.where(done, PAD, tokens)
        here = ops.equal(positions, index)  # [L]
        sequences = ops.where(here, tokens[:, None], sequences)
        done = done | ops.equal(tokens, constraints.end_id)
        return index + 1, tokens, sequences, scores, done, cache

    _, _, sequences, scores, _, _ = ops.while_loop(
        unfinished,
        step,
        (
            ops.cast(0, "int32"),
            ops.full((batch,), start_id, dtype="int32"),
            sequences,
            ops.zeros((batch,)),
            ops.zeros((batch,), "bool"),
            cache,
        ),
    )
    return sequences, scores
