"""A stream of sentence pairs, which may be larger than the memory."""

import dataclasses
from collections.abc import Callable, Iterator

Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class PairStream:
    """Yields sentences with their translations, anew each time.

    Args:
        identity: describes the data, so that other data has another identity.
        read: returns an iterator over the pairs, from the first one.
    """

    identity: str
    read: Callable[[], Iterator[Pair]]

    def __iter__(self) -> Iterator[Pair]:
        return self.read()
