"""Translation of a document, sentence by sentence."""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.cli.cut_counter import CutCounter
from keras_transformer.cli.stdio import (
    Progress,
    chunks_of_lines,
    standard_input,
    standard_output,
)
from keras_transformer.data.sentencepiece_file import TAG, tag_of
from keras_transformer.inference.lines import translate_lines
from keras_transformer.inference.sentences import split_sentences

# Enough sentences to sort by length, and few enough to bound the memory.
LINES_AT_A_TIME = 1024


def translate_document(
    translate: Callable[[Any], dict[str, Any]],
    language: str,
    batch_size: int,
    workers: int,
    tags: Sequence[str] = (),
) -> None:
    """Translates standard input as a document.

    All white space between sentences is kept. Bytes that are not UTF-8 become
    U+FFFD. A warning on standard error says how many sentences were cut.

    Args:
        translate: function of strings that returns a dictionary with
            `translation`, see `CutCounter`.
        language: language of the document, see `split_sentences`.
        batch_size: number of sentences to translate at a time.
        workers: number of threads that call `translate`.
        tags: names of the tags that a sentence may begin with, such as "deu"
            of `>>deu<<`. Those of the first sentence hold for all sentences
            that have none. Defaults to none.
    """
    progress = Progress("sentences")
    counter = CutCounter(translate)
    known = "|".join(re.escape(tag_of(name)) for name in tags)
    pattern = re.compile(rf"{TAG}(?:\s*(?:{known}))*" if tags else "")
    start = None
    for lines in chunks_of_lines(
        standard_input(), LINES_AT_A_TIME, keep_ends=True
    ):
        text = b"".join(lines).decode(errors="replace")
        split = split_sentences(text, language)
        sentences = split.sentences
        if start is None and sentences:
            start = _start_of(sentences[0], pattern)
        if start:
            sentences = [
                s if _start_of(s, pattern) else f"{start} {s}"
                for s in sentences
            ]
        translations = translate_lines(
            counter, sentences, batch_size, progress, workers
        )
        standard_output().write(split.joined(translations).encode())
        sys.stdout.flush()
        progress.begin_after(len(split.sentences))
    progress.end()
    counter.warn("sentences")


def _start_of(sentence, pattern):
    """Returns the tags that a sentence begins with."""
    found = pattern.match(sentence)
    return found[0] if found else ""
