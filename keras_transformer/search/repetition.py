"""Penalties for tokens that a sequence has already.

Shapes: N rows, L maximum length, V vocabulary.
"""

import dataclasses
import math

from keras import KerasTensor, ops

from keras_transformer.search.next_token import (
    MINUS_INFINITY,
    marked,
    python_number,
)
from keras_transformer.validation import shown


@dataclasses.dataclass(frozen=True)
class Repetition:
    """Lowers the scores of tokens that would repeat something.

    Both settings are those of transformers' `generate`.

    Args:
        ngram_size: n: no n tokens in a row occur twice; 0 for no limit. An
            integer or a scalar tensor.
        penalty: factor on the negative scores of tokens that the sequence has
            already, and divisor of the positive ones (Keskar et al., 2019); 1
            for none. A number or a scalar tensor.

    Raises:
        ValueError: if a number is out of range.
    """

    ngram_size: int | KerasTensor = 0
    penalty: float | KerasTensor = 1.0

    def __post_init__(self) -> None:
        size, penalty = map(python_number, (self.ngram_size, self.penalty))
        is_bool = isinstance(size, bool)
        if is_bool or (isinstance(size, int | float) and not _is_size(size)):
            raise ValueError(
                "`no_repeat_ngram_size` must be an integer of at least 0. "
                f"Received: no_repeat_ngram_size={shown(size)}"
            )
        if isinstance(penalty, int | float) and not 0 < penalty < math.inf:
            raise ValueError(
                "`repetition_penalty` must be positive and finite. "
                f"Received: repetition_penalty={shown(penalty)}"
            )
        object.__setattr__(self, "ngram_size", size)
        object.__setattr__(self, "penalty", penalty)

    @property
    def is_active(self) -> bool:
        """Returns whether it may change a score."""
        return not (_is(self.ngram_size, 0) and _is(self.penalty, 1))

    def __call__(
        self,
        scores: KerasTensor,
        sequences: KerasTensor,
        forced_tokens: KerasTensor,
        index: KerasTensor,
    ) -> KerasTensor:
        """Returns the scores of the next tokens.

        Args:
            scores: `(N, V)`, float32: logits or log-probabilities.
            sequences: ids `(N, L)`, of which the first `index` are known.
            forced_tokens: `(N,)`, not negative in rows that are left as they
                are, since their token is given.
            index: scalar, the step.
        """
        positions = ops.arange(ops.shape(sequences)[1], dtype="int32")
        is_known = ops.broadcast_to(
            positions[None] < index, ops.shape(sequences)
        )
        seen = marked(sequences, is_known, scores)
        penalized = ops.where(
            scores < 0, scores * self.penalty, scores / self.penalty
        )
        found = ops.where(seen, penalized, scores)
        if not _is(self.ngram_size, 0):
            repeats = self._repeats(sequences, positions, index) & is_known
            banned = marked(sequences, repeats, scores)
            found = ops.where(banned, MINUS_INFINITY, found)
        return ops.where(forced_tokens[:, None] >= 0, scores, found)

    def _repeats(self, sequences, positions, index):
        """Returns which tokens `(N, L)` follow the n - 1 last tokens."""

        def same(k, repeats):
            last = ops.take(sequences, ops.maximum(index - 1 - k, 0), axis=1)
            before = ops.maximum(positions - 1 - k, 0)
            before = ops.take(sequences, before, axis=1)
            # Not in place: a tensor of PyTorch would be changed.
            repeats = repeats & ops.equal(before, last[:, None])
            return repeats & (positions[None] > k)

        size = self.ngram_size
        repeats = ops.broadcast_to(size > 0, ops.shape(sequences))
        if not isinstance(size, int):
            return ops.fori_loop(0, ops.cast(size, "int32") - 1, same, repeats)
        for k in range(size - 1):  # no loop in the graph
            repeats = same(k, repeats)
        return repeats


def _is(value, number):
    """Returns whether a value is this number, not a tensor."""
    return isinstance(value, int | float) and value == number


def _is_size(value):
    return isinstance(value, int) and value >= 0
