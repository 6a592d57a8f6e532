# %% [markdown]
# # Export and serve
#
# An export is one SavedModel that takes text and returns text: tokenizer, model
# and beam search are in one graph. This guide trains a small model, exports it,
# calls its signatures, and draws its attention.
#
# ![REST, gRPC and Python send text to one SavedModel with tokenizer, encoder, decoder, beam search and detokenizer, and get text](../figures/export_and_serve.svg)
#
# The commands for this are:
#
# ```
# keras-transformer export runs/NAME saved_models/NAME/1
# keras-transformer translate saved_models/NAME < lines > translations
# keras-transformer evaluate saved_models/NAME \
#     --source-file FILE --reference-file FILE
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

from keras_transformer.data.builtin.phrases import pairs_of_split
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
# The model learns a few kinds of sentences of the built-in grammar, within
# seconds. Expect mistakes, above all in numbers.
# [Train on your own text](train_on_your_text.py) explains the recipe.
#
# `export` takes runs. `run_of_model` makes a run from a vocabulary and a
# `Transformer` that was trained in another way, such as with `fit` or on JAX. To
# search a model that you composed of layers, or one whose source is vectors, see
# [Decode your own model](decode_your_model.py).
#
# `load_model(run).save("model.keras")` writes a Keras file. Before
# `keras.models.load_model` reads it, a program has to import Keras and then
# `keras_transformer`: that registers the classes. Such a model also becomes an
# [ONNX, OpenVINO or LiteRT file](../formats.md).

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
# version number, which servers look for. The default of `settings`, those of the
# search, is the run's: the paper's, or what `start_run(search=…)`, the initial run
# or the imported model set.

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
# Our commands check the files of an export against `SHA256SUMS`. (`evaluate` adds
# its results, as `evaluations.jsonl`.) Loading a model runs its code: load only
# models that you trust.
#
# ## Load it with TensorFlow alone
#
# The SavedModel needs only `tensorflow` and `tensorflow_text` to load.

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
# Answers are in the order of the inputs. Empty and blank strings give "" and
# score 0. Input is cut after 512 word pieces, or after the `--max-length` of
# training if that is more. Invalid UTF-8 is accepted; output is always valid.

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
# Models are trained on sentences. `translate --document` splits each line into
# sentences, translates them, and joins the translations. White space and blank
# lines are kept.
#
# ```
# keras-transformer translate saved_models/NAME --document < document.txt > translated.txt
# ```
#
# It needs [sentencex](https://github.com/wikimedia/sentencex), which
# `pip install '.[text,serve]'` brings. The rules are those of the model's
# source language; `--language` names another.
#
# - A line end always ends a sentence. If lines are wrapped inside of paragraphs,
#   join them first: half sentences are translated badly.
# - Marks of lists, headings and quotations, such as `- ` and `## `, are kept, and
#   so is a line without a letter or digit.
# - A sentence of more than 1,000 characters is cut behind a comma, a semicolon
#   or a word. If it is still too long for the model, a warning says so.
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
# of source and target, N the number of layers (of the decoder, or of the encoder)
# and H of heads.
#
# ```
# serving_default(text: string[B])
#     -> {translation: string[B], score: float32[B], incomplete: bool[B]}
# n_best(text: string[B], beam_size: int32[], alpha: float32[],
#        max_length: int32[])
#     -> {translation: string[B, K], score: float32[B, K], incomplete: bool[B, K]}
# control(text: string[B], target_prefix: string[B], terms: string[B],
#         avoid: string[B], …), if asked for
#     -> as n_best, and unmet: string[B, K]
# score(text: string[B], translation: string[B])
#     -> {score: float32[B], pieces: int32[B], alignment: string[B]}
# explain(text: string[B])
#     -> {translation, score, incomplete, source_pieces: string[B, S],
#         target_pieces: string[B, T], log_probs: float32[B, T],
#         mean_log_prob: float32[B], alignment: string[B],
#         attention: float32[B, N, H, T, S],
#         encoder_attention: float32[B, N, H, S, S]}
# ```
#
# Each also returns `truncated: bool[B]`: whether a text was too long and was cut.
# `incomplete` is whether a translation reached its maximum length, so that its
# end may be missing.
# A score is the log-probability divided by the length penalty; the signature
# `score` returns the log-probability itself.
#
# `n_best` returns all hypotheses, best first. If there are fewer than K, the
# others are "" with score -inf:

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
# `score` rates translations that you give it:

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
# Its `alignment` says which words belong together, counted from 0: here, each word of
# the source and of its translation. `explain` has it, too, and the log-probability of
# each piece of its translation, `log_probs`.

# %%
for link in given["alignment"].numpy()[1].decode().split():
    source, target = map(int, link.split("-"))
    print(
        lines[1].split()[source],
        "–",
        ["Zimmer", "7", "ist", "im", "dritten", "Stock."][target],
    )

# %% [markdown]
# ## Attention
#
# `explain` returns the weights from each target piece to each source piece.
# `SavedTranslator` loads an export and removes the padding of one line, and
# `plot_attention` draws each head of the last decoder layer; here, two of four
# heads. `keras-transformer translate MODEL --explain attention.png` does the same.

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
# Each row is a word of the translation, dark where the decoder attends to the source
# word of the column. Each row adds up to 1. The weights of a word's pieces are added
# up where they are attended to and averaged where they attend; `by_piece=True` draws
# the pieces.
#
# `encoder_attention` has the weights from each source piece to each source piece. A
# target of `None` draws them, as `--attention encoder` does for the command:

# %%
plot_attention(
    explained["source_pieces"],
    None,
    explained["encoder_attention"],
    folder / "encoder_attention.png",
)
for name in ("attention", "encoder_attention"):
    sums = explained[name].sum(axis=-1)
    np.testing.assert_allclose(sums, 1.0, atol=1e-3)

# %% [markdown]
# ## TensorFlow Serving
#
# TensorFlow Serving loads `saved_models/NAME` as it is
# (`--model_base_path=…/saved_models/NAME`). `export` refuses operations and
# attributes that TensorFlow Serving 2.19 does not know. Beside the model are
# warm-up requests, proposed batching parameters, and a `README.md` with the REST
# and gRPC calls. The tests load exports through the same v1 session and with
# `saved_model_cli`; a TensorFlow Serving binary has not been run.
#
# ## Dtype, threads and memory
#
# The matrices are in bfloat16 if the GPU or, without one, the processor of the
# exporting machine multiplies in bfloat16, and in float32 otherwise. To serve on
# another machine, choose with `export --dtype`. `export --dtype int8` makes the
# smallest folder, about a quarter of float32's. When it is loaded, float32 matrices
# are computed once, so it runs at float32's speed and needs more memory.
# `keras.layers.TFSMLayer` and the scope of a `tf.distribute` strategy cannot load
# it.
#
# For bfloat16, set `TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1` in the server, as our
# commands do: TensorFlow then lays out each matrix once. Never set it in a
# process that trains.
#
# `export --shortlist 50` limits the search of a sentence to its likely word
# pieces: for each source piece the 50 that translate it most often in the
# training text, and the 100 most frequent target pieces. Scores are a little
# higher, since the softmax covers these pieces alone. The larger the vocabulary,
# the more time this saves; compare both exports with `evaluate --confidence`. Each
# sentence of a batch holds its own part of the projection: 64 sentences of `base`
# with 8,000 likely pieces each take a gigabyte or two.
#
# `export --beam-size 1 --draft-tokens 3` writes a greedy model that reads four
# pieces at a step: one that is certain and three from a draft head. Training the
# head can take as long as some thousand steps of training. Except for rounding, the
# translations are those of greedy search. This helps requests of one sentence; in
# large batches plain greedy search is faster.
#
# `translate` and `evaluate` split `--batch-size` lines among the cores, at least
# 16 lines for each, and translate the parts at the same time.
#
# ## CTranslate2
#
# This command writes the same weights for
# [CTranslate2](https://github.com/OpenNMT/CTranslate2), which
# `pip install '.[text,ctranslate2]'` brings; `--dtype` is optional:
#
# ```
# keras-transformer export RUN engines/NAME/1 --format ctranslate2 --dtype int8
# ```
#
# `translate` and `serve` compute it with `--engine ctranslate2`, see
# [Serving](../serving.md); programs without this package call CTranslate2, whose own
# length penalty is n^α. The tests compare the probability of every token.

# %%
temporary.cleanup()
