"""Training, sections 5.2 to 5.4: from the corpus of a run to its weights.

`train` reads top to bottom. Sentence pairs come from `run_data`, batches from
`data.batches`. Steps are in `loop` and in the trainers, the choice of the final
weights in `checkpoint_averaging`.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.data.batches import evaluation_batches, training_batches
from keras_transformer.inference import evaluation
from keras_transformer.lock import lock
from keras_transformer.model import Transformer
from keras_transformer.training import checkpoints
from keras_transformer.training.callbacks import (
    make_scorer,
    training_callbacks,
)
from keras_transformer.training.checkpoint_averaging import choose_weights
from keras_transformer.training.loop import Loop, make_trainer
from keras_transformer.training.models import (
    load_model,
    load_teachers,
    make_model,
    seeded_layers,
)
from keras_transformer.training.progress import Progress, verbosity
from keras_transformer.training.resume import resume
from keras_transformer.training.run import Run, record_start, steps_to_train
from keras_transformer.training.run_data import load_split, load_training_pairs
from keras_transformer.validation import check_argument, checked_integer


def train(
    run: Run,
    steps: int | None = None,
    strategy: Any = None,
    verbose: int | None = None,
    callbacks: keras.callbacks.Callback
    | Sequence[keras.callbacks.Callback] = (),
) -> Transformer:
    """Trains a run up to `steps` updates, from its newest checkpoint if any,
    chooses its weights, and scores the recipe's `test_split` if it has one.

    Example:

    >>> from keras_transformer.training import open_run
    >>> model = train(open_run("runs/demo"), verbose=0)
    validation: 3 pairs; left out 0 blank and 0 longer than 256 word pieces.
    ...
    Chosen: average of 2, steps 40 to 80.

    One update sees the same loss and gradient however its batch is divided
    over devices, machines, and parts that follow one another: a sum over all
    real target tokens of the batch, divided by their number.

    Args:
        run: from `start_run` or `open_run`.
        steps: updates in all, those before a restart included. Defaults to
            the recipe's, or to more if an earlier start had more.
        strategy: what divides batches over devices: on TensorFlow a
            `tf.distribute` strategy, on JAX a `keras.distribution.DataParallel`
            over devices of this process. Defaults to all GPUs, on JAX to all
            devices; on TensorFlow with `TF_CONFIG`, to those of all workers.
        verbose: 0 for nothing, 1 for a line that is renewed, 2 for a line every
            minute. Defaults to 1 on a terminal, to 2 elsewhere.
        callbacks: Keras callbacks, or one. An epoch of theirs is
            `validate_every` steps. On JAX, the logs of a step may be those of
            the step before.

    Returns:
        The trained `Transformer`, with the chosen weights on the first worker.

    Raises:
        ValueError: if `steps` is no integer of at least 1, if the training data
            is not what the run began with, if another process trains the run,
            or if a loss is not finite.
        TrainingInterrupted: after SIGTERM, SIGINT or SIGHUP, with all state
            saved.
    """
    check_argument("run", run, Run, "Open the folder by `open_run`.")
    if steps is not None:
        steps = checked_integer("steps", steps)
    recipe, steps = run.recipe, steps or steps_to_train(run)
    trainer = make_trainer(strategy)
    sharding = trainer.sharding(recipe.gradient_accumulation_steps)
    is_first = trainer.worker == 0
    with _locked(run, is_first):
        # Section 5.1: sentence pairs, as word pieces
        pairs = load_training_pairs(run)
        validation = load_split(run, recipe.validation_split)

        # The model, new or from the newest checkpoint
        with trainer.scope(), seeded_layers(recipe.seed):
            model = make_model(run.config, recipe)
            if is_first:
                policy = model.dtype_policy.name
                record_start(run, policy, sharding.devices, steps)
            start = resume(run, model, steps, is_first)
            teachers = load_teachers(run)
        loop = Loop(model, recipe, trainer, teachers)
        if reason := _nothing_to_do(start, recipe, steps):
            print(f"Nothing to do: {reason}.")
        else:
            # Section 5.1: batches of similar lengths
            longest = recipe.max_length if trainer.few_shapes else None
            batches = training_batches(
                pairs,
                recipe.tokens_per_batch,
                recipe.seed,
                sharding,
                first_batch=start.step,
                longest=longest,
            )
            validation_batches = evaluation_batches(
                validation.encoded,
                recipe.tokens_per_batch,
                sharding,
                longest,
            )

            # Sections 5.3 and 5.4: steps, validations, checkpoints
            _announce(model, pairs, recipe, sharding.devices, start, steps)
            standard = training_callbacks(
                run, model, validation.pairs, start, loop, is_first
            )
            shown = verbosity() if verbose is None else verbose
            every = recipe.validate_every
            progress = Progress(steps, every, standard[0], is_first and shown)
            callback_list = keras.callbacks.CallbackList(
                [*standard, *keras.tree.flatten(callbacks), progress],
                add_history=True,
                model=model,
                verbose=shown,
                epochs=-(-steps // every),
                steps=every,
            )
            with contextlib.closing(progress):
                loop.fit(
                    batches, validation_batches, start, steps, callback_list
                )

        # Section 6.1: the final weights, perhaps an average of checkpoints
        if is_first:
            model = _finish(run)
        # Should the first worker have to begin again, it will need the others.
        loop.wait_for_all()
        return model


def evaluate(run: Run, model: Transformer, split: str) -> dict:
    """Scores what `train` returned on a split by the run's search, and stores
    the result in the run's folder.

    Example:

    >>> from keras_transformer.training import load_model, open_run
    >>> run = open_run("runs/demo")
    >>> result = evaluate(run, load_model(run), "test")
    test: 3 pairs; left out 0 blank and 0 longer than 256 word pieces.
    >>> result["bleu"], result["sentences"]
    (100.0, 3)

    Args:
        run: a run that is trained, with chosen weights.
        model: the model that `train` or `load_model` returned for it.
        split: name of a split of the run's corpus.

    Returns:
        The dictionary of `inference.score`, with three entries more: `split`,
        its name; `weights`, the name of the chosen weights; and `search`, the
        settings of the search.

    Raises:
        ValueError: if the split does not exist or has no pair left, or if no
            weights are chosen yet.
    """
    if not run.weights.exists():
        raise ValueError(
            "A run is scored with its chosen weights. Received: "
            f"{str(run.folder)!r}, which has none yet. Call `train`, or "
            "`choose_weights` to choose among its checkpoints."
        )
    settings = run.search
    score = make_scorer(run, model, load_split(run, split).pairs, settings)
    result = {
        **score(),
        "split": split,
        "weights": checkpoints.read_metadata(run.weights)["chosen"],
        "search": dataclasses.asdict(settings),
    }
    evaluation.remember(run.folder, result)
    return result


def _locked(run, is_first):
    """Returns a context in which no other process trains the run."""
    if is_first:
        return lock(run.folder, "train a run")
    return contextlib.nullcontext()


def _nothing_to_do(start, recipe, steps):
    """Returns why there is no step or validation left, or `None`."""
    if start.unvalidated_logs is not None:
        return None
    waited = start.best.waited
    if recipe.patience and waited >= recipe.patience:
        return (
            f"no better BLEU in {waited} validations. To train on, start a new "
            "run with this one as --initial-run"
        )
    if start.step >= steps:
        return f"the run has its {steps:,} steps"
    return None


def _announce(model, pairs, recipe, devices, start, steps):
    done = start.step
    first = ""
    if start.unvalidated_logs is not None:
        first = f" First, step {done:,} is validated."
    epoch = max(round(pairs.target_tokens / recipe.tokens_per_batch), 1)
    print(
        f"Training {_parameters(model)} parameters in "
        f"{model.dtype_policy.name} on {len(pairs):,} pairs, "
        f"{devices} device{'s' if devices > 1 else ''}, steps {done + 1:,} "
        f"to {steps:,}; an epoch has about {epoch:,}.{first}"
    )


def _parameters(model):
    """Returns how many parameters are trained, and of how many if not all."""
    trained = sum(math.prod(v.shape) for v in model.trainable_variables)
    every = model.count_params()
    return f"{trained:,}" if trained == every else f"{trained:,} of {every:,}"


def _finish(run):
    """Returns the model with the chosen weights, after the test."""
    is_chosen = run.weights.exists()
    model = load_model(run) if is_chosen else choose_weights(run)
    if run.recipe.test_split:
        print(json.dumps(evaluate(run, model, run.recipe.test_split)))
    return model
