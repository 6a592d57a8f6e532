"""Noisy copies of sentence pairs, so that a model sees text as people type it.

A model that has never read a sentence without its full stop, or in capitals,
invents translations of it.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from keras_transformer.data.text_files import Pair

Noise = Callable[[str, str, np.random.Generator], Pair]

END_MARKS = ".!?。！？…"
BEFORE_MARK = re.compile(r"(?<=\w)(?=[,.;:!?](?:\s|$))")
WORD_START = re.compile(r"(?<![\w'’-])\w")
STRAIGHT = re.compile(r"[\"']")
TYPOGRAPHIC = str.maketrans("“”„‘’", '"""\'\'')


def upper_case(source: str, target: str, rng: np.random.Generator) -> Pair:
    """Returns both sides in capitals."""
    return source.upper(), target.upper()


def lower_case(source: str, target: str, rng: np.random.Generator) -> Pair:
    """Returns the source in small letters but for its start, which is also how
    an export reads text in capitals."""
    return source[:1] + source[1:].lower(), target


def title_case(source: str, target: str, rng: np.random.Generator) -> Pair:
    """Returns both sides with a capital at the start of each word."""

    def titled(text):
        return WORD_START.sub(lambda found: found[0].upper(), text)

    return titled(source), titled(target)


def no_final_punctuation(
    source: str, target: str, rng: np.random.Generator
) -> Pair:
    """Returns both sides without the marks that end them."""
    source, target = (text.rstrip() for text in (source, target))
    if not source.endswith(tuple(END_MARKS)):
        return source, target
    return source.rstrip(END_MARKS), target.rstrip(END_MARKS)


def stray_spaces(source: str, target: str, rng: np.random.Generator) -> Pair:
    """Returns the source with a space before some of its punctuation."""
    places = [found.start() for found in BEFORE_MARK.finditer(source)]
    if places:
        count = rng.integers(1, len(places) + 1)
        chosen = [0, *sorted(rng.choice(places, count, False)), None]
        source = " ".join(source[a:b] for a, b in itertools.pairwise(chosen))
    return source, target


def typographic_quotes(
    source: str, target: str, rng: np.random.Generator
) -> Pair:
    """Returns the source with other quotation marks and apostrophes:
    typographic ones for straight ones, or the other way round."""

    def curled(found):
        before = source[: found.start()]
        opens = not before or before[-1].isspace() or before[-1] in "([-"
        return ("“" if opens else "”") if found[0] == '"' else "‘’"[not opens]

    if STRAIGHT.search(source):
        return STRAIGHT.sub(curled, source), target
    return source.translate(TYPOGRAPHIC), target


KINDS: dict[str, Noise] = {
    function.__name__: function
    for function in (
        upper_case,
        lower_case,
        title_case,
        no_final_punctuation,
        stray_spaces,
        typographic_quotes,
    )
}


def noisy_copies(
    pairs: Sequence[Pair],
    share: float,
    seed: Sequence[int],
    tags: Sequence[str] = (),
) -> tuple[list[Pair], Counter[str]]:
    """Returns noisy copies of some pairs, each with one kind of noise.

    Args:
        pairs: the pairs.
        share: of the pairs that get a copy, from 0 to 1.
        seed: of the choice of pairs and of kinds.
        tags: names of the tags that sources may begin with, which stay.

    Returns:
        The copies, and how many there are of each kind. A pair that a kind
        does not change gets another kind, or no copy if none changes it.
    """
    rng = np.random.default_rng(seed)
    copies, counts = [], Counter[str]()
    tag = f">>(?:{'|'.join(tags)})<<" if tags else ""
    known = re.compile(rf"(?:{tag}\s*)*" if tags else "")
    for row in np.flatnonzero(rng.random(len(pairs)) < share):
        source, target = pairs[int(row)]
        found = known.match(source)
        start = found[0] if found else ""
        source = source.removeprefix(start)
        for kind in rng.permutation(list(KINDS)):
            copy = KINDS[kind](source, target, rng)
            if copy[0] != source.rstrip():
                copies.append((start + copy[0], copy[1]))
                counts[str(kind)] += 1
                break
    return copies, counts
