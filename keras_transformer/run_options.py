"""The run that the options of `keras-transformer train` ask for."""

import dataclasses
import os

from keras_transformer import run as runs
from keras_transformer.config import PRESETS

# Where a recipe's field has another name on the command line.
_OPTIONS = {
    "train_split": "train",
    "validation_split": "validation",
    "test_split": "test",
}


# Fields of the model's shape that have an option of their own.
_SHAPE = (
    "num_layers",
    "d_model",
    "num_heads",
    "d_ff",
    "dropout_rate",
    "attention_dropout_rate",
    "activation_dropout_rate",
    "norm_first",
    "initializer_scale",
)
# Options that are not part of the recipe of a run.
_NOT_KEPT = ("out", "steps", "resume", "deterministic")


def run_of(options, worker):
    """Returns the run to train: a new one, or with --resume the one there is.

    Raises:
        ValueError: if an option differs from what a resumed run has.
    """
    if worker > 0:
        runs.wait_for(options.out)  # for the first worker to start it
    settings = options.given - {f"--{name}" for name in _NOT_KEPT}
    exists = os.path.exists(options.out) or not settings
    if worker > 0 or (options.resume and exists):
        run = runs.open_run(options.out)
        _check_agrees(options, run)
        return run
    overrides = {
        name: value
        for name in _SHAPE
        if (value := getattr(options, name)) is not None
    }
    return runs.start_run(
        options.out, options.preset, _recipe(options), **overrides
    )


def _recipe(options):
    values = {
        field.name: getattr(options, _OPTIONS.get(field.name, field.name))
        for field in dataclasses.fields(runs.Recipe)
        if field.name != "shared_vocabulary"
    }
    return runs.Recipe(
        **values, shared_vocabulary=not options.separate_vocabularies
    )


def _check_agrees(options, run):
    """A resumed run keeps its settings; those that are given must be its."""
    kept = dataclasses.asdict(run.recipe) | {
        **{name: getattr(run.config, name) for name in _SHAPE},
        "separate_vocabularies": not run.recipe.shared_vocabulary,
    }
    kept |= {option: kept[field] for field, option in _OPTIONS.items()}
    kept["preset"] = _preset_of(run.config, options)
    for option in sorted(options.given):
        name = option.strip("-").replace("-", "_")
        agrees = (kept.get(name), "auto")  # what "auto" was at the start
        if name not in _NOT_KEPT and getattr(options, name) not in agrees:
            raise ValueError(
                f"A resumed run keeps its settings. Received: {option} "
                f"{getattr(options, name)}, the run has {kept[name]}. Leave it "
                "out, or start a new run."
            )


def _preset_of(config, options):
    """The preset that a shape is of but for dropout and the options given."""
    shape = config.to_dict()
    own = {"dropout_rate", *(x for x in _SHAPE if getattr(options, x))}
    for name in sorted(PRESETS, key=lambda name: name != options.preset):
        preset = PRESETS[name]
        if all(shape[x] == preset[x] for x in preset.keys() - own):
            return name
    return "another shape"
