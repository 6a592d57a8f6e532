# %% [markdown]
# # The paper, annotated
#
# This page goes through "Attention Is All You Need"
# ([Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)) section by section:
# its formulas, the code of this package that computes them, and small checks
# that you can run. At the end a model of the paper's kind is trained in two
# minutes, and its attention is drawn as in figures 3 to 5. You need some
# Keras, and what a matrix product and a softmax are.
#
# ![Figure 1: an encoder and a decoder, each a stack of N layers](../figures/transformer.svg)
#
# *Figure 1 of the paper, with the shapes of the tensors and our names.* The
# encoder (left) turns a sentence into one vector for each of its tokens. The
# decoder (right) predicts the translation, token by token, from these vectors
# and from the tokens it has written so far.
#
# | symbol | meaning | `base` | the model below |
# |---|---|---|---|
# | $B$ | sentences in a batch | | 64 |
# | $S$, $T$ | tokens of the source, of the target | | at most 30 |
# | $V$ | tokens in the vocabulary | 37,000 | 1,000 |
# | $N$ | layers in the encoder, and in the decoder | 6 | 2 |
# | $d_{\text{model}}$ | width of the vectors between layers | 512 | 128 |
# | $h$ | attention heads | 8 | 4 |
# | $d_k$, $d_v$ | width of a head's keys and values, $d_{\text{model}} / h$ | 64 | 32 |
# | $d_{\text{ff}}$ | inner width of the feed-forward network | 2048 | 256 |
#
# The code blocks with a file name come from the package itself, without their
# docstrings. They have a few more lines than the formulas need: checks of arguments
# and shapes, decoding with a cache, and options that the paper does not have. The
# page goes from the inside to the outside: attention first, then layers and stacks.

# %% tags=["remove-cell"]
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# %%
import itertools

import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import ops

from keras_transformer import (
    EncoderLayer,
    FeedForward,
    LabelSmoothedCrossEntropy,
    MultiHeadAttention,
    Perplexity,
    PositionalEmbedding,
    Transformer,
    TransformerConfig,
    TransformerSchedule,
    beam_search,
    causal_mask,
    length_penalty,
    padding_mask,
)
from keras_transformer.data import load_pairs, train_tokenizer
from keras_transformer.ids import PAD, START
from keras_transformer.inference.piece_words import weights_of_words, words_of
from keras_transformer.layers import (
    positional_encoding,
    scaled_dot_product_attention,
)

keras.utils.set_random_seed(1)
random = np.random.default_rng(1)


def array(x):
    return ops.convert_to_numpy(x)


# %% [markdown]
# ## 3.2.1 Scaled dot-product attention
#
# Attention looks something up. A query $q$ is compared with keys; each key has
# a value; the result is the mean of the values, weighted by how well their keys
# match. With all queries, keys and values as the rows of matrices:
#
# $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\left(\frac{Q K^T}{\sqrt{d_k}}\right) V \qquad (1)$$
#
# ![Figure 2: scaled dot-product attention, and multi-head attention](../figures/attention.svg)
#
# *Figure 2.* In code, all sentences and heads are computed at once: the last two
# axes are the matrices of the formula.
#
# ```{code-of} keras_transformer.layers.attention.scaled_dot_product_attention
# ```
#
# The mask decides which keys a query may see. The scores of hidden keys become
# so low that their weights are zero. Here three queries see one, two and three
# keys; each row of weights adds up to 1:

# %%
query, key, value = random.normal(size=(3, 1, 1, 3, 8)).astype("float32")
output, weights = scaled_dot_product_attention(
    query, key, value, mask=causal_mask(3)[:, None]
)
print(np.round(array(weights)[0, 0], 2))
assert np.allclose(array(weights).sum(-1), 1, atol=1e-6)
assert np.allclose(array(output)[0, 0, 0], value[0, 0, 0], atol=1e-6)

# %% [markdown]
# **Why divide by** $\sqrt{d_k}$**?** If the components of $q$ and $k$ are
# independent with mean 0 and variance 1, then $q \cdot k$ has variance $d_k$
# (footnote 4). Without the division, wide heads have large scores, the softmax puts
# nearly all weight on one key, and its gradient nearly vanishes.

# %%
widths = [2**i for i in range(1, 10)]
largest = {"divided by √d_k": [], "as they are": []}
for width in widths:
    queries, keys = random.normal(size=(2, 200, 16, width))
    scores = np.einsum("nqd,nkd->nqk", queries, keys)
    for name, x in zip(largest, (scores / width**0.5, scores), strict=True):
        probabilities = array(ops.softmax(x))
        largest[name].append(probabilities.max(-1).mean())

plt.figure(figsize=(6, 3), layout="constrained")
for name, means in largest.items():
    plt.plot(widths, means, "o-", label=name)
plt.xscale("log", base=2)
plt.ylim(0, 1)
plt.xlabel("width of a head, d_k")
plt.ylabel("largest of 16 weights, mean")
plt.legend(title="scores", frameon=False)
plt.grid(alpha=0.3)
plt.show()
assert max(largest["divided by √d_k"]) < 0.5 < largest["as they are"][-1]

# %% [markdown]
# ## 3.2.2 Multi-head attention
#
# One weighted mean can attend to one thing at a time. So the model projects
# queries, keys and values $h$ times to narrower ones, attends with each, and
# projects the results back:
#
# $$\operatorname{MultiHead}(Q, K, V) = \operatorname{Concat}(\text{head}_1, \dots, \text{head}_h)\, W^O$$
#
# $$\text{head}_i = \operatorname{Attention}(Q W_i^Q, K W_i^K, V W_i^V)$$
#
# Since a head is only $d_{\text{model}} / h$ wide, all of them together cost as much as
# a single one of full width.
#
# The $h$ projections are computed as one matrix $(d_{\text{model}}, h \cdot d_k)$,
# whose result is cut into heads:
#
# ```{code-of} keras_transformer.layers.attention.split_heads
# ```
#
# (`source` is the input of the projection, and only tells the shape.)
#
# The formula, written out with the weights of our layer, gives the same:

# %%
layer = MultiHeadAttention(num_heads=4, key_dim=8, use_bias=False)
x = random.normal(size=(1, 5, 32)).astype("float32")
output = array(layer(x, x))[0]

w_q, w_k, w_v, w_o = (array(w) for w in layer.weights)  # each (32, 32)
heads = []
for i in range(4):
    columns = slice(8 * i, 8 * (i + 1))
    q, k, v = (x[0] @ w[:, columns] for w in (w_q, w_k, w_v))  # (5, 8)
    heads.append(array(ops.softmax(q @ k.T / np.sqrt(8))) @ v)
expected = np.concatenate(heads, axis=-1) @ w_o
np.testing.assert_allclose(output, expected, atol=1e-5)
print("the largest difference is", f"{np.abs(output - expected).max():.0e}")

# %% [markdown]
# ## 3.2.3 Where attention is used
#
# | attention | queries | keys and values | what is hidden |
# |---|---|---|---|
# | of the encoder to itself | source $(B, S, d_{\text{model}})$ | source | padding |
# | of the decoder to itself | target $(B, T, d_{\text{model}})$ | target | padding, and later tokens |
# | of the decoder to the encoder | target | encoder's output, the memory | padding of the source |
#
# In self-attention all three are the vectors from the layer below. The memory is the
# output of the last encoder layer, and every decoder layer reads it.
#
# Sentences in a batch are padded to one length with id 0, which nobody may
# attend to. And the decoder must not see the token that it predicts. A blue
# cell means that the query may attend to the key:

# %%
ids = np.array([[7, 5, 3, 9, 0, 0]])
padding = array(padding_mask(ids))[:, None]  # (1, 1, 6)
causal = array(causal_mask(6))  # (1, 6, 6)

figure, axes = plt.subplots(1, 2, figsize=(6, 3.2), layout="constrained")
for axis, title, mask in (
    (axes[0], "encoder: padding", np.broadcast_to(padding, (1, 6, 6))),
    (axes[1], "decoder: padding and later", padding & causal),
):
    axis.imshow(mask[0], cmap="Blues", vmin=0, vmax=1.4)
    axis.set_title(title)
    axis.set_xlabel("key")
    axis.set_ylabel("query")
    axis.set_xticks(range(6), ids[0])
    axis.set_yticks(range(6), ids[0])
plt.show()

# %% [markdown]
# ## 3.3 The feed-forward network
#
# After attention has gathered, each position computes by itself. All positions of a
# layer have the same two matrices; each layer has its own:
#
# $$\operatorname{FFN}(x) = \max(0, x W_1 + b_1)\, W_2 + b_2 \qquad (2)$$
#
# ```{code-of} keras_transformer.layers.feed_forward.FeedForward.call
# ```
#
# `inner` has the ReLU, `gate` is not in the paper. No position sees another one:

# %%
feed_forward = FeedForward(d_model=32, d_ff=64)
together = array(feed_forward(x))
alone = [array(feed_forward(x[:, i : i + 1])) for i in range(5)]
np.testing.assert_allclose(np.concatenate(alone, 1), together, atol=1e-5)

# %% [markdown]
# ## 3.1 Layers: add and norm
#
# Around every sub-layer there is a residual connection, followed by layer
# normalisation:
#
# $$x \leftarrow \operatorname{LayerNorm}(x + \operatorname{Dropout}(\operatorname{Sublayer}(x)))$$
#
# So all sub-layers return vectors of width $d_{\text{model}}$. An encoder layer
# is self-attention and the feed-forward network, each wrapped in this way:
#
# ```{code-of} keras_transformer.layers.transformer_layers.EncoderLayer.call
# ```
#
# `_norm_input` does nothing in the paper's post-norm; with `norm_first=True`, which
# came later, the input of the sub-layer is normalised instead. A decoder layer
# has attention to the memory between the two, and hides later tokens from its
# self-attention. The stacks are loops:
#
# ```{code-of} keras_transformer.model.Transformer.encode
# ```
#
# ```{code-of} keras_transformer.model.Transformer.decoder_output
# ```
#
# Each decoder layer makes its causal mask itself. The last norms,
# `encoder_norm` and `decoder_norm`, exist with `norm_first=True` only.
#
# ## 3.4 Embeddings and softmax
#
# Source embedding, target embedding and the projection before the softmax are
# one matrix $E$ of shape $(V, d_{\text{model}})$. Token $i$ becomes the row
# $\sqrt{d_{\text{model}}}\, E_i$, and the decoder's output $y$ becomes the
# probabilities $\operatorname{softmax}(y E^T)$. Before training, the components of
# $E$ have the size $1 / \sqrt{d_{\text{model}}}$. With the factor, embeddings are as
# large as the positions that are added next; without it, the first logits are of
# size 1.

# %%
embedding = PositionalEmbedding(vocab_size=11, d_model=32, positions=None)
vectors = array(embedding(np.array([[4]])))[0, 0]
matrix = array(embedding.embeddings)  # (V, d_model)
np.testing.assert_allclose(vectors, 32**0.5 * matrix[4], atol=1e-5)
logits = array(embedding(x, reverse=True))  # (1, 5, V)
np.testing.assert_allclose(logits, x @ matrix.T, atol=1e-4)

# %% [markdown]
# ## 3.5 Positional encoding
#
# Attention is a sum over keys, and a sum has no order. So a vector that depends
# on the position is added to each embedding:
#
# $$PE_{(pos, 2i)} = \sin\left(pos / 10000^{2i/d_{\text{model}}}\right)$$
#
# $$PE_{(pos, 2i+1)} = \cos\left(pos / 10000^{2i/d_{\text{model}}}\right)$$
#
# ```{code-of} keras_transformer.layers.embeddings.positional_encoding
# ```
#
# Each pair of dimensions is a hand of a clock. The first turns once in 6.3
# positions, the last of these 64 dimensions in 47,000:

# %%
encoding = array(positional_encoding(np.arange(100), 64))  # (100, 64)
figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
image = axes[0].imshow(encoding.T, cmap="RdBu", aspect="auto", vmin=-1, vmax=1)
axes[0].set_xlabel("position")
axes[0].set_ylabel("dimension")
figure.colorbar(image, ax=axes[0])
similarity = encoding @ encoding[50]
axes[1].plot(similarity / 32)
axes[1].axvline(50, color="0.6", linestyle=":")
axes[1].set_xlabel("position")
axes[1].set_ylabel("similarity to position 50")
axes[1].grid(alpha=0.3)
plt.show()

# %% [markdown]
# The right plot, of dot products divided by 32, shows that near positions are
# similar. Plain numbers 1, 2, 3 would grow without limit and drown the embeddings.
# The paper chose these waves because a shift by $k$ positions is the same
# rotation everywhere, which should be easy to learn for a head:
#
# $$\begin{pmatrix} \sin \omega (pos + k) \\ \cos \omega (pos + k) \end{pmatrix} = \begin{pmatrix} \cos \omega k & \sin \omega k \\ -\sin \omega k & \cos \omega k \end{pmatrix} \begin{pmatrix} \sin \omega\, pos \\ \cos \omega\, pos \end{pmatrix}$$

# Learned vectors did as well in the paper (table 3, E), but there are none for
# longer sentences than those in training.

# %%
k, pair = 7, 3  # the shift, and which two dimensions
omega = 10000.0 ** (-2 * pair / 64)
turn = np.array(
    [
        [np.cos(omega * k), np.sin(omega * k)],
        [-np.sin(omega * k), np.cos(omega * k)],
    ]
)
hands = encoding[:, 2 * pair : 2 * pair + 2]
np.testing.assert_allclose(hands[k:], hands[:-k] @ turn.T, atol=1e-4)

# %% [markdown]
# ## 4 Why self-attention
#
# Table 1 of the paper: how costs grow for $n$ tokens of width $d$:
#
# | layer | operations | steps that wait for each other | longest path between two tokens |
# |---|---|---|---|
# | self-attention | $n^2 \cdot d$ | 1 | 1 |
# | recurrent | $n \cdot d^2$ | $n$ | $n$ |
# | convolution of width $k$ | $k \cdot n \cdot d^2$ | 1 | $\log_k n$ |
# | self-attention in a window of $r$ | $r \cdot n \cdot d$ | 1 | $n / r$ |
#
# All positions are computed at once, and any two tokens are one step apart. A
# sentence has fewer tokens than a vector has components ($n < d$), so
# self-attention also costs less than recurrence and convolution. For long texts it
# does not. Then a layer with `sliding_window` is what the last line of the table
# describes ([Compose layers](compose_layers.py)).
#
# ## 5.1 Data and batches
#
# Text becomes tokens by byte-pair encoding: frequent words are one token, rare
# words several pieces. Both languages share one vocabulary. For German the paper has 4.5
# million sentence pairs, 37,000 tokens, and batches of about 25,000 source and 25,000
# target tokens. Here a small built-in corpus about dates, times and prices will do:

# %%
STEPS = 600
BATCH = 64
pairs = load_pairs("builtin", "train", "en", "de").first(STEPS * BATCH)
english, german = list(pairs.source), list(pairs.target)
tokenizer = train_tokenizer(english + german, vocab_size=1000)
print(english[1], "|", german[1])
print(tokenizer.pieces(tokenizer.encode(english[1:2])[0]))

# %% [markdown]
# The end token `</s>` is part of every sentence. The decoder's input is the target
# shifted right: it begins with the start token, and at each position the label is
# the next token. So one pass trains all positions of a sentence at once
# ("teacher forcing"), and the causal mask keeps each from seeing its label. For
# the labels `a b </s>` the input is `<s> a b`. Labels that are padding have no loss.


# %%
def padded(ids, length=30):
    """Returns ids `(B, length)`, filled up with 0; longer sentences are cut."""
    rows = np.full((len(ids), length), PAD, "int32")
    for row, sentence in zip(rows, ids, strict=True):
        row[: len(sentence)] = sentence[:length]
    return rows


source = padded(tokenizer.encode(english))  # (pairs, S)
labels = padded(tokenizer.encode(german))  # (pairs, T)
target = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=START)
for name, x in (("target", target), ("labels", labels)):
    print(f"{name}: {' '.join(tokenizer.pieces(x[1, :9]))} …")

# %% [markdown]
# ## 5.2 Hardware and schedule
#
# `base` was trained for 100,000 updates, 12 hours on eight P100 GPUs; `big` for
# 300,000, three and a half days.
#
# ## 5.3 Optimizer
#
# Adam with $\beta_1 = 0.9$, $\beta_2 = 0.98$, $\epsilon = 10^{-9}$, and a
# learning rate that rises for `warmup_steps`, 4000 in the paper, and then falls:
#
# $$lrate = d_{\text{model}}^{-0.5} \cdot \min\left(step^{-0.5},\; step \cdot warmup\_steps^{-1.5}\right) \qquad (3)$$
#
# ```{code-of} keras_transformer.schedule.learning_rate
# ```
#
# The two parts meet at `warmup_steps`, where the rate has its peak:

# %%
steps = np.arange(1, 20_001)
plt.figure(figsize=(6, 3), layout="constrained")
for warmup in (1000, 2000, 4000, 8000):
    schedule = TransformerSchedule(d_model=512, warmup_steps=warmup)
    rates = array(schedule(steps - 1))  # Keras counts updates from 0
    plt.plot(steps, rates, label=f"{warmup:,}")
    assert steps[rates.argmax()] == warmup
plt.xlabel("step")
plt.ylabel("learning rate")
plt.legend(title="warmup_steps", frameon=False)
plt.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## 5.4 Regularization
#
# **Dropout** is applied to the output of each sub-layer before it is added
# (`_add_and_norm` above) and to the sums of embeddings and positions, with rate 0.1
# in `base`. The layers above can also drop attention weights and inside the
# feed-forward network; the paper does not, so these rates are 0.
#
# **Label smoothing.** The model is not trained to say that the label has
# probability 1. A share $\epsilon$ (0.1) of it is spread over all $V$ tokens, the
# label included:
#
# $$L = -\sum_{v} \left((1 - \epsilon)\, \delta_{v, label} + \frac{\epsilon}{V}\right) \log p_v$$
#
# The loss is lowest when the model predicts exactly these shares. It is then their
# entropy, 1.01 for $V = 1000$. The perplexity reads the probability of the label
# alone. It becomes worse, since the model learns to be less sure, but BLEU becomes
# better. For logits (2, 1, 0, −1), label 0 and $\epsilon = 0.1$:

# %%
logits = np.array([[[2.0, 1.0, 0.0, -1.0]]], "float32")
for epsilon in (0.0, 0.1):
    loss = LabelSmoothedCrossEntropy(epsilon, pad_id=-1)
    found = float(loss(np.array([[0]]), logits))
    print(f"ε = {epsilon}: {found:.5f}")
assert abs(found - 0.59018970) < 1e-5

shares = np.full(1000, 0.1 / 1000)
shares[0] += 0.9
print(f"lowest for 1,000 tokens: {-(shares * np.log(shares)).sum():.2f}")

# %% [markdown]
# ## Train it
#
# This is the whole model, with stock Keras. It has the paper's post-norm
# layers, shared embeddings, smoothing and schedule. There is no dropout, since
# no sentence comes twice; and the schedule is shorter and lower, as 600
# updates are few.

# %%
config = TransformerConfig(
    vocab_size=tokenizer.vocab_size,
    num_layers=2,
    d_model=128,
    num_heads=4,
    d_ff=256,
    dropout_rate=0.0,
)
model = Transformer(config)
schedule = TransformerSchedule(config.d_model, warmup_steps=150, scale=0.4)
model.compile(
    keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
    LabelSmoothedCrossEntropy(0.1),
    metrics=[Perplexity()],
)
print(f"{model.count_params():,} parameters")

inputs = {"source": source, "target": target}
history = model.fit(inputs, labels, BATCH, verbose=2)

# %% [markdown]
# ## 6.1 Search
#
# A translation is written token by token. Greedy search takes the most probable
# token each time; beam search keeps the $K$ most probable beginnings (the paper:
# 4). A hypothesis ends with `</s>`. Each further token multiplies its probability by
# less than 1, so hypotheses of different lengths are compared by
#
# $$s(Y) = \frac{\log P(Y \mid X)}{lp(Y)}, \qquad lp(Y) = \left(\frac{5 + |Y|}{6}\right)^{\alpha}$$
#
# with $\alpha = 0.6$ (Wu et al., 2016), where $|Y|$ counts the end token.
# `beam_search` knows no model; it calls a
# step function. The memory's keys and values are computed once (`project_memory`).
# Earlier tokens never see later ones, so their keys and values do not change, and a
# cache keeps them: a step computes one token only. Padding and the start token
# are never written.


# %%
def translate(sentences, beam_size=4):
    source = padded(tokenizer.encode(sentences))
    mask = padding_mask(source)
    memory = model.project_memory(model.encode(source))
    special = np.isin(np.arange(config.vocab_size), [PAD, START])

    def step(tokens, cache, index):
        logits, cache = model.decode_step(tokens, cache, index, memory, mask)
        return ops.where(special, -1e9, logits), cache

    ids, _ = beam_search(
        step,
        model.empty_cache(len(source) * beam_size, 30),
        max_lengths=[30] * len(source),
        beam_size=beam_size,
    )
    return tokenizer.decode(array(ids)[:, 0])


sentences = [
    "My sister bought a beautiful lamp for €1,249.50.",
    "The train to Vienna leaves at half past six from platform 12.",
]
for sentence, translation in zip(sentences, translate(sentences), strict=True):
    print(f"{sentence}\n    {translation}")

# %% [markdown]
# The paper averages the last checkpoints (5 of `base`), writes at most 50 tokens
# more than the source has, and scores BLEU. The command `keras-transformer train`
# does all of this; [Results](../results.md) has what it reaches.
#
# ## 6.2 and 6.3 Variations, and parsing
#
# Table 3 of the paper changes parts of the model: heads, widths, depth, dropout,
# positions. `examples/table_3.py` does some of it in small, and
# [finds several of its orders again](../results.md#table-3-in-small): one head is worst, narrow
# keys lose, smoothing costs perplexity, learned positions are as good. For section 6.3, a
# model of the same kind writes the [parse tree of a sentence](../parsing.md).
#
# ## Figures 3 to 5: what the heads look at
#
# The paper shows self-attention in the encoder. Here is that of the trained
# model's last layer. Word pieces are joined to words: weights on the pieces of a
# word are added up. On the left, as in figure 3, one word and where all heads
# look from it, a colour for each; then, as in figures 4 and 5, whole heads. A
# line is as strong as the weight of the right word for the left one.

# %%
pieces = tokenizer.encode(sentences[1:])
mask = padding_mask(np.array(pieces))
x = model.source_embedding(np.array(pieces))
for layer in model.encoder_layers:
    x, weights = layer(x, mask=mask, return_attention_scores=True)
np.testing.assert_allclose(array(weights).sum(-1), 1, atol=1e-5)
words = words_of(tokenizer.pieces(pieces[0]))
weights = weights_of_words(array(weights)[0], words, words)  # (h, words, words)


def draw(axis, title, heads, queries):
    for head, i in itertools.product(heads, queries):
        for j, weight in enumerate(weights[head, i]):
            if weight > 0.1:  # fainter lines would hide the others
                style = {"color": f"C{head}", "alpha": float(weight), "lw": 3}
                axis.plot([0, 1], [-i, -j], **style)
    for i, word in enumerate(words):
        bold = "bold" if queries == [i] else "normal"
        axis.text(-0.1, -i, word.text, ha="right", va="center", weight=bold)
        axis.text(1.1, -i, word.text, ha="left", va="center")
    axis.set_title(title)
    axis.set_xlim(-1.6, 2.6)
    axis.set_ylim(-len(words), 1)
    axis.axis("off")


figure, axes = plt.subplots(1, 3, figsize=(9, 4.2), layout="constrained")
half = [word.text for word in words].index("half")
draw(axes[0], "all heads, from “half”", range(4), [half])
draw(axes[1], "head 1", [0], range(len(words)))
draw(axes[2], "head 2", [1], range(len(words)))
plt.show()

# %% [markdown]
# For a sentence of your own, `keras-transformer translate MODEL --explain FILE
# --attention encoder` draws the heads of an exported model, and the page of
# `keras-transformer serve` shows them under the pointer.
#
# ## Exercises
#
# **1.** How many weights has an encoder layer of `base`, with biases? Count them
# from the formulas, then compare.

# %% tags=["hide-cell"]
# Four projections of attention, two of the feed-forward network, each with a
# bias; two normalisations with a gain and a bias.
attention = 4 * (512 * 512 + 512)
network = (512 * 2048 + 2048) + (2048 * 512 + 512)
norms = 2 * (512 + 512)
layer = EncoderLayer(d_model=512, num_heads=8, d_ff=2048)
layer.build((None, None, 512))
print(f"{layer.count_params():,}")
assert layer.count_params() == attention + network + norms == 3_152_384

# %% [markdown]
# **2.** Without positional encoding, what happens to the encoder's output if the
# words of a sentence change places? Predict it, then test it.

# %% tags=["hide-cell"]
# The outputs change places in the same way, and are otherwise the same: the
# encoder reads a bag of words.
embedding = PositionalEmbedding(11, 32, dropout_rate=0.0, positions=None)
layer = EncoderLayer(d_model=32, num_heads=4, d_ff=64)
sentence, order = np.array([[4, 7, 9, 5]]), [2, 0, 3, 1]
outputs = array(layer(embedding(sentence)))
moved = array(layer(embedding(sentence[:, order])))
np.testing.assert_allclose(moved, outputs[:, order], atol=1e-5)

# %% [markdown]
# **3.** Two hypotheses are finished: one of 5 tokens with $\log P = -4.0$, one of
# 10 tokens with $\log P = -5.0$. Which one wins for $\alpha = 0$, 0.6 and 1?

# %% tags=["hide-cell"]
for alpha in (0.0, 0.6, 1.0):
    short = -4.0 / float(length_penalty(5, alpha))
    long = -5.0 / float(length_penalty(10, alpha))
    print(f"α = {alpha}: {short:.2f} and {long:.2f}")
    assert (short > long) == (alpha == 0.0)  # then the short one wins

# %% [markdown]
# Next: [compose the layers](compose_layers.py) in a model of your own, or
# [train on your own text](train_on_your_text.py).
# [The paper, section by section](../paper.md) lists every departure from it and
# the tests of each part.
