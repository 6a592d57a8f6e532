# %% [markdown]
# # Export and serve
#
# An export is one SavedModel. It takes text and returns text: the tokenizer,
# the model and beam search are in one graph. This guide trains a small model,
# exports it, calls its signatures, and draws what it attends to. These commands
# export, translate and score:
#
# ```
# keras-transformer export runs/NAME saved_models/NAME/1
# keras-transformer translate saved_models/NAME/1 < lines > translations
# keras-transformer evaluate saved_models/NAME/1 \
#     --source FILE --reference FILE
# ```

# %% tags=["remove-cell"]
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import tensorflow as tf

tf.get_logger().setLevel("ERROR")

# %%
import pathlib
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the tokenizer's operations

from keras_transformer.data.builtin.dataset import pairs_of_split
from keras_transformer.export import SavedTranslator, saved_model
from keras_transformer.inference import (
    SearchSettings,
    Translator,
    plot_attention,
    split_sentences,
    translate_lines,
)
from keras_transformer.training import Recipe, load_model, start_run, train

temporary = tempfile.TemporaryDirectory()  # everything below goes here
folder = pathlib.Path(temporary.name)

# %% [markdown]
# ## A small model
#
# The model learns a few kinds of sentences of the built-in grammar, so that it
# translates after seconds of training. Expect mistakes, in numbers above all.
# `make demo` trains one for the whole grammar in some minutes.
# [Train on your own text](train_on_your_text.py) explains the recipe.
#
# `export` takes runs. `run_of_model` makes a run of a `Transformer` that was trained
# in another way, such as by `fit` or on JAX, and of its vocabulary. A model that you
# composed of layers, or one whose source is vectors, is searched in Python:
# [Decode your own model](decode_your_model.py). A run's model becomes a Keras file by
# `load_model(run).save("model.keras")`. A program that reads it by
# `keras.models.load_model` has to `import keras_transformer` first.

# %%
STEPS = 400
KINDS = ("Room ", "The answer ", "Please call me ", "The old ", "The red ")
corpus = folder / "corpus"
corpus.mkdir()
for split, size in {"train": 20_000, "validation": 100}.items():
    pairs = [p for p in pairs_of_split(split, size) if p[0].startswith(KINDS)]
    english, german = zip(*pairs, strict=True)
    (corpus / f"{split}.en").write_text("\n".join(english) + "\n", "utf-8")
    (corpus / f"{split}.de").write_text("\n".join(german) + "\n", "utf-8")
recipe = Recipe(
    corpus=str(corpus),
    vocab_size=400,
    tokens_per_batch=1000,
    warmup_steps=100,
    learning_rate_scale=0.5,
    validate_every=STEPS,
)
run = start_run(
    folder / "run",
    "tiny",
    recipe,
    num_layers=2,
    d_model=64,
    num_heads=4,
    d_ff=256,
    norm_first=True,
    dropout_rate=0.0,
)
model = train(run, STEPS)

# %% [markdown]
# ## Export
#
# The export has the run's chosen weights. The last part of its path is a
# version number, because servers look for one. `settings` are those of the
# search. Their default is the run's: the paper's, or what
# `start_run(search=…)`, the initial run or the imported model set.

# %%
path = saved_model.export(
    run,
    folder / "saved_models" / "rooms" / "1",
    settings=SearchSettings(beam_size=4, alpha=0.6),
    dtype="float32",
)
for file in sorted(path.rglob("*")):
    if file.is_file():
        print(file.relative_to(path))

# %% [markdown]
# `SHA256SUMS` lists every file of an export, and our commands check it. (The
# command `evaluate` adds its results, as `evaluations.jsonl`.) Loading
# a model runs its code: load only models that you trust.
#
# ## Load it with TensorFlow alone
#
# The SavedModel needs `tensorflow` and `tensorflow_text` to load, and nothing
# of this package.

# %%
loaded = tf.saved_model.load(str(path))
translate = loaded.signatures["serving_default"]
lines = [
    "Room 7 is on the third floor.",
    "The old jacket costs €49.",
    "Please call me on Thursday before two o'clock.",
    "",
]
answers = translate(text=tf.constant(lines))
for line, translation, score in zip(
    lines, answers["translation"].numpy(), answers["score"].numpy(), strict=True
):
    print(f"{line!r}\n  {translation.decode()!r}  ({score:.3f})")

# %% [markdown]
# Every input string has one answer in its place. Empty and blank strings give
# "" and score 0. Input is cut after 512 word pieces, or after `--max-length` of
# the training if that is more. Invalid UTF-8 is accepted, and output is always
# valid UTF-8.

# %%
assert answers["translation"].numpy()[3] == b""
assert answers["score"].numpy()[3] == 0

broken = translate(text=tf.constant([b"Room \xff\xfe is on the third floor."]))
broken["translation"].numpy()[0].decode("utf-8")  # raises no error

# %% [markdown]
# The export translates as the run's model does:

# %%
translator = Translator(
    load_model(run), run.source_tokenizer, run.target_tokenizer
)
assert translate_lines(translator.translate, lines) == [
    translation.decode() for translation in answers["translation"].numpy()
]

# %% [markdown]
# ## Documents
#
# Models are trained on sentences. `translate --document` takes text of many
# sentences: it splits each line into sentences, translates them, and puts the
# translations together again. All white space and blank lines are kept.
#
# ```
# keras-transformer translate saved_models/NAME/1 --document < document.txt > translated.txt
# ```
#
# It needs [sentencex](https://github.com/wikimedia/sentencex), which
# `pip install '.[text,serve]'` brings. The rules are those of the model's
# source language; `--language` names another.
#
# - A line end always ends a sentence, and a paragraph is one line. If lines are
#   wrapped inside of paragraphs, join them first: half sentences are translated
#   badly.
# - Marks of lists, headings and quotations, such as `- ` and `## `, are kept as
#   they are, and so is a line without a letter or digit.
# - A sentence of more than 1,000 characters is cut behind a comma, a semicolon
#   or a word, so that the model reads all of it. If a sentence is still too
#   long for the model, a warning says so.
# - Bytes that are not UTF-8 become U+FFFD.
#
# In Python:

# %%
page = """Room 7 is on the third floor.  The old jacket costs €49.

- Please call me on Thursday.
"""
split = split_sentences(page, "en")
print(split.joined(translate_lines(translator.translate, split.sentences)))
assert split.joined(split.sentences) == page

# %% [markdown]
# ## Signatures
#
# B is the number of texts, K the beam size, S and T the numbers of word pieces
# of source and target, N the number of layers and H of heads.
#
# ```
# serving_default(text: string[B])
#     -> {translation: string[B], score: float32[B]}
# n_best(text: string[B], beam_size: int32[], alpha: float32[],
#        max_length: int32[])
#     -> {translation: string[B, K], score: float32[B, K]}
# score(text: string[B], translation: string[B])
#     -> {score: float32[B], pieces: int32[B]}
# explain(text: string[B])
#     -> {translation, score, source_pieces: string[B, S],
#         target_pieces: string[B, T], attention: float32[B, N, H, T, S]}
# ```
#
# Each of them also returns `truncated: bool[B]`, whether a text was too long
# and was cut. A score is the log-probability divided by the length penalty; the
# signature `score` returns the log-probability itself.
#
# `n_best` returns all hypotheses, best first. Where there are fewer than K, as
# under a small `max_length`, the others are "" with score -inf:

# %%
hypotheses = loaded.signatures["n_best"](
    text=tf.constant(lines[:1]),
    beam_size=tf.constant(3),
    alpha=tf.constant(0.6),
    max_length=tf.constant(60),
)
for translation, score in zip(
    hypotheses["translation"].numpy()[0],
    hypotheses["score"].numpy()[0],
    strict=True,
):
    print(f"{score:7.3f}  {translation.decode()}")
assert (np.diff(hypotheses["score"].numpy()) <= 0).all()

# %% [markdown]
# `score` says how probable the model finds translations that you give it:

# %%
given = loaded.signatures["score"](
    text=tf.constant(lines[1:2] * 2),
    translation=tf.constant(
        ["Die alte Jacke kostet 49 Euro.", "Zimmer 7 ist im dritten Stock."]
    ),
)
print(given["score"].numpy())
assert (given["score"].numpy() < 0).all()

# %% [markdown]
# ## What the model attends to
#
# `explain` returns the weights from each target piece to each source piece.
# `SavedTranslator` loads an export and removes the padding of one line, and
# `plot_attention` draws each head of the last decoder layer; here, the first
# two of four heads. The command is
# `keras-transformer translate MODEL --explain attention.png`, for one line.

# %%
explained = SavedTranslator(path).explain(lines[0])
print(explained["translation"])
picture = plot_attention(
    explained["source_pieces"],
    explained["target_pieces"],
    explained["attention"][:, :2],
    folder / "attention.png",
)

pixels = plt.imread(picture)
plt.figure(figsize=(10, 10 * len(pixels) / len(pixels[0])), frameon=False)
plt.axes((0, 0, 1, 1)).imshow(pixels)
plt.axis("off")
plt.show()

# %% [markdown]
# A row is a target piece, and the cell is dark where the decoder attends to the
# source piece of the column. Each row adds up to 1.

# %%
sums = explained["attention"].sum(axis=-1)
np.testing.assert_allclose(sums, 1.0, atol=1e-3)

# %% [markdown]
# ## TensorFlow Serving
#
# TensorFlow Serving loads `saved_models/NAME` as it is
# (`--model_base_path=…/saved_models/NAME`). An export is refused if it has an
# operation or an attribute that TensorFlow Serving 2.19 does not know. The
# signature `n_best` has defaults for its settings. Beside the model are requests
# to warm up with, proposed batching parameters, and a `README.md` with the calls
# by REST and gRPC. The tests load
# exports through the same v1 session and with `saved_model_cli`; a TensorFlow
# Serving binary has not been run.
#
# ## Dtype, threads and memory
#
# The matrices are in bfloat16 if the GPU or, without one, the processor of the
# exporting machine multiplies in bfloat16, and in float32 otherwise. To serve on
# another machine, choose by `export --dtype`. `export --dtype int8` makes the
# smallest folder, about a quarter of float32's: the matrices are stored in int8, with a float32 scale for each
# output, or for each row of an embedding table. When the model is loaded,
# float32 matrices are computed from them, once. It then runs at float32's speed,
# and needs more memory than a float32 export, because both are in memory. Neither
# `keras.layers.TFSMLayer` nor the scope of a `tf.distribute` strategy takes it.
#
# For bfloat16, set `TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1` in the server, as our
# commands do: TensorFlow then lays out each matrix once. Never set it in a
# process that trains.
#
# `export --shortlist 50` limits the search of a sentence to its likely word
# pieces: for each source piece the 50 that translate it most often in the
# training text, and the 100 most frequent target pieces. The softmax covers
# these pieces alone, so scores are a little higher. The larger the vocabulary, the more
# time this saves; compare the BLEU of both exports with `evaluate`. Each
# sentence of a batch holds its own part of the projection: 64 sentences of
# `base` with 8,000 likely pieces each take a gigabyte or two.
#
# `export --beam-size 1 --draft-tokens 3` writes a greedy model that reads four
# pieces at a step: one that is certain and three drafts. It first trains the
# draft head, which can take as long as some thousand steps of training. Except
# for rounding, the translations are those of greedy search. This is for requests of
# one sentence: in large batches the plain greedy search is faster.
#
# `translate` and `evaluate` cut `--batch-size` lines among the cores, at least
# 16 lines for each, and translate the parts at the same time. On two cores this
# gives 1.3 to 1.5 times as many tokens a second as one batch that uses both
# cores.
#
# ## CTranslate2
#
# This command writes the same weights for
# [CTranslate2](https://github.com/OpenNMT/CTranslate2), which
# `pip install '.[text,ctranslate2]'` brings; `--dtype` is optional:
#
# ```
# keras-transformer export RUN FOLDER --format ctranslate2 --dtype int8
# ```
#
# The tests compare the probability of every token with that engine. CTranslate2
# has its own beam search, with a length penalty of n^α.

# %%
temporary.cleanup()
