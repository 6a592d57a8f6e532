# %% [markdown]
# # Keras on JAX, over several devices
#
# Layers and models run on JAX as they are, and `fit` trains them over all devices
# with `keras.distribution`. This guide makes one update on one device, on four,
# and with the matrices of the model cut in two, and gets the same weights. No GPU
# is needed: it splits the processor into four devices. `keras-transformer train`
# runs on JAX, too: see [Several devices and machines](several_devices.py).
#
# ![A model is trained on JAX, on one device or four; its run is exported with TensorFlow](../figures/keras_on_jax.svg)

# %%
import os

os.environ["KERAS_BACKEND"] = "jax"
# With real GPUs or TPUs, leave this out.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import keras
import numpy as np

from keras_transformer import (
    LabelSmoothedCrossEntropy,
    Transformer,
    TransformerConfig,
)

print(jax.devices())

# %% [markdown]
# ## One update
#
# One batch of eight rows, one of them with padding. `fit` compiles the step:
# `jit_compile` is on where the backend can. XLA compiles again for each new
# shape, so pad batches to a few lengths.

# %%
ids = np.random.default_rng(1).integers(2, 32, (8, 11))
ids[3, 6:] = 0  # padding
config = TransformerConfig(
    vocab_size=32,
    num_layers=1,
    d_model=32,
    num_heads=4,
    d_ff=64,
    dropout_rate=0.0,
)


def one_update(distribution):
    """Returns a new model, and how one step changes its weights."""
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(1)
    model = Transformer(config)
    model.compile(keras.optimizers.SGD(0.1), LabelSmoothedCrossEntropy())
    before = model.get_weights()
    model.fit({"source": ids, "target": ids}, ids, batch_size=8, verbose=0)
    keras.distribution.set_distribution(None)
    pairs = zip(model.get_weights(), before, strict=True)
    return model, np.concatenate([np.ravel(a - b) for a, b in pairs])


_, alone = one_update(None)


def error(update):
    return np.linalg.norm(update - alone) / np.linalg.norm(alone)


# %% [markdown]
# ## Data over devices
#
# Each device has all weights and a share of the rows. The loss is that of the
# whole batch, so the update is that of one device, up to rounding:

# %%
_, update = one_update(keras.distribution.DataParallel())
print(f"four devices: relative error of the update {error(update):.0e}")
assert error(update) < 1e-4

# %% [markdown]
# ## Weights over devices
#
# A model that is too large for one device is cut. A `LayoutMap` says how, by
# patterns of whole paths of weights. Each device computes its own heads, and its
# own units inside the feed-forward network; what they add to is exchanged.
#
# | weights | shape | divided along |
# |---|---|---|
# | `query/kernel`, `key/kernel`, `value/kernel` | (D, H · d_k) | heads: axis 1 |
# | `output/kernel` of attention | (H · d_v, D) | heads: axis 0 |
# | `inner/kernel`, `inner/bias` | (D, d_ff), (d_ff,) | units: the last axis |
# | `outer/kernel` | (d_ff, D) | units: axis 0 |
# | `embeddings` | (V, D) | ids: axis 0 |
# | biases behind a sum, normalisation | (D,) | not divided |

# %%
model, _ = one_update(None)
for weight in model.weights[:12]:
    print(weight.path, tuple(weight.shape))

# %%
mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"])
layout = keras.distribution.LayoutMap(mesh)
layout[".*/(query|key|value|inner)/kernel"] = (None, "model")
layout[".*/(query|key|value|inner)/bias"] = ("model",)
layout[".*/(output|outer)/kernel"] = ("model", None)
layout[".*/embeddings"] = ("model", None)

model, update = one_update(
    keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
)
print(f"cut in two: relative error of the update {error(update):.0e}")
assert error(update) < 1e-4

kernel = model.get_layer("encoder_0").self_attention.query_projection.kernel
piece = kernel.value.addressable_shards[0].data.shape
print(f"each device has {piece} of {tuple(kernel.shape)}")
assert piece == (32, 16)

# %% [markdown]
# ## Half precision
#
# With `mixed_bfloat16`, weights and the loss stay in float32, and products are in
# bfloat16, as on the H200 of our [benchmarks](../benchmarks.md).

# %%
half = Transformer(config, dtype="mixed_bfloat16")
logits = half({"source": ids, "target": ids})
print(half.weights[0].dtype, half.get_layer("encoder_0").compute_dtype)
assert half.weights[0].dtype == "float32"

# %% [markdown]
# Attention uses the backend's fused kernel: cuDNN's on NVIDIA's GPUs, unless
# `keras.config.disable_flash_attention()`. [What is exact](../exactness.md) has
# one table for devices, backends and repetitions.
