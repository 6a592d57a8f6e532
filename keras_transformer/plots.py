"""Pictures of a run and of what a model attends to. Needs matplotlib."""

import pathlib

from keras_transformer.atomic_files import write_aside
from keras_transformer.callbacks import read_log


def plot_training(folder) -> pathlib.Path | None:
    """Draws `training.png` in the folder of a run: loss, BLEU and learning
    rate against the steps.

    Returns:
        The path of the picture, or `None` if nothing is logged yet.
    """
    from matplotlib.figure import Figure

    lines = read_log(folder)
    if not lines:
        return None
    figure = Figure(figsize=(6, 7.5), layout="constrained")
    loss, bleu, rate = figure.subplots(3, sharex=True, height_ratios=(3, 2, 1))
    steps = [line["step"] for line in lines]
    dots = "." if len(lines) < 100 else None

    def draw(axes, name, label, color="C0", style="-"):
        values = [line.get(name) for line in lines]
        axes.plot(steps, values, style, color=color, marker=dots, label=label)

    draw(loss, "loss", "training, as minimised", "C0", "--")
    draw(loss, "nll", "training, with dropout", "C0")
    draw(loss, "val_loss", "validation, smoothed", "C1", "--")
    draw(loss, "val_nll", "validation", "C1")
    loss.set_ylabel("nats per word piece")
    figure.legend(
        handles=loss.get_lines(),
        loc="outside upper right",
        ncols=2,
        frameon=False,
    )
    draw(bleu, "val_bleu", "validation, greedy", "C1")
    bleu.set_ylabel("BLEU, validation, greedy")
    bleu.set_ylim(0, 1.05 * max(bleu.get_ylim()[1], 1))
    draw(rate, "learning_rate", "learning rate")
    rate.set_ylabel("learning rate")
    rate.set_ylim(bottom=0)
    rate.set_xlabel("steps")
    rate.xaxis.get_major_locator().set_params(integer=True)
    for axes in (loss, bleu, rate):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    loss.set_title(pathlib.Path(folder).name, loc="left")
    path = pathlib.Path(folder, "training.png")
    with write_aside(path) as file:
        figure.savefig(file, format="png", dpi=120)
    return path


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
