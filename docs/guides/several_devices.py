# %% [markdown]
# # Several devices and machines
#
# The update is the same however the batch is split. This guide trains on one
# device, on two, and on one device in two parts, with equal losses. No GPU is
# needed: the guide splits the processor into two devices, as
# `examples/two_replicas.py` does.
#
# ![Two devices share the rows of one batch; their sums are added and divided by the number of tokens](../figures/several_devices.svg)
#
# ## Which backend
#
# | you have | take |
# |---|---|
# | processors alone | TensorFlow, the default |
# | GPUs or TPUs of one machine | JAX: `KERAS_BACKEND=jax keras-transformer train …` |
# | several machines | TensorFlow: `MultiWorkerMirroredStrategy` |
#
# A run is the same on both: the same recipe, batches, checkpoints and weights, up to
# rounding. A run that was begun on one is resumed on the other. Only TensorFlow exports
# it, on any machine. JAX compiles a program for each of some thirty shapes of batches,
# which takes seconds each; on a GPU it keeps them for the next start
# (`JAX_COMPILATION_CACHE_DIR`).
#
# ```
# pip install '.[jax]' 'jax[cuda13]'     # from a clone, without TensorFlow
# KERAS_BACKEND=jax keras-transformer train --corpus FOLDER --out runs/NAME
# ```
#
# For GPUs on TensorFlow, run `pip install '.[text]' 'tensorflow[and-cuda]'`. On either,
# all GPUs of the machine are used without configuration. The tests have run on CPUs
# alone.

# %% tags=["remove-cell"]
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import tensorflow as tf

tf.get_logger().setLevel("ERROR")

# %%
import dataclasses
import json
import pathlib
import tempfile

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.training import Recipe, start_run, train

# %% [markdown]
# ## Two devices without a GPU
#
# Devices are configured before TensorFlow does anything else. With real GPUs,
# leave this cell out.

# %%
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
devices = [device.name for device in tf.config.list_logical_devices("CPU")]
print(devices)

# %%
temporary = tempfile.TemporaryDirectory()  # everything below goes here
folder = pathlib.Path(temporary.name)
corpus = folder / "corpus"
corpus.mkdir()
for split, size in {"train": 500, "validation": 4}.items():
    english, german = zip(*pairs_of_split(split, size), strict=True)
    (corpus / f"{split}.en").write_text("\n".join(english) + "\n", "utf-8")
    (corpus / f"{split}.de").write_text("\n".join(german) + "\n", "utf-8")

# %% [markdown]
# ## Train three times
#
# The loss is the sum over all real target tokens of the batch, divided by their
# number. This is so
#
# - for one GPU and for several (`MirroredStrategy`, chosen automatically);
# - for several machines (`MultiWorkerMirroredStrategy`, when `TF_CONFIG` names
#   them);
# - for a batch whose parts are computed one after the other
#   (`--gradient-accumulation-steps`, a field of `Recipe` too).
#
# `--global-clipnorm` clips the summed gradient. Only dropout differs, because its
# mask depends on the device and on the row's place there. The runs below have no
# dropout.

# %%
STEPS = 6
recipe = Recipe(
    corpus=str(corpus),
    vocab_size=400,
    tokens_per_batch=300,
    warmup_steps=20,
    validate_every=STEPS,
    keep_checkpoints=1,
    average_checkpoints=1,
    dtype_policy="float32",
    global_clipnorm=1.0,
)
shape = {
    "num_layers": 1,
    "d_model": 32,
    "num_heads": 2,
    "d_ff": 64,
    "dropout_rate": 0.0,
}
in_parts = dataclasses.replace(recipe, gradient_accumulation_steps=2)
mirrored = tf.distribute.MirroredStrategy(devices)


class Losses(keras.callbacks.Callback):
    """Keeps the loss after each step: the mean over all tokens so far."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(logs["loss"])


def losses_of(name, recipe, strategy=None):
    """Trains a new run and returns its losses, one of each step."""
    run = start_run(folder / name, "tiny", recipe, **shape)
    losses = Losses()
    train(run, STEPS, strategy=strategy, verbose=0, callbacks=[losses])
    return np.array(losses.values)


losses = {
    "one device": losses_of("one", recipe),
    "two devices": losses_of("two", recipe, mirrored),
    "two parts": losses_of("parts", in_parts),
}

# %%
styles = {"one device": "-", "two devices": "o", "two parts": "x"}
plt.figure(figsize=(6, 3.2), layout="constrained")
for name, values in losses.items():
    plt.plot(range(1, STEPS + 1), values, styles[name], ms=9, mfc="none")
plt.xlabel("step")
plt.ylabel("mean loss so far")
plt.legend(list(losses), frameon=False)
plt.grid(alpha=0.3)
plt.show()

# %% [markdown]
# The losses agree, except for rounding.

# %%
for name, values in losses.items():
    difference = np.abs(values - losses["one device"]).max()
    print(f"{name}: largest difference {difference:.1e}")
    np.testing.assert_allclose(values, losses["one device"], rtol=1e-3)

# %% [markdown]
# ## Your own strategy
#
# `train(run)` chooses the strategy; `train(run, strategy=...)` takes yours, on JAX a
# `keras.distribution.DataParallel`.
# `starts.jsonl` in the run's folder has the number of devices of each start:

# %%
start = json.loads((folder / "two" / "starts.jsonl").read_text())
assert start["devices"] == 2

# %% [markdown]
# `tokens_per_batch` is the size of the whole batch. Each replica gets its share
# of the rows, so the recipe of a run stays the same on another number of
# devices. The equality holds for `keras_transformer.training`; `fit` of Keras
# under a strategy differs, see [Compose layers](compose_layers.py), and
# [What is exact](../exactness.md) for all cases.
#
# ## A batch that does not fit in memory
#
# With `gradient_accumulation_steps=4`, a device computes four parts of its
# batch one after the other, adds their gradients, and makes one update. It needs
# the memory of one part.
#
# ```
# keras-transformer train --corpus FOLDER --tokens-per-batch 25000 \
#     --gradient-accumulation-steps 4 --out runs/NAME
# ```
#
# ## Several machines
#
# Each machine is a worker and runs the same command. `TF_CONFIG` names all
# workers, and which of them this one is. All tasks must be of type `worker`; the
# first one is the chief.

# %%
workers = ["machine-0.example:2222", "machine-1.example:2222"]
for index in range(2):
    tf_config = {
        "cluster": {"worker": workers},
        "task": {"type": "worker", "index": index},
    }
    print(f"TF_CONFIG='{json.dumps(tf_config)}'")

# %% [markdown]
# ```
# keras-transformer train --resume --corpus FOLDER --out runs/NAME
# ```
#
# - All workers must see the run's folder, on a shared file system, and the corpus
#   at the same path. The first worker writes; the others wait for the folder.
# - With `--resume`, the command starts the run or resumes it, so a worker that
#   comes back can use the same command. All workers must resume from the same
#   step; otherwise training ends with an error.
# - After SIGTERM on one worker, all of them stop after the same step, and the
#   first one saves.
# - In your own program, call
#   `keras_transformer.training.tensorflow_trainer.default_strategy()` before
#   TensorFlow does anything else, and pass the result to
#   `train(run, strategy=…)`.
#
# `examples/kubernetes.yaml` trains on two machines in this way. To repeat a run bit
# for bit, keep the number of devices; see
# [Stop, resume, repeat exactly](stop_and_resume.py).

# %%
temporary.cleanup()
