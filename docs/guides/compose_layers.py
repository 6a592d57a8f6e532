# %% [markdown]
# # Compose layers
#
# The layers are ordinary Keras layers. They need Keras alone and run on
# TensorFlow, JAX and PyTorch, with the same outputs within 1e-5. This guide
# composes a classifier, saves it with its vocabulary, explains masks and
# positions, replaces the attention of a Keras model, and ends with the whole
# model of the paper.
#
# ![Ids pass PositionalEmbedding, two EncoderLayers, average pooling and Dense; the padding mask goes along](../figures/compose_layers.svg)

# %% tags=["remove-cell"]
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# %%
import pathlib
import subprocess
import sys
import tempfile

import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import ops

from keras_transformer import (
    EncoderLayer,
    LabelSmoothedCrossEntropy,
    MultiHeadAttention,
    PositionalEmbedding,
    TokenAccuracy,
    TokenLoss,
    Transformer,
    TransformerConfig,
    TransformerSchedule,
    causal_mask,
    padding_mask,
    replace_attention,
)
from keras_transformer.testing import assert_no_leak

# %% [markdown]
# ## An encoder
#
# `PositionalEmbedding` embeds token ids and adds their positions.
# `EncoderLayer` is one layer of the paper's encoder. This model returns the
# logits of three classes.

# %%
ids = keras.Input((None,), dtype="int32")
x = PositionalEmbedding(vocab_size=8000, d_model=128)(ids)  # id 0 is padding
for _ in range(2):
    x = EncoderLayer(d_model=128, num_heads=4, d_ff=256, dropout_rate=0.1)(x)
x = keras.layers.GlobalAveragePooling1D()(x)
classifier = keras.Model(ids, keras.layers.Dense(3)(x))

sentences = np.array([[5, 7, 9, 2], [4, 3, 0, 0]])
print(classifier(sentences).shape)

# %% [markdown]
# ## From strings, and back from a file
#
# Keras' `TextVectorization` turns text into ids inside the model, on TensorFlow.
# The file has the vocabulary, too. `TextClassifier` is such a model with word
# pieces instead of words (`examples/text_classifier.py` trains one).

# %%
words = keras.layers.TextVectorization(max_tokens=8000)
words.adapt(["where does the journey go", "it goes to Rome"])
strings = keras.Input((), dtype="string")
model = keras.Model(strings, classifier(words(strings)))
folder = tempfile.TemporaryDirectory()
file = pathlib.Path(folder.name, "classifier.keras")
model.save(file)
print(ops.convert_to_numpy(model(np.array(["the journey goes to Rome"]))))

# %% [markdown]
# Another program imports Keras and then `keras_transformer`, which registers the
# layers, and says the same. Without that import Keras finds no such class:

# %%
READ = f"""
import numpy as np
model = keras.models.load_model({str(file)!r})
print(model(np.array(["the journey goes to Rome"])).numpy())
"""
for imports in ("import keras, keras_transformer", "import keras"):
    program = [sys.executable, "-c", imports + READ]
    done = subprocess.run(program, capture_output=True, text=True)
    print(f"{imports}:")
    print(done.stdout or done.stderr.strip().splitlines()[-1][:150])
folder.cleanup()

# %% [markdown]
# Word pieces turn text into ids, too, on any backend:
#
# ```
# from keras_transformer.data import train_tokenizer
# from keras_transformer.inference import TextTokenizer
#
# tokenizer = TextTokenizer(train_tokenizer(open("train.en"), 8000))
# ids = tokenizer(["A sentence.", "Yes."])  # padded with 0
# ```
#
# ## Masks
#
# `PositionalEmbedding` marks id 0 as padding, as Keras'
# `Embedding(mask_zero=True)` does. Every layer reads that implicit mask and
# passes it on, so the model above ignores padding without further code.
#
# You can also pass masks by name: `mask` to `EncoderLayer`, `x_mask` and
# `memory_mask` to `DecoderLayer`, `attention_mask` to `MultiHeadAttention`.
# True means "may attend". A query that may attend to nothing has weights of
# zero, never NaN.
#
# A padding mask has one value for each position, a causal mask one for each
# pair of a query and a key. A decoder needs both.

# %%
one_sentence = np.array([[7, 5, 3, 9, 0, 0]])
padding = ops.convert_to_numpy(padding_mask(one_sentence))  # (1, 6)
causal = ops.convert_to_numpy(causal_mask(6))  # (1, 6, 6)
combined = padding[:, None, :] & causal  # (1, 6, 6)

figure, axes = plt.subplots(
    1, 3, figsize=(8, 3.2), sharey=True, layout="constrained"
)
for axis, title, mask in (
    (axes[0], "padding", np.broadcast_to(padding[:, None, :], causal.shape)),
    (axes[1], "causal", causal),
    (axes[2], "padding and causal", combined),
):
    axis.imshow(mask[0], cmap="Blues", vmin=0, vmax=1.4)
    axis.set_title(title)
    axis.set_xlabel("key")
    axis.set_xticks(range(6))
    axis.set_xticks(np.arange(5) + 0.5, minor=True)
    axis.set_yticks(np.arange(5) + 0.5, minor=True)
    axis.grid(which="minor", color="white", linewidth=2)
    axis.tick_params(which="minor", length=0)
axes[0].set_ylabel("query")
plt.show()

# %% [markdown]
# In blue cells the query may attend to the key. The last two positions are
# padding. Attention weights are zero exactly where the mask is false:

# %%
attention = MultiHeadAttention(num_heads=2, key_dim=8)
vectors = np.random.default_rng(1).normal(size=(1, 6, 16))
_, weights = attention(
    vectors,
    vectors,
    attention_mask=combined,
    return_attention_scores=True,
)
weights = ops.convert_to_numpy(weights)  # (1, heads, queries, keys)
for head in range(2):
    assert ((weights[:, head] > 0) == combined).all()

# %% [markdown]
# ## Check your own model
#
# A wrong mask raises no error; it only costs quality. To check the masks in your
# own model, call `assert_no_leak`. It changes the padding, and with
# `causal=True` the future, and raises an error if an output changes.

# %%
assert_no_leak(classifier, sentences)

# %% [markdown]
# This model has a mistake: its embedding does not mark padding, so the average
# over positions depends on how much padding there is.

# %%
leaking = keras.Sequential(
    [
        keras.layers.Embedding(8000, 128),  # mask_zero=True is missing
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(3),
    ]
)
try:
    assert_no_leak(leaking, sentences)
except AssertionError as error:
    message = str(error)
print(message)

# %% [markdown]
# ## Positions
#
# Attention does not know the order of its inputs, so the paper adds a vector to
# each embedding that depends on the position (section 3.5). Each pair of
# dimensions is a sine and a cosine of one frequency. An embedding whose table is
# zero shows these vectors alone.

# %%
only_positions = PositionalEmbedding(
    vocab_size=2,
    d_model=64,
    dropout_rate=0.0,
    embeddings_initializer="zeros",
)
encoding = ops.convert_to_numpy(only_positions(np.ones((1, 100), "int32")))[0]

plt.figure(figsize=(8, 3.2), layout="constrained")
plt.imshow(encoding.T, cmap="RdBu", aspect="auto", vmin=-1, vmax=1)
plt.xlabel("position")
plt.ylabel("dimension")
plt.colorbar()
plt.show()

assert np.allclose(encoding[:, 0], np.sin(np.arange(100)), atol=1e-5)

# %% [markdown]
# ## The modern block
#
# Models such as Llama and Qwen have another block. Each of its parts is an argument, and the
# paper's is the default: rotary positions (Su et al., 2021), normalisation by
# the root mean square, a gated feed-forward network (SwiGLU), and heads of keys
# and values that several heads of queries share. The embedding then adds no
# positions:

# %%
today = {
    "norm_first": True,
    "positions": "rotary",
    "normalization": "rms",
    "feed_forward": "swiglu",
    "num_key_value_heads": 2,
    "use_bias": False,
}
ids = keras.Input((None,), dtype="int32")
x = PositionalEmbedding(vocab_size=8000, d_model=32, positions=None)(ids)
for _ in range(2):
    x = EncoderLayer(d_model=32, num_heads=4, d_ff=64, **today)(x)
rotary = keras.Model(ids, x)

# %% [markdown]
# Rotary scores depend on distances alone. Padding before a sentence moves it to
# later positions, and its outputs stay. The order of the words matters:

# %%
sentence, padded = np.array([[5, 7, 9]]), np.array([[0, 0, 0, 5, 7, 9]])
outputs, later = (ops.convert_to_numpy(rotary(i)) for i in (sentence, padded))
np.testing.assert_allclose(later[:, 3:], outputs, atol=1e-4)

reversed_outputs = ops.convert_to_numpy(rotary(sentence[:, ::-1]))
assert not np.allclose(reversed_outputs[:, ::-1], outputs, atol=1e-2)

# %% [markdown]
# Steps with a cache give the same as the whole sequence. Grouped queries make
# the cache smaller, here by half:

# %%
layer = EncoderLayer(d_model=32, num_heads=4, d_ff=64, **today)
vectors = np.random.default_rng(1).normal(size=(1, 6, 32))
expected = ops.convert_to_numpy(layer(vectors, use_causal_mask=True))
cache = layer.empty_cache(batch_size=1, length=6)
print(cache["key"].shape)  # two heads instead of four
for index in range(6):
    step, cache = layer(
        vectors[:, index : index + 1], cache=cache, cache_index=index
    )
    np.testing.assert_allclose(
        ops.convert_to_numpy(step), expected[:, index : index + 1], atol=1e-4
    )

# %% [markdown]
# `TransformerConfig` has the same arguments, and a preset of all of them,
# `modern`, for `Transformer`, `LanguageModel` and `TextClassifier`. Other
# positions inside attention: override `encode_positions` of
# `MultiHeadAttention`, and name your class as `self_attention_class` in a
# subclass of `EncoderLayer` or `DecoderLayer`.
#
# ## Long sequences
#
# Time and memory of full attention grow with the square of the length. With
# `sliding_window=w`, a position attends to itself and to the w − 1 positions on
# each side of it, or before it in a causal layer, as section 4 of the paper
# proposes with r = 2 (w − 1). Both then grow with the length. This layer reads
# 30,000 positions at once; the weights of full attention would take 3.6 GB for
# each head:

# %%
local = EncoderLayer(d_model=16, num_heads=2, d_ff=32, sliding_window=33)
vectors = np.random.default_rng(1).normal(size=(1, 30_000, 16))
print(local(vectors).shape)

# %% [markdown]
# Each further layer lets a position see w − 1 positions farther.
# `TransformerConfig` has the same argument, for encoder and decoder. On a CPU,
# `TF_CPU_ALLOCATOR_USE_BFC=true` may save time: TensorFlow then keeps its memory.
#
# ## In place of Keras' attention
#
# `MultiHeadAttention` takes the arguments of
# `keras.layers.MultiHeadAttention` in the same order and with the same meaning,
# so in your code you only change the import. A functional or sequential model
# that is trained keeps its weights: `replace_attention` returns it with our
# layer in place of Keras'. (`MultiHeadAttention.from_keras` does it for one
# layer.)

# %%
x = keras.Input((None, 32))
attention = keras.layers.MultiHeadAttention(
    num_heads=2, key_dim=16, use_gate=True, name="attention"
)
y = keras.layers.LayerNormalization()(x + attention(x, x, use_causal_mask=True))
theirs = keras.Model(x, keras.layers.Dense(4)(y))
ours = replace_attention(theirs)
print(type(ours.get_layer("attention")).__module__)

vectors = np.random.default_rng(1).normal(size=(3, 5, 32))
expected = ops.convert_to_numpy(theirs(vectors))
np.testing.assert_allclose(
    ops.convert_to_numpy(ours(vectors)), expected, atol=1e-5
)

# %% [markdown]
# Two things differ. Keras' layer removes the implicit mask of its inputs, so that
# in a model with `Embedding(mask_zero=True)` and residual connections the layers
# behind it read padding; ours keeps it. And inputs have rank 3, so that
# `attention_axes` has nothing to choose from.
#
# Our layer has what a decoder needs: a cache, with a position for each row. Here
# three rows whose sentences have 3, 1 and 2 tokens each read one more:

# %%
layer = ours.get_layer("attention")
whole = ops.convert_to_numpy(layer(vectors, vectors, use_causal_mask=True))
begun, cache = vectors[:, :3], layer.empty_cache(batch_size=3, length=5)
_, cache = layer(begun, begun, cache=cache, cache_index=0)
rows, positions = np.arange(3), np.array([3, 1, 2])
step = vectors[rows, positions][:, None]
found, cache = layer(step, step, cache=cache, cache_index=positions)
np.testing.assert_allclose(
    ops.convert_to_numpy(found)[:, 0], whole[rows, positions], atol=1e-5
)

# %% [markdown]
# A row never sees the cache behind its position; later steps overwrite it.
#
# ## The whole model
#
# `Transformer` is the model of figure 1. The presets `base` and `big` have the
# sizes of table 3; `tiny` is smaller than any in the paper. This is the paper's
# training, with stock Keras:

# %%
config = TransformerConfig.preset("base", vocab_size=37000)
model = Transformer(config)  # {"source": ids, "target": ids} -> logits
model.compile(
    keras.optimizers.Adam(TransformerSchedule(config.d_model), 0.9, 0.98, 1e-9),
    LabelSmoothedCrossEntropy(),
    metrics=[TokenLoss(), TokenAccuracy()],
)
print(f"{model.count_params():,} parameters")

# %% [markdown]
# ## A batch in parts, with `fit`
#
# The paper's loss is the mean over the real tokens of a whole batch. Where a
# batch is cut into parts, over devices or by `gradient_accumulation_steps`, the
# mean of the parts' means is another number as soon as the parts differ in
# length. `keras-transformer train` counts the tokens of all parts, and so can
# you: the sum of the losses, with a weight of parts / (tokens of all parts) for
# each row. Here a batch of two rows, of 2 and of 6 tokens, is cut in two:


# %%
def one_update(loss, weights, parts):
    keras.utils.set_random_seed(1)
    small = TransformerConfig.preset("tiny", vocab_size=11, dropout_rate=0.0)
    model = Transformer(small)
    # Keras wants at least two steps to accumulate over.
    steps = {"gradient_accumulation_steps": parts} if parts > 1 else {}
    model.compile(keras.optimizers.SGD(0.1, **steps), loss)
    before = np.concatenate([w.ravel() for w in model.get_weights()])
    size = len(targets) // parts
    ids = {"source": targets, "target": targets}
    model.fit(ids, targets, size, 1, 0, sample_weight=weights, shuffle=False)
    after = np.concatenate([w.ravel() for w in model.get_weights()])
    return after - before


targets = np.array([[5, 7, 0, 0, 0, 0], [4, 3, 9, 8, 6, 2]])
whole = one_update(LabelSmoothedCrossEntropy(), None, parts=1)
means = one_update(LabelSmoothedCrossEntropy(), None, parts=2)
weights = np.full(2, 2 / np.count_nonzero(targets))
sums = one_update(LabelSmoothedCrossEntropy(reduction="sum"), weights, parts=2)
for name, update in (("means", means), ("sums", sums)):
    error = np.linalg.norm(update - whole) / np.linalg.norm(whole)
    print(f"{name}: relative error of the update {error:.1e}")
assert error < 1e-4

# %% [markdown]
# A distribution strategy adds up the sums of its replicas, where the weight is
# 1 / (tokens of all parts). With accumulation, Keras' optimizers pass the number
# of batches to a schedule, not that of updates: see `TransformerSchedule`.
#
# On TensorFlow, Keras' Adam squares the gradients of an embedding one token at
# a time, and so takes longer steps for frequent tokens than the paper's Adam.
# This does not affect embeddings that are tied to the projection, as here. For
# others, use `keras_transformer.training.adam.Adam`.
#
# ## oneDNN
#
# TensorFlow leaves oneDNN off on processors without AVX-512. The commands and
# examples of this package turn it on. In your own program, set the variable
# before you import TensorFlow:
#
# ```python
# import os
#
# os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# ```
#
# Next: [train a translator on your own text](train_on_your_text.py), or
# [decode a model of your own](decode_your_model.py).
