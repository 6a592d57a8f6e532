"""What happens around the steps of training: quality, logs, checkpoints."""

import json
import os
import pathlib
import time

import keras
import tensorflow as tf

from keras_transformer import checkpoints, evaluation
from keras_transformer.atomic_files import write_aside
from keras_transformer.lines import translate_lines
from keras_transformer.translator import (
    SearchSettings,
    Translator,
    compiled,
)

VALIDATED = "validated.json"


def steps_of(model) -> int:
    """How many updates a compiled model has seen."""
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


class TranslationQuality(keras.callbacks.Callback):
    """Adds `val_bleu` to the logs: greedy translations of validation pairs.

    Args:
        run: the `Run` whose vocabularies serve.
        pairs: `SentencePairs`, of which the first `sentences` are translated.
        progress: called with the number of sentences done after each batch;
            it may raise. Defaults to `None`.
    """

    def __init__(self, run, pairs, progress=None, sentences: int = 500):
        super().__init__()
        self.progress = progress
        self.run = run
        self.source = pairs.source[:sentences]
        self.references = pairs.target[:sentences]
        self.translate = None

    def on_epoch_end(self, epoch, logs=None):
        if self.translate is None:
            self.translate = compiled(
                Translator(
                    self.model,
                    self.run.source_tokenizer,
                    self.run.target_tokenizer,
                    SearchSettings(beam_size=1),
                )
            )
        hypotheses = translate_lines(
            self.translate, self.source, progress=self.progress
        )
        logs["val_bleu"] = evaluation.score(
            hypotheses, self.references, self.run.recipe.bleu_tokenizer
        )["bleu"]


class Log(keras.callbacks.Callback):
    """Keeps the logs of every validation: as scalars for TensorBoard in
    `logs/`, and as lines of JSON in `log.jsonl`.

    Args:
        folder: of the run.
        done: validated steps; lines of later ones are dropped, since these
            validations will be done again.
    """

    def __init__(self, folder, done: int):
        super().__init__()
        self.path = pathlib.Path(folder, "log.jsonl")
        self.lines = [line for line in read_log(folder) if line["step"] <= done]
        self.writer = tf.summary.create_file_writer(
            os.path.join(folder, "logs")
        )

    def on_epoch_end(self, epoch, logs=None):
        step = steps_of(self.model)
        self.lines.append({"step": step, **logs})
        with write_aside(self.path) as file:
            for line in self.lines:
                file.write((json.dumps(line) + "\n").encode())
        with self.writer.as_default(step):
            for name, value in logs.items():
                tf.summary.scalar(name, value)
        self.writer.flush()


def read_log(folder) -> list[dict]:
    """The logs of a run's validations, oldest first."""
    path = pathlib.Path(folder, "log.jsonl")
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


class Checkpoint(keras.callbacks.Callback):
    """Saves all state before every validation, and keeps the best by BLEU.

    Ends training after `patience` validations without a better `val_bleu`.
    Only those every `validate_every` steps count: an extra validation after an
    early stop does not. `validated.json` beside the checkpoints has the best
    record after each validation, by step. A checkpoint whose step is missing
    there owes its validation, and has the training logs for it, so that a
    resumed run chooses as an uninterrupted one.

    Args:
        run: the `Run`.
        progress: the `best` record of the resumed checkpoint.
    """

    def __init__(self, run, progress: dict | None = None):
        super().__init__()
        self.run = run
        self.best = {"step": 0, "val_bleu": -1.0, "waited": 0}
        self.best.update(progress or {})
        self.logs = {}
        self.saved = None
        self.saved_at = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self.logs = dict(logs)
        minutes = self.run.recipe.save_every_minutes
        if minutes and time.monotonic() - self.saved_at >= 60 * minutes:
            self.save()

    def on_test_begin(self, logs=None):
        self.save()

    def on_epoch_end(self, epoch, logs=None):
        step, patience = steps_of(self.model), self.run.recipe.patience
        counts = step % self.run.recipe.validate_every == 0
        if counts and logs["val_bleu"] > self.best["val_bleu"]:
            self.best = {
                "step": step,
                "val_bleu": logs["val_bleu"],
                "waited": 0,
            }
        elif counts:
            self.best["waited"] += 1
        write_validated(self.run, step, self.best)
        if self.best["step"] == step:
            path = dict(checkpoints.steps(self.run.checkpoints))[step]
            checkpoints.link(path, self.run.best_checkpoint)
        if counts and patience and self.best["waited"] >= patience:
            print(
                f"No better BLEU than {self.best['val_bleu']} of step "
                f"{self.best['step']:,} for {patience} validations: done."
            )
            self.model.stop_training = True

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
            run=self.run.digest,
            best=self.best,
            logs=self.logs,
            validated=False,
        )
        self.saved = step
        self.saved_at = time.monotonic()


def read_validated(run) -> dict[int, dict]:
    """Returns the `best` record after each validation, by step."""
    path = run.checkpoints / VALIDATED
    if not path.exists():
        return {}
    return {int(k): v for k, v in json.loads(path.read_text()).items()}


def write_validated(run, step: int, best: dict):
    """Adds the `best` record after the validation of a step."""
    kept = {s for s, _ in checkpoints.steps(run.checkpoints)} | {step}
    records = {**read_validated(run), step: best}
    with write_aside(run.checkpoints / VALIDATED) as file:
        records = {s: best for s, best in records.items() if s in kept}
        file.write(json.dumps(records).encode())
