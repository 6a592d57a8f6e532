"""Callbacks of training: translation quality, logs, checkpoints."""

import dataclasses
import json
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable

import keras
import tensorflow as tf

from keras_transformer.atomic_files import write_aside
from keras_transformer.data.corpus import SentencePairs
from keras_transformer.training import checkpoints
from keras_transformer.training.curves import plot_training, read_log
from keras_transformer.training.loop import Loop
from keras_transformer.training.progress import (
    Best,
    ResumePoint,
    write_validated,
)
from keras_transformer.training.run import Run
from keras_transformer.training.score import make_scorer


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
        Log(run, start),
        Checkpoint(run, start),
        TrainingCurves(run),
    ]


def steps_of(model: keras.Model) -> int:
    """Returns how many updates a compiled model has seen."""
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


class TranslationQuality(keras.callbacks.Callback):
    """Adds `val_bleu` to the logs: greedy translations of validation pairs.

    Args:
        run: the `Run` whose vocabularies are used.
        model: that translates.
        pairs: `SentencePairs`, of which the first `sentences` are translated.
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
        pairs = pairs.first(sentences)
        self.score = make_scorer(run, model, pairs, greedy, progress)

    def on_epoch_end(self, epoch: int, logs: dict):
        logs["val_bleu"] = self.score()["bleu"]


class Log(keras.callbacks.Callback):
    """Keeps the logs of every validation: as scalars for TensorBoard in
    `logs/`, and as lines of JSON in `log.jsonl`.

    Lines of validations that will be done again are dropped.

    Args:
        run: the `Run`.
        start: where training resumes.
    """

    def __init__(self, run: Run, start: ResumePoint):
        super().__init__()
        self.path = pathlib.Path(run.folder, "log.jsonl")
        validated = start.step - (start.unvalidated_logs is not None)
        self.lines = [
            line for line in read_log(run.folder) if line["step"] <= validated
        ]
        self.writer = tf.summary.create_file_writer(
            os.path.join(run.folder, "logs")
        )

    def on_epoch_end(self, epoch: int, logs: dict):
        step = steps_of(self.model)
        self.lines.append({"step": step, **logs})
        with write_aside(self.path) as file:
            for line in self.lines:
                file.write((json.dumps(line) + "\n").encode())
        with self.writer.as_default(step):
            for name, value in logs.items():
                tf.summary.scalar(name, value)
        self.writer.flush()


class Checkpoint(keras.callbacks.Callback):
    """Saves all state before every validation, every `save_every_minutes`,
    and when training ends or is stopped by a signal.

    The last checkpoints and the best one by `val_bleu` are kept. Ends training
    after `patience` validations without a better `val_bleu`. Only validations
    every `validate_every` steps count: an extra one after an early stop does
    not. A checkpoint has the training logs of its step, so that a run that is
    resumed before its validation ended chooses as an uninterrupted one.

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
        elif counts:
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
            validated=False,
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


def verbosity() -> int:
    """Returns Keras' `verbose` for this process: a bar on a terminal, lines
    elsewhere, nothing where standard output is closed."""
    if sys.stdout is None:
        return 0
    return 1 if sys.stdout.isatty() else 2
