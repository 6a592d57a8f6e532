"""Compares the learning rate schedule with equation 3."""

import math

import keras
import numpy as np
import paper
import pytest

from keras_transformer import TransformerSchedule

# Equation 3 at step s, counted from 1.
KNOWN = [
    (512, 1, 1.7469281e-07),
    (512, 2000, 3.4938562e-04),
    (512, 4000, 6.9877124e-04),
    (512, 4001, 6.9868391e-04),
    (512, 100_000, 1.3975425e-04),
    (1024, 1, 1.2352647e-07),
    (1024, 4000, 4.9410588e-04),
    (1024, 100_000, 9.8821177e-05),
]


@pytest.mark.parametrize(("d_model", "step", "rate"), KNOWN)
def test_the_schedule_is_equation_3(d_model, step, rate):
    assert paper.learning_rate(step, d_model, 4000) == pytest.approx(rate)
    found = float(TransformerSchedule(d_model)(step - 1))
    assert found == pytest.approx(rate, rel=1e-6)


def test_the_rate_rises_to_warmup_steps_and_falls_after():
    rates = np.array([float(TransformerSchedule(7, 11)(s)) for s in range(40)])
    assert np.argmax(rates) == 10  # the eleventh update
    assert (np.diff(rates[:11]) > 0).all()
    assert (np.diff(rates[10:]) < 0).all()
    assert rates.max() == pytest.approx((7 * 11) ** -0.5, rel=1e-6)


@pytest.mark.parametrize(
    "zero", [0, 0.0, np.int32(0), np.int64(0), keras.ops.zeros((), "int64")]
)
def test_the_first_rate_is_finite_whatever_the_type_of_the_step(zero):
    rate = float(TransformerSchedule(512)(zero))
    assert rate == pytest.approx(1.7469281e-07, rel=1e-6)


def test_an_optimizer_that_uses_it_round_trips():
    adam = keras.optimizers.Adam(TransformerSchedule(512, 17))
    config = keras.saving.serialize_keras_object(adam)
    again = keras.saving.deserialize_keras_object(config)
    assert float(again.learning_rate) == float(adam.learning_rate)


def test_errors_name_what_was_received():
    with pytest.raises(ValueError, match="warmup_steps=0"):
        TransformerSchedule(512, 0)
    for scale in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"scale={scale}"):
            TransformerSchedule(512, 7, scale)


def test_updates_of_several_batches_have_the_rates_of_equation_3():
    """Keras counts batches, hence the arguments that the docstring names."""
    batches, warmup, d_model = 3, 4, 7
    schedule = TransformerSchedule(
        d_model, batches * warmup, scale=batches**0.5
    )
    optimizer = keras.optimizers.SGD(
        schedule, gradient_accumulation_steps=batches
    )
    weight = keras.Variable(np.zeros(1, "float32"))
    optimizer.build([weight])
    values = [0.0]
    for _ in range(8):
        for _ in range(batches):
            optimizer.apply([keras.ops.ones(1)], [weight])
        values.append(float(keras.ops.convert_to_numpy(weight)[0]))
    expected = [paper.learning_rate(s, d_model, warmup) for s in range(1, 9)]
    np.testing.assert_allclose(-np.diff(values), expected, rtol=1e-4)


def test_the_rate_of_a_step_needs_no_device():
    schedule = TransformerSchedule(d_model=22, warmup_steps=7, scale=0.3)
    for step in (0, 3, 6, 7, 1000):
        assert schedule.at(step) == pytest.approx(float(schedule(step)))
