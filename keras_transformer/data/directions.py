"""Several directions of translation in one prepared corpus.

A source begins with the tag of its target language, such as `>>de<<`, which is
a word piece of its own.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from keras_transformer.data.cleaning import is_blank
from keras_transformer.data.options import Preparation
from keras_transformer.data.text_files import PairStream, check_name_parts
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.validation import shown

Languages = tuple[str, str]  # of source and target
MOST_NAMED = 8  # languages in the name of a side, which is also one of files


def checked_directions(
    languages: Iterable[Sequence[str]], corpora: Sequence[Any]
) -> list[Languages]:
    """Returns source and target of each corpus.

    Raises:
        ValueError: if there is not a pair of names for each.
    """
    pairs = [tuple(pair) for pair in languages]
    usable = all(len(p) == 2 and p[0] != p[1] for p in pairs)
    if len(pairs) != len(corpora) or not usable:
        raise ValueError(
            "Each corpus has a source language and another target language. "
            f"Received: {len(corpora)} corpora, languages={shown(languages)}. "
            "Give a corpus twice to learn both of its directions."
        )
    check_name_parts(*itertools.chain(*pairs))
    return [(source, target) for source, target in pairs]


def settings_of(
    settings: Preparation, directions: Sequence[Languages]
) -> Preparation:
    """Returns settings with the tags of the target languages. The name of each
    side has all its languages, such as `en_de`."""
    source, target = (
        "_".join(list(dict.fromkeys(side))[:MOST_NAMED])
        for side in zip(*directions, strict=True)
    )
    tags = *settings.tags, *(language for _, language in directions)
    return dataclasses.replace(
        settings, source=source, target=target, tags=tags
    )


def check_tags(tokenizer: Tokenizer, tags: Iterable[str]) -> None:
    """Checks that a vocabulary has tags.

    Raises:
        ValueError: if it lacks one.
    """
    known = tokenizer.tag_names
    if missing := [tag for tag in tags if tag not in known]:
        raise ValueError(
            "A vocabulary that is given must have all tags. Received: one with "
            f"the tags {', '.join(known) or 'none'}, without "
            f"{', '.join(missing)}. Learn a vocabulary instead."
        )


def joined(
    streams: Sequence[PairStream], prefixes: Sequence[str]
) -> PairStream:
    """Returns the pairs of one stream after the other.

    Args:
        streams: the streams.
        prefixes: what the sources of each begin with, if they are not blank.
    """

    def read():
        for stream, prefix in zip(streams, prefixes, strict=True):
            for source, target in stream:
                yield source if is_blank(source) else prefix + source, target

    return PairStream("; ".join(stream.identity for stream in streams), read)
