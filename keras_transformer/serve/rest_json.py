"""The JSON of a REST request for predictions, and of its answer.

In row form, `{"instances": [...]}` has an element for each row, and the answer
`{"predictions": [...]}`. In column form, `{"inputs": ...}` has an array for
each input, and the answer is `{"outputs": ...}`. Inputs have their names; where
there is one, its values may stand alone, as the values of a single output do.

Bytes that are no text are `{"b64": "..."}`, and so is each value of an output
whose name ends in `_bytes`. `NaN`, `Infinity` and `-Infinity` are numbers.
"""

import base64
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.serve.errors import ServingError, invalid, quoted
from keras_transformer.serve.signatures import DEFAULT, find_signature

MOST_AXES = 64  # of NumPy's arrays
PIECE = 20_000  # elements of an answer that are written at once


@dataclasses.dataclass(frozen=True)
class PredictRequest:
    """A request for predictions.

    Args:
        signature_name: name of the signature.
        is_row_form: whether inputs came as `instances`, for `predictions`.
            Else they came as `inputs`, for `outputs`.
        inputs: arrays by name; strings are arrays of `bytes` objects.
    """

    signature_name: str
    is_row_form: bool
    inputs: dict[str, np.ndarray]


def parse_object(body: bytes) -> dict[str, Any]:
    """Returns the object of JSON that a body holds.

    Args:
        body: the document, in UTF-8. What follows it is ignored.

    Raises:
        ServingError: `INVALID_ARGUMENT` if there is none.
    """
    decoder = json.JSONDecoder(
        object_pairs_hook=_object, parse_float=_finite_float
    )
    try:
        text = body.decode("utf-8-sig").lstrip(" \t\n\r")
        document, _ = decoder.raw_decode(text)
    except UnicodeDecodeError as error:
        raise invalid(f"The body is no UTF-8: {error}.") from None
    except json.JSONDecodeError as error:
        raise invalid(f"The body is no JSON: {error}.") from None
    except RecursionError:
        raise invalid("The body is nested too deeply.") from None
    except ValueError:  # of `int`, which reads 4,300 digits at most
        raise invalid("A number in the body has too many digits.") from None
    if not isinstance(document, dict):
        raise invalid(
            f"The body must be an object of JSON. Received: {quoted(document)}."
        )
    return document


def read_predict_request(
    document: dict[str, Any], signatures: Mapping[str, Any]
) -> PredictRequest:
    """Reads a request for predictions.

    It has all inputs of its signature, also those that have defaults: the REST
    API of TensorFlow Serving does not look at the defaults.

    Args:
        document: the body of the request, as `parse_object` returns it.
        signatures: `SignatureDef` messages by name.

    Raises:
        ServingError: if it does not fit a signature.
    """
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(
            f"`signature_name` must be a string. Received: {quoted(name)}."
        )
    name = name or DEFAULT
    inputs = find_signature(signatures, name).inputs
    if not inputs:
        raise invalid(f"Signature {name} has no inputs, so it is not served.")
    if ("instances" in document) == ("inputs" in document):
        raise invalid(
            "A request must have either `instances` or `inputs`. Received the "
            f"keys: {quoted(list(document))}."
        )
    others = document.keys() - {"signature_name", "instances", "inputs"}
    for key in sorted(
        others
    ):  # the rest is ignored, as TensorFlow Serving does
        if any(key in signature.inputs for signature in signatures.values()):
            raise invalid(
                f"{quoted(key)} stands beside the inputs. Name a signature "
                "that has it, and put it into `inputs`."
            )
    is_row_form = "instances" in document
    if is_row_form:
        columns = _columns_of_rows(document["instances"], sorted(inputs))
    else:
        columns = _columns(document["inputs"], sorted(inputs))
    arrays = {
        key: _array(key, value, tf.as_dtype(inputs[key].dtype))
        for key, value in columns.items()
    }
    return PredictRequest(name, is_row_form, arrays)


def _object(pairs):
    found = dict(pairs)
    if len(found) < len(pairs):
        raise invalid(
            "The keys of an object must differ. Received the keys: "
            f"{quoted([key for key, _ in pairs])}."
        )
    return found


def _finite_float(digits):
    value = float(digits)
    if math.isinf(value):
        raise invalid(f"A number is too large. Received: {quoted(digits)}.")
    return value


def _is_named(value):
    """Returns whether a value is an object of named inputs, not of bytes."""
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value):
    return value.keys() == {"b64"} and isinstance(value["b64"], str)


def _columns_of_rows(instances, names):
    """Returns the values of each input, one for each of the instances."""
    if not isinstance(instances, list) or not instances:
        raise invalid(
            "`instances` must be a list that is not empty. Received: "
            f"{quoted(instances)}."
        )
    if len(names) == 1 and not any(map(_is_named, instances)):
        return {names[0]: instances}
    for instance in instances:
        if not _is_named(instance) or instance.keys() != {*names}:
            raise invalid(
                "Each of the `instances` must be an object of "
                f"{', '.join(names)}. Received: {quoted(instance)}."
            )
    return {name: [row[name] for row in instances] for name in names}


def _columns(value, names):
    """Returns the value of each input in `inputs`."""
    if _is_named(value) and value.keys() >= {*names}:
        return {name: value[name] for name in names}
    if _is_named(value) or len(names) > 1:
        raise invalid(
            f"`inputs` must be an object that has {', '.join(names)}. "
            f"Received: {quoted(value)}."
        )
    return {names[0]: value}


def _array(name, value, dtype):
    """Returns the array of a value or of nested lists."""
    shape: list[int] = []
    leaves = [value]
    while leaves and isinstance(leaves[0], list):
        shape.append(len(leaves[0]))
        if len(shape) > MOST_AXES or any(
            not isinstance(x, list) or len(x) != shape[-1] for x in leaves
        ):
            raise invalid(
                f"Input {name} must be a value, or lists of equal length in at "
                f"most {MOST_AXES} levels. Received: {quoted(value)}."
            )
        leaves = list(chain.from_iterable(leaves))
    if dtype != tf.string:
        return _numbers(name, leaves, dtype).reshape(shape)
    array = np.empty(len(leaves), object)
    array[:] = [_bytes(name, leaf) for leaf in leaves]
    return array.reshape(shape)


def _bytes(name, value):
    """Returns the bytes of a string or of an object that stands for bytes."""
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and _is_base64(value):
            text = "".join(value["b64"].split())
            padding = "" if "=" in text else "=" * (-len(text) % 4)
            return base64.b64decode(text + padding, validate=True)
    except ValueError:  # half of a surrogate pair, or no base64
        pass
    raise invalid(
        f'Input {name} must have strings, or bytes as {{"b64": "..."}} in '
        f"base64. Received: {quoted(value)}."
    )


def _numbers(name, leaves, dtype):
    """Returns numbers or truth values that the dtype holds as they are.

    An integer for a float dtype must be exact; a float may be rounded.
    """
    numpy_dtype = np.dtype(dtype.as_numpy_dtype)
    if numpy_dtype.kind == "b":
        fit = [type(x) is bool for x in leaves]
    elif numpy_dtype.kind in "iu":
        low, high = dtype.min, dtype.max
        fit = [type(x) is int and low <= x <= high for x in leaves]
    elif numpy_dtype.kind == "f":
        end = 2 ** (np.finfo(numpy_dtype).nmant + 1)
        fit = [
            type(x) is float or (type(x) is int and -end < x < end)
            for x in leaves
        ]
    else:
        raise ServingError(
            "UNIMPLEMENTED", f"Input {name} of {dtype.name} has no JSON."
        )
    if all(fit):
        with np.errstate(over="ignore", under="ignore"):
            array = np.array(leaves, numpy_dtype)
        if numpy_dtype.kind == "f":
            fit = np.isfinite(array) | ~np.isfinite(np.array(leaves, float))
    if not np.all(fit):
        wrong = leaves[list(fit).index(False)]
        raise invalid(
            f"Input {name} must have values of dtype {dtype.name}. Received: "
            f"{quoted(wrong)}."
        )
    return array


def write_predictions(
    outputs: Mapping[str, np.ndarray], is_row_form: bool
) -> Iterator[bytes]:
    """Returns the answer to a request for predictions, in UTF-8, in pieces.

    A piece is written when it is asked for, so that a large answer takes little
    more memory than its arrays.

    Args:
        outputs: arrays by name; strings are arrays of `bytes` objects.
        is_row_form: whether to write `predictions`, one for each row, or
            `outputs`.

    Raises:
        ServingError: `INVALID_ARGUMENT` if there is no output, if one has a
            dtype that JSON has not, or, for rows, if outputs have no or
            different first dimensions.
    """
    arrays = {name: np.asarray(outputs[name]) for name in sorted(outputs)}
    if not arrays:
        raise invalid("The signature has no outputs.")
    for name, array in arrays.items():
        if array.dtype.kind not in "OSbiuf":
            raise invalid(f"Output {name} of {array.dtype} has no JSON.")
    if is_row_form:
        _check_rows(arrays)
    return _grouped(_written(arrays, is_row_form))


def _grouped(parts) -> Iterator[bytes]:
    """Yields parts together, none of them empty."""
    group: list[str] = []
    size = 0
    for part in parts:
        group.append(part)
        size += len(part)
        if size >= PIECE:
            yield "".join(group).encode()
            group, size = [], 0
    if size:
        yield "".join(group).encode()


def _written(arrays, is_row_form) -> Iterator[str]:
    if not is_row_form:
        yield '{"outputs": '
        yield from _column_parts(arrays)
        yield "}"
        return
    count = len(next(iter(arrays.values())))
    size = sum(array.size for array in arrays.values())
    step = max(1, PIECE * count // max(size, 1))
    yield '{"predictions": ['
    for start in range(0, count, step):
        yield ", " if start else ""
        rows = {
            name: array[start : start + step] for name, array in arrays.items()
        }
        if step == 1:
            yield from _column_parts(
                {name: row[0] for name, row in rows.items()}
            )
        else:
            yield _dumps(_rows(rows))[1:-1]
    yield "]}"


def _rows(arrays):
    """Returns the values of each row, with names if there are several."""
    columns = {name: _values(name, array) for name, array in arrays.items()}
    if len(columns) == 1:
        return next(iter(columns.values()))
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _column_parts(arrays) -> Iterator[str]:
    """Writes arrays by their names, or a single one alone."""
    if len(arrays) == 1:
        ((name, array),) = arrays.items()
        yield from _array_parts(name, array)
        return
    for i, (name, array) in enumerate(arrays.items()):
        yield f"{', ' if i else '{'}{_dumps(name)}: "
        yield from _array_parts(name, array)
    yield "}"


def _array_parts(name, array) -> Iterator[str]:
    """Writes an array, a large one by parts of its first axis."""
    array = np.asarray(array)
    if array.size <= PIECE:
        yield _dumps(_values(name, array))
        return
    step = max(1, PIECE * len(array) // array.size)
    yield "["
    for start in range(0, len(array), step):
        yield ", " if start else ""
        if step == 1:
            yield from _array_parts(name, array[start])
        else:
            yield _dumps(_values(name, array[start : start + step]))[1:-1]
    yield "]"


def _dumps(value):
    return json.dumps(value, ensure_ascii=False)


def _check_rows(arrays):
    shapes = {name: array.shape for name, array in arrays.items()}
    sizes = {shape[:1] for shape in shapes.values()}
    if len(sizes) > 1 or () in sizes:
        raise invalid(
            "In row form, all outputs need the same number of rows. Received: "
            f"shapes {shapes}. Ask in column form, by `inputs`."
        )


def _values(name, array):
    """Returns an array as nested lists of what JSON has."""
    if array.dtype.kind in "OS":
        texts = [_text(name, value) for value in array.ravel().tolist()]
        found = np.empty(len(texts), object)
        found[:] = texts
        return found.reshape(array.shape).tolist()
    if array.dtype == np.float32:
        return _short(array).tolist()
    return array.tolist()


def _text(name, value):
    if name.endswith("_bytes"):
        return {"b64": base64.b64encode(value).decode()}
    return value.decode(errors="replace")


def _short(array):
    """Returns float32 as the float64 with few digits that rounds to it.

    As TensorFlow Serving writes them: six significant digits where they give
    the same float32, otherwise nine.
    """
    exact = array.astype(np.float64)
    found = exact
    with np.errstate(all="ignore"):  # zeros and what is not finite stay
        places = -np.floor(np.log10(np.abs(exact)))
        for digits in (9, 6):
            scale = 10.0 ** np.maximum(places + digits - 1, 0)
            rounded = np.rint(exact * scale) / scale
            is_same = rounded.astype(np.float32) == array
            found = np.where(is_same, rounded, found)
    return found
