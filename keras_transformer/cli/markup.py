"""Translation of standard input that keeps mark-up."""

import sys
from collections.abc import Callable
from typing import Any

from keras_transformer.cli.cut_counter import CutCounter
from keras_transformer.cli.stdio import (
    chunks_of_lines,
    standard_input,
    standard_output,
)
from keras_transformer.inference.lines import encoded, translate_lines
from keras_transformer.inference.markup_places import (
    Alignment,
    alignment_of,
    joined,
    translate_markup,
)
from keras_transformer.inference.sentences import SplitText, split_sentences

OUTPUTS = "translation", "source_pieces", "target_pieces", "attention"
EXPLAINED_AT_A_TIME = 16  # attention is much larger than text


def translate_with_markup(
    translate: Callable[[Any], dict[str, Any]],
    explain: Callable[[Any], dict[str, Any]],
    markup: str,
    batch_size: int,
    workers: int,
    language: str | None = None,
) -> None:
    """Translates standard input and keeps its mark-up.

    Args:
        translate: function of strings, see `CutCounter`.
        explain: such as `SavedTranslator.explain_batch`.
        markup: see `parse_markup`.
        batch_size: number of lines or sentences to translate at a time.
        workers: number of threads that call `translate`.
        language: language of a document, whose mark-up may have several lines,
            see `split_sentences`. Defaults to `None`, for lines.
    """
    translate, explain = CutCounter(translate), CutCounter(explain)

    def split(texts):
        if language is None:
            splits = [SplitText([text], ["", ""]) for text in texts]
        else:
            splits = [split_sentences(text, language) for text in texts]
        return splits, [line for part in splits for line in part.sentences]

    def translated(texts):
        splits, lines = split(texts)
        found = iter(
            translate_lines(translate, lines, batch_size, None, workers)
        )
        return [x.joined([next(found) for _ in x.sentences]) for x in splits]

    def aligned(texts):
        splits, lines = split(texts)
        results: dict[str, Alignment] = {}
        order = sorted(dict.fromkeys(lines), key=len)
        for start in range(0, len(order), EXPLAINED_AT_A_TIME):
            batch = order[start : start + EXPLAINED_AT_A_TIME]
            found = explain([encoded(line) for line in batch])
            rows = zip(batch, *(found[x].numpy() for x in OUTPUTS), strict=True)
            results |= {row[0]: alignment_of(*row) for row in rows}
        whole = []
        for text, x in zip(texts, splits, strict=True):
            parts = [results[line] for line in x.sentences]
            translation = x.joined([part.translation for part in parts])
            whole.append(joined(text, x.sentences, translation, parts))
        return whole

    if language is None:
        chunks = chunks_of_lines(standard_input(), 1024)
    else:
        chunks = iter([[standard_input().read()]])
    for lines in chunks:
        texts = [line.decode(errors="replace") for line in lines]
        for text in translate_markup(texts, markup, translated, aligned):
            end = "\n" if language is None else ""
            standard_output().write((text + end).encode())
        sys.stdout.flush()
    for counter in (translate, explain):
        counter.warn("lines" if language is None else "sentences")
