"""Pictures of a run. Needs matplotlib."""

import pathlib

from keras_transformer.callbacks import read_log
from keras_transformer.checkpoints import write_aside


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

    draw(loss, "loss", "training, smoothed, with dropout", "C0", "--")
    draw(loss, "nll", "training, with dropout", "C0")
    draw(loss, "val_loss", "validation, smoothed", "C1", "--")
    draw(loss, "val_nll", "validation", "C1")
    loss.set_ylabel("nats per word piece")
    loss.legend(frameon=False)
    draw(bleu, "val_bleu", "validation, greedy", "C1")
    bleu.set_ylabel("BLEU, validation, greedy")
    bleu.set_ylim(bottom=0)
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
