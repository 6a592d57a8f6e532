"""Constraints on the next token: lengths and prefixes; the length penalty.

Shapes: B batch, P length of the prefixes.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import KerasTensor, ops


class Constraints:
    """Forces tokens at some steps and forbids the end token at others.

    Args:
        max_lengths: integers `(B,)`, the maximum number of tokens of each row,
            end token included.
        min_lengths: integers `(B,)` or `(1,)`, the minimum number of tokens of
            each row, end token included, or `None`. A smaller maximum takes
            precedence.
        prefix: integers `(B, P)` or `(1, P)`, the tokens that each row begins
            with, -1 where any token is allowed, or `None`.
        end_id: the end token.
        longest: the largest maximum length, if it is known beforehand.
    """

    def __init__(
        self,
        max_lengths: Sequence[int] | KerasTensor,
        min_lengths: KerasTensor | None,
        prefix: KerasTensor | None,
        end_id: int,
        longest: int | KerasTensor | None = None,
    ):
        self.max_lengths = as_integers("max_lengths", max_lengths, ["batch"])
        rows = ops.shape(self.max_lengths)
        self.min_lengths = None
        if min_lengths is not None:
            min_lengths = as_integers("min_lengths", min_lengths, ["batch"])
            self.min_lengths = ops.broadcast_to(min_lengths, rows)
        self.prefix = None
        self.end_id = end_id
        self.longest = (
            longest_length(max_lengths) if longest is None else longest
        )
        if prefix is not None:
            prefix = as_integers("prefix", prefix, ["batch", "length"])
            # One more free column, so that the prefix is never empty.
            prefix = ops.pad(prefix, ((0, 0), (0, 1)), constant_values=-1)
            length = ops.shape(prefix)[1]
            self.prefix = ops.broadcast_to(prefix, (*rows, length))
            self.prefix_positions = ops.arange(length, dtype="int32")
            # A row is at least as long as its prefix with an end token.
            lengths = ops.where(self.prefix >= 0, self.prefix_positions + 2, 1)
            lengths = ops.max(lengths, axis=1)
            if min_lengths is not None:
                lengths = ops.maximum(self.min_lengths, lengths)
            self.min_lengths = lengths

    def take(self, rows: KerasTensor) -> "Constraints":
        """Returns the constraints of some rows only.

        `longest` remains that of all rows, since sequences keep their width.
        """
        constraints = copy.copy(self)
        for name in ("max_lengths", "min_lengths", "prefix"):
            values = getattr(self, name)
            if values is not None:
                setattr(constraints, name, ops.take(values, rows, axis=0))
        return constraints

    def forced_tokens(self, index: KerasTensor) -> KerasTensor:
        """Returns the token that each row must take at step `index`, `(B,)`.

        It is the end token at the maximum length, the token of the prefix
        before it, and -1 where any token is allowed.
        """
        forced = -1
        if self.prefix is not None:
            is_index = ops.equal(self.prefix_positions, index)
            forced = ops.max(ops.where(is_index, self.prefix, -1), axis=1)
        forced = ops.where(index + 1 >= self.max_lengths, self.end_id, forced)
        return ops.cast(forced, "int32")

    def before_min_length(self, index: KerasTensor) -> KerasTensor | None:
        """Returns booleans `(B,)`, True for rows that may not end at step
        `index`, or `None` if all may."""
        return (
            None if self.min_lengths is None else index + 1 < self.min_lengths
        )


def longest_length(
    max_lengths: Sequence[int] | KerasTensor,
) -> int | KerasTensor:
    """Returns the largest of the maximum lengths, at least 1.

    It is a number if they are numbers, or arrays of NumPy. `jax.jit` needs
    that, since the sequences are as long.
    """
    is_list = isinstance(max_lengths, list | tuple)
    numbers = max_lengths if is_list else [max_lengths]
    if all(isinstance(x, int | np.integer | np.ndarray) for x in numbers):
        return int(np.max(max_lengths, initial=1))
    return ops.max(ops.cast(max_lengths, "int32"), initial=1)


def as_integers(name: str, values: Any, axes: Sequence[str]) -> KerasTensor:
    """Returns an argument of a search as int32.

    Raises:
        ValueError: if it has not these axes.
    """
    values = ops.cast(values, "int32")
    if len(values.shape) != len(axes):
        raise ValueError(
            f"`{name}` must have shape ({', '.join(axes)}). "
            f"Received: {name}.shape={tuple(values.shape)}"
        )
    return values


# Beam search stops early because a penalty never falls as n grows.
FORMULAS = ("gnmt", "power")


def length_penalty(
    length: int | KerasTensor,
    alpha: float | KerasTensor,
    formula: str = "gnmt",
) -> KerasTensor:
    """Returns the length penalty ((5 + n) / 6)^α of Wu et al. (2016).

    The paper uses it with α = 0.6. The other formula, "power", is n^α, which
    Marian, CTranslate2 and transformers have. Values of α are not portable
    from one formula to the other.

    Example:

    >>> print(f"{float(length_penalty(7, 0.6)):.4f}")
    1.5157

    Beam search divides log-probabilities by the penalty.

    Args:
        length: n, an integer or integer tensor, at least 1. It counts the end
            token but not the start token.
        alpha: α ≥ 0, a number or scalar tensor.
        formula: "gnmt" (default) or "power".

    Returns:
        float32 tensor of the shape of `length`.

    Raises:
        ValueError: if `formula` is unknown.
    """
    if formula not in FORMULAS:
        raise ValueError(
            f"`formula` must be one of {', '.join(FORMULAS)}. "
            f"Received: formula={formula!r}"
        )
    length = ops.cast(length, "float32")
    base = length if formula == "power" else (5.0 + length) / 6.0
    return base ** ops.cast(alpha, "float32")
