"""The loop of training: steps and validations in turn."""

import collections
import contextlib
import math
import signal
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Protocol, cast

import keras
import numpy as np

from keras_transformer.data.batches import Batch, Sharding
from keras_transformer.model import Transformer
from keras_transformer.stop_signals import stop_signals
from keras_transformer.training.checkpoints import RESTART
from keras_transformer.training.models import make_schedule
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.resume import ResumePoint


class TrainingInterrupted(Exception):  # noqa: N818, it is no error
    """Says that a signal stopped training, after all state was saved.

    Example:

    >>> import signal
    >>> stopped = TrainingInterrupted(1000, signal.SIGTERM)  # `train` raises it
    >>> print(stopped)
    Stopped by SIGTERM after step 1,000; all state is saved.
    >>> 128 + stopped.signal  # a program that stops for it exits with this
    143

    Args:
        step: the last step that was done; also an attribute.
        signal: SIGTERM, SIGINT or SIGHUP; also an attribute.
    """

    def __init__(self, step: int, signal: signal.Signals):
        super().__init__(
            f"Stopped by {signal.name} after step {step:,}; all state is saved."
        )
        self.step, self.signal = step, signal

    def __reduce__(self):
        # From a pool of processes, errors come pickled.
        return type(self), (self.step, self.signal)


class ValidationInterrupted(Exception):  # noqa: N818, it is no error
    """A signal arrived in a validation; the loop ends it and saves nothing."""


class Trainer(Protocol):
    """Describes what the loop needs of a backend: a `TensorFlowTrainer` or a
    `JaxTrainer`.

    Attributes:
        few_shapes: whether batches are to have few shapes.
        delay: how many steps later the sums of a step are read.
        worker: number of this worker.
    """

    few_shapes: bool
    delay: int
    worker: int

    def sharding(self, parts: int = 1) -> Sharding:
        """Returns how batches are divided, each device's share in `parts`
        that it computes one after the other."""

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which models are made."""

    def prepare(
        self,
        model: Transformer,
        recipe: Recipe,
        teachers: Sequence[Transformer] = (),
    ) -> None:
        """Makes the programs of a step and of a validation step.

        Args:
            model: with an optimizer, made in `scope()`.
            recipe: whose label smoothing, parts and weight of the teachers are
                used.
            teachers: `Transformer`s with the same vocabularies, whose
                predictions are learned besides the labels.
        """

    def batches(self, batches: Iterable[Batch]) -> Generator:
        """Returns what `train` and `evaluate` take the next batch from."""

    def train(self, batches: Iterator, stop_requests: np.ndarray) -> dict:
        """Updates the weights by the next batch.

        Returns:
            Sums over all devices: `loss`, which is minimised and has the part
            of the teachers; `nll` of the real target tokens; `tokens`, their
            number; and `stop_requests`, the vectors that the workers passed.
        """

    def evaluate(self, batches: Iterator) -> dict:
        """Returns the same sums of the next batch, without an update, or raises
        `StopIteration`."""

    def total(self, vector: np.ndarray) -> np.ndarray:
        """Returns the sum of a vector over all replicas of all workers."""

    def store(self) -> None:
        """Puts the state of training into the variables of the model."""


def make_trainer(strategy: Any = None) -> Trainer:
    """Returns the trainer of Keras' backend.

    Args:
        strategy: a `tf.distribute` strategy on TensorFlow, a
            `keras.distribution.DataParallel` on JAX, or a trainer, which is
            returned. Defaults to all GPUs, on JAX to all devices.

    Raises:
        ValueError: if the backend is another one.
    """
    if hasattr(strategy, "prepare"):
        return cast(Trainer, strategy)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from keras_transformer.training.tensorflow_trainer import (
            TensorFlowTrainer,
        )

        return TensorFlowTrainer(strategy)
    if backend == "jax":
        from keras_transformer.training.jax_trainer import JaxTrainer

        return JaxTrainer(strategy)
    raise ValueError(
        "Training needs Keras on TensorFlow or JAX. Received: "
        f"KERAS_BACKEND={backend}. Set KERAS_BACKEND to one of these."
    )


class Loop:
    """Runs steps and validations in turn, with Keras callbacks around them.

    It stands in for `fit`, which on several machines does not run and which
    weighs batches by their rows, not by their tokens.

    Args:
        model: from `make_model`, made in the trainer's scope.
        recipe: a `Recipe`.
        trainer: from `make_trainer`.
        teachers: from `load_teachers`, made in that scope. Defaults to none.
    """

    def __init__(
        self,
        model: Transformer,
        recipe: Recipe,
        trainer: Trainer,
        teachers: Sequence[Transformer] = (),
    ):
        self.model = model
        self.every = recipe.validate_every
        self.trainer = trainer
        self.caught: list[signal.Signals] = []
        self.has_compiled = False
        self.schedule = make_schedule(model.config, recipe)
        trainer.prepare(model, recipe, teachers)

    def fit(
        self,
        training: Iterable[Batch],
        validation: Iterable[Batch],
        start: ResumePoint,
        steps: int,
        callbacks: keras.callbacks.CallbackList,
    ):
        """Runs the steps up to `steps`, or until a callback sets
        `model.stop_training`. If it does so inside an epoch, one more step is
        run.

        Before each validation, `on_test_begin` is called. Callbacks that save
        do it there, so that a validation that is cut short costs no step.
        After a signal `on_train_end` is called, too.

        Args:
            training, validation: this worker's batches.
            start: a `ResumePoint`: the steps before, and whether the last of
                them is still to be validated.
            steps: steps in all.
            callbacks: a `keras.callbacks.CallbackList`.

        Raises:
            TrainingInterrupted: after SIGTERM, SIGINT or SIGHUP on any worker,
                on all of them.
            ValueError: if workers do not begin with the same step, or if a
                loss is not finite.
        """
        self._check_same_step(start.step)
        self.model.stop_training = False
        callbacks.on_train_begin()
        batches = self.trainer.batches(training)
        with _caught_signals() as self.caught, contextlib.closing(batches):
            try:
                logs = self._epochs(
                    batches, validation, start, steps, callbacks
                )
            except TrainingInterrupted:
                callbacks.on_train_end()
                raise
        callbacks.on_train_end(logs)

    def _epochs(self, batches, validation, start, steps, callbacks):
        """Runs steps and validations in turn; returns the last logs."""
        done, logs = start.step, {}
        if start.unvalidated_logs is not None:
            epoch = (done - 1) // self.every
            callbacks.on_epoch_begin(epoch)
            logs = start.unvalidated_logs
            logs = self._validate(validation, epoch, done, logs, callbacks)
        while done < steps and not self.model.stop_training:
            epoch = done // self.every
            callbacks.on_epoch_begin(epoch)
            last = min(steps, (epoch + 1) * self.every)
            done, logs = self._steps(batches, done, last, callbacks)
            logs = self._validate(validation, epoch, done, logs, callbacks)
        return logs

    def _validate(self, validation, epoch, done, logs, callbacks):
        """Ends an epoch; returns its logs."""
        logs = dict(logs)
        try:
            for name, value in self._test(validation, callbacks).items():
                logs[f"val_{name}"] = value
            callbacks.on_epoch_end(epoch, logs)
        except ValidationInterrupted:
            pass  # told to all workers below
        stop, signals = self.trainer.total(self._stop_requests())
        self.model.stop_training = bool(stop > 0)
        if signals > 0:
            raise _interrupted(done, self.caught)
        return logs

    def _test(self, validation, callbacks):
        """Returns the logs of the validation data."""
        logs: dict[str, float] = {}
        callbacks.on_test_begin()
        try:
            logs = self.evaluate(validation)
        finally:  # callbacks undo what they did at the beginning
            callbacks.on_test_end(logs)
        return logs

    def check_interrupted(self, *_: object):
        """Raises `ValidationInterrupted` if this worker got a signal."""
        if self.caught:
            raise ValidationInterrupted

    def _stop_requests(self):
        """Returns whether a callback and whether a signal asks to stop.

        Workers act on the sum, all after the same step: one that went on alone
        would wait for the others for ever.
        """
        return np.array([self.model.stop_training, len(self.caught) > 0], float)

    def wait_for_all(self):
        """Returns when every worker has come here."""
        self.trainer.total(np.zeros(1))

    def _check_same_step(self, done):
        devices = self.trainer.total(np.ones(1))
        moments = np.array([done, done**2], float)
        mean, square = self.trainer.total(moments) / devices
        if square != mean**2:
            raise ValueError(
                "All workers must go on from the same step. Received: step "
                f"{done:,} here, {float(mean):,.1f} on average. Do they see "
                "the same folder of the run?"
            )

    def _steps(self, batches, done, last, callbacks):
        """Runs steps up to the last; returns how many are done, and logs."""
        means, began, before = _Means(), time.perf_counter(), 0.0
        logs: dict[str, float] = {}
        unread: collections.deque = collections.deque()

        def read(step, sums):
            nonlocal began, before
            _check_finite(float(sums["loss"]), step + 1)
            logs.update(means.add(sums))
            now, tokens = time.perf_counter(), means.sums["tokens"]
            logs["tokens/s"] = round((tokens - before) / (now - began))
            if not self.has_compiled:  # as the first step of all did
                self.has_compiled, began, before = True, now, tokens
            logs["learning_rate"] = self.schedule.at(step)

        for step in range(done, last):
            batch = step % self.every
            callbacks.on_train_batch_begin(batch)
            sums = self.trainer.train(batches, self._stop_requests())
            stop, signals = (float(x) for x in sums.pop("stop_requests"))
            unread.append((step, sums))
            # Callbacks always have logs, at the end those of the last step.
            reads_all = step in (done, last - 1) or stop > 0 or signals > 0
            while len(unread) > (0 if reads_all else self.trainer.delay):
                read(*unread.popleft())
            callbacks.on_train_batch_end(batch, logs)
            if signals > 0:
                raise _interrupted(step + 1, self.caught)
            if stop > 0:
                break
        return step + 1, logs

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Returns `loss` and `nll`, which is not smoothed, per real token of
        the targets.

        Raises:
            ValidationInterrupted: after a signal on any worker, on all.
        """
        means, logs = _Means(), {}
        with contextlib.closing(self.trainer.batches(batches)) as left:
            try:
                while True:
                    logs = means.add(self.trainer.evaluate(left))
                    if self.trainer.total(self._stop_requests())[1] > 0:
                        raise ValidationInterrupted
            except StopIteration:
                return logs


def _check_finite(loss, step):
    if not math.isfinite(loss):
        raise ValueError(
            f"The loss must be finite. Received: loss={loss} in step {step:,}; "
            f"nothing of it is saved. {RESTART}"
        )


def _interrupted(step, caught):
    # Without a signal here, there was one on another worker.
    return TrainingInterrupted(step, (*caught, signal.SIGTERM)[0])


class _Means:
    """Means over tokens of what the steps sum up."""

    def __init__(self):
        self.sums: collections.Counter[str] = collections.Counter()

    def add(self, sums) -> dict[str, float]:
        self.sums.update({name: float(x) for name, x in sums.items()})
        tokens = max(self.sums["tokens"], 1)
        return {name: self.sums[name] / tokens for name in ("loss", "nll")}


@contextlib.contextmanager
def _caught_signals():
    """Yields a list that gets the first signal to stop; the second one does
    what it always does."""
    caught: list[signal.Signals] = []
    before: dict = {}  # the handlers

    def catch(number, _):
        caught.append(signal.Signals(number))
        restore()

    def restore():
        for number, handler in before.items():
            signal.signal(number, handler)

    if threading.current_thread() is threading.main_thread():
        for number in stop_signals():
            before[number] = signal.signal(number, catch)
    try:
        yield caught
    finally:
        restore()
