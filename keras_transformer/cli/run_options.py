"""Creates or opens the run of `keras-transformer train`."""

import dataclasses
import os
import pathlib
import re
from typing import Any

from keras_transformer.cli.options import (
    DEFAULT_PRESET,
    option_of,
    options_of,
    settings_of,
)
from keras_transformer.config import PRESETS, TransformerConfig
from keras_transformer.data.corpus import FILES
from keras_transformer.data.prepared_corpus import is_prepared
from keras_transformer.data.text_files import SUFFIXES
from keras_transformer.training.new_run import (
    absolute_paths,
    check_settled,
    check_vocabulary,
    start_run,
)
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import Run, open_run, wait_for_file
from keras_transformer.training.run_data import check_corpus, is_missing


def run_of(given: dict[str, Any], worker: int) -> Run:
    """Returns the run to train: a new run, or with `resume` an existing run.

    Args:
        given: the options that were given, by the names of their fields.
        worker: number of this worker. The first worker, 0, starts the run.

    Raises:
        ValueError: if an option differs from the setting of a resumed run.
    """
    folder = given["out"]
    given = _with_files(given)
    recipe, shape = (
        settings_of(cls, given) for cls in (Recipe, TransformerConfig)
    )
    if worker > 0:
        wait_for_file(pathlib.Path(folder, "run.json"))
    settings = {**recipe, **shape, "preset": given.get("preset")}
    settings.pop("steps", None)  # a resumed run may have another number
    settings = {k: v for k, v in settings.items() if v is not None}
    exists = os.path.exists(folder) or not settings
    if worker > 0 or ("resume" in given and exists):
        run = with_moved_paths(open_run(folder), settings)
        _check_agrees(settings, run)
        return run
    corpus = recipe.get("corpus", Recipe.corpus)
    if is_prepared(corpus):
        check_settled(corpus, recipe)
    if "initial_run" in recipe:
        check_vocabulary(open_run(recipe["initial_run"]), recipe)
    default = None if "initial_run" in recipe else DEFAULT_PRESET
    preset = given.get("preset", default)
    return start_run(folder, preset, Recipe(**recipe), **shape)


def _with_files(given):
    """Returns the options with --train-files as a corpus."""
    if "train_files" not in given:
        return given
    if "corpus" in given:
        raise ValueError(
            "Two files are a corpus of their own. Received: --train-files and "
            "--corpus. Leave one out."
        )
    paths = given["train_files"]
    languages = [_language_of(path) for path in paths]
    if None in languages or languages[0] == languages[1]:
        languages = []
    return {
        **dict(zip(("source", "target"), languages, strict=False)),
        **given,
        "corpus": FILES + ":".join(paths),
    }


def _language_of(path):
    """Returns the ending of a file that may name a language, or `None`."""
    endings = os.path.basename(path).split(".")[1:]
    endings = [end for end in endings if f".{end}" not in SUFFIXES]
    is_language = endings and re.fullmatch("[A-Za-z_-]{2,8}", endings[-1])
    return endings[-1] if is_language and endings[-1] != "txt" else None


def with_moved_paths(run: Run, settings: dict[str, Any]) -> Run:
    """Returns a run whose recipe says where the files that it names lie now.

    Args:
        run: the run.
        settings: the options that were given. They name the new places of
            paths that are not there any more.

    Raises:
        ValueError: if the corpus is not there and has no new place, or if
            another path is given for one that is there.
    """
    kept = vars(run.recipe)
    moved = {}
    for name, path in absolute_paths(settings).items():
        if name == "data_dir" or _is_missing(name, kept[name]):
            moved[name] = path
        elif path != (found := absolute_paths(kept).get(name)):
            raise _differs(f"--{name.replace('_', '-')}", path, found)
    recipe = dataclasses.replace(run.recipe, **moved)
    check_corpus(recipe)
    return dataclasses.replace(run, recipe=recipe)


def _is_missing(name, path):
    """Returns whether a setting is a path that is not there."""
    if name == "corpus":
        return is_missing(path)
    paths = path if isinstance(path, tuple) else [path]
    return any(path and not os.path.isdir(path) for path in paths)


def _check_agrees(settings, run):
    """Checks that a resumed run has the settings that are given."""
    kept = {**run.config.to_dict(), **vars(run.recipe)}
    kept |= absolute_paths(kept)
    settings = {**settings, **absolute_paths(settings)}
    kept["preset"] = _preset_of(run.config, settings)
    fields = [*options_of(Recipe), *options_of(TransformerConfig)]
    options = {field.name: option_of(field) for field in fields}
    for name, value in settings.items():
        # "auto" stands for the value that was chosen when the run started.
        if value not in (kept[name], "auto"):
            option = options.get(name, f"--{name}")
            found = kept[name]
            if isinstance(value, bool):  # the option has no value
                value, found = "", f"{name}={found}"
            raise _differs(option, value, found)


def _differs(option, value, found):
    return ValueError(
        f"A run keeps its settings. Received: {f'{option} {value}'.strip()}, "
        f"the run has {found}. Leave it out, or start a new run."
    )


def _preset_of(config, settings):
    """Returns the name of the preset that a run has.

    The dropout rate, and fields that are among the settings, may differ.
    """
    shape = config.to_dict()
    preferred = settings.get("preset", DEFAULT_PRESET)
    for name in sorted(PRESETS, key=lambda name: name != preferred):
        fields = PRESETS[name].keys() - {"dropout_rate", *settings}
        if all(shape[field] == PRESETS[name][field] for field in fields):
            return name
    return "another shape"
