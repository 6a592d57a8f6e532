"""Callbacks of training: translation quality, logs, checkpoints."""

import dataclasses
import itertools
import os
import pathlib
import time
import warnings
from collections.abc import Callable

import keras

from keras_transformer.atomic_files import write_aside
from keras_transformer.data.corpus import SentencePairs
from keras_transformer.inference import evaluation
from keras_transformer.inference.lines import translate_lines
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.model import Transformer
from keras_transformer.training import checkpoints
from keras_transformer.training.loop import Loop
from keras_transformer.training.resume import Best, ResumePoint, write_validated
from keras_transformer.training.run import Run, read_records, write_records

LOG = "log.jsonl"


def training_callbacks(
    run: Run,
    model: keras.Model,
    validation: SentencePairs,
    start: ResumePoint,
    loop: Loop,
    is_first: bool,
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that every run has.

    Args:
        run: the run.
        model: that is trained.
        validation: `SentencePairs` to translate.
        start: where training resumes.
        loop: the `Loop`, which a signal may interrupt between translations.
        is_first: whether this is the first worker, which writes.
    """
    quality = TranslationQuality(run, model, validation, loop.check_interrupted)
    if not is_first:
        return [quality]
    return [
        quality,
        Log(run, start, quality),
        Checkpoint(run, start),
        TrainingCurves(run),
    ]


class TranslationQuality(keras.callbacks.Callback):
    """Adds `val_bleu` to the logs: greedy translations of validation pairs.
    The first three are kept as `samples`, with their sources and references.

    Where sources begin with tags, such as `>>de<<`, `val_bleu_de` is the score
    of those that begin with this one.

    Args:
        run: the `Run` whose vocabularies are used.
        model: that translates.
        pairs: `SentencePairs`, of which the first `sentences` are translated;
            of several directions, the first ones of each, in equal shares.
        progress: called with the number of sentences done after each batch;
            it may raise. Defaults to `None`.
        sentences: how many to translate. Defaults to 500.
    """

    def __init__(
        self,
        run: Run,
        model: keras.Model,
        pairs: SentencePairs,
        progress: Callable[[int], None] | None = None,
        sentences: int = 500,
    ):
        super().__init__()
        greedy = dataclasses.replace(run.search, beam_size=1)
        rows = _directions(pairs, run.source_tokenizer).values()
        share = sentences // max(len(rows), 1)
        chosen = sorted(i for some in rows for i in some[:share])
        source, target = (
            [side[i] for i in chosen] for side in (pairs.source, pairs.target)
        )
        self.pairs = SentencePairs(source, target)
        self.rows = {"val_bleu": list(range(len(chosen)))}
        for name, some in _directions(self.pairs, run.source_tokenizer).items():
            if name:
                self.rows[f"val_bleu_{name}"] = some
        self.translate = make_translate(run, model, greedy)
        self.progress = progress
        self.tokenizer = run.recipe.bleu_tokenizer
        self.samples: list[tuple[str, str, str]] = []

    def on_epoch_end(self, epoch: int, logs: dict):
        sources, references = self.pairs.source, self.pairs.target
        found = translate_lines(self.translate, sources, progress=self.progress)
        for name, rows in self.rows.items():
            sides = [[side[i] for i in rows] for side in (found, references)]
            result = evaluation.score(sides[0], sides[1], self.tokenizer)
            logs[name] = result["bleu"]
        samples = zip(sources, found, references, strict=True)
        self.samples = list(itertools.islice(samples, 3))


def _directions(pairs, tokenizer):
    """Returns the numbers of the pairs of each direction, by the name of the
    tag that the sources begin with, or ""."""
    found: dict[str, list[int]] = {}
    for i, source in enumerate(pairs.source):
        tags, _ = tokenizer.split_tags(source)
        name = tags.partition("<<")[0].removeprefix(">>")
        found.setdefault(name, []).append(i)
    return found


def make_translate(
    run: Run, model: Transformer, settings: SearchSettings
) -> Callable:
    """Returns the function of a run's model from text to text.

    On TensorFlow it is the one that is exported; on JAX, the layers themselves
    translate.
    """
    arguments = model, run.source_tokenizer, run.target_tokenizer, settings
    if keras.backend.backend() == "tensorflow":
        from keras_transformer.inference.translator import Translator

        return Translator(*arguments).compiled()
    from keras_transformer.inference.layer_translator import LayerTranslator

    return LayerTranslator(*arguments).translate


def make_scorer(
    run: Run,
    model: Transformer,
    pairs: SentencePairs,
    settings: SearchSettings,
    progress: Callable[[int], None] | None = None,
) -> Callable[[], dict]:
    """Returns a function that translates and scores pairs by the weights that
    the model has when it is called.

    Args:
        run: whose vocabularies and sacreBLEU tokenizer are used.
        model: the model.
        pairs: sentences and their references.
        settings: of the search.
        progress: called with the number of sentences done; it may raise.

    Returns:
        A function without arguments; see `evaluation.score` for what it
        returns.
    """
    translate = make_translate(run, model, settings)

    def score():
        return evaluation.score(
            translate_lines(translate, pairs.source, progress=progress),
            pairs.target,
            run.recipe.bleu_tokenizer,
        )

    return score


class Log(keras.callbacks.Callback):
    """Keeps the logs of every validation: as scalars for TensorBoard in
    `logs/`, and as lines of JSON in `log.jsonl`.

    Lines of validations that will be done again are dropped.

    Args:
        run: the `Run`.
        start: where training resumes.
        quality: has translations, which TensorBoard shows.
    """

    def __init__(
        self, run: Run, start: ResumePoint, quality: TranslationQuality
    ):
        super().__init__()
        self.path = pathlib.Path(run.folder, LOG)
        self.quality = quality
        validated = start.step - (start.unvalidated_logs is not None)
        self.lines = [
            line for line in read_log(run.folder) if line["step"] <= validated
        ]
        # Here, so that reading a log needs no TensorBoard.
        from tensorboard.summary.writer import event_file_writer

        self.writer = event_file_writer.EventFileWriter(
            os.path.join(run.folder, "logs")
        )

    def on_epoch_end(self, epoch: int, logs: dict):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        step = steps_of(self.model)
        self.lines.append({"step": step, **logs})
        write_records(self.path, self.lines)
        rows = [
            " | ".join(text.replace("|", "\\|") for text in row)
            for row in self.quality.samples
        ]
        table = ["source | translation | reference", "---|---|---", *rows]
        for summary in (
            *(scalar_pb(name, value) for name, value in logs.items()),
            text_pb("translations", "\n".join(table)),
        ):
            self.writer.add_event(
                Event(wall_time=time.time(), step=step, summary=summary)
            )
        self.writer.flush()

    def on_train_end(self, logs: dict | None = None):
        self.writer.close()


def read_log(folder: str | os.PathLike) -> list[dict]:
    """Returns the log entries of a run's validations, oldest first.

    Raises:
        ValueError: if the file is damaged.
    """
    return read_records(pathlib.Path(folder, LOG), "step")


class Checkpoint(keras.callbacks.Callback):
    """Saves all state before every validation, every `save_every_minutes`,
    and when training ends or is stopped by a signal.

    The last checkpoints and the best one by `val_bleu` are kept. Ends training
    after `patience` validations without a better `val_bleu`. Only validations
    every `validate_every` steps count: an extra one after an early stop does
    not. At a validation it has the training logs of its step, so that a run
    that is resumed before the validation ended chooses as an uninterrupted one.

    Args:
        run: the `Run`.
        start: where training resumes.
    """

    def __init__(self, run: Run, start: ResumePoint):
        super().__init__()
        self.run = run
        self.best = start.best
        self.logs: dict[str, float] = {}
        self.saved = start.step
        self.saved_at = time.monotonic()

    def on_train_begin(self, logs: dict | None = None):
        # Weights that were chosen before are not those of this training.
        self.run.weights.unlink(missing_ok=True)

    def on_train_batch_end(self, batch: int, logs: dict):
        self.logs = dict(logs)
        minutes = self.run.recipe.save_every_minutes
        if minutes and time.monotonic() - self.saved_at >= 60 * minutes:
            self.save()

    def on_test_begin(self, logs: dict | None = None):
        self.save()

    def on_epoch_end(self, epoch: int, logs: dict):
        step, patience = steps_of(self.model), self.run.recipe.patience
        counts = step % self.run.recipe.validate_every == 0
        if counts and logs["val_bleu"] > self.best.val_bleu:
            self.best = Best(step, logs["val_bleu"])
        elif counts and self.best.val_bleu > 0:  # else it has hardly begun
            self.best = dataclasses.replace(
                self.best, waited=self.best.waited + 1
            )
        write_validated(self.run, step, self.best)
        if counts and patience and self.best.waited >= patience:
            print(
                f"No better BLEU than {self.best.val_bleu} of step "
                f"{self.best.step:,} for {patience} validations: done."
            )
            self.model.stop_training = True

    def on_train_end(self, logs: dict | None = None):
        self.save()
        # `average` may have chosen weights during this training.
        self.run.weights.unlink(missing_ok=True)

    def save(self):
        """Saves the state unless the checkpoint of this step is there."""
        recipe, step = self.run.recipe, steps_of(self.model)
        if self.saved == step:
            return
        checkpoints.save(
            self.run.checkpoints,
            self.model,
            step,
            max(recipe.keep_checkpoints, recipe.average_checkpoints),
            recipe.validate_every,
            self.best.step,
            run=self.run.digest,
            best=dataclasses.asdict(self.best),
            logs=self.logs,
        )
        self.saved = step
        self.saved_at = time.monotonic()


class TrainingCurves(keras.callbacks.Callback):
    """Draws `training.png` when training ends.

    A failure is a warning: it is no reason to lose the end of training.
    """

    def __init__(self, run: Run):
        super().__init__()
        self.folder = run.folder

    def on_train_end(self, logs: dict | None = None):
        try:
            plot_training(self.folder)
        except Exception as error:
            warnings.warn(f"Cannot draw training.png: {error}", stacklevel=1)


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
    names = sorted({x for line in lines for x in line if "val_bleu" in x})
    for i, name in enumerate(names, start=1):
        draw(bleu, name, name.removeprefix("val_bleu_"), f"C{i}")
    if len(names) > 1:
        bleu.legend(frameon=False)
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


def steps_of(model: keras.Model) -> int:
    """Returns how many updates a compiled model has seen."""
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))
