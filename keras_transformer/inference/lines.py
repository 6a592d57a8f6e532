"""Translation of any number of lines in batches."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np


def encoded(line: str | bytes) -> bytes:
    """Returns a string in UTF-8, with "?" for what has no place in it."""
    return line.encode("utf-8", "replace") if isinstance(line, str) else line


def translate_lines(
    translate: Callable[[Any], dict[str, Any]],
    lines: Sequence[str | bytes],
    batch_size: int = 64,
    progress: Callable[[int], None] | None = None,
    workers: int = 1,
) -> list[str]:
    """Translates any number of lines.

    Lines of similar length are in the same batch.

    Example:

    >>> import tensorflow as tf
    >>> def translate(text):  # or the `translate` of a `Translator`
    ...     return {"translation": tf.strings.upper(text)}
    >>> translate_lines(translate, ["Good morning.", "Yes."])
    ['GOOD MORNING.', 'YES.']

    Args:
        translate: function of strings, an array of bytes `(B,)`, that returns
            a dictionary with `translation` `(B,)`, such as
            `Translator.translate`.
        lines: the strings to translate; bytes are taken as UTF-8.
        batch_size: number of lines to translate at a time. Defaults to 64.
        progress: function that is called with the number of lines translated
            so far, or `None`.
        workers: number of threads that call `translate`. They share the
            `batch_size` lines. Defaults to 1.

    Returns:
        The translations, in the order of the lines.

    Raises:
        ValueError: if `batch_size` or `workers` is less than 1, or if there is
            a single string instead of lines.
    """
    for name, value in (("batch_size", batch_size), ("workers", workers)):
        if value < 1:
            raise ValueError(
                f"`{name}` must be at least 1. Received: {name}={value}"
            )
    if isinstance(lines, str | bytes):
        raise ValueError(
            "Lines are several strings. Received: a single one. Give `[line]`."
        )
    lines = [encoded(line) for line in lines]
    share = -(-batch_size // workers)
    order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
    batches = [order[i : i + share] for i in range(0, len(order), share)]

    def translated(batch):
        text = np.array([lines[i] for i in batch], object)
        found = np.asarray(translate(text)["translation"], object)
        return [x if isinstance(x, str) else x.decode() for x in found]

    results = [""] * len(lines)
    done = 0
    with ThreadPoolExecutor(workers) as pool:
        # A single worker runs in the thread of the caller.
        map_batches = pool.map if workers > 1 else map
        for batch, translations in zip(
            batches, map_batches(translated, batches), strict=True
        ):
            for i, line in zip(batch, translations, strict=True):
                results[i] = line
            done += len(batch)
            if progress is not None:
                progress(done)
    return results
