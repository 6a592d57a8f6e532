"""The run that the options of `keras-transformer train` ask for."""

import os

from keras_transformer.cli.arguments import (
    DEFAULT_PRESET,
    option_of,
    options_of,
)
from keras_transformer.config import PRESETS, TransformerConfig
from keras_transformer.training.new_run import start_run
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import Run, open_run, wait_for_run


def run_of(given: dict, worker: int) -> Run:
    """Returns the run to train: a new one, or with `resume` the one there is.

    Args:
        given: the options that were given, by the names of their fields.
        worker: the number of this worker; the first one starts the run.

    Raises:
        ValueError: if an option differs from what a resumed run has.
    """
    folder = given["out"]
    recipe, shape = (
        _settings(cls, given) for cls in (Recipe, TransformerConfig)
    )
    if worker > 0:
        wait_for_run(folder)
    asks = {**recipe, **shape, "preset": given.get("preset")}
    asks.pop("steps", None)  # may differ from start to start
    asks = {name: value for name, value in asks.items() if value is not None}
    exists = os.path.exists(folder) or not asks
    if worker > 0 or ("resume" in given and exists):
        run = open_run(folder)
        _check_agrees(asks, run)
        return run
    preset = given.get("preset", DEFAULT_PRESET)
    return start_run(folder, preset, Recipe(**recipe), **shape)


def _settings(cls, given):
    return {f.name: given[f.name] for f in options_of(cls) if f.name in given}


def _check_agrees(asks, run):
    """Checks that a resumed run has the settings that are given."""
    kept = {**run.config.to_dict(), **vars(run.recipe)}
    kept["preset"] = _preset_of(run.config, asks)
    fields = [*options_of(Recipe), *options_of(TransformerConfig)]
    options = {field.name: option_of(field) for field in fields}
    for name, value in asks.items():
        agrees = (kept[name], "auto")  # what "auto" was at the start
        if value not in agrees:
            option = options.get(name, f"--{name}")
            found = kept[name]
            if isinstance(value, bool):  # the option has no value
                value, found = "", f"{name}={found}"
            raise ValueError(
                "A resumed run keeps its settings. Received: "
                f"{f'{option} {value}'.strip()}, the run has {found}. Leave it "
                "out, or start a new run."
            )


def _preset_of(config, asks):
    """Returns the preset whose shape the run has, except for its dropout rate
    and for what other options say of it."""
    shape = config.to_dict()
    preferred = asks.get("preset", DEFAULT_PRESET)
    for name in sorted(PRESETS, key=lambda name: name != preferred):
        fields = PRESETS[name].keys() - {"dropout_rate", *asks}
        if all(shape[field] == PRESETS[name][field] for field in fields):
            return name
    return "another shape"
