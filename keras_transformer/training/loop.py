"""The loop of training: steps and validations in turn."""

import collections
import contextlib
import math
import signal
import threading
import time

import keras
import tensorflow as tf

from keras_transformer.stop_signals import stop_signals
from keras_transformer.training.checkpoints import RESTART
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.resume import ResumePoint
from keras_transformer.training.step import (
    make_evaluation_step,
    make_sum_over_replicas,
    make_training_step,
)


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


class Loop:
    """Runs steps and validations in turn, with Keras callbacks around them.

    It stands in for `fit`, which on several machines does not run and which
    weighs batches by their rows, not by their tokens.

    Args:
        model: from `make_model`, under `strategy`.
        recipe: a `Recipe`.
        strategy: a `tf.distribute` strategy.
        teacher: from `load_teacher`, under `strategy`, or `None` (default).
    """

    def __init__(
        self,
        model: keras.Model,
        recipe: Recipe,
        strategy: tf.distribute.Strategy,
        teacher: keras.Model | None = None,
    ):
        self.model = model
        self.every = recipe.validate_every
        self.strategy = strategy
        self.caught: list[signal.Signals] = []
        self.has_compiled = False
        settings = model, recipe.label_smoothing, strategy
        self.training_step = make_training_step(
            *settings, teacher, recipe.teacher_weight
        )
        self.evaluation_step = make_evaluation_step(*settings)
        self.sum_over_replicas = make_sum_over_replicas(strategy)

    def fit(
        self,
        training: tf.data.Dataset,
        validation: tf.data.Dataset,
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
            training, validation: data sets of this worker's batches.
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
        batches = iter(self._distributed(training))
        self.model.stop_training = False
        callbacks.on_train_begin()
        with _caught_signals() as self.caught:
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
        stop, signals = self.sum_over_replicas(self._stop_requests())
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
        stops = self.model.stop_training, len(self.caught) > 0
        return tf.constant([float(x) for x in stops], tf.float64)

    def wait_for_all(self):
        """Returns when every worker has come here."""
        self.sum_over_replicas(tf.constant([0], tf.float64))

    def _check_same_step(self, done):
        replicas = self.strategy.num_replicas_in_sync
        moments = tf.constant([done, done**2], tf.float64)
        mean, square = self.sum_over_replicas(moments) / replicas
        if square != mean**2:
            raise ValueError(
                "All workers must go on from the same step. Received: step "
                f"{done:,} here, {float(mean):,.1f} on average. Do they see "
                "the same folder of the run?"
            )

    def _steps(self, batches, done, last, callbacks):
        """Runs steps up to the last; returns how many are done, and logs."""
        means, began, before = _Means(), time.perf_counter(), 0.0
        for step in range(done, last):
            batch = step % self.every
            callbacks.on_train_batch_begin(batch)
            rate = self.model.optimizer.learning_rate  # of this step
            rate = float(tf.convert_to_tensor(rate))
            sums = self.training_step(batches, self._stop_requests())
            stop, signals = sums.pop("stop_requests")
            _check_finite(float(sums["loss"]), step + 1)
            logs = means.add(sums)
            now, tokens = time.perf_counter(), means.sums["tokens"]
            logs["tokens/s"] = round((tokens - before) / (now - began))
            if not self.has_compiled:  # as the first step of all did
                self.has_compiled, began, before = True, now, tokens
            logs["learning_rate"] = rate
            callbacks.on_train_batch_end(batch, logs)
            if signals > 0:
                raise _interrupted(step + 1, self.caught)
            if stop > 0:
                break
        return step + 1, logs

    def evaluate(self, batches: tf.data.Dataset) -> dict[str, float]:
        """Returns `loss` and `nll`, which is not smoothed, per real token of
        the targets.

        Raises:
            ValidationInterrupted: after a signal on any worker, on all.
        """
        iterator = iter(self._distributed(batches))
        means, logs = _Means(), {}
        try:
            while True:
                logs = means.add(self.evaluation_step(iterator))
                if self.sum_over_replicas(self._stop_requests())[1] > 0:
                    raise ValidationInterrupted
        # Eagerly, an iterator ends as those of Python.
        except (tf.errors.OutOfRangeError, StopIteration):
            return logs

    def _distributed(self, dataset):
        return self.strategy.distribute_datasets_from_function(
            lambda _: dataset
        )


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
