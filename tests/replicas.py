"""Some steps of training, cut as the arguments say:

    python replicas.py FILE DEVICES PARTS [CLIPNORM]

Runs on so many logical CPUs, or as one of the workers of `TF_CONFIG`, and
writes the weights to FILE. DONE in the environment: the step to begin with.
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import TransformerConfig
from keras_transformer.data.batches import (
    EncodedPairs,
    evaluation_batches,
    training_batches,
)
from keras_transformer.distribution import cut_for, default_strategy
from keras_transformer.run import Recipe
from keras_transformer.training import make_model
from keras_transformer.training_loop import Loop

STEPS = 3


def main(path, devices, parts, clipnorm=None):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * int(devices),
    )
    strategy = default_strategy()
    if int(devices) > 1:
        strategy = tf.distribute.MirroredStrategy(
            [f"/cpu:{i}" for i in range(int(devices))]
        )
    recipe = Recipe(
        warmup_steps=20,
        validate_every=2,
        global_clipnorm=clipnorm and float(clipnorm),
        dtype_policy="float32",
    )
    config = TransformerConfig(
        31, num_layers=2, d_model=22, num_heads=2, d_ff=17, dropout_rate=0.0
    )
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make_model(config, recipe)
    # Where a gradient is close to zero, Adam scales its rounding up to a step.
    model.optimizer.epsilon = 1e-4
    before = [keras.ops.convert_to_numpy(w) for w in model.weights]
    cut = cut_for(strategy, int(parts))
    pairs = some_pairs()
    history = keras.callbacks.History()
    Loop(model, recipe, strategy).fit(
        training_batches(pairs, 131, seed=1, cut=cut),
        evaluation_batches(pairs, 131, cut),
        int(os.environ.get("DONE", 0)),
        STEPS,
        keras.callbacks.CallbackList([history], model=model),
    )
    weights = {w.path: keras.ops.convert_to_numpy(w) for w in model.weights}
    moved = max(
        np.abs(new - old).max()
        for new, old in zip(weights.values(), before, strict=True)
    )
    logs = {
        name: history.history[name][-1]
        for name in ("loss", "nll", "val_loss", "val_nll")
    }
    np.savez(path, moved=moved, **weights, **logs)


def some_pairs():
    """Of lengths that make batches of 1 and of odd numbers of rows."""
    rng = np.random.default_rng(1)
    lengths = [*rng.integers(1, 23, size=29), 101, 97]
    sides = [
        [[*rng.integers(4, 31, size=n), 3] for n in lengths] for _ in range(2)
    ]
    return EncodedPairs(
        *(tf.ragged.constant(side, dtype=tf.int32) for side in sides)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
