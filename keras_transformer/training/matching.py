"""Finds the array of a checkpoint for each variable of a model."""

import keras
import numpy as np


def matched(
    kind: str,
    variables: dict[str, keras.Variable],
    arrays: dict[str, np.ndarray],
) -> list[tuple[keras.Variable, np.ndarray]]:
    """Returns pairs of a variable and its array, for one kind of state.

    Args:
        kind: of state, as in `checkpoints.state_of`.
        variables: of that kind, by name.
        arrays: as `checkpoints.read` returns them.

    Raises:
        ValueError: if the arrays belong to another model.
    """
    stored = {
        name.removeprefix(f"{kind}/"): array
        for name, array in arrays.items()
        if name.startswith(f"{kind}/")
    }
    by_position = [
        arrays[name] for name in sorted(arrays) if name.startswith(f"{kind}.")
    ]
    if by_position:  # format 1
        _check_number(kind, len(by_position), len(variables))
        stored = dict(zip(variables, by_position, strict=True))
    elif stored.keys() != variables.keys():
        _raise_names(kind, stored, variables)
    for name, variable in variables.items():
        shape, found = tuple(variable.shape), stored[name].shape
        if shape != found:
            raise ValueError(
                "The checkpoint belongs to another model: "
                f"{variable.path} has shape {shape}, the checkpoint has "
                f"{found}. Load it into the model that wrote it."
            )
    return [(variables[name], stored[name]) for name in variables]


def _check_number(kind, found, expected):
    if found != expected:
        raise ValueError(
            f"The checkpoint belongs to another model: it has {found} {kind}, "
            f"expected {expected}. Load it into the model that wrote it."
        )


def _raise_names(kind, stored, variables):
    missing = sorted(variables.keys() - stored.keys())
    unknown = sorted(stored.keys() - variables.keys())
    raise ValueError(
        f"The checkpoint belongs to another model. Its {kind} must have the "
        f"names of the model's variables. Received: {len(missing)} missing"
        f"{_first(missing)}, {len(unknown)} unknown{_first(unknown)}. Load it "
        "into the model that wrote it."
    )


def _first(names):
    return f" ({names[0]}, …)" if names else ""
