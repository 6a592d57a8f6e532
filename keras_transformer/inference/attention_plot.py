"""Pictures of what a decoder attends to. Needs matplotlib."""

import pathlib

from keras_transformer.atomic_files import write_aside


def plot_attention(source, target, attention, path, layer: int = -1):
    """Draws what each head of a decoder layer attends to, as the paper's
    figures 3 to 5: a row for each target piece, dark where the weight is.

    Args:
        source, target: word pieces, S and T of them.
        attention: weights `(N, H, T, S)`, as `Translator.explain` gives them
            for a sentence.
        path: of the picture; its ending is its format.
        layer: which of the N. Defaults to the last.

    Returns:
        The path.
    """
    from matplotlib.figure import Figure

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
        axes.set_xticks(range(len(source)), source, rotation=90, fontsize=8)
        axes.set_yticks(range(len(target)), target, fontsize=8)
        axes.tick_params(length=0, labelbottom=True)
        axes.spines[:].set_color("0.8")
    path = pathlib.Path(path)
    kind = path.suffix.lstrip(".") or "png"
    with write_aside(path) as file:
        figure.savefig(file, format=kind, dpi=120)
    return path
