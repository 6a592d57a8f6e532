"""Greedy and beam search over any step function: section 6.1 of the paper.

Shapes: B batch, K beam size, N rows (B or B·K), L length limit, V vocabulary.

A step function takes the last tokens `(N,)`, a cache (any nested structure
of tensors whose first axis is N) and the step, and gives the logits `(N, V)`
of the next token and the new cache.
"""

import keras
from keras import ops

from keras_transformer.config import END, PAD, START

NEVER = float("-inf")


def length_penalty(length, alpha):
    """((5 + n) / 6)^α of Wu et al. (2016), which the paper uses with α = 0.6.

    n counts the end token and not the start token. Other systems divide by
    n^α, so values of α are not portable between systems.
    """
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha


def greedy_search(step_fn, cache, limits, start_id=START, end_id=END):
    """Takes the most probable token at each step.

    Args:
        step_fn: the step function, see above, for N = B rows.
        cache: its first cache.
        limits: integers `(B,)`, the most tokens for each row, end token
            included; a row that reaches its limit ends there. At least 1.
        start_id, end_id: default to the package's.

    Returns:
        ids `(B, L)`, padded with 0 after the end token, and float32 scores
        `(B,)`, the log-probability of the row.
    """
    limits = ops.cast(limits, "int32")
    longest = ops.max(limits, initial=1)
    batch = ops.shape(limits)[0]
    sequences = ops.full((batch, longest), PAD, dtype="int32")
    positions = ops.arange(longest, dtype="int32")

    def unfinished(index, tokens, sequences, scores, done, cache):
        return (index < longest) & ~ops.all(done)

    def step(index, tokens, sequences, scores, done, cache):
        logits, cache = step_fn(tokens, cache, index)
        last = index + 1 >= limits
        gained, tokens = _most_probable(logits, 1, last, end_id)
        scores = ops.where(done, scores, scores + gained[:, 0])
        tokens = ops.where(done, PAD, tokens[:, 0])
        here = ops.equal(positions, index)  # [L]
        sequences = ops.where(here, tokens[:, None], sequences)
        done = done | ops.equal(tokens, end_id)
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


def beam_search(
    step_fn,
    cache,
    limits,
    beam_size=4,
    alpha=0.6,
    start_id=START,
    end_id=END,
    reorder=None,
):
    """Keeps the `beam_size` most probable prefixes at each step.

    A hypothesis is finished when its end token is among the K best
    continuations; it is scored log P / `length_penalty` and kept if it is
    among the K best finished so far. A sentence stops when its most probable
    prefix, divided by the largest penalty it could reach, cannot beat the
    worst kept hypothesis, or with K = 1, which is greedy search, at its first
    end token. It is frozen then, so what it returns does not depend on the
    sentences beside it. At the limit only the end token is allowed, so every
    hypothesis is finished.

    Args:
        step_fn: the step function, see above, for N = B·K rows.
        cache: its first cache.
        limits: integers `(B,)`, the most tokens for each sentence, end token
            included. At least 1.
        beam_size: K, an integer; in a TensorFlow graph also a tensor.
        alpha: α ≥ 0 of the length penalty. Defaults to 0.6.
        start_id, end_id: default to the package's.
        reorder: a function of the cache and of integers `(B, K)`, the beam
            that each new one goes on from, that gives the cache of the new
            ones. Defaults to taking rows of every tensor.

    Returns:
        ids `(B, K, L)`, best first, padded with 0 after the end token, and
        float32 scores `(B, K)`. Where fewer than K hypotheses exist the rest
        are padding with score -inf.

    Raises:
        ValueError: if `beam_size` < 1 or `alpha` < 0.
    """
    if any(
        isinstance(x, int | float) and x < low
        for x, low in ((beam_size, 1), (alpha, 0))
    ):
        raise ValueError(
            "`beam_size` must be at least 1 and `alpha` at least 0. "
            f"Received: beam_size={beam_size}, alpha={alpha}"
        )
    limits = ops.cast(limits, "int32")
    if isinstance(beam_size, int) and beam_size == 1:
        sequences, scores = greedy_search(
            step_fn, cache, limits, start_id, end_id
        )
        # Every row ends, at its limit by force.
        lengths = ops.argmax(ops.equal(sequences, end_id), axis=-1) + 1
        scores = scores / length_penalty(lengths, alpha)
        return sequences[:, None], scores[:, None]

    batch = ops.shape(limits)[0]
    longest = ops.max(limits, initial=1)
    positions = ops.arange(longest, dtype="int32")
    largest_penalty = length_penalty(limits, alpha)  # [B]
    if reorder is None:
        rows = ops.arange(batch, dtype="int32")[:, None] * beam_size

        def reorder(cache, beams):
            origin = ops.reshape(beams + rows, (-1,))
            return keras.tree.map_structure(
                lambda x: ops.take(x, origin, axis=0), cache
            )

    def can_improve(log_probs, scores):
        best = ops.max(log_probs, axis=-1, initial=NEVER)
        worst = ops.min(scores, axis=-1, initial=-NEVER)
        is_open = ops.equal(worst, NEVER) | (beam_size > 1)
        return is_open & (best / largest_penalty > worst)  # [B]

    def unfinished(index, tokens, alive, log_probs, done, scores, cache):
        return (index < longest) & ops.any(can_improve(log_probs, scores))

    def step(index, tokens, alive, log_probs, done, scores, cache):
        running = can_improve(log_probs, scores)[:, None]
        logits, cache = step_fn(ops.reshape(tokens, (-1,)), cache, index)
        # 2K are enough, of a beam and in all: at most K are end tokens.
        several = _at_most(2 * beam_size, logits.shape[-1])
        gained, tokens = _most_probable(
            logits,
            several,
            ops.repeat(index + 1 >= limits, beam_size),
            end_id,
        )
        shape = (batch, beam_size * several)
        candidates = ops.reshape(log_probs, (-1, 1)) + gained
        best, found = ops.top_k(
            ops.reshape(candidates, shape), 2 * beam_size
        )  # [B, 2K]
        found = ops.cast(found, "int32")
        tokens = ops.take_along_axis(ops.reshape(tokens, shape), found, axis=1)
        beams = found // several
        ends = ops.equal(tokens, end_id)

        here = ops.equal(positions, index)
        extended = ops.where(
            here, tokens[..., None], _pick(alive, beams)
        )  # [B, 2K, L]

        # Finished: ends among the K best, with the K best kept so far first,
        # so that a tie changes nothing.
        finishing = ends[:, :beam_size] & running
        new_scores = ops.where(
            finishing,
            best[:, :beam_size] / length_penalty(index + 1, alpha),
            NEVER,
        )
        new_done = ops.where(
            (new_scores > NEVER)[..., None], extended[:, :beam_size], PAD
        )
        scores, kept = ops.top_k(
            ops.concatenate([scores, new_scores], axis=1), beam_size
        )
        done = _pick(
            ops.concatenate([done, new_done], axis=1), ops.cast(kept, "int32")
        )

        # Alive: the K best that do not end.
        going_on = running & ~ends
        log_probs, kept = ops.top_k(ops.where(going_on, best, NEVER), beam_size)
        kept = ops.cast(kept, "int32")
        alive = _pick(extended, kept)
        tokens = ops.take_along_axis(tokens, kept, axis=1)
        cache = reorder(cache, ops.take_along_axis(beams, kept, axis=1))
        return index + 1, tokens, alive, log_probs, done, scores, cache

    hypotheses = ops.full((batch, beam_size, longest), PAD, dtype="int32")
    first_only = ops.arange(beam_size) > 0  # all beams are the same at first
    nothing = ops.full((batch, beam_size), NEVER, dtype="float32")
    _, _, _, _, done, scores, _ = ops.while_loop(
        unfinished,
        step,
        (
            ops.cast(0, "int32"),
            ops.full((batch, beam_size), start_id, dtype="int32"),
            hypotheses,
            ops.where(first_only, nothing, 0.0),
            hypotheses,
            nothing,
            cache,
        ),
    )
    return done, scores


def _most_probable(logits, count, last, end_id):
    """The best continuations of each row and their log-probabilities, both
    `(N, count)`; where it is the `last` step of a row, the end token alone."""
    logits = ops.cast(logits, "float32")
    best, tokens = _top_k(logits, count)
    largest = best[:, :1]
    total = ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True)
    first = ops.equal(ops.arange(count), 0)
    end = ops.where(first, logits[:, end_id : end_id + 1], NEVER)
    last = last[:, None]
    best = ops.where(last, end, best) - (largest + ops.log(total))
    return best, ops.where(last, end_id, tokens)


def _top_k(logits, count):
    """`ops.top_k` of wide rows `(N, V)`: the best are in the chunks whose
    maxima are best, and a maximum is much faster to find."""
    width = logits.shape[-1]
    chunk = max(n for n in range(1, 129) if width % n == 0)
    if chunk < 16 or width // chunk < 32:
        best, tokens = ops.top_k(logits, count)
        return best, ops.cast(tokens, "int32")
    chunks = width // chunk
    maxima = ops.max(ops.reshape(logits, (-1, chunks, chunk)), axis=-1)
    # In order, so that of equals the first is found.
    where = ops.sort(ops.cast(ops.top_k(maxima, count)[1], "int32"), axis=-1)
    rows = ops.arange(ops.shape(logits)[0], dtype="int32")[:, None] * chunks
    few = ops.take(ops.reshape(logits, (-1, chunk)), rows + where, axis=0)
    best, found = ops.top_k(ops.reshape(few, (-1, count * chunk)), count)
    found = ops.cast(found, "int32")
    where = ops.take_along_axis(where, found // chunk, axis=-1)
    return best, where * chunk + found % chunk


def _at_most(count, most):
    if isinstance(count, int):
        return min(count, most)
    return ops.minimum(count, most)


def _pick(sequences, beams):
    """`(B, n, L)` at beams `(B, m)` gives `(B, m, L)`."""
    return ops.take_along_axis(sequences, beams[..., None], axis=1)
