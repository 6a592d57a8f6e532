"""Which weights a run ends with: section 6.1, averages of checkpoints."""

import warnings

from keras_transformer import checkpoints, evaluation
from keras_transformer.lines import translate_lines
from keras_transformer.run import Run
from keras_transformer.translator import (
    SearchSettings,
    Translator,
    compiled,
)


def choose_weights(run: Run, last: int | None = None):
    """Writes the run's `weights.npz`: of the newest checkpoint, the best one
    and the average of the last ones, what translates the validation split
    best by the paper's search.

    Args:
        run: an open run with at least one checkpoint.
        last: how many checkpoints to average. Defaults to the recipe's
            `average_checkpoints`.

    Returns:
        The model with the chosen weights.

    Raises:
        ValueError: if there is no whole checkpoint.
    """
    model = run.load_model()
    translate = compiled(
        Translator(
            model, run.source_tokenizer, run.target_tokenizer, SearchSettings()
        )
    )
    pairs, _ = run.data(run.recipe.validation_split)
    candidates = []
    if last is None:
        last = run.recipe.average_checkpoints
    if last < 1:
        raise ValueError(f"`last` must be at least 1. Received: last={last}")
    for name, paths in _candidates(run, last):
        arrays = checkpoints.average(paths, model)
        checkpoints.assign(model, arrays, with_optimizer=False)
        bleu = evaluation.score(
            translate_lines(translate, pairs.source),
            pairs.target,
            run.recipe.bleu_tokenizer,
        )["bleu"]
        print(f"Validation BLEU {bleu:.2f}: {name}.")
        candidates.append((bleu, name, arrays))
    # The last of equals: an average is kept where BLEU does not fall.
    bleu, name, arrays = max(reversed(candidates), key=lambda c: c[0])
    about = {"chosen": name, "val_bleu": bleu, "run": run.digest}
    checkpoints.write(run.weights, arrays, about)
    print(f"Chosen: {name}.")
    checkpoints.assign(model, arrays, with_optimizer=False)
    return model


def _candidates(run, last):
    """Names and files; what is damaged is named and passed over."""
    whole = []
    best = run.best_checkpoint
    paths = [path for _, path in checkpoints.steps(run.checkpoints)]
    for path in [*paths, *([best] if best.exists() else [])]:
        try:
            about, _ = checkpoints.read(path)
        except checkpoints.DamagedCheckpointError as error:
            warnings.warn(str(error), stacklevel=2)
            continue
        whole.append((about["step"], path))
    if not whole:
        raise ValueError(
            f"No whole checkpoint in {str(run.checkpoints)!r}. Train first."
        )
    # What a signal saved between two validations is not of their series.
    every = run.recipe.validate_every
    saved = [
        (step, path)
        for step, path in whole
        if path != best and (step % every == 0 or path == paths[-1])
    ]
    found = {f"step {step:,}": [path] for step, path in whole[-1:]}
    found.update({f"step {step:,}": [path] for step, path in saved[-1:]})
    if min(last, len(saved)) > 1:
        steps, paths = zip(*saved[-last:], strict=True)
        name = f"average of {len(steps)}, steps {steps[0]:,} to {steps[-1]:,}"
        found[name] = list(paths)
    return found.items()
