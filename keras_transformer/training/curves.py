"""Curves of a run: loss, BLEU and learning rate. Needs matplotlib."""

import contextlib
import json
import os
import pathlib

from keras_transformer.atomic_files import write_aside


def plot_training(folder: str | os.PathLike) -> pathlib.Path | None:
    """Draws loss, BLEU and learning rate over the steps of a run.

    The image is `training.png` in the folder of the run.

    Args:
        folder: folder of the run.

    Returns:
        The path of the image, or `None` if nothing is logged yet.
    """
    from matplotlib.figure import Figure

    lines = read_log(folder)
    if not lines:
        return None
    figure = Figure(figsize=(6, 7.5), layout="constrained")
    loss, bleu, rate = figure.subplots(3, sharex=True, height_ratios=(3, 2, 1))
    steps = [line["step"] for line in lines]
    marker = "." if len(lines) < 100 else None

    def draw(axes, name, label, color="C0", style="-"):
        values = [line.get(name) for line in lines]
        axes.plot(steps, values, style, color=color, marker=marker, label=label)

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


def read_log(folder: str | os.PathLike) -> list[dict]:
    """Returns the log entries of a run's validations, oldest first.

    Lines that cannot be read are left out.
    """
    path = pathlib.Path(folder, "log.jsonl")
    entries = []
    if path.exists():
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
    return entries
