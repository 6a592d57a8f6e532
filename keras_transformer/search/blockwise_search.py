"""Blockwise parallel decoding: greedy search, several tokens at a step.

Stern et al. (2018), sections 3 and 4. Shapes: B batch, k block size, L maximum
length, V vocabulary.
"""

from collections.abc import Callable

from keras import KerasTensor, ops

from keras_transformer.ids import END, PAD, START
from keras_transformer.search.constraints import as_integers, longest_length
from keras_transformer.search.next_token import (
    batched_take,
    check_cache,
    check_logits,
    checked_scores,
    most_probable,
    run_steps,
)
from keras_transformer.search.sampling import Cache
from keras_transformer.validation import checked_integer

# (tokens, cache, positions) -> (logits, new cache), see `blockwise_search`.
VerifyFunction = Callable[
    [KerasTensor, Cache, KerasTensor], tuple[KerasTensor, Cache]
]
# (cache, accepted, certain) -> (proposals, new cache), see `blockwise_search`.
ProposeFunction = Callable[
    [Cache, KerasTensor, KerasTensor], tuple[KerasTensor, Cache]
]


def blockwise_search(
    verify_fn: VerifyFunction,
    propose_fn: ProposeFunction,
    cache: Cache,
    max_lengths: KerasTensor,
    block_size: int,
    start_id: int = START,
    end_id: int = END,
) -> tuple[KerasTensor, KerasTensor, KerasTensor]:
    """Finds what `greedy_search` finds, in fewer steps.

    Each step reads a block of tokens: one that is certain and k - 1 proposals
    for those that follow. The model's logits after each of them say what greedy
    search would take there. Proposals are accepted up to the first that
    differs; what greedy search takes after them is certain, too. So a step
    finds at least one token and at most k, and no proposal, good or bad,
    changes the result.

    Example:

    >>> from keras import ops
    >>> table = ops.convert_to_tensor([[0.0, 0, 0, 1, 9], [0.0, 0, 0, 9, 1]])
    >>> def verify(tokens, cache, positions):  # token 4, then the end token 3
    ...     row = ops.cast(tokens == 4, "int32")
    ...     return ops.take(table, row, axis=0), cache
    >>> def propose(cache, accepted, certain):
    ...     return ops.full((1, 1), 3), cache
    >>> ids, _, steps = blockwise_search(verify, propose, {}, [5], block_size=2)
    >>> print(ops.convert_to_numpy(ids))
    [[4 3 0 0 0]]
    >>> int(steps[0])
    2

    Args:
        verify_fn: function `(tokens, cache, positions) -> (logits, cache)`.
            Tokens are int32 `(B, k)`; positions, int32 `(B,)`, are those of
            each row's first token; logits are `(B, k, V)`, those of the token
            that follows each of them.
        propose_fn: function `(cache, accepted, certain) -> (proposals, cache)`,
            called after `verify_fn` with the cache that it returned.
            `accepted`, int32 `(B,)`, counts the proposals that were accepted,
            from 0 to k - 1. `certain`, int32 `(B,)`, is the token that greedy
            search takes after those, and `proposals`, int32 `(B, k - 1)`, are
            for what follows it. The cache that it returns must be as if the
            rejected tokens had never been read.
        cache: initial cache, a nested structure of tensors.
        max_lengths: integers `(B,)`, the maximum number of tokens of each row,
            end token included; a row that reaches it ends there. At least 1.
        block_size: k, an integer. With 1 it is greedy search.
        start_id: the start token. Defaults to the package's.
        end_id: the end token. Defaults to the package's.

    Returns:
        ids `(B, L)`, padded with 0 after the end token; float32 scores `(B,)`,
        the log-probabilities of the rows; and int32 `(B,)`, the number of steps
        of each row.

    Raises:
        ValueError: if `block_size` is no integer of at least 1, or if
            `max_lengths` has another shape.
    """
    check_cache(cache)
    block_size = checked_integer("block_size", block_size)
    longest = longest_length(max_lengths)
    max_lengths = as_integers("max_lengths", max_lengths, ["batch"])
    batch = ops.shape(max_lengths)[0]
    offsets = ops.arange(block_size, dtype="int32")
    block_end = ops.ones((batch, 1), "bool")

    def unfinished(counts, steps, tokens, sequences, scores, done, cache):
        return ~ops.all(done)

    def step(counts, steps, tokens, sequences, scores, done, cache):
        logits, cache = verify_fn(tokens, cache, counts)
        check_logits(logits, ("rows", "block", "vocabulary"))
        lengths = counts[:, None] + offsets + 1  # [B, k]
        is_last = lengths >= max_lengths[:, None]
        forced_tokens = ops.where(is_last, end_id, -1)
        gained, found = most_probable(
            ops.reshape(logits, (-1, logits.shape[-1])),
            1,
            ops.reshape(ops.cast(forced_tokens, "int32"), (-1,)),
            None,
            end_id,
        )
        gained = ops.reshape(gained, (-1, block_size))
        found = ops.reshape(found, (-1, block_size))
        ends = ops.equal(found, end_id)
        is_right = ops.equal(tokens[:, 1:], found[:, :-1]) & ~ends[:, :-1]
        # The first wrong one, or the block's end, ends the right ones.
        is_wrong = ops.cast(ops.concatenate([~is_right, block_end], 1), "int32")
        accepted = ops.cast(ops.argmax(is_wrong, axis=1), "int32")
        is_new = (offsets <= accepted[:, None]) & ~done[:, None]

        scores = scores + ops.sum(ops.where(is_new, gained, 0.0), axis=1)
        places = ops.arange(longest, dtype="int32") - counts[:, None]  # [B, L]
        within = ops.clip(places, 0, block_size - 1)
        is_found = ops.equal(places, within) & batched_take(is_new, within)
        sequences = ops.where(is_found, batched_take(found, within), sequences)

        counts = counts + ops.sum(ops.cast(is_new, "int32"), axis=1)
        steps = steps + ops.cast(~done, "int32")
        done = done | batched_take(ends, accepted[:, None])[:, 0]
        certain = batched_take(found, accepted[:, None])[:, 0]
        proposals, cache = propose_fn(cache, accepted, certain)
        tokens = ops.concatenate([certain[:, None], proposals], axis=1)
        return counts, steps, tokens, sequences, scores, done, cache

    none = ops.zeros((batch,), "int32")
    # Nothing is proposed before the first step: any tokens will do.
    first = ops.cast(ops.where(ops.equal(offsets, 0), start_id, PAD), "int32")
    _, steps, _, sequences, scores, _, _ = run_steps(
        unfinished,
        step,
        (
            none,
            none,
            ops.tile(first[None], (batch, 1)),
            ops.full((batch, longest), PAD, dtype="int32"),
            ops.zeros((batch,), "float32"),
            ops.zeros((batch,), "bool"),
            cache,
        ),
    )
    return sequences, checked_scores(scores), steps
