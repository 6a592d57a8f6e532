"""Restricted self-attention: section 4 of the paper.

There, it considers "only a neighborhood of size r in the input sequence
centered around the respective output position". Here the size is given as Keras
gives it: with a window of w, a position sees itself, w - 1 positions before and
w - 1 after it, so that r = 2 (w - 1).

The sequence is cut into blocks of w - 1 positions. The queries of a block
attend to the keys of their own block and of its neighbours. So time and memory
grow with T · w, and no tensor has T · T elements.

Shapes: B batch, T length, S key length, H heads, K d_k or d_v.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import KerasTensor, ops

from keras_transformer.layers.arguments import Cache, before_axes
from keras_transformer.layers.attention import (
    attend,
    check_capacity,
    scaled_dot_product_attention,
)
from keras_transformer.layers.masks import as_mask, with_head_axis


def windowed_attention(
    query: KerasTensor,
    key: KerasTensor,
    value: KerasTensor,
    window: int,
    causal: bool = False,
    masks: Sequence[KerasTensor | None] = (),
    dropout: Callable[[KerasTensor], KerasTensor] | None = None,
) -> KerasTensor:
    """Computes equation 1 where each position sees only a window around it.

    Example:

    >>> from keras import ops
    >>> x = ops.reshape(ops.arange(5, dtype="float32"), (1, 1, 5, 1))
    >>> means = windowed_attention(ops.zeros_like(x), x, x, window=2)
    >>> print(ops.convert_to_numpy(means).ravel())
    [0.5 1.  2.  3.  3.5]

    The result is that of `scaled_dot_product_attention` under a mask of the
    window, in T · `window` steps instead of T².

    Args:
        query: tensor of shape `(B, H, T, K)`.
        key, value: tensors of shape `(B, H, T, K)`.
        window: w, a positive integer.
        causal: whether positions after its own are hidden from each query.
            Defaults to False.
        masks: boolean masks `(B, T, T)` or `(B, H, T, T)`, or broadcastable
            to one of these; a query attends where all of them are True. `None`
            is allowed among them, and masks nothing.
        dropout: function that drops some of the weights, or `None`.

    Returns:
        The weighted values `(B, H, T, K)` in the dtype of `value`. A query
        that may attend to no key gets zeros.
    """
    blocks = Blocks(ops.shape(query)[2], window, causal)
    output, _ = scaled_dot_product_attention(
        blocks.of_queries(query),
        blocks.of_keys(key),
        blocks.of_keys(value),
        blocks.mask(masks),
        dropout,
    )
    return blocks.join(output)


class Blocks:
    """Cuts a sequence into blocks, and joins their outputs.

    Args:
        length: T, an integer or a scalar tensor.
        window: w, a positive integer.
        causal: whether later positions are hidden from each query.
    """

    def __init__(
        self, length: int | KerasTensor, window: int, causal: bool = False
    ):
        self.length = length
        self.window = window
        self.causal = causal
        # A shorter sequence is one block. An empty one has no blocks.
        self.size = _at_least_one(at_most(length, window - 1))
        self.count = (length + self.size - 1) // self.size
        self.neighbours = 1 if causal else 2

    def of_queries(self, x: KerasTensor) -> KerasTensor:
        """Reshapes `(B, H, T, K)` to blocks `(B, H, N, W, K)`."""
        return self._cut(self._padded(x, 0, self.count), 0)

    def of_keys(self, x: KerasTensor) -> KerasTensor:
        """Returns, of `(B, H, T, K)`, each block between its neighbours:
        `(B, H, N, 3W, K)`, or `(B, H, N, 2W, K)` without the next ones."""
        x = self._padded(x, self.size, self.count + self.neighbours)
        shifted = [self._cut(x, i) for i in range(self.neighbours + 1)]
        return ops.concatenate(shifted, axis=3)

    def mask(self, masks: Sequence[KerasTensor | None] = ()) -> KerasTensor:
        """Returns the mask of each block, broadcastable to
        `(B, H, N, W, 3W)`."""
        starts = _range(self.count)[:, None, None] * self.size  # [N, 1, 1]
        queries = starts + _range(self.size)[:, None]  # [N, W, 1]
        width = self.size * (self.neighbours + 1)
        keys = starts - self.size + _range(width)  # [N, 1, 3W]
        mask = is_near(queries, keys, self.window, self.causal)
        mask = mask & (keys >= 0) & (keys < self.length)
        for given in masks:
            if given is not None:
                given = as_mask(given)
                self._check(given)
                mask = mask & _taken(given, queries, keys)
        return mask

    def _check(self, mask):
        if isinstance(self.length, int) and any(
            size not in (None, 1, self.length) for size in mask.shape[-2:]
        ):
            raise ValueError(
                "A mask must have one value for each pair of positions, or 1 "
                f"along an axis. Received: mask.shape={tuple(mask.shape)} for "
                f"{self.length} positions."
            )

    def join(self, x: KerasTensor) -> KerasTensor:
        """Reshapes blocks `(B, H, N, W, K)` to `(B, H, T, K)`."""
        return _positions(x, 0, self.length)

    def _padded(self, x, before, count):
        """Pads a sequence to `count` blocks, `before` positions at its
        beginning."""
        after = count * self.size - before - self.length
        return ops.pad(x, [[0, 0], [0, 0], [before, after], [0, 0]])

    def _cut(self, x, start):
        """Returns N blocks from block `start` on."""
        length = self.count * self.size
        x = _positions(x, start * self.size, length)
        batch, heads = ops.shape(x)[:2]
        shape = (batch, heads, self.count, self.size, x.shape[-1])
        return ops.reshape(x, shape)


def _positions(x, start, length):
    """Returns `length` positions of `(B, H, …, K)`, as `(B, H, length, K)`.

    The tensor is sliced as one of three axes: of four or five, the gradient of
    a slice takes TensorFlow longer than all the rest.
    """
    batch, heads, *positions, width = ops.shape(x)
    flat = ops.reshape(x, (batch, heads, math.prod(positions) * width))
    shape = (batch, heads, length * width)
    part = ops.slice(flat, (0, 0, start * width), shape)
    return ops.reshape(part, (batch, heads, length, width))


def is_near(
    queries: KerasTensor, keys: KerasTensor, window: int, causal: bool
) -> KerasTensor:
    """Returns whether positions of keys lie in the windows of queries.

    The positions must be broadcastable to one shape.
    """
    distance = queries - keys
    nearest = 0 if causal else 1 - window
    return (distance >= nearest) & (distance < window)


def _taken(mask, queries, keys):
    """Takes the values of a mask at some positions of queries and keys.

    A mask that is the same for all queries, or for all keys, stays so: none is
    broadcast to T · T values.

    Args:
        mask: broadcastable to `(B, H, T, S)`.
        queries: positions `(N, W, 1)`.
        keys: positions `(N, 1, 3W)`. Outside the sequence, any value is taken.

    Returns:
        Boolean tensor, broadcastable to `(B, H, N, W, 3W)`.
    """
    mask = with_head_axis(mask)
    batch, heads, height, width = ops.shape(mask)
    is_known = isinstance(height, int) and isinstance(width, int)
    if is_known and height * width >= 2**31:  # pairs are numbered in 32 bits
        raise ValueError(
            "A mask of pairs of positions may have less than 2³¹ of them. "
            f"Received: a mask of {height} queries and {width} keys. Mask "
            "the keys alone, with one value for all queries."
        )
    # Where an axis has one value, this is the value of all positions.
    rows = ops.clip(queries, 0, height - 1)
    columns = ops.clip(keys, 0, width - 1)
    rows = rows[:1, :1] if mask.shape[2] == 1 else rows
    columns = columns[:1, :, :1] if mask.shape[3] == 1 else columns
    values = ops.reshape(mask, (batch, heads, height * width))
    return ops.take(values, rows * width + columns, axis=-1)


def attend_in_window(
    query: KerasTensor,
    heads: Cache,
    window: int,
    masks: Sequence[KerasTensor | None] = (),
    causal: bool = False,
    position: int | KerasTensor | None = None,
    in_blocks: bool = True,
    **options: Any,
) -> tuple[KerasTensor, KerasTensor | None]:
    """Computes what `attend` does where each position sees only a window.

    Whole sequences are cut into blocks, unless `in_blocks` is False: weights
    `(B, H, T, S)` have a value for every pair of positions anyway, and blocks
    need as many keys as queries. A cache has little more than one window. All
    these are full attention under a mask.

    Arguments and results are those of `attend`, except:

    Args:
        heads: keys and values, in a step those that `slide_cache` returns.
        window: w, a positive integer.
        position: of the first query in a step, whose `masks` have a column for
            every position so far. `None` for whole sequences.
    """
    key, value = heads["key"], heads["value"]
    if position is None and in_blocks:
        dropout = options.get("dropout")
        output = windowed_attention(
            query, key, value, window, causal, masks, dropout
        )
        return output, None
    length, keys = ops.shape(query)[2], ops.shape(key)[2]
    if position is None:
        near = is_near(
            _range(length)[None, :, None], _range(keys), window, causal
        )
    else:
        masks = [_last_columns(m, keys, position + length) for m in masks]
        near = window_mask(length, keys, window, causal, position)
    return attend(query, heads, [*masks, near], **options)


def window_mask(
    query_length: int | KerasTensor,
    key_length: int | KerasTensor,
    window: int,
    causal: bool = False,
    position: int | KerasTensor = 0,
) -> KerasTensor:
    """Returns the mask of the window for a cache.

    Args:
        query_length: T.
        key_length: S. The last key is at the position of the last query.
        window: w, a positive integer.
        causal: whether later positions are hidden from each query.
        position: of the first query, a scalar or `(B,)`.

    Returns:
        Boolean tensor of shape `(1, T, S)` or `(B, T, S)`.
    """
    position = before_axes(position, 2)
    queries = _range(query_length)[None, :, None] + position
    keys = _last_positions(key_length, position + query_length)
    return is_near(queries, keys, window, causal) & (keys >= 0)


def slide_cache(
    cache: Cache, new: Cache, index: int | KerasTensor, window: int
) -> tuple[Cache, Cache]:
    """Adds new keys and values to a cache of the last positions.

    Its last place has the newest position. Places before the beginning of the
    sequence are masked, see `window_mask`.

    Args:
        cache: keys and values of the positions before `index`.
        new: keys and values of the positions from `index` on.
        index: position of the first new key, a scalar or `(B,)`.
        window: w, a positive integer.

    Returns:
        The keys and values that the new queries may attend to, and the new
        cache, which is as long as the old one.

    Raises:
        ValueError: if the cache is too short; only one of less than w
            positions can be.
    """
    capacity = ops.shape(cache["key"])[2]
    length = ops.shape(new["key"])[2]
    if isinstance(capacity, int) and capacity < window:
        check_capacity(index, length, capacity)
    # Not even the first of the new queries sees the oldest place.
    attended = {
        k: ops.concatenate([cache[k][:, :, 1:], new[k]], axis=2) for k in cache
    }
    return attended, {k: x[:, :, length - 1 :] for k, x in attended.items()}


def cache_length(
    length: int | KerasTensor, window: int | None
) -> int | KerasTensor:
    """Returns how many positions of `length` a cache needs."""
    return length if window is None else at_most(length, window)


def is_self_attention(query: KerasTensor, value: KerasTensor) -> bool:
    """Returns whether queries and keys are known to be the same positions."""
    length = query.shape[1]
    return query is value or (length is not None and length == value.shape[1])


def _last_columns(mask, key_length, end):
    """Returns the columns of the last keys before `end`, of a mask that has
    one for every position."""
    if mask is None:
        return None
    width = ops.shape(mask)[-1]
    if isinstance(width, int) and isinstance(end, int) and 1 < width < end:
        raise ValueError(
            "With a cache, a mask has a value for each position so far, or one "
            f"for all. Received: mask.shape={tuple(mask.shape)} for {end} "
            "positions."
        )
    keys = _last_positions(key_length, before_axes(end, 1))
    keys = ops.clip(keys, 0, width - 1)
    if len(keys.shape) == 1:
        return ops.take(mask, keys, axis=-1)
    mask = ops.convert_to_tensor(mask)
    axes = [1] * (len(mask.shape) - 2)
    keys = ops.reshape(keys, (-1, *axes, key_length))  # [B, 1, …, S]
    return ops.take_along_axis(mask, keys, axis=-1)


def _last_positions(count, end):
    return ops.arange(count, dtype="int32") + (end - count)


def _range(length):
    return ops.arange(length, dtype="int32")


def at_most(length: int | KerasTensor, maximum: int) -> int | KerasTensor:
    """Returns the smaller of both; on JAX the maximum, if the length is a
    symbol, as in `Model.export`."""
    if isinstance(length, int):
        return min(length, maximum)
    if keras.backend.backend() == "jax":
        return maximum
    return ops.minimum(length, maximum)


def _at_least_one(length):
    is_known = isinstance(length, int)
    return max(length, 1) if is_known else ops.maximum(length, 1)
