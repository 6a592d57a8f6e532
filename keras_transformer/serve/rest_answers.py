"""Writes answers of TensorFlow Serving's Predict API, byte for byte."""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_transformer.serve.json_writer import (
    as_bytes,
    as_text,
    bytes_object,
    decimals,
    members,
    nest,
    quote,
)
from keras_transformer.serve.tensors import invalid


def write_predictions(
    outputs: Mapping[str, np.ndarray], is_row_form: bool
) -> bytes:
    """Returns the answer to a request for predictions.

    TensorFlow Serving has several outputs in no certain order; here their
    names are sorted.

    Args:
        outputs: arrays by name; strings are arrays of `bytes` objects. Those
            of a name that ends in `_bytes` are written in base64.
        is_row_form: whether to write `predictions`, one for each row, or
            `outputs`.

    Raises:
        ServingError: `INVALID_ARGUMENT` if there is no output, if one has a
            dtype that JSON has not, or, for rows, if outputs have no or
            different first dimensions.
    """
    if not outputs:
        raise invalid("Cannot convert empty tensor map to JSON")
    names = sorted(outputs)
    arrays = [np.asarray(outputs[name]) for name in names]
    if is_row_form:
        text = members([("predictions", _row_texts(names, arrays))])
    else:
        text = members([("outputs", _column_texts(names, arrays))])
    return as_bytes(text)


def _column_texts(names, arrays):
    depth = 1 if len(names) == 1 else 2
    texts = [
        nest(_leaf_texts(name, array, depth + array.ndim), array.shape, depth)[
            0
        ]
        for name, array in zip(names, arrays, strict=True)
    ]
    if len(names) == 1:
        return texts[0]
    return members(list(zip(names, texts, strict=True)), 1)


def _row_texts(names, arrays):
    count = _batch_size(names, arrays)
    # A row is in the document's object and the array of rows.
    depth = 2 if len(names) == 1 else 3
    columns = [
        nest(
            _leaf_texts(name, array, depth + array.ndim - 1),
            array.shape[1:],
            depth,
            is_one_line=True,
        )
        if array.size
        else nest([], array.shape[1:], depth, is_one_line=True) * count
        for name, array in zip(names, arrays, strict=True)
    ]
    if not count:
        return "[]"
    if len(names) == 1:
        # The writer is back to several lines before it ends the array.
        return f"[{', '.join(columns[0])}\n    ]"
    rows = [
        members(list(zip(names, row, strict=True)), 2)
        for row in zip(*columns, strict=True)
    ]
    return nest(rows, (count,), 1)[0]


def _batch_size(names, arrays):
    size = None
    for name, array in zip(names, arrays, strict=True):
        if not array.ndim:
            raise invalid(f"Tensor name: {name} has no shape information ")
        if size is not None and len(array) != size:
            raise invalid(
                f"Tensor name: {name} has inconsistent batch size: "
                f"{len(array)} expecting: {size}"
            )
        size = len(array)
    return size


def _leaf_texts(name: str, array: np.ndarray, depth: int) -> Sequence[str]:
    """Returns the texts of an array's elements."""
    kind = array.dtype.kind
    if kind in "OS":
        values = array.ravel().tolist()
        if name.endswith("_bytes"):
            return [bytes_object(value, depth) for value in values]
        return [quote(as_text(value)) for value in values]
    if array.dtype in (np.float32, np.float64):
        return decimals(array)
    if kind == "b":
        return ["true" if value else "false" for value in array.ravel()]
    if kind in "iu" and array.dtype != np.uint16:
        return list(map(str, array.ravel().tolist()))
    dtype = "half" if array.dtype == np.float16 else array.dtype.name
    raise invalid(f"Failed to write JSON value for tensor type: {dtype}")


def write_error(message: str) -> bytes:
    """Returns the answer to a request that failed."""
    return as_bytes(members([("error", quote(message))]))
