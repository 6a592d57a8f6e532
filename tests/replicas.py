"""Three steps on 1 or 2 logical CPUs: `python replicas.py DEVICES FILE`."""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data.batches import (
    EncodedPairs,
    training_batches,
)
from keras_transformer.run import Recipe
from keras_transformer.training import compile_model


def main(devices, path):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * devices,
    )
    strategy = (
        tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(devices)])
        if devices > 1
        else tf.distribute.get_strategy()
    )
    rng = np.random.default_rng(1)
    # Sorted, so that one replica gets the long pairs and one the short.
    lengths = sorted(rng.integers(1, 23, size=61))
    pairs = EncodedPairs(
        *(
            tf.ragged.constant(
                [[*rng.integers(4, 31, size=n), 3] for n in lengths],
                dtype=tf.int32,
            )
            for _ in range(2)
        )
    )
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = Transformer(
            TransformerConfig(
                31,
                num_layers=2,
                d_model=22,
                num_heads=2,
                d_ff=17,
                dropout_rate=0.0,
            )
        )
        compile_model(model, Recipe(warmup_steps=20))
    before = model.get_weights()
    batches = training_batches(pairs, 131, seed=1, replicas=devices)
    history = model.fit(
        batches, steps_per_epoch=3, epochs=1, verbose=0, shuffle=False
    )
    moved = max(
        np.abs(new - old).max()
        for new, old in zip(model.get_weights(), before, strict=True)
    )
    logs = {k: v[0] for k, v in history.history.items() if k != "loss"}
    np.savez(
        path,
        moved=moved,
        **{w.path: keras.ops.convert_to_numpy(w) for w in model.weights},
        **logs,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
