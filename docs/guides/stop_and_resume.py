# %% [markdown]
# # Stop, resume, repeat exactly
#
# A run that is stopped and resumed ends bit for bit like one that was never
# stopped. This guide trains one run without a stop, stops a second one with a
# signal, resumes it, and compares the weights.
#
# ![A run that was stopped in step 6 and resumed is equal, after step 8, to one that was never stopped](../figures/stop_and_resume.svg)
#
# The command that started a run also resumes it, with `--resume`; so does the
# short form:
#
# ```
# keras-transformer train --resume --out runs/NAME
# ```

# %% tags=["remove-cell"]
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import tensorflow as tf

tf.get_logger().setLevel("ERROR")

# %%
import json
import os
import pathlib
import signal
import tempfile

import keras
import numpy as np

from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.training import (
    Recipe,
    TrainingInterrupted,
    open_run,
    start_run,
    train,
)

temporary = tempfile.TemporaryDirectory()  # everything below goes here
folder = pathlib.Path(temporary.name)
corpus = folder / "corpus"
corpus.mkdir()
for split, size in {"train": 500, "validation": 4}.items():
    english, german = zip(*pairs_of_split(split, size), strict=True)
    (corpus / f"{split}.en").write_text("\n".join(english) + "\n", "utf-8")
    (corpus / f"{split}.de").write_text("\n".join(german) + "\n", "utf-8")

# %% [markdown]
# ## Train without a stop
#
# The run validates after steps 4 and 8, and saves a checkpoint each time. The model
# has dropout, so an exact repetition needs the same random numbers, too.

# %%
recipe = Recipe(
    corpus=str(corpus),
    vocab_size=400,
    tokens_per_batch=300,
    warmup_steps=20,
    validate_every=4,
    seed=1,
)
shape = {"num_layers": 1, "d_model": 32, "num_heads": 2, "d_ff": 64}

uninterrupted = start_run(folder / "uninterrupted", "tiny", recipe, **shape)
model = train(uninterrupted, 8)

# %% [markdown]
# ## Stop by a signal
#
# On SIGTERM and Ctrl-C, the command finishes the step, saves, and ends with status
# 143 and 130. A validation that was cut short comes first when the run resumes. In
# Python, `train` raises `TrainingInterrupted`.
#
# This callback sends SIGTERM to its own process in step 6.


# %%
class SignalInStep(keras.callbacks.Callback):
    """Sends SIGTERM in the second step of the second epoch: step 6."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == (1, 1):
            os.kill(os.getpid(), signal.SIGTERM)


stopped = start_run(folder / "stopped", "tiny", recipe, **shape)
try:
    train(stopped, 8, callbacks=[SignalInStep()])
except TrainingInterrupted as interrupted:
    message = str(interrupted)
print(message)

# %%
names = sorted(path.name for path in stopped.checkpoints.iterdir())
print(names)
assert "step-00000006.npz" in names
assert not stopped.weights.exists()  # training has not ended

# %% [markdown]
# ## Resume
#
# `open_run` opens the folder, and `train` goes on from the newest checkpoint.
# The number of steps counts from the beginning of the run.

# %%
resumed = open_run(folder / "stopped")
model = train(resumed, 8)

# %% [markdown]
# A checkpoint is a NumPy archive with the weights and the states of the optimizer
# and the random generators. All arrays of the two runs are equal, to the last bit:


# %%
def arrays_of(run, step):
    """Returns the arrays of a checkpoint by name."""
    with np.load(run.checkpoints / f"step-{step:08}.npz") as archive:
        return {
            name: archive[name]
            for name in archive.files
            if name.startswith(("weights/", "optimizer/", "seeds/"))
        }


expected = arrays_of(uninterrupted, 8)
found = arrays_of(resumed, 8)
assert found.keys() == expected.keys()
for name in expected:
    np.testing.assert_array_equal(found[name], expected[name])
print(f"{len(expected)} arrays are equal.")

# %% [markdown]
# ## What is in the run's folder

# %%
for path in sorted(resumed.folder.rglob("*")):
    if path.is_file():
        print(path.relative_to(resumed.folder))

# %% [markdown]
# | file | content |
# |---|---|
# | `run.json` | the model's shape, the recipe, the settings of the search, the dtype policy, and marks of the training data and the vocabularies |
# | `source.model`, `target.model` | the vocabularies |
# | `data/` | the encoded training pairs, with a manifest of counts and checksums, if `prepare` did not make the corpus |
# | `initial/` | the weights of the other run that it began with, if any |
# | `teacher/` | the whole model of that run, with `--teacher-weight` |
# | `MODEL_CARD.md` | the card of an imported model; other exports get one |
# | `draft-head-N.npz` | the draft head that `export --draft-tokens N` has trained |
# | `checkpoints/step-*.npz` | all state after a step |
# | `checkpoints/validated.json` | the best validation so far, after each validation |
# | `starts.jsonl` | a line for each start: versions, processor, dtype policy, devices, steps |
# | `log.jsonl`, `training.png`, `logs/` | the curves: as text, as a picture, and for TensorBoard |
# | `weights.npz` | the chosen weights, when training has ended |
# | `evaluations.jsonl` | the scores of a test split |
# | `.lock` | keeps a second process away |
#
# - After SIGKILL, training resumes from the newest intact checkpoint. Damaged
#   checkpoints are reported.
# - Checkpoints are written at every validation, and with
#   `--save-every-minutes` between them.
# - To train a run for longer, add `--steps N`. Later starts go on to N, too. A
#   run that `--patience` has ended stays ended: name it as `--initial-run` of a
#   new one.
# - A run may be resumed from any folder. If its corpus was moved, give the new
#   `--corpus` at every start of `train`, `average` or `export`.
# - A loss or a weight that is not finite ends training before it is saved.
#
# ## When a resumed run differs
#
# Exact repetition was tested on CPUs; on a GPU, it needs `--deterministic`. If a
# resumed run differs, compare the starts first:

# %%
starts = [
    json.loads(line)
    for line in (resumed.folder / "starts.jsonl").read_text().splitlines()
]
for start in starts:
    print(json.dumps(start, indent=2))
for name in starts[0].keys() - {"time"}:
    assert starts[0][name] == starts[1][name], name

# %% [markdown]
# | what differs | what to do |
# |---|---|
# | the versions of Keras, TensorFlow, NumPy or this package | install the versions of the first start |
# | the processor | resume on the same kind; another one may add numbers in another order |
# | the cores or the environment, such as `TF_ENABLE_ONEDNN_OPTS` | use those of the first start; the command turns oneDNN on, `train` in Python does not |
# | the number of devices | use as many as before: each replica draws its own dropout |
# | nothing, and it trains on a GPU | give `--deterministic` at every start, since it is not kept with the run; it is slower |
# | your own callback has state | save it yourself; checkpoints do not have it |
# | the recipe in `run.json` | the settings of the two runs were different from the beginning |
#
# The dtype policy cannot change: `auto` is decided when the run begins and kept
# in `run.json`. The training data cannot change either: a run keeps its encoded
# pairs in `data/`, and each start verifies their checksums. If `prepare` made the
# corpus, its folder is read instead of `data/`: keep it as long as the run.
#
# To find the first step that differs, start both runs anew with
# `--validate-every 1 --keep-checkpoints 100`, and stop and resume one of them.
# Then compare the arrays of each step:

# %%
for step in (4, 8):
    one, other = arrays_of(uninterrupted, step), arrays_of(resumed, step)
    differ = [n for n in one if not np.array_equal(one[n], other[n])]
    print(f"step {step}: {', '.join(differ) or 'all arrays are equal'}")
    assert not differ

# %% [markdown]
# If arrays under `seeds/` differ first, look at dropout (`layers/normalization.py`)
# and the number of devices. If the first step after the restart differs, look at
# what was restored: `training/checkpoints.py` and `training/resume.py`. Otherwise
# print the batch of that step in both runs; it depends on the seed, the recipe and
# the step alone (`data/batches.py`, and with BPE-dropout `data/bpe_dropout.py`). If
# the batches are equal, the computation differs: `training/tensorflow_trainer.py` and
# the modules it uses.
#
# If all steps are equal, stopping between two validations caused the difference.
# Repeat the test with the `--validate-every` of your run, stop at the same step as
# before, and compare the checkpoints that both runs have.
#
# In `log.jsonl` compare `val_loss`. The `loss` of an interrupted epoch differs: it is
# the mean over the steps after the restart. BLEU on the validation split, which may
# have changed, chooses `weights.npz`.
#
# A damaged file of the training data is named:

# %%
path = next((resumed.folder / "data").glob("*.tokens.npy"))
data = bytearray(path.read_bytes())
data[-1] ^= 1
path.write_bytes(data)
try:
    train(open_run(resumed.folder), 12)
except ValueError as error:
    message = str(error).replace(str(folder), "runs")
print(message)
assert "is damaged" in message

# %%
temporary.cleanup()
