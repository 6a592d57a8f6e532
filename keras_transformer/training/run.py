"""The record of a training run: a folder with all that decides its outcome.

`run.json` holds the model's shape, the recipe, and fingerprints of the
training data and the vocabularies; beside it are the vocabularies
`source.model` and `target.model`, the prepared sentence pairs `data/` if they
were not prepared before, `initial/` with the weights of another run if
it began with these, `teachers/` with the models whose predictions are learned,
if any, `checkpoints/` (with LoRA, of its factors alone),
`log.jsonl`, the same as `logs/` for TensorBoard and as `training.png`,
`starts.jsonl` with a line of versions, devices and steps for each start of
training, and in the end `weights.npz`, the weights that were chosen.

`new_run` starts a run, `run_data` loads its sentence pairs, `models` builds its
model, `train_run` trains it.
"""

import dataclasses
import json
import os
import pathlib
import sys
import time
from typing import Any

import keras
import numpy as np

import keras_transformer
from keras_transformer import hardware
from keras_transformer.atomic_files import write_aside
from keras_transformer.config import TransformerConfig
from keras_transformer.data.prepared_corpus import is_prepared, sha256
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.training.recipe import Recipe
from keras_transformer.validation import shown

FORMAT = 2
STARTS = "starts.jsonl"
LONGEST_WAIT = 24 * 3600  # seconds for which workers wait for the first


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Holds what the folder of a run says: see `start_run` and `open_run`.

    Example:

    >>> from keras_transformer.training import open_run
    >>> run = open_run("runs/demo")
    >>> run.recipe.source, run.recipe.target, run.weights.name
    ('en', 'de', 'weights.npz')

    Args:
        folder: of the run.
        config: the shape of its model.
        recipe: how it is trained.
        source_tokenizer, target_tokenizer: its vocabularies, the same one if
            it is shared.
        data_fingerprint: SHA-256 of the manifest of the prepared pairs that it
            is trained on.
        search: how its translations are searched. Defaults to the paper's
            search.
    """

    folder: pathlib.Path
    config: TransformerConfig
    recipe: Recipe
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    data_fingerprint: str
    search: SearchSettings = dataclasses.field(default_factory=SearchSettings)

    @property
    def initial(self) -> pathlib.Path:
        """The folder with the weights that the run began with, if any."""
        return self.folder / "initial"

    @property
    def data(self) -> pathlib.Path:
        """The folder of the prepared pairs that it is trained on."""
        if is_prepared(self.recipe.corpus):
            return pathlib.Path(self.recipe.corpus)
        return self.folder / "data"

    @property
    def checkpoints(self) -> pathlib.Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def weights(self) -> pathlib.Path:
        """The file of the chosen weights."""
        return self.folder / "weights.npz"

    @property
    def digest(self) -> str:
        """The mark of the run's checkpoints: another run, another digest."""
        return sha256((self.folder / "run.json").read_bytes())


def open_run(folder: str | os.PathLike) -> Run:
    """Opens the folder of a run that `start_run` wrote.

    Example:

    >>> run = open_run("runs/demo")
    >>> run.config.num_layers, run.config.vocab_size
    (1, 300)

    Args:
        folder: folder of the run.

    Returns:
        The `Run`.

    Raises:
        ValueError: if the folder is no run, is damaged or has the format of
            another version, or if its vocabulary was exchanged.
    """
    folder = pathlib.Path(folder)
    try:
        record = json.loads((folder / "run.json").read_text())
        models = [
            (folder / f"{side}.model").read_bytes()
            for side in ("source", "target")
        ]
    except FileNotFoundError as error:
        raise ValueError(
            f"Not the folder of a run: {str(folder)!r} has no "
            f"{os.path.basename(error.filename)}. Start one by "
            "`keras-transformer train`."
        ) from error
    except ValueError as error:  # no UTF-8, or no JSON
        raise ValueError(
            f"{str(folder / 'run.json')!r} is damaged: {error}."
        ) from error
    if not isinstance(record, dict):
        raise ValueError(
            f"{str(folder / 'run.json')!r} is damaged: it must hold an object. "
            f"Received: {shown(record)}."
        )
    if record.get("format") != FORMAT:
        raise ValueError(
            f"{str(folder)!r} has format {shown(record.get('format'))}, this "
            f"version reads format {FORMAT}. Train again, or install the "
            f"version that wrote it: {shown(record.get('keras_transformer'))}."
        )
    for side, model in zip(("source", "target"), models, strict=True):
        expected = str(record.get(f"{side}_vocabulary"))
        found = sha256(model)
        if found != expected:
            raise ValueError(
                f"{str(folder / f'{side}.model')!r} is not the vocabulary that "
                f"the run was trained with: expected SHA-256 {expected[:12]}…, "
                f"received {found[:12]}…. Put the original back."
            )
    try:
        return Run(
            folder,
            TransformerConfig.from_dict(record["transformer"]),
            Recipe(**record["recipe"]),
            Tokenizer(models[0]),
            Tokenizer(models[1]),
            record["training_data"],
            SearchSettings(**record["search"]),
        )
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{str(folder / 'run.json')!r} cannot be read: {error}. It was "
            f"written by version {shown(record.get('keras_transformer'))}: "
            "install that one, or put the original file back."
        ) from error


def write_run(run: Run, folder: pathlib.Path):
    """Writes the record of a run and its vocabularies to a folder."""
    record = {
        "format": FORMAT,
        "keras_transformer": keras_transformer.__version__,
        "transformer": run.config.to_dict(),
        "recipe": dataclasses.asdict(run.recipe),
        "source_vocabulary": sha256(run.source_tokenizer.model),
        "target_vocabulary": sha256(run.target_tokenizer.model),
        "training_data": run.data_fingerprint,
        "search": dataclasses.asdict(run.search),
    }
    for name, data in (
        ("source.model", run.source_tokenizer.model),
        ("target.model", run.target_tokenizer.model),
        ("run.json", (json.dumps(record, indent=2) + "\n").encode()),
    ):
        with write_aside(folder / name) as file:
            file.write(data)


def record_start(run: Run, dtype_policy: str, devices: int, steps: int):
    """Adds a line to `starts.jsonl`: what this start of training runs on, and
    up to which step."""
    backend = keras.backend.backend()
    record = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "keras_transformer": keras_transformer.__version__,
        "keras": keras.__version__,
        "backend": f"{backend} {sys.modules[backend].__version__}",
        "numpy": np.__version__,
        "processor": hardware.describe(),
        "dtype_policy": dtype_policy,
        "devices": devices,
        "steps": steps,
        "cores": hardware.cores(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("TF_", "ONEDNN_", "XLA_", "OMP_NUM"))
            and name != "TF_CONFIG"  # differs from worker to worker
        },
    }
    records = [*read_records(run.folder / STARTS, "steps"), record]
    write_records(run.folder / STARTS, records)


def steps_to_train(run: Run) -> int:
    """Returns the steps of the recipe, or more if a start was given more."""
    starts = read_records(run.folder / STARTS, "steps")
    return max([run.recipe.steps, *(start["steps"] for start in starts)])


def read_records(path: pathlib.Path, field: str) -> list[dict[str, Any]]:
    """Returns the lines of a file of JSON objects; none without a file.

    Args:
        path: the file.
        field: field of the objects whose values are integers.

    Raises:
        ValueError: if the file is damaged.
    """
    records = []
    lines = path.read_bytes().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or type(record[field]) is not int:
                raise ValueError(f"no object with a number of {field}")
        except (ValueError, KeyError, RecursionError) as error:
            raise ValueError(
                f"{str(path)!r} is damaged in line {number}: {error}. Remove "
                "the line, or the file."
            ) from error
        records.append(record)
    return records


def write_records(path: pathlib.Path, records: list[dict[str, Any]]):
    """Writes objects as lines of JSON."""
    with write_aside(path) as file:
        for record in records:
            file.write((json.dumps(record) + "\n").encode())


def wait_for_file(path: pathlib.Path):
    """Waits until a file is there, which the first worker writes.

    Raises:
        TimeoutError: if it does not come.
    """
    for _ in range(LONGEST_WAIT):
        if path.exists():
            return
        time.sleep(1)
    raise TimeoutError(
        f"The first worker has not written {str(path)!r} in {LONGEST_WAIT} s. "
        "Is the folder on a file system that all workers share?"
    )
