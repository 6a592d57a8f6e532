"""Holds pairs of a corpus out of training, to validate on."""

import hashlib
import heapq
from collections.abc import Iterable

from keras_transformer.data.cleaning import is_blank
from keras_transformer.data.text_files import Pair, PairStream

MOST, SHARE = 500, 0.05  # of the pairs, the smaller, unless a number is given


def draw_pairs(stream: PairStream, count: int | None, seed: int) -> list[Pair]:
    """Draws pairs to hold out, different ones, by the seed and the text alone.

    It reads the corpus once.

    Args:
        stream: the pairs.
        count: how many to hold out. `None` stands for 500, or for 5 % of the
            pairs where that is less, and for one at least.
        seed: seed of the choice.

    Raises:
        ValueError: if no pair is left to train on.
    """
    # A heap of the smallest numbers drawn, negated: its first is the largest.
    drawn: list[tuple[int, Pair, Pair]] = []
    kept: set[Pair] = set()
    most, usable = count or MOST, 0
    for pair in stream.with_damaged():
        if pair is None or any(map(is_blank, pair)):
            continue
        usable += 1
        key = _key(pair)
        number = -_number(key, seed)
        is_drawn = len(drawn) <= most or number > drawn[0][0]
        if is_drawn and key not in kept:
            kept.add(key)
            heapq.heappush(drawn, (number, key, pair))
            # One more than asked for shows whether there are others.
            if len(drawn) > most + 1:
                kept.remove(heapq.heappop(drawn)[1])
    if count is None:
        count = max(min(MOST, int(SHARE * usable)), 1)
    if count >= len(drawn):
        raise ValueError(
            "A corpus without a validation split needs other pairs to train on "
            f"than those to validate on. Received: {usable:,} pairs, "
            f"{len(drawn):,} of them different, to hold {count:,} out. Add "
            "pairs, or name a validation split."
        )
    return [pair for _, _, pair in heapq.nlargest(count, drawn)]


def without(stream: PairStream, held_out: Iterable[Pair]) -> PairStream:
    """Returns the pairs of a corpus without those that are held out, however
    often it has them."""
    keys = {_key(pair) for pair in held_out}
    text = "\n".join(sorted(map("\t".join, keys))).encode()
    digest = hashlib.blake2b(text, digest_size=8).hexdigest()

    def read():
        for pair in stream.read():
            if isinstance(pair, Exception) or _key(pair) not in keys:
                yield pair

    return PairStream(f"{stream.identity}; without {digest}", read)


def _key(pair):
    """Returns the text of a pair, whatever its white space."""
    return tuple(" ".join(side.split()) for side in pair)


def _number(key, seed):
    text = "\n".join((str(seed), *key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
