# %% [markdown]
# # Decode your own model
#
# `greedy_search`, `beam_search` and `sample` work with any step function, on
# any backend. This guide searches a small table of probabilities, where you can
# follow each result, and then a decoder-only model and a whole `Transformer`,
# with caches.
#
# ![A step function returns logits to beam_search, which returns tokens to it and keeps the K best hypotheses](../figures/decode_your_model.svg)

# %% tags=["remove-cell"]
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import ops

from keras_transformer import (
    EncoderLayer,
    LabelSmoothedCrossEntropy,
    PositionalEmbedding,
    Transformer,
    TransformerConfig,
    beam_search,
    blockwise_search,
    greedy_search,
    length_penalty,
    sample,
)

# %% [markdown]
# ## A step function
#
# A step function takes the last tokens `(N,)`, a cache (any nested structure of
# tensors with N rows) and the position. It returns logits `(N, V)` and the new
# cache.
#
# Here, the next token depends on the last token alone, so the cache is empty.
# Id 0 is padding, id 1 stands for unknown tokens, id 2 starts a sequence and id 3
# ends it; `start_id` and `end_id` of the searches change the last two.

# %%
NAMES = ["(pad)", "(unknown)", "(start)", "(end)", "a", "b", "c"]
START, END, A, B, C = 2, 3, 4, 5, 6
probabilities = np.full((7, 7), 1e-6)
probabilities[START, [A, B]] = 0.6, 0.4
probabilities[A, [A, B, C, END]] = 0.2, 0.2, 0.2, 0.4
probabilities[B, [C, END]] = 0.9, 0.1
probabilities[C, [A, END]] = 0.05, 0.95
table = ops.convert_to_tensor(np.log(probabilities), dtype="float32")


def step(tokens, cache, index):
    return ops.take(table, tokens, axis=0), cache


def text(ids):
    ids = [int(i) for i in ops.convert_to_numpy(ids)]
    return " ".join(NAMES[i] for i in ids if i > 0)


# %% [markdown]
# ## Greedy search and beam search
#
# `greedy_search` takes the most probable token at each step. `beam_search`
# keeps the `beam_size` most probable beginnings. `max_lengths` are the maximum
# lengths, one for each row, end token included.

# %%
greedy_ids, greedy_scores = greedy_search(step, {}, max_lengths=[6])
print(f"greedy {float(greedy_scores[0]):7.3f}  {text(greedy_ids[0])}")

ids, scores = beam_search(step, {}, max_lengths=[6], beam_size=3, alpha=0.0)
for row, score in zip(ids[0], scores[0], strict=True):
    print(f"beam   {float(score):7.3f}  {text(row)}")

# %% [markdown]
# Greedy search begins with the more probable "a". Beam search finds a sequence
# that begins with "b" and is more probable as a whole. With `alpha=0.0`, both
# scores are log-probabilities.

# %%
assert text(ids[0, 0]) == "b c (end)"
assert np.isclose(float(scores[0, 0]), np.log(0.4 * 0.9 * 0.95), atol=1e-4)
assert float(scores[0, 0]) > float(greedy_scores[0])

# %% [markdown]
# ## The length penalty
#
# Longer sequences are less probable. Beam search therefore divides
# log-probabilities by the length penalty ((5 + n) / 6)^α (section 6.1; Wu et
# al., 2016). The length n counts the end token, which a hypothesis at its limit
# ends with, too. α is 0.6 by default.

# %%
lengths = np.arange(1, 51)
plt.figure(figsize=(6, 3.2), layout="constrained")
for alpha in (0.0, 0.6, 1.0):
    penalty = ops.convert_to_numpy(length_penalty(lengths, alpha))
    plt.plot(lengths, penalty, label=f"α = {alpha}")
plt.xlabel("length n")
plt.ylabel("length penalty")
plt.legend(frameon=False)
plt.grid(alpha=0.3)
plt.show()

# %%
_, penalised = beam_search(step, {}, max_lengths=[6], beam_size=3)
expected = np.log(0.4 * 0.9 * 0.95) / float(length_penalty(3, 0.6))
assert np.isclose(float(penalised[0, 0]), expected, atol=1e-4)

# %% [markdown]
# ## Sampling
#
# `sample` draws each token from the model's distribution, with a temperature,
# `top_k` and `top_p`. The same `seed` draws the same tokens. For several samples
# of one sentence, repeat its row.

# %%
rows = [6] * 1000
ids, _ = sample(step, {}, max_lengths=rows, seed=1)
first = ops.convert_to_numpy(ids)[:, 0]
print(f"{np.mean(first == A):.2f} of the samples begin with a")
assert 0.55 < np.mean(first == A) < 0.65

again, _ = sample(step, {}, max_lengths=rows, seed=1)
assert (ops.convert_to_numpy(again) == ops.convert_to_numpy(ids)).all()

# %% [markdown]
# A low temperature prefers probable tokens; `top_k` and `top_p` exclude
# improbable ones.

# %%
figure, axes = plt.subplots(
    1, 3, figsize=(8, 2.8), sharey=True, layout="constrained"
)
for axis, settings in zip(
    axes,
    ({"temperature": 1.0}, {"temperature": 0.3}, {"top_p": 0.5}),
    strict=True,
):
    ids, _ = sample(step, {}, max_lengths=rows, seed=2, **settings)
    first = ops.convert_to_numpy(ids)[:, 0]
    axis.bar(["a", "b"], [np.mean(first == token) for token in (A, B)])
    axis.set_title(", ".join(f"{k}={v}" for k, v in settings.items()))
axes[0].set_ylabel("share of first tokens")
plt.show()

# %% [markdown]
# ## Constraints
#
# The three functions above take the same constraints. `min_lengths` are the least lengths,
# the end token included. `prefix` prescribes the first tokens of a row; -1
# leaves a position free.

# %%
ids, scores = sample(
    step,
    {},
    max_lengths=[5, 9],
    top_p=0.9,
    min_lengths=[4, 4],
    prefix=[[B], [-1]],
    seed=3,
)
ids = ops.convert_to_numpy(ids)
for row in ids:
    print(text(row))
assert ids[0, 0] == B
assert (np.count_nonzero(ids, axis=1) >= 4).all()
assert (np.count_nonzero(ids, axis=1) <= [5, 9]).all()

# %% [markdown]
# ## Several tokens at a step
#
# `blockwise_search` reads several tokens at a step: one that is certain, and
# proposals for those that follow. The logits after each of them show how many
# proposals greedy search would have taken. So the result is always that of
# `greedy_search`; good proposals only save steps. Here, they are the most
# probable followers of each token.

# %%
longer = ops.where(np.arange(7) == END, -20.0, table)  # rarely ends
follower = ops.argmax(longer, axis=-1)


def longer_step(tokens, cache, index):
    return ops.take(longer, tokens, axis=0), cache


def verify(tokens, cache, positions):
    """Returns logits after each token of the blocks."""
    return ops.take(longer, tokens, axis=0), cache


def propose(cache, accepted, certain):
    """Returns what may follow the token that is certain."""
    second = ops.take(follower, certain)
    third = ops.take(follower, second)
    return ops.cast(ops.stack([second, third], axis=1), "int32"), cache


expected, _ = greedy_search(longer_step, {}, max_lengths=[10])
ids, _, steps = blockwise_search(verify, propose, {}, [10], block_size=3)
print(f"{text(ids[0])}: {int(steps[0])} steps for 10 tokens")
assert text(ids[0]) == text(expected[0])
assert int(steps[0]) == 4  # one token at the first step, then three at a time

# %% [markdown]
# ## A model with a cache
#
# A real model attends to all earlier tokens. A cache keeps their keys and values:
# `layer.empty_cache(batch, length)` makes one, and a call with `cache=` and
# `cache_index=` returns the output and the new cache.
#
# A decoder-only model is an encoder layer with a causal mask; this one has random
# weights.

# %%
VOCABULARY, LENGTH = 7, 6
embedding = PositionalEmbedding(VOCABULARY, d_model=16)
layer = EncoderLayer(d_model=16, num_heads=2, d_ff=32)


def whole_logits(ids):
    """Returns the logits of all positions at once."""
    x = layer(embedding(ids), use_causal_mask=True)
    return embedding(x, reverse=True)


def cached_step(tokens, cache, index):
    """Returns the logits of the next token alone."""
    x = embedding(tokens[:, None], offset=index)
    x, cache = layer(x, cache=cache, cache_index=index)
    return embedding(x, reverse=True)[:, 0], cache


# %% [markdown]
# Step by step, the model gives the same logits as in one pass. Write this check
# for your own step function, too.

# %%
tokens = np.array([[2, 5, 4, 6, 5, 4], [2, 6, 6, 4, 5, 5]])
expected = ops.convert_to_numpy(whole_logits(tokens))
cache = layer.empty_cache(len(tokens), LENGTH)
for index in range(LENGTH):
    logits, cache = cached_step(tokens[:, index], cache, index)
    logits = ops.convert_to_numpy(logits)
    np.testing.assert_allclose(logits, expected[:, index], atol=1e-5)

# %% [markdown]
# A search needs a cache with one row for each hypothesis. Beam search with two
# sentences and three beams has six rows.

# %%
beams = 3
ids, scores = beam_search(
    cached_step,
    layer.empty_cache(2 * beams, LENGTH),
    max_lengths=[LENGTH, LENGTH],
    beam_size=beams,
)
assert tuple(ids.shape) == (2, beams, LENGTH)
assert (np.diff(ops.convert_to_numpy(scores), axis=1) <= 0).all()

# %% [markdown]
# `LanguageModel` is such a model with all of this in its method `generate`;
# `examples/language_model.py` trains one.
#
# ## The whole model
#
# `Transformer` is trained by `fit`: the target begins with the start token, the
# labels end with the end token, and both are padded with 0.

# %%
config = TransformerConfig(
    vocab_size=50, num_layers=1, d_model=16, num_heads=2, d_ff=32
)
model = Transformer(config)
source = np.array([[7, 5, 9, 0], [8, 6, 0, 0]])
labels = np.array([[10, 11, END, 0], [12, 13, 14, END]])
target = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=START)
model.compile(keras.optimizers.Adam(0.01), LabelSmoothedCrossEntropy())
history = model.fit(
    {"source": source, "target": target}, labels, epochs=60, verbose=0
)

# %% [markdown]
# The methods `encode`, `project_memory`, `empty_cache` and `decode_step` make the
# step function. The memory's keys and values are computed once and shared by the
# beams of a sentence. A search may return any id, so lower the logits of padding,
# unknown and start.

# %%
memory_mask = ops.convert_to_tensor(source != 0)
memory_cache = model.project_memory(model.encode(source))
barred = ops.where(ops.arange(config.vocab_size) < END, -1e9, 0.0)


def next_token(tokens, cache, index):
    logits, cache = model.decode_step(
        tokens, cache, index, memory_cache, memory_mask
    )
    return logits + barred, cache


ids, scores = beam_search(
    next_token,
    model.empty_cache(len(source) * beams, LENGTH),
    max_lengths=[LENGTH] * len(source),
    beam_size=beams,
)
best = ops.convert_to_numpy(ids)[:, 0]
print(best)
np.testing.assert_array_equal(best[:, :4], labels)

# %% [markdown]
# Blockwise search accepts a different number of tokens in each row, so the rows
# come to different positions. `offset` and `cache_index` take one position for
# each row, and `decode_step` takes blocks of tokens. What is written in the cache
# for a rejected token is overwritten by the next block. The last block may reach
# beyond the maximum length, so the cache is one block longer.

# %%
BLOCK = 3


def guess(cache, accepted, certain):
    """Proposes the two ids that follow: this model counts upwards."""
    return ops.stack([certain + 1, certain + 2], axis=1), cache


ids, _, steps = blockwise_search(
    next_token,
    guess,
    model.empty_cache(len(source), LENGTH + BLOCK),
    max_lengths=[LENGTH] * len(source),
    block_size=BLOCK,
)
np.testing.assert_array_equal(ops.convert_to_numpy(ids)[:, :4], labels)
print(f"{ops.convert_to_numpy(steps)} steps for 3 and 4 tokens")
assert (ops.convert_to_numpy(steps) < [3, 4]).all()

# %% [markdown]
# For text, `Translator` has a tokenizer and a faster search in one graph, for a
# `Transformer` that a [run](train_on_your_text.py) trained.
#
# With `return_attention_scores=True`, `MultiHeadAttention`, `EncoderLayer` and
# `DecoderLayer` also return their attention weights. `examples/images.py` draws
# them; for an export, `translate --explain` does.
