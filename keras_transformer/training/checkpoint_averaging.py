"""Which weights a run ends with: section 6.1, averages of checkpoints."""

import warnings

import numpy as np

from keras_transformer.model import Transformer
from keras_transformer.training import checkpoints, lora
from keras_transformer.training.callbacks import make_scorer
from keras_transformer.training.models import exact_policy
from keras_transformer.training.resume import best_step
from keras_transformer.training.run import Run
from keras_transformer.training.run_data import load_split
from keras_transformer.validation import checked_integer


def choose_weights(run: Run, last: int | None = None) -> Transformer:
    """Writes `weights.npz`: the weights that translate the validation split
    best, by the run's search.

    Candidates are the newest checkpoint, the best one, and the average of the
    last ones.

    Example:

    >>> from keras_transformer.training import open_run
    >>> model = choose_weights(open_run("runs/demo"), last=2)
    validation: 3 pairs; left out 0 blank and 0 longer than 256 word pieces.
    ...
    Validation BLEU 100.00: average of 2, steps 40 to 80.
    Chosen: average of 2, steps 40 to 80.

    Args:
        run: an open run with at least one checkpoint.
        last: how many checkpoints to average. Defaults to the recipe's
            `average_checkpoints`.

    Returns:
        The model with the chosen weights.

    Raises:
        ValueError: if `last` is no integer of at least 1, or if there is no
            intact checkpoint.
    """
    if last is None:
        last = run.recipe.average_checkpoints
    last = checked_integer("last", last)
    model = Transformer(run.config, dtype=exact_policy())
    candidates = _candidates(run, model, last)
    validation = load_split(run, run.recipe.validation_split).pairs
    score = make_scorer(run, model, validation, run.search)
    bleu = {}
    for name, weights in candidates.items():
        checkpoints.assign(model, weights, with_optimizer=False)
        bleu[name] = score()["bleu"]
        print(f"Validation BLEU {bleu[name]:.2f}: {name}.")
    # The last of equals: an average is kept where BLEU does not fall.
    chosen = max(reversed(bleu), key=lambda name: bleu[name])
    checkpoints.write(
        run.weights,
        candidates[chosen],
        {"chosen": chosen, "val_bleu": bleu[chosen], "run": run.digest},
    )
    print(f"Chosen: {chosen}.")
    checkpoints.assign(model, candidates[chosen], with_optimizer=False)
    return model


def _candidates(run, model, last):
    """Returns the weights to choose from by name: of the best checkpoint, the
    newest, and the average of the last ones. Each file is read once."""
    best, every = best_step(run), run.recipe.validate_every
    found = checkpoints.steps(run.checkpoints)
    # A signal saves between two validations: not one of their series.
    series = [n for n, _ in found if n % every == 0 or n == found[-1][0]]
    read = lora.weights_reader(run, model)
    single: dict[int, dict] = {}
    averaged: list[int] = []
    total: dict = {}
    for step, path in reversed(found):
        is_averaged = step in series and len(averaged) < last
        if not (is_averaged or step == best or not single):
            continue
        try:
            weights = read(path)
        except checkpoints.DamagedCheckpointError as error:
            warnings.warn(str(error), stacklevel=2)
            continue
        if step == best or not single:
            single[step] = weights
        if is_averaged:
            total = _sum(total, weights)
            averaged.append(step)
    if not single:
        raise ValueError(
            f"No intact checkpoint in {str(run.checkpoints)!r}. Train first."
        )
    candidates = {f"step {step:,}": single[step] for step in sorted(single)}
    if len(averaged) > 1:
        first, final = averaged[-1], averaged[0]
        name = f"average of {len(averaged)}, steps {first:,} to {final:,}"
        candidates[name] = {
            key: (value / len(averaged)).astype("float32")
            for key, value in total.items()
        }
    return candidates


def _sum(total, weights):
    """Adds weights to a sum in float64, which may still be empty."""
    if not total:
        return {key: np.float64(value) for key, value in weights.items()}
    return {key: total[key] + value for key, value in weights.items()}
