"""Plots of attention, which also a printed page shows. Needs matplotlib."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.atomic_files import write_aside
from keras_transformer.inference.piece_words import weights_of_words, words_of

MOST_PIXELS = 40e6  # those of long sources would fill the memory
PAGE_WIDTH = 7.1  # inches, that of A4 between margins of 15 mm
CELL = 0.145, 0.25  # inches; a line of 8 points fits in the smallest
LETTER = 0.065  # inches, the width of a letter of 8 points


def plot_attention(
    source: Sequence[str],
    target: Sequence[str] | None,
    attention: np.ndarray,
    path: str | os.PathLike,
    layer: int = -1,
    by_piece: bool = False,
) -> pathlib.Path:
    """Draws the attention of each head of a layer to the source.

    Like the paper's figures 3 to 5: a row for each word that attends, a column
    for each word of the source, darker for larger weights. The heads are in two
    columns. On a page of A4, labels have 8 points for up to twenty words.

    Example:

    >>> import numpy as np
    >>> source, target = ["▁A", "▁red", "▁car", "."], ["▁Ein", "▁Auto", "."]
    >>> attention = np.full((1, 2, 3, 4), 0.25)  # one layer with two heads
    >>> plot_attention(source, target, attention, "attention.png").exists()
    True
    >>> attention = np.full((1, 2, 4, 4), 0.25)
    >>> plot_attention(source, None, attention, "encoder.png").exists()
    True

    Args:
        source, target: S and T word pieces. A target of `None` is for the
            encoder, whose source pieces attend to one another.
        attention: weights `(N, H, T, S)` of one sentence, or `(N, H, S, S)` of
            the encoder, as returned by `SavedTranslator.explain`.
        path: path of the image; its suffix is the format.
        layer: index of one of the N layers. Defaults to the last layer.
        by_piece: whether rows and columns are word pieces. Defaults to False,
            words: the weights of the pieces of a word that is attended to are
            added up, and those of a word that attends are averaged.

    Returns:
        The path of the image.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if the attention has another shape, or if matplotlib does
            not know the format.
    """
    from matplotlib.figure import Figure

    name = "source" if target is None else "translation"
    target = source if target is None else target
    shape = np.shape(attention)
    if len(shape) != 4 or shape[2:] != (len(target), len(source)):
        raise ValueError(
            "`attention` must have shape (N, H, T, S), of one sentence of S "
            f"source and T target pieces. Received: attention.shape={shape}, "
            f"S={len(source)}, T={len(target)}"
        )
    heads = attention[layer]
    if not by_piece:
        rows, columns = words_of(target), words_of(source)
        heads = weights_of_words(heads, rows, columns)
        target, source = ([w.text for w in side] for side in (rows, columns))
    per_row = min(len(heads), 2)
    count = -(-len(heads) // per_row)
    # Labels are at the left and at the bottom of the page only.
    left, bottom = (
        0.45 + LETTER * max(map(len, side), default=0)
        for side in (target, source)
    )
    cell = (PAGE_WIDTH - left - 0.1) / per_row - 0.15
    cell = float(np.clip(cell / max(len(source), 1), *CELL))
    width = max(left + 0.1 + per_row * (cell * len(source) + 0.15), 2.5)
    height = bottom + 0.1 + count * (cell * len(target) + 0.35)
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(
        count, per_row, sharex=True, sharey=True, squeeze=False
    )
    number = range(1, shape[0] + 1)[layer]
    for axes in grid.flat[len(heads) :]:
        axes.set_visible(False)
    for head, (axes, weights) in enumerate(
        zip(grid.flat, heads, strict=False), 1
    ):
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
        axes.set_title(f"layer {number}, head {head}", fontsize=9)
        style: dict[str, Any] = {"fontsize": 8, "parse_math": False}
        axes.set_xticks(range(len(source)), source, rotation=90, **style)
        axes.set_yticks(range(len(target)), target, **style)
        is_lowest = head > len(heads) - per_row
        axes.tick_params(length=0, labelbottom=is_lowest)
        axes.spines[:].set_color("0.6")
    figure.supxlabel("attends to: source", fontsize=9)
    figure.supylabel(f"attends from: {name}", fontsize=9)
    path = pathlib.Path(path)
    image_format = path.suffix.lstrip(".") or "png"
    dpi = min(200, (MOST_PIXELS / (width * height)) ** 0.5)
    with write_aside(path) as file:
        figure.savefig(file, format=image_format, dpi=dpi)
    return path
