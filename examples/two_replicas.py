"""Data-parallel training on two replicas, without any GPU.

Splits the CPU into two logical devices and trains under `MirroredStrategy`,
as the package does by itself where it finds several GPUs. The loss is exact:
the curve is the one of a single device, but for rounding and dropout.

    python examples/two_replicas.py

Promise: about two minutes on two CPU cores; the loss falls below 4.
"""

import os
import pathlib
import tempfile

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import tensorflow as tf

from keras_transformer.training import Recipe, start_run, train
from keras_transformer.training.callbacks import read_log


def main(steps=150, corpus="builtin", **shape):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(
            corpus=corpus,
            vocab_size=600,
            tokens_per_batch=2000,
            warmup_steps=100,
            validate_every=min(50, steps),
            data_dir=folder,
        )
        run = start_run(pathlib.Path(folder, "run"), "tiny", recipe, **shape)
        train(run, steps, strategy=strategy)
        loss = read_log(run.folder)[-1]["val_loss"]
    print(f"{strategy.num_replicas_in_sync} replicas, loss {loss:.3f}")
    return loss


if __name__ == "__main__":
    main()
