"""Trains a small model for a few steps, on any devices of TensorFlow or JAX.

As a program, it trains as one of the workers of `TF_CONFIG`:

    python replicas.py FILE

It trains twice. The first time, each worker starts at the step of its own
number, which is refused; the error goes to standard error. The second time all
start at step 0, and the weights go to FILE.

    python replicas.py FILE FOLDER DEVICES PARTS

It trains ten steps on some CPU devices, each device's share in parts, from the
newest checkpoint in FOLDER, or else one that it makes. The weights and the loss
of each step go to FILE, the last state to FOLDER.
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data.batches import (
    EncodedPairs,
    Rows,
    evaluation_batches,
    training_batches,
)
from keras_transformer.training import checkpoints
from keras_transformer.training.checkpoints import state_of
from keras_transformer.training.loop import Loop, make_trainer
from keras_transformer.training.models import make_model
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.resume import Best, ResumePoint

STEPS = 3


def train_small_model(
    strategy=None,
    parts=1,
    clipnorm=None,
    steps_done=0,
    folder=None,
    **recipe,
):
    """Trains up to step `STEPS` and returns arrays by name.

    They are the weights, the last logs, and `moved`: the largest change of any
    weight. With `folder`, it trains ten steps from the checkpoint there, which
    are validated one by one, and saves the last state.
    """
    settings = {"dtype_policy": "float32", **recipe}
    recipe = Recipe(
        warmup_steps=20,
        validate_every=1 if folder else 2,
        global_clipnorm=clipnorm,
        gradient_accumulation_steps=parts,
        **settings,
    )
    trainer = make_trainer(strategy)
    config = TransformerConfig(
        31, num_layers=1, d_model=22, num_heads=2, d_ff=17, dropout_rate=0.0
    )
    keras.utils.set_random_seed(1)
    with trainer.scope():
        model = make_model(config, recipe)
        seeds = (2, 3) if recipe.teacher_weight else ()
        teachers = [Transformer(config, seed=seed) for seed in seeds]
    # With a small epsilon, Adam turns the rounding of a gradient close to zero
    # into a full step.
    model.optimizer.epsilon = 1e-4
    steps = STEPS
    if folder:
        if not checkpoints.steps(folder):
            checkpoints.save(folder, model, 0)
        steps_done = checkpoints.restore_newest(folder, model)["step"]
        steps = steps_done + 10
    before = weights_of(model)
    sharding = trainer.sharding(parts)
    longest = 128 if trainer.few_shapes else None
    pairs = some_pairs()
    validation = pairs.take(np.arange(3)) if folder else pairs
    history = keras.callbacks.History()
    Loop(model, recipe, trainer, teachers).fit(
        training_batches(pairs, 131, 1, sharding, steps_done, longest=longest),
        evaluation_batches(validation, 131, sharding, longest),
        ResumePoint(steps_done, Best()),
        steps,
        keras.callbacks.CallbackList([history], model=model),
    )
    if folder:
        checkpoints.save(folder, model, steps)
    weights = weights_of(model)
    moved = max(np.abs(weights[k] - before[k]).max() for k in weights)
    logs = {
        name: np.array(history.history[name][-1])
        for name in ("loss", "nll", "val_loss", "val_nll")
    }
    epochs = np.array(history.history["loss"])
    return {"moved": moved, **weights, **logs, "epochs": epochs}


def weights_of(model):
    return {
        name: keras.ops.convert_to_numpy(variable)
        for name, variable in state_of(model)["weights"].items()
    }


def some_pairs():
    """Returns pairs whose lengths make batches of 1 and of odd numbers of
    rows."""
    rng = np.random.default_rng(1)
    lengths = [*rng.integers(1, 23, size=29), 101, 97]
    sides = [
        [[*rng.integers(4, 31, size=n), 3] for n in lengths] for _ in range(2)
    ]
    return EncodedPairs(*map(Rows.of, sides))


def main(path, folder=None, devices=1, parts=1):
    if folder:
        strategy = None
        if int(devices) > 1 and keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            (cpu,) = tf.config.list_physical_devices("CPU")
            several = [tf.config.LogicalDeviceConfiguration()] * int(devices)
            tf.config.set_logical_device_configuration(cpu, several)
            names = [f"/cpu:{i}" for i in range(int(devices))]
            strategy = tf.distribute.MirroredStrategy(names)
        found = train_small_model(strategy, int(parts), folder=folder)
        np.savez(path, **found)
        return
    trainer = make_trainer()
    try:
        train_small_model(trainer, steps_done=trainer.worker)
    except ValueError as error:
        print(error, file=sys.stderr)
    np.savez(path, **train_small_model(trainer, clipnorm=0.05))


if __name__ == "__main__":
    main(*sys.argv[1:])
