"""Lines of text, any number of them, through a function of batches."""

from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf


def translate_lines(translate, lines, batch_size=64, progress=None, workers=1):
    """Translates any number of lines, shortest together, in their order.

    Args:
        translate: takes strings `(B,)` and gives `translation` `(B,)`.
        lines: a list of strings.
        batch_size: lines at a time.
        progress: called with the number of lines done so far, or `None`.
        workers: threads that call `translate`, each with its share of the
            `batch_size` lines. Defaults to 1.

    Returns:
        A list of as many strings.

    Raises:
        ValueError: if `batch_size` or `workers` < 1.
    """
    for name, value in (("batch_size", batch_size), ("workers", workers)):
        if value < 1:
            raise ValueError(
                f"`{name}` must be at least 1. Received: {name}={value}"
            )
    share = -(-batch_size // workers)
    order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
    batches = [order[i : i + share] for i in range(0, len(order), share)]

    def translated(batch):
        text = tf.constant([lines[i] for i in batch], tf.string)
        return translate(text)["translation"].numpy()

    results = [""] * len(lines)
    done = 0
    with ThreadPoolExecutor(workers) as pool:
        # One alone stays in the thread of the caller.
        each = pool.map if workers > 1 else map
        for batch, found in zip(
            batches, each(translated, batches), strict=True
        ):
            for i, line in zip(batch, found, strict=True):
                results[i] = line.decode()
            done += len(batch)
            if progress is not None:
                progress(done)
    return results
