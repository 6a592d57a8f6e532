"""`assert_no_leak`, which checks the masks of your own model.

A wrong mask raises no error and only costs quality, so it can stay unnoticed
in a model for years. The check runs the model itself, on any backend.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import KerasTensor

from keras_transformer.ids import PAD


def assert_no_leak(
    model: Callable[[Any], KerasTensor],
    inputs: np.ndarray | dict[str, np.ndarray],
    causal: str | bool | None = None,
    padded: str | None = None,
    pad_id: int = PAD,
    tolerance: float = 1e-5,
) -> None:
    """Checks that padding, other rows and later tokens change no output.

    Example:

    >>> from keras_transformer import EncoderLayer, PositionalEmbedding
    >>> ids = keras.Input((None,), dtype="int32")
    >>> x = PositionalEmbedding(vocab_size=10, d_model=8)(ids)
    >>> model = keras.Model(ids, EncoderLayer(8, num_heads=2, d_ff=16)(x))
    >>> assert_no_leak(model, np.array([[5, 7, 9, 2], [4, 3, 0, 0]]))

    - Padding: more columns of padding do not change the outputs.
    - Batch: a row has the same outputs alone as in a batch.
    - Future, with `causal`: other tokens from position t on do not change the
      outputs before t, to the last bit; nor does their number.

    Args:
        model: function of `inputs`, such as a Keras model. It is run as for
            inference and returns `(B, …)`, or `(B, T, …)`: one output for each
            position of the input that `causal` or `padded` names.
        inputs: integer ids `(B, T)`, or a dictionary of such arrays. Rows are
            padded at the end with `pad_id` and have different lengths.
        causal: name of the input whose later tokens may not change earlier
            outputs; True for a single input. Defaults to `None`, no check of
            the future.
        padded: name of the input whose positions the output has. Defaults to
            the input that `causal` names, or to the only input that has the
            length of the output.
        pad_id: id of padding. Defaults to 0.
        tolerance: largest allowed difference, except where later tokens are
            replaced by others. Defaults to 1e-5.

    Raises:
        AssertionError: if something leaks; the message says what, where and by
            how much.
        ValueError: if the inputs cannot show a leak, or if an input must be
            named.
    """
    single = not isinstance(inputs, dict)
    named = inputs if isinstance(inputs, dict) else {"inputs": inputs}
    batch = {name: _checked_ids(name, ids) for name, ids in named.items()}
    if causal is True and not single:
        raise ValueError(
            "`causal` must name one of several inputs. Received: causal=True "
            f"for inputs {sorted(batch)}."
        )
    causal_name = causal if isinstance(causal, str) else None
    if causal and single:
        causal_name = "inputs"
    for name in filter(None, (causal_name, padded)):
        if name not in batch:
            raise ValueError(
                "`causal` and `padded` must name an input. Received: "
                f"{name!r} for inputs {sorted(batch)}."
            )

    def run(ids):
        outputs = model(ids["inputs"] if single else ids)
        return _checked_outputs(outputs, len(next(iter(ids.values()))))

    expected = run(batch)
    padded = padded or causal_name
    padded = padded or _input_of_positions(run, expected, batch, pad_id)
    real = np.ones(len(expected), bool)[:, None]
    if padded is not None:
        real = batch[padded] != pad_id  # [B, T]

    for name, ids in batch.items():
        found = run({**batch, name: _with_padding(ids, pad_id)})
        if name == padded:
            found = found[:, : ids.shape[1]]
        _compare(found, expected, real, tolerance, f"More padding of {name!r}")
    for row in range(len(expected)):
        alone = run({name: ids[row : row + 1] for name, ids in batch.items()})
        own = slice(row, row + 1)
        _compare(
            alone, expected[own], real[own], tolerance, "Another row's input"
        )
    if causal_name:
        _assert_causal(
            run, batch, causal_name, expected, real, pad_id, tolerance
        )


def _checked_ids(name, ids):
    try:
        found = np.asarray(ids)
    except ValueError:  # rows of different lengths
        found = np.empty(0, object)
    if found.ndim != 2 or found.dtype.kind not in "iu":
        raise ValueError(
            "Inputs must be integer ids (batch, length), or a dictionary of "
            f"such arrays. Received: {name} of dtype {found.dtype} and shape "
            f"{found.shape}. For other inputs, give a function of ids that "
            "calls the model."
        )
    return found


def _checked_outputs(outputs, rows):
    if isinstance(outputs, tuple | list | dict):
        raise ValueError(
            "The model must return one tensor. Received: a "
            f"{type(outputs).__name__}. Give a function that returns the part "
            "to check, for example `lambda ids: model(ids)[0]`."
        )
    found = np.asarray(keras.ops.convert_to_numpy(outputs))
    is_number = found.dtype.kind in "biufV"  # V: bfloat16
    if not found.ndim or not is_number or len(found) != rows:
        raise ValueError(
            "The model must return numbers (batch, …). Received: dtype "
            f"{found.dtype}, shape {found.shape} for {rows} rows."
        )
    is_short = found.dtype.kind in "fV" and found.dtype != np.float64
    return found.astype(np.float32 if is_short else np.float64)


def _assert_causal(run, batch, name, expected, real, pad_id, tolerance):
    ids = batch[name]
    where = np.arange(ids.shape[1])
    # Ids up to the greatest in the input are legal: each is replaced by the
    # next larger id, and the greatest by the smallest.
    legal = np.setdiff1d(np.arange(ids.max(initial=0) + 1), [pad_id])
    if len(legal) < 2:
        raise ValueError(
            "A leak of the future shows only with at least two different ids "
            f"besides the padding. Received: {name} with ids up to "
            f"{ids.max(initial=0)}. Use larger ids."
        )
    others = legal[(np.searchsorted(legal, ids) + 1) % len(legal)]
    for t in range(1, ids.shape[1]):
        later = (where >= t) & (ids != pad_id)
        for replacement, allowed, change in (
            (others, 0.0, "A token"),
            (pad_id, tolerance, "The number of tokens"),
        ):
            found = run({**batch, name: np.where(later, replacement, ids)})
            _compare(
                found[:, :t],
                expected[:, :t],
                real[:, :t],
                allowed,
                f"{change} of {name!r} at position {t} or later",
            )


def _with_padding(ids, pad_id):
    return np.pad(ids, ((0, 0), (0, 3)), constant_values=pad_id)


def _input_of_positions(run, outputs, batch, pad_id):
    """Returns the name of the input whose positions the output has, or `None`
    if the output has one value per row."""
    names = [n for n, ids in batch.items() if ids.shape == outputs.shape[:2]]
    if outputs.ndim < 3:
        # The second axis may be positions, or features that happen to be as
        # many. Only an axis of positions grows with more padding.
        names = [
            n
            for n in names
            if run({**batch, n: _with_padding(batch[n], pad_id)}).shape
            != outputs.shape
        ]
        if not names:
            return None
    if len(names) == 1:
        return names[0]
    raise ValueError(
        "Cannot tell to which input the output's positions belong. Name it by "
        f"`padded`. Received: an output of shape {outputs.shape} for inputs "
        f"{ {name: ids.shape for name, ids in batch.items()} }."
    )


def _compare(found, expected, real, tolerance, cause):
    if found.shape != expected.shape:
        raise AssertionError(
            f"{cause} changes the shape of the output from {expected.shape} to "
            f"{found.shape}."
        )
    with np.errstate(invalid="ignore"):  # of infinities, which may be equal
        difference = np.abs(found - expected)
    difference[found == expected] = 0
    if real.shape[1:] == (1,) and difference.ndim < 3:
        worst = difference.reshape(len(difference), -1).max(axis=1)[:, None]
    else:
        worst = difference.reshape(*real.shape, -1).max(axis=-1)
    worst = np.where(real, worst, 0.0)
    if np.isnan(worst).any() or worst.max() > tolerance:
        row, position = np.unravel_index(np.argmax(worst), worst.shape)
        raise AssertionError(
            f"{cause} changes the output of row {row}, position {position} by "
            f"{worst.max():.3g}; allowed is {tolerance:g}. Check that every "
            "mask is passed to every layer."
        )
