"""Constraints on the next token: limits, minimum lengths, prefixes.

Shapes: B batch, P length of the prefixes.
"""

import copy

from keras import ops


class Constraints:
    """Says which tokens a search has to choose, and where it may not end.

    Args:
        limits: integers `(B,)`, the most tokens of each row, end token
            included.
        minima: integers `(B,)`, the fewest tokens, end token included, or
            `None`. Where a limit is smaller, the limit counts.
        prefix: integers `(B, P)`, the tokens that each row begins with, -1
            where it is free, or `None`.
        end_id: the end token.
    """

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
            self.prefix_positions = ops.arange(length, dtype="int32")
            # No row ends before what it must begin with.
            needed = ops.where(self.prefix >= 0, self.prefix_positions + 2, 1)
            needed = ops.max(needed, axis=1)
            self.minima = (
                needed if minima is None else ops.maximum(self.minima, needed)
            )

    def of_rows(self, rows):
        """Returns the constraints of some rows alone; `longest` stays that of
        all rows, since sequences keep their width."""
        some = copy.copy(self)
        for name in ("limits", "minima", "prefix"):
            of_all = getattr(self, name)
            if of_all is not None:
                setattr(some, name, ops.take(of_all, rows, axis=0))
        return some

    def forced_tokens(self, index):
        """Returns the token that each row must take at step `index`, `(B,)`,
        -1 where it is free: the end token at the limit, before it the token
        of the prefix."""
        free = -1
        if self.prefix is not None:
            here = ops.equal(self.prefix_positions, index)
            free = ops.max(ops.where(here, self.prefix, -1), axis=1)
        return ops.where(index + 1 >= self.limits, self.end_id, free)

    def too_early(self, index):
        """Returns which rows may not end at step `index`, `(B,)`, or `None`."""
        return None if self.minima is None else index + 1 < self.minima
