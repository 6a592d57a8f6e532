"""How far a run is: its checkpoints, and which validations were done.

`validated.json` beside the checkpoints has the record of the best validation
so far after each validation, by step. A checkpoint whose step is missing there
was saved before its validation ended.
"""

import contextlib
import dataclasses
import json

import keras

from keras_transformer.atomic_files import remove_partial, write_aside
from keras_transformer.training import checkpoints, lora
from keras_transformer.training.run import Run
from keras_transformer.validation import check_types

VALIDATED = "validated.json"


@dataclasses.dataclass
class Best:
    """The best validation so far.

    Args:
        step: of the best validation.
        val_bleu: its BLEU.
        waited: validations since.
    """

    step: int = 0
    val_bleu: float = -1.0
    waited: int = 0

    def __post_init__(self) -> None:
        check_types(self)


@dataclasses.dataclass(frozen=True)
class ResumePoint:
    """Where training resumes.

    Args:
        step: updates done.
        best: the best validation so far.
        unvalidated_logs: the training logs of `step` if its validation was
            cut short, which is then done first. Otherwise `None`.
    """

    step: int
    best: Best
    unvalidated_logs: dict | None = None


def resume(
    run: Run, model: keras.Model, steps: int, is_first: bool = True
) -> ResumePoint:
    """Restores the newest intact checkpoint of a run, if there is one, and
    otherwise the weights that it begins with.

    Args:
        run: the run.
        model: a compiled model, which gets the state.
        steps: updates to train in all.
        is_first: whether this is the first worker, which tidies the folder.

    Raises:
        ValueError: if the checkpoints belong to another run.
    """
    if is_first:
        for folder in (run.folder, run.checkpoints):
            remove_partial(folder)
    if run.recipe.lora_rank:  # whose checkpoints have the factors alone
        lora.restore_base(run, model)
    if not checkpoints.steps(run.checkpoints):
        if run.recipe.initial_run and not run.recipe.lora_rank:
            checkpoints.restore_newest(run.initial, model, with_optimizer=False)
        return ResumePoint(0, Best())
    metadata = checkpoints.restore_newest(run.checkpoints, model)
    if metadata["run"] != run.digest:
        raise ValueError(
            f"The checkpoints in {str(run.checkpoints)!r} belong to another "
            f"run. Received: run {metadata['run'][:12]}…, expected "
            f"{run.digest[:12]}…. Put the original ones back."
        )
    step = metadata["step"]
    print(f"Going on from step {step:,}.")
    if validated := read_validated(run).get(step):
        return ResumePoint(step, validated)
    is_due = step % run.recipe.validate_every == 0 or step >= steps
    logs = metadata["logs"] if is_due else None
    return ResumePoint(step, Best(**metadata["best"]), logs)


def best_step(run: Run) -> int | None:
    """Returns the step of the best validation, or `None` before the first."""
    if validated := read_validated(run):
        return validated[max(validated)].step
    for _, path in reversed(checkpoints.steps(run.checkpoints)):
        with contextlib.suppress(checkpoints.DamagedCheckpointError):
            return checkpoints.read_metadata(path)["best"]["step"]
    return None


def read_validated(run: Run) -> dict[int, Best]:
    """Returns the best validation so far after each validation, by step."""
    path = run.checkpoints / VALIDATED
    if not path.exists():
        return {}
    try:
        records = json.loads(path.read_text())
        return {int(step): Best(**best) for step, best in records.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{str(path)!r} is damaged: {error}. Remove it: the newest "
            "checkpoint is then validated again."
        ) from error


def write_validated(run: Run, step: int, best: Best):
    """Records the best validation so far after the validation of a step."""
    kept = {s for s, _ in checkpoints.steps(run.checkpoints)} | {step}
    records = {
        s: dataclasses.asdict(b)
        for s, b in {**read_validated(run), step: best}.items()
        if s in kept
    }
    with write_aside(run.checkpoints / VALIDATED) as file:
        file.write(json.dumps(records).encode())
