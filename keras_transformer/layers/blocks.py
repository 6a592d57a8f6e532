"""Blocks of a sequence, for attention in windows: section 4 of the paper.

A block has half as many positions as the window, so that the windows of its
queries lie within the block and its neighbours.

Shapes: B batch, T length, H heads, K d_k or d_v, N blocks of W positions.
"""

import math
from collections.abc import Sequence

import keras
from keras import KerasTensor, ops

from keras_transformer.layers.masks import per_head


class Blocks:
    """Cuts a sequence into blocks, and joins their outputs.

    Args:
        length: T, an integer or a scalar tensor.
        window: r, a positive even number.
        causal: whether later positions are hidden from each query.
    """

    def __init__(
        self, length: int | KerasTensor, window: int, causal: bool = False
    ):
        self.length = length
        self.window = window
        self.causal = causal
        # A shorter sequence is one block. An empty one has no blocks.
        self.size = _at_least_one(at_most(length, window // 2))
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
        starts = _range(self.count)[:, None, None] * self.size
        queries = starts + _range(self.size)[:, None]  # [N, W, 1]
        width = self.size * (self.neighbours + 1)
        keys = starts - self.size + _range(width)  # [N, 1, 3W]
        mask = is_near(queries, keys, self.window, self.causal)
        mask = mask & (keys >= 0) & (keys < self.length)
        for given in masks:
            if given is not None:
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
    nearest = 0 if causal else -(window // 2)
    return (distance >= nearest) & (distance <= window // 2)


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
    mask = per_head(ops.cast(mask, "bool"))
    batch, heads, height, width = ops.shape(mask)
    if isinstance(height, int) and isinstance(width, int):
        _check_pairs(height, width)
    # Where an axis has one value, this is the value of all positions.
    rows = ops.clip(queries, 0, height - 1)
    columns = ops.clip(keys, 0, width - 1)
    rows = rows[:1, :1] if mask.shape[2] == 1 else rows
    columns = columns[:1, :, :1] if mask.shape[3] == 1 else columns
    values = ops.reshape(mask, (batch, heads, height * width))
    return ops.take(values, rows * width + columns, axis=-1)


def _check_pairs(height, width):
    if height * width >= 2**31:  # the pairs are numbered in 32 bits
        raise ValueError(
            "A mask of pairs of positions may have less than 2³¹ of them. "
            f"Received: a mask of {height} queries and {width} keys. Mask "
            "the keys alone, with one value for all queries."
        )


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
