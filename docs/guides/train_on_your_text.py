# %% [markdown]
# # Train on your own text
#
# Two files are enough, with one sentence a line: line 7 of the second is the
# translation of line 7 of the first.
#
# ![Two files of text go into train, which fills a run's folder; export makes a SavedModel of it, which translates](../figures/train_on_your_text.svg)
#
# ```
# keras-transformer train --train-files text.en text.de --steps 20000 --out runs/NAME
# keras-transformer export runs/NAME saved_models/NAME/1
# echo "Good morning." | keras-transformer translate saved_models/NAME
# ```
#
# One pair in twenty, at most 500, is held out to validate on. Every thousand steps
# the command prints the losses, BLEU and three translations, and every minute how
# much time is left. The size `tiny` takes about two hours for 20,000 steps on two
# cores. `--patience 5` ends training when BLEU has not risen for five validations.
#
# On a GPU, `KERAS_BACKEND=jax` before `keras-transformer train` trains the same run on
# JAX, with or without TensorFlow installed; `export` needs TensorFlow. See
# [Several devices and machines](several_devices.py) for when to take which.
#
# This guide does the same in Python, in seconds, and draws the curves.

# %% tags=["remove-cell"]
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import tensorflow as tf

tf.get_logger().setLevel("ERROR")

# %%
import json
import pathlib
import tempfile

import matplotlib.pyplot as plt
import numpy as np

from keras_transformer import TransformerSchedule
from keras_transformer.data import load_pairs
from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.inference import Translator, translate_lines
from keras_transformer.training import (
    Recipe,
    evaluate,
    load_model,
    open_run,
    start_run,
    train,
)

temporary = tempfile.TemporaryDirectory()  # everything below goes here
folder = pathlib.Path(temporary.name)

# %% [markdown]
# ## The corpus
#
# A corpus is named by one string, the option `--corpus` or the `corpus` of a
# `Recipe`. It is one of
#
# - a folder with the files `SPLIT.LANGUAGE`, one sentence a line, such as
#   `train.en` and `train.de.gz`, or with a table `SPLIT.tsv` or `SPLIT.parquet`;
# - `files:SOURCE:TARGET`, two files of any names, as `--train-files` takes them;
# - `tfds:NAME`, a translation data set of TensorFlow Datasets, such as
#   `tfds:wmt14_translate/de-en`;
# - `builtin`, sentences that a grammar in the package makes.
#
# For a large corpus, see [Corpora of any size](../corpora.md).
#
# A folder without `validation.en` and `validation.de` is divided by
# `validation_pairs`, or by the rule above. Here, the sentences come from the
# built-in grammar.

# %%
corpus = folder / "corpus"
corpus.mkdir()
for split, size in {"train": 2020, "test": 10}.items():
    english, german = zip(*pairs_of_split(split, size), strict=True)
    (corpus / f"{split}.en").write_text("\n".join(english) + "\n", "utf-8")
    (corpus / f"{split}.de").write_text("\n".join(german) + "\n", "utf-8")

pairs = load_pairs(str(corpus), "train", source="en", target="de")
assert len(pairs) == 2020
print(pairs.source[0])
print(pairs.target[0])

# %% [markdown]
# ## The recipe
#
# A `Recipe` says how to train. `train_split`, `validation_split` and
# `test_split` name the splits; the options are `--train`, `--validation` and
# `--test`. A test split is translated and scored at the end. This recipe takes
# seconds. Its vocabulary has 400 word pieces; the default is 8000, or what the text
# allows.

# %%
STEPS = 300
recipe = Recipe(
    corpus=str(corpus),
    source="en",
    target="de",
    validation_pairs=20,
    vocab_size=400,
    tokens_per_batch=800,
    warmup_steps=100,
    learning_rate_scale=0.5,
    validate_every=max(STEPS // 6, 1),
)

# %% [markdown]
# The learning rate rises for `warmup_steps` steps and then falls with the
# square root of the step (section 5.3). Its peak is `learning_rate_scale` /
# √(d_model · warmup_steps). A small model has a high peak, so a scale below 1 may
# help: 0.72 gives a peak of 0.001 for `tiny` and 4000 steps. Runs have no other
# schedule; `fit` takes any of Keras'.

# %%
steps = np.arange(0, 1000)
plt.figure(figsize=(6, 3.2), layout="constrained")
for warmup_steps, scale in ((100, 1.0), (100, 0.5), (400, 1.0)):
    schedule = TransformerSchedule(64, warmup_steps, scale)
    label = f"warmup_steps={warmup_steps}, scale={scale}"
    plt.plot(steps, [float(schedule(step)) for step in steps], label=label)
    peak = scale / np.sqrt(64 * warmup_steps)
    assert np.isclose(float(schedule(warmup_steps - 1)), peak)
plt.xlabel("step")
plt.ylabel("learning rate")
plt.legend(frameon=False)
plt.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## Train
#
# `start_run` writes the folder of a new run and learns the vocabulary. The
# preset gives the model's shape. `num_layers`, `d_model`, `num_heads` and
# `d_ff` change it; the options are `--num-layers`, `--d-model`, `--num-heads`
# and `--d-ff`. `keras-transformer train --help` lists all options.

# %%
run = start_run(
    folder / "run",
    "tiny",
    recipe,
    num_layers=1,
    d_model=64,
    num_heads=2,
    d_ff=128,
)
model = train(run, STEPS)

# %% [markdown]
# `training.png` in the run's folder shows the loss, the learning rate, and the
# BLEU of greedy translations of the first 500 validation pairs. `tensorboard
# --logdir runs` shows the curves, and the translations, while a run trains.

# %%
plt.figure(figsize=(6, 7.5), layout="constrained")
plt.imshow(plt.imread(run.folder / "training.png"))
plt.axis("off")
plt.show()

# %%
log = [
    json.loads(line)
    for line in (run.folder / "log.jsonl").read_text().splitlines()
]
assert log[-1]["step"] == STEPS
assert log[-1]["val_loss"] < log[0]["val_loss"]

# %% [markdown]
# ## What is in a run
#
# A run is a folder; [Stop, resume, repeat exactly](stop_and_resume.py) explains its
# files.

# %%
for path in sorted(run.folder.iterdir()):
    print(path.name)
assert run.weights.exists()

# %% [markdown]
# For a GPU, `pip install 'tensorflow[and-cuda]'`: `train` then finds it. Only
# CPUs have been tested.
#
# The dtype policy is `auto`: `mixed_bfloat16` where the processor or the GPU
# multiplies in bfloat16, `float32` elsewhere. The run keeps what `auto` was on
# the machine where it began. `starts.jsonl` records versions, processor, dtype
# and number of devices for every start.

# %%
start = json.loads((run.folder / "starts.jsonl").read_text())
print(json.dumps(start, indent=2))
assert start["dtype_policy"] == open_run(run.folder).recipe.dtype_policy

# %% [markdown]
# ## Which weights are exported
#
# At the end of training, up to three candidates translate the validation split
# with the run's beam search: the newest checkpoint, the best one by validation
# BLEU, and the average of the last ones (section 6.1). The best candidate
# becomes `weights.npz`. `keras-transformer average runs/NAME --last 3` chooses
# again, with an average of the last three. Training keeps five checkpoints; to
# average ten, train with `--keep-checkpoints 10`.
#
# `train` returns the model with the chosen weights; `load_model` loads it later.

# %%
loaded = load_model(open_run(run.folder))
for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
    np.testing.assert_array_equal(ours, theirs)

# %% [markdown]
# ## Translate and score
#
# `evaluate` translates a split and returns its BLEU. `Translator` translates
# any text. After so few steps the model knows only common words; `make demo` trains
# one that scores BLEU 99 in a few minutes.

# %%
result = evaluate(run, model, "test")
print(f"BLEU {result['bleu']:.1f} on {result['sentences']} sentences")

translator = Translator(model, run.source_tokenizer, run.target_tokenizer)
lines = ["Room 7 is on the third floor.", "The old jacket costs €49."]
translations = translate_lines(translator.translate, lines)
for line, translation in zip(lines, translations, strict=True):
    print(f"{line}\n  {translation}")
assert len(translations) == len(lines)

# %% [markdown]
# ## Fine-tune
#
# `--initial-run runs/OTHER`, or `initial_run` of a `Recipe`, begins with the
# vocabulary and the weights of another run. Optimizer and steps begin anew, and the
# learning rate has a default of its own, low and reached after 50 steps. The new
# model may have more or fewer layers, such as `--num-decoder-layers 1` for fast
# translation: the first layers take over weights, additional ones start at random.
# `--lora-rank 8` trains only a small addition to each matrix (LoRA), with as many
# layers: checkpoints and the optimizer's memory become much smaller.
#
# ## More data, and smaller models
#
# Text in one language helps, too. A run that translates the other way makes sources
# for it; the tag that these begin with tells the model so:
#
# ```
# keras-transformer back-translate runs/de-en --files more.de --out corpora/back
# keras-transformer prepare corpus corpora/back prepared/more --tags bt
# ```
#
# A model of few layers learns from one of many, or from several: from their
# translations, which greedy search finds more easily than those of people, and with
# `--teacher-weight 0.5` half of each target is the distribution that the initial run
# predicts.
#
# ```
# keras-transformer distill runs/teacher --files corpus/train.en --out corpora/taught
# keras-transformer prepare corpus corpora/taught prepared/student \
#     --vocabulary-of runs/teacher --drop-duplicates
# keras-transformer train --corpus prepared/student --initial-run runs/teacher \
#     --teacher-weight 0.5 --num-encoder-layers 6 --num-decoder-layers 1 \
#     --learning-rate-scale 1.5 --warmup-steps 2000 --out runs/student
# keras-transformer export runs/student saved_models/student/1 --beam-size 1
# ```
#
# `examples/small_corpus.py` puts such steps together. Runs of other seeds and one
# vocabulary translate better together: `export runs/A saved_models/both/1 --ensemble
# runs/B` averages their probabilities.
#
# Next: [stop and resume a run](stop_and_resume.py),
# [train on several devices](several_devices.py), or
# [export the model and serve it](export_and_serve.py).

# %%
temporary.cleanup()
