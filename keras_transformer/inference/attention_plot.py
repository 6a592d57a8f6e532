"""Plots of the attention of a decoder. Needs matplotlib."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.atomic_files import write_aside

MOST_PIXELS = 40e6  # those of long sources would fill the memory


def plot_attention(
    source: Sequence[str],
    target: Sequence[str],
    attention: np.ndarray,
    path: str | os.PathLike,
    layer: int = -1,
) -> pathlib.Path:
    """Draws the attention of each head of a decoder layer to the source.

    Like the paper's figures 3 to 5: a row for each target piece, a column for
    each source piece, darker for larger weights.

    Example:

    >>> import numpy as np
    >>> source, target = ["A", "red", "car", "."], ["Ein", "rotes", "Auto"]
    >>> attention = np.full((1, 2, 3, 4), 0.25)  # one layer with two heads
    >>> plot_attention(source, target, attention, "attention.png").exists()
    True

    Args:
        source, target: S and T word pieces.
        attention: weights `(N, H, T, S)` of one sentence, as returned by
            `SavedTranslator.explain`.
        path: path of the image; its suffix is the format.
        layer: index of one of the N layers. Defaults to the last layer.

    Returns:
        The path of the image.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if the attention has another shape, or if matplotlib does
            not know the format.
    """
    from matplotlib.figure import Figure

    shape = np.shape(attention)
    if len(shape) != 4 or shape[2:] != (len(target), len(source)):
        raise ValueError(
            "`attention` must have shape (N, H, T, S), of one sentence of S "
            f"source and T target pieces. Received: attention.shape={shape}, "
            f"S={len(source)}, T={len(target)}"
        )
    heads = attention[layer]
    columns = min(len(heads), 4)
    rows = -(-len(heads) // columns)
    width = columns * (0.24 * len(source) + 0.4) + 1.2
    height = rows * (0.22 * len(target) + 0.5) + 1.0
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(
        rows, columns, sharex=True, sharey=True, squeeze=False
    )
    for axes in grid.flat[len(heads) :]:
        axes.set_visible(False)
    for head, (axes, weights) in enumerate(
        zip(grid.flat, heads, strict=False), 1
    ):
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(f"head {head}", fontsize=9)
        style: dict[str, Any] = {"fontsize": 8, "parse_math": False}
        axes.set_xticks(range(len(source)), source, rotation=90, **style)
        axes.set_yticks(range(len(target)), target, **style)
        axes.tick_params(length=0, labelbottom=True)
        axes.spines[:].set_color("0.8")
    path = pathlib.Path(path)
    image_format = path.suffix.lstrip(".") or "png"
    dpi = min(120, (MOST_PIXELS / (width * height)) ** 0.5)
    with write_aside(path) as file:
        figure.savefig(file, format=image_format, dpi=dpi)
    return path
