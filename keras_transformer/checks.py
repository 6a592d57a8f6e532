"""A check for models composed of these layers: does a mask leak?

A wrong mask raises no error and costs only quality, so it stays in a model for
years. These checks run the model itself, on any backend.
"""

import keras
import numpy as np

from keras_transformer.config import PAD


def assert_no_leak(
    model, inputs, causal=None, padded=None, pad_id=PAD, tolerance=1e-5
):
    """Checks that padding, other rows and the future change nothing.

    Example:

    >>> from keras_transformer import EncoderLayer, PositionalEmbedding
    >>> ids = keras.Input((None,), dtype="int32")
    >>> x = PositionalEmbedding(vocab_size=10, d_model=8)(ids)
    >>> model = keras.Model(ids, EncoderLayer(8, num_heads=2, d_ff=16)(x))
    >>> assert_no_leak(model, np.array([[5, 7, 9, 2], [4, 3, 0, 0]]))

    - Padding: with more columns of padding, the outputs are the same.
    - Batch: each row gives the same alone as among the others.
    - Future, with `causal`: with other tokens from position t on, the
      outputs before t are the same to the last bit.

    Args:
        model: a function of `inputs`, such as a Keras model, run as for
            inference. Gives `(B, T, …)`, one output to each position of the
            input that `causal` or `padded` names, or `(B, …)`.
        inputs: integer ids `(B, T)`, or a dictionary of such; padded at the
            end with `pad_id`, to different lengths.
        causal: name of the input whose later tokens may not change earlier
            outputs; with a single input, True.
        padded: name of the input whose positions the output has. Defaults to
            the one that `causal` names, or to the only one whose length it is.
        pad_id: the padding. Defaults to 0.
        tolerance: largest difference allowed, except for the future.

    Raises:
        AssertionError: naming what leaked, where and by how much.
        ValueError: if the inputs cannot show it, or a name is needed.
    """
    single = not isinstance(inputs, dict)
    batch = {"inputs": inputs} if single else inputs
    batch = {name: np.asarray(ids) for name, ids in batch.items()}
    if causal is True and not single:
        raise ValueError(
            "`causal` must name one of several inputs. Received: causal=True "
            f"for inputs {sorted(batch)}."
        )
    causal = ("inputs" if single else causal) if causal else None
    for name in filter(None, (causal, padded)):
        if name not in batch:
            raise ValueError(
                "`causal` and `padded` must name an input. Received: "
                f"{name!r} for inputs {sorted(batch)}."
            )

    def run(ids):
        outputs = model(ids["inputs"] if single else ids)
        return keras.ops.convert_to_numpy(outputs)

    expected = run(batch)
    padded = padded or causal or _positions_of(run, expected, batch, pad_id)
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
        here = slice(row, row + 1)
        _compare(
            alone, expected[here], real[here], tolerance, "Another row's input"
        )
    if causal:
        _assert_causal(run, batch, causal, expected, real, pad_id)


def _assert_causal(run, batch, name, expected, real, pad_id):
    ids = batch[name]
    # Ids up to the greatest that occurs are legal: each is exchanged for the
    # next larger one, or the smallest.
    legal = np.setdiff1d(np.arange(ids.max(initial=0) + 1), [pad_id])
    if len(legal) < 2:
        raise ValueError(
            "Whether the future leaks can be seen only with two different ids "
            f"besides the padding. Received: {name} with ids up to "
            f"{ids.max(initial=0)}. Use larger ids."
        )
    others = legal[(np.searchsorted(legal, ids) + 1) % len(legal)]
    for t in range(1, ids.shape[1]):
        later = (np.arange(ids.shape[1]) >= t) & (ids != pad_id)
        found = run({**batch, name: np.where(later, others, ids)})
        _compare(
            found[:, :t],
            expected[:, :t],
            real[:, :t],
            0.0,
            f"A token of {name!r} at position {t} or later",
        )


def _with_padding(ids, pad_id):
    return np.pad(ids, ((0, 0), (0, 3)), constant_values=pad_id)


def _positions_of(run, outputs, batch, pad_id):
    names = [n for n, ids in batch.items() if ids.shape == outputs.shape[:2]]
    if outputs.ndim < 3:
        # One number a position, or features of a row that are as many? The
        # former become more with more padding.
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
        "Cannot tell which input the output's positions belong to; name it by "
        f"`padded`. Received: an output of shape {outputs.shape} for inputs "
        f"{ {name: ids.shape for name, ids in batch.items()} }."
    )


def _compare(found, expected, real, tolerance, cause):
    difference = np.abs(found - expected)
    if real.shape[1:] == (1,) and difference.ndim < 3:
        worst = difference.reshape(len(difference), -1).max(axis=1)[:, None]
    else:
        worst = difference.reshape(*real.shape, -1).max(axis=-1)
    worst = np.where(real, worst, 0.0)
    if np.isnan(worst).any() or worst.max() > tolerance:
        row, position = np.unravel_index(np.argmax(worst), worst.shape)
        raise AssertionError(
            f"{cause} changes the output of row {row}, position {position} by "
            f"{worst.max():.3g}; allowed is {tolerance:g}. Is every mask "
            "handed to every layer?"
        )
