"""Checks the training loop: its callbacks, signals, logs and results."""

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import some_pairs

from keras_transformer import TransformerConfig
from keras_transformer.data.batches import evaluation_batches, training_batches
from keras_transformer.schedule import TransformerSchedule
from keras_transformer.training.loop import (
    Loop,
    TrainingInterrupted,
    make_trainer,
)
from keras_transformer.training.models import make_model
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.resume import Best, ResumePoint

CONFIG = TransformerConfig(31, num_layers=1, d_model=22, num_heads=2, d_ff=17)


def loop(**recipe):
    recipe = {"dtype_policy": "float32", **recipe}
    recipe = Recipe(warmup_steps=20, validate_every=2, **recipe)
    return Loop(make_model(CONFIG, recipe), recipe, make_trainer())


@pytest.fixture(scope="module")
def traced():
    """Returns a loop that the tests share, because tracing takes seconds, and
    the values of its variables before the first step."""
    some = loop()
    return some, values_of(some)


def variables_of(some):
    return [*some.model.variables, *some.model.optimizer.variables]


def values_of(some):
    return [variable.numpy() for variable in variables_of(some)]


def reset(some, values):
    for variable, value in zip(variables_of(some), values, strict=True):
        variable.assign(value)
    some.every = 2
    some.caught = []
    some.model.stop_training = False
    return some


@pytest.fixture
def plain(traced):
    """Returns a traced loop before its first step."""
    return reset(*traced)


class Recorder(keras.callbacks.Callback):
    """Records events in order, and may stop training after some steps."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.events = []
        self.logs = {}
        self.stop_at = stop_at

    def on_epoch_begin(self, epoch, logs=None):
        self.events.append(("begin", epoch))

    def on_train_batch_end(self, batch, logs=None):
        self.events.append(("step", batch))
        if self.stop_at == len([e for e in self.events if e[0] == "step"]):
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self.events.append(("end", epoch))
        self.logs = dict(logs)


def fit(some, done, steps, recorder=None, **kwargs):
    pairs = some_pairs()
    recorder = recorder or Recorder(**kwargs)
    some.fit(
        training_batches(pairs, 131, seed=1, first_batch=done),
        evaluation_batches(pairs, 131),
        ResumePoint(done, Best()),
        steps,
        keras.callbacks.CallbackList([recorder], model=some.model),
    )
    return recorder


def test_callbacks_get_the_events_and_logs_of_keras_fit(plain):
    recorder = fit(plain, 1, 5)
    assert recorder.events == [
        ("begin", 0),
        ("step", 1),
        ("end", 0),
        ("begin", 1),
        ("step", 0),
        ("step", 1),
        ("end", 1),
        ("begin", 2),
        ("step", 0),
        ("end", 2),
    ]
    assert set(recorder.logs) == {
        "loss",
        "nll",
        "tokens/s",
        "learning_rate",
        "val_loss",
        "val_nll",
    }


class Validations(keras.callbacks.Callback):
    """Records validations, and may send a signal into one."""

    def __init__(self, validate):
        super().__init__()
        self.events = []
        self.validate = validate

    def on_test_begin(self, logs=None):
        self.events.append("begin")
        self.validate()

    def on_test_end(self, logs=None):
        self.events.append(sorted(logs))


def test_validations_begin_and_end_for_callbacks(plain):
    recorder = fit(plain, 0, 3, Validations(lambda: None))
    assert recorder.events == ["begin", ["loss", "nll"]] * 2
    broken = Validations(lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(TrainingInterrupted):
        fit(plain, 0, 3, broken)
    assert broken.events[0] == "begin"
    assert len(broken.events) == 2


def test_a_callback_may_stop_training(plain):
    # Workers agree to stop in the next step, so one more step follows.
    recorder = fit(plain, 0, 100, stop_at=3)
    assert recorder.events[-2:] == [("step", 1), ("end", 1)]
    assert int(plain.model.optimizer.iterations) == 4


def test_a_stop_tells_how_many_steps_were_done(plain):
    class Stopper(Recorder):
        def on_epoch_end(self, epoch, logs=None):
            signal.raise_signal(signal.SIGTERM)

    plain.every = 50
    with pytest.raises(TrainingInterrupted, match="after step 4"):
        fit(plain, 0, 100, Stopper(stop_at=3))


@pytest.mark.parametrize("event", ["step", "end"])
def test_a_signal_always_ends_training(plain, event):
    """Also if it arrives in the last step or the last validation."""

    class Sender(Recorder):
        def __init__(self):
            super().__init__()
            self.sent = False

        def on_train_batch_end(self, batch, logs=None):
            self.send("step")

        def on_epoch_end(self, epoch, logs=None):
            self.send("end")

        def send(self, now):
            if now == event and not self.sent:
                self.sent = True
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingInterrupted, match="after step 2"):
        fit(plain, 0, 2, recorder=Sender())


def test_evaluation_does_not_depend_on_the_batch_size(plain):
    """Losses are means over tokens, equal to within 1e-6."""
    losses = [
        plain.evaluate(evaluation_batches(some_pairs(), tokens))
        for tokens in (1, 37, 131, 10_000)
    ]
    for other in losses[1:]:
        for name, value in losses[0].items():
            assert other[name] == pytest.approx(value, abs=1e-6)


def test_evaluation_ends_where_functions_run_eagerly(plain):
    batches = evaluation_batches(some_pairs(), 131)
    expected = plain.evaluate(batches)
    tf.config.run_functions_eagerly(True)
    try:
        found = plain.evaluate(batches)
    finally:
        tf.config.run_functions_eagerly(False)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)


def test_two_runs_with_one_seed_are_bitwise_equal(traced):
    """They begin with equal models, and equal models train alike."""
    models, trained = [], []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        models.append(values_of(loop(seed=3)))
        some = reset(*traced)
        fit(some, 0, 6)
        trained.append(values_of(some))
    for one, other in (models, trained):
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(first, second)


@pytest.mark.programs
def test_bfloat16_learns_what_float32_learns(plain):
    in_float32 = fit(plain, 0, 20).logs["val_nll"]
    assert in_float32 < 3.4  # ln 31 = 3.43
    in_bfloat16 = fit(loop(dtype_policy="mixed_bfloat16"), 0, 20).logs
    assert in_bfloat16["val_nll"] == pytest.approx(in_float32, abs=0.05)


def test_a_nan_loss_ends_training(plain):
    weight = plain.model.trainable_variables[0]
    weight.assign(np.full(weight.shape, np.nan))
    with pytest.raises(ValueError, match=r"loss=nan in step .*--warmup"):
        fit(plain, 0, 20)


def test_the_logged_learning_rate_is_that_of_the_last_step(plain):
    schedule = TransformerSchedule(CONFIG.d_model, 20)
    for done in (0, 1):
        recorder = fit(plain, done, done + 1)
        expected = float(schedule(done))  # counts from 0
        assert recorder.logs["learning_rate"] == pytest.approx(expected)
