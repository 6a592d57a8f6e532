"""Training: sections 5.2 to 5.4 of the paper."""

import contextlib
import dataclasses
import json
import sys
import time
import warnings

import keras
import tensorflow as tf

import keras_transformer
from keras_transformer import checkpoints, evaluation, processor
from keras_transformer.averaging import choose_weights
from keras_transformer.callbacks import (
    Checkpoint,
    Log,
    TranslationQuality,
    read_validated,
)
from keras_transformer.data.batches import (
    evaluation_batches,
    training_batches,
)
from keras_transformer.distribution import cut_for, default_strategy
from keras_transformer.lines import translate_lines
from keras_transformer.lock import lock
from keras_transformer.model import Transformer
from keras_transformer.optimizer import Adam
from keras_transformer.plots import plot_training
from keras_transformer.processor import resolve_dtype_policy
from keras_transformer.run import Recipe, Run, fingerprint
from keras_transformer.schedule import TransformerSchedule
from keras_transformer.training_loop import Loop, TrainingInterrupted
from keras_transformer.translator import (
    SearchSettings,
    Translator,
    compiled,
)


def train(
    run: Run,
    steps: int | None = None,
    strategy=None,
    verbose=None,
    callbacks=(),
):
    """Trains a run up to `steps` updates, from its newest checkpoint if any,
    chooses its weights, and scores the recipe's `test_split` if it has one.

    One update sees the same loss and gradient however its batch is cut, over
    devices, machines, and parts that follow one another: a sum over all real
    target tokens of the batch, divided by their number.

    Args:
        run: from `start_run` or `open_run`.
        steps: updates in all, those before a restart included. Defaults to
            the recipe's.
        strategy: a `tf.distribute` strategy. Defaults to `default_strategy()`.
        verbose: as in `fit`. Defaults to a bar on a terminal, lines elsewhere.
        callbacks: Keras callbacks. An epoch of theirs is `validate_every`
            steps.

    Returns:
        The trained `Transformer`, with the chosen weights on the first worker.

    Raises:
        ValueError: if the training data is not what the run began with, if
            another process trains the run, or if a loss is not finite.
        TrainingInterrupted: after SIGTERM or SIGINT, with all state saved.
    """
    recipe = run.recipe
    steps = recipe.steps if steps is None else steps
    if steps < 1:
        raise ValueError(f"`steps` must be at least 1. Received: steps={steps}")
    strategy = strategy or default_strategy()
    cut = cut_for(strategy, recipe.gradient_accumulation_steps)
    with lock(run.folder) if cut.worker == 0 else contextlib.nullcontext():
        return _train(run, steps, strategy, cut, verbose, callbacks)


def _train(run, steps, strategy, cut, verbose, callbacks):
    recipe = run.recipe
    if cut.worker == 0:
        checkpoints.remove_partial(run.checkpoints)
    _, training = run.data(recipe.train_split)
    if fingerprint(training) != run.fingerprint:
        raise ValueError(
            f"The training data of {str(run.folder)!r} has changed since the "
            "run began. Restore the corpus, or start a new run."
        )
    run.data(recipe.validation_split)  # shows now whether there is any
    keras.utils.set_random_seed(recipe.seed)
    with strategy.scope():
        model = make_model(run.config, recipe)
        if cut.worker == 0:
            _record_start(run, model, cut)
        about = _restore(run, model, cut, steps)
    loop = Loop(model, recipe, strategy)
    waited = about["best"].get("waited", 0)
    if recipe.patience and waited >= recipe.patience and not about["owed"]:
        print(f"Nothing to do: no better BLEU in {waited} validations.")
    elif about["step"] >= steps and not about["owed"]:
        print(f"Nothing to do: the run has its {steps:,} steps.")
    else:
        _fit(loop, run, about, steps, cut, verbose, callbacks)
    if cut.worker == 0:
        model = _finished(run)
    # Should the first worker have to begin again, it will need the others.
    loop.wait_for_all()
    return model


def _restore(run, model, cut, steps):
    """Takes up the newest checkpoint, if any, and gives what it knows."""
    if not checkpoints.steps(run.checkpoints):
        if run.recipe.initial_run:
            checkpoints.restore_newest(run.initial, model, with_optimizer=False)
        return {"step": 0, "best": {}, "owed": False}
    about = checkpoints.restore_newest(run.checkpoints, model)
    if about.get("run", run.digest) != run.digest:
        raise ValueError(
            f"The checkpoints in {str(run.checkpoints)!r} belong to another "
            f"run. Received: run {about['run'][:12]}…, expected "
            f"{run.digest[:12]}…. Put the original ones back."
        )
    step = about["step"]
    about.setdefault("best", {})
    # Format 1 was written after the validation, and says nothing of it.
    validated = read_validated(run).get(step)
    due = step % run.recipe.validate_every == 0 or step >= steps
    about["owed"] = (
        due and validated is None and about.get("validated") is False
    )
    if validated:
        about["best"] = validated
    if cut.worker == 0 and about["best"].get("step") == step:
        # Should the process have ended before it had its second name.
        checkpoints.link(
            dict(checkpoints.steps(run.checkpoints))[step], run.best_checkpoint
        )
    print(f"Going on from step {step:,}.")
    return about


def _fit(loop, run, about, steps, cut, verbose, callbacks):
    """The steps that are left; the first worker writes."""
    recipe, done = run.recipe, about["step"]
    _, training = run.data(recipe.train_split)
    pairs, validation = run.data(recipe.validation_split)
    replicas = cut.workers * cut.replicas
    print(
        f"Training {loop.model.count_params():,} parameters in "
        f"{loop.model.dtype_policy.name} on {len(training):,} pairs, "
        f"{replicas} device{'s' if replicas > 1 else ''}, steps {done + 1:,} "
        f"to {steps:,}."
        + (f" First, step {done:,} is validated." if about["owed"] else "")
    )
    if verbose is None:
        verbose = 1 if sys.stdout.isatty() else 2
    writers = []
    if cut.worker == 0:
        run.weights.unlink(missing_ok=True)  # they will not be the last word
        writers = [
            Log(run.folder, done - about["owed"]),
            Checkpoint(run, about["best"]),
        ]
        writers[1].saved = done
    watchers = keras.callbacks.CallbackList(
        [
            TranslationQuality(run, pairs, loop.check_interrupted),
            *writers,
            *callbacks,
        ],
        add_history=True,
        add_progbar=verbose != 0 and cut.worker == 0,
        verbose=verbose,
        epochs=-(-steps // recipe.validate_every),
        steps=recipe.validate_every,
        model=loop.model,
    )
    batches = training_batches(
        run.training_pairs(),
        recipe.tokens_per_batch,
        recipe.seed,
        cut,
        first_batch=done,
    )
    try:
        loop.fit(
            batches,
            evaluation_batches(validation, recipe.tokens_per_batch, cut),
            done,
            steps,
            watchers,
            about["logs"] if about["owed"] else None,
        )
    except TrainingInterrupted:
        if writers:
            writers[1].save()
            _plot(run.folder)
        raise
    if writers:
        _plot(run.folder)


def _plot(folder):
    """Draws the training. A failure is a warning: it is no reason to lose the
    end of training, or the signal that ended it."""
    try:
        plot_training(folder)
    except Exception as error:
        warnings.warn(f"Cannot draw training.png: {error}", stacklevel=2)


def _record_start(run, model, cut):
    """Adds a line to `starts.jsonl`: what this start of training runs on."""
    record = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "keras_transformer": keras_transformer.__version__,
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "processor": processor.describe(),
        "dtype_policy": model.dtype_policy.name,
        "devices": cut.workers * cut.replicas,
    }
    with open(run.folder / "starts.jsonl", "a") as file:
        file.write(json.dumps(record) + "\n")


def _finished(run):
    """The model that a run ends with."""
    model = run.load_model() if run.weights.exists() else choose_weights(run)
    if run.recipe.test_split:
        print(json.dumps(evaluate(run, model, run.recipe.test_split)))
    return model


def make_model(config, recipe: Recipe) -> Transformer:
    """The model and its optimizer as section 5 has them."""
    dtype = resolve_dtype_policy(recipe.dtype_policy)
    model = Transformer(config, seed=recipe.seed, dtype=dtype)
    schedule = TransformerSchedule(
        config.d_model, recipe.warmup_steps, recipe.learning_rate_scale
    )
    model.compile(
        Adam(
            schedule,
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-9,
            global_clipnorm=recipe.global_clipnorm,
        )
    )
    model.optimizer.build(model.trainable_variables)
    return model


def evaluate(run: Run, model: Transformer, split: str) -> dict:
    """Scores what `train` gave on a split by the paper's search, and stores
    the result in the run's folder."""
    settings = SearchSettings()
    translate = compiled(
        Translator(model, run.source_tokenizer, run.target_tokenizer, settings)
    )
    pairs, _ = run.data(split)
    result = {
        **evaluation.score(
            translate_lines(translate, pairs.source),
            pairs.target,
            run.recipe.bleu_tokenizer,
        ),
        "split": split,
        "weights": checkpoints.read(run.weights)[0]["chosen"],
        "search": dataclasses.asdict(settings),
    }
    evaluation.remember(run.folder, result)
    return result
