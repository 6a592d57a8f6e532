"""Trains a small model for a few steps, under any distribution strategy.

As a program, it trains as one of the workers of `TF_CONFIG`:

    python replicas.py FILE

It trains twice. The first time, each worker starts at the step of its own
number, which is refused; the error goes to standard error. The second time all
start at step 0, and the weights go to FILE.
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data.batches import (
    EncodedPairs,
    Rows,
    evaluation_batches,
    training_batches,
)
from keras_transformer.training.checkpoints import state_of
from keras_transformer.training.distribution import (
    default_strategy,
    sharding_of,
)
from keras_transformer.training.loop import Loop
from keras_transformer.training.models import make_model
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.resume import Best, ResumePoint

STEPS = 3


def train_small_model(strategy, parts=1, clipnorm=None, steps_done=0, **recipe):
    """Trains up to step `STEPS` and returns arrays by name.

    They are the weights, the last logs, and `moved`: the largest change of any
    weight.
    """
    settings = {"dtype_policy": "float32", **recipe}
    recipe = Recipe(
        warmup_steps=20,
        validate_every=2,
        global_clipnorm=clipnorm,
        **settings,
    )
    config = TransformerConfig(
        31, num_layers=1, d_model=22, num_heads=2, d_ff=17, dropout_rate=0.0
    )
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make_model(config, recipe)
        teacher = Transformer(config, seed=2) if recipe.teacher_weight else None
    # With a small epsilon, Adam turns the rounding of a gradient close to zero
    # into a full step.
    model.optimizer.epsilon = 1e-4
    before = weights_of(model)
    sharding = sharding_of(strategy, parts)
    pairs = some_pairs()
    history = keras.callbacks.History()
    Loop(model, recipe, strategy, teacher).fit(
        training_batches(pairs, 131, seed=1, sharding=sharding),
        evaluation_batches(pairs, 131, sharding),
        ResumePoint(steps_done, Best()),
        STEPS,
        keras.callbacks.CallbackList([history], model=model),
    )
    weights = weights_of(model)
    moved = max(np.abs(weights[k] - before[k]).max() for k in weights)
    logs = {
        name: np.array(history.history[name][-1])
        for name in ("loss", "nll", "val_loss", "val_nll")
    }
    return {"moved": moved, **weights, **logs}


def weights_of(model):
    return {
        name: keras.ops.convert_to_numpy(variable)
        for name, variable in state_of(model)["weights"].items()
    }


def some_pairs():
    """Returns pairs whose lengths make batches of 1 and of odd numbers of
    rows."""
    rng = np.random.default_rng(1)
    lengths = [*rng.integers(1, 23, size=29), 101, 97]
    sides = [
        [[*rng.integers(4, 31, size=n), 3] for n in lengths] for _ in range(2)
    ]
    return EncodedPairs(*map(Rows.of, sides))


def main(path):
    strategy = default_strategy()
    try:
        train_small_model(
            strategy, steps_done=strategy.cluster_resolver.task_id
        )
    except ValueError as error:
        print(error, file=sys.stderr)
    np.savez(path, **train_small_model(strategy, clipnorm=0.05))


if __name__ == "__main__":
    main(*sys.argv[1:])
