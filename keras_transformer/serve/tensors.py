"""Converts values of JSON to arrays as TensorFlow Serving's REST API does.

Arrays are made at once where all values are as they should be. Where one is
not, they are read one by one, so that the error is TensorFlow Serving's.
"""

import base64
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from tensorflow.core.framework import types_pb2

from keras_transformer.serve.errors import ServingError
from keras_transformer.serve.json_text import Members
from keras_transformer.serve.json_writer import as_bytes, value_text

NUMPY_DTYPES: dict[int, Any] = {
    types_pb2.DT_FLOAT: np.float32,
    types_pb2.DT_DOUBLE: np.float64,
    types_pb2.DT_INT32: np.int32,
    types_pb2.DT_INT16: np.int16,
    types_pb2.DT_INT8: np.int8,
    types_pb2.DT_UINT8: np.uint8,
    types_pb2.DT_STRING: np.object_,
    types_pb2.DT_INT64: np.int64,
    types_pb2.DT_BOOL: np.bool_,
    types_pb2.DT_UINT32: np.uint32,
    types_pb2.DT_UINT64: np.uint64,
}
# TensorFlow Serving reads small integers as int32 and cuts off the rest.
_INT32 = (-(2**31), 2**31 - 1)
_INTEGERS = {
    types_pb2.DT_INT32: _INT32,
    types_pb2.DT_INT16: _INT32,
    types_pb2.DT_INT8: _INT32,
    types_pb2.DT_UINT8: _INT32,
    types_pb2.DT_INT64: (-(2**63), 2**63 - 1),
    types_pb2.DT_UINT32: (0, 2**32 - 1),
    types_pb2.DT_UINT64: (0, 2**64 - 1),
}
# The largest whole number and the largest float that are exact.
_FLOATS = {
    types_pb2.DT_FLOAT: (2**24 - 1, float(np.finfo(np.float32).max)),
    types_pb2.DT_DOUBLE: (2**53 - 1, float(np.finfo(np.float64).max)),
}
_MAX_RANK = 64  # NumPy's; TensorFlow's is 254
_BASE64 = re.compile(r"([A-Za-z0-9+/]*)([=.]*)")
_ASCII_SPACE = str.maketrans("", "", " \t\n\v\f\r")


def dtype_name(dtype: int) -> str:
    """Returns TensorFlow's name of a `DataType`, such as "float"."""
    return types_pb2.DataType.Name(dtype).removeprefix("DT_").lower()


def json_type(value: Any) -> str:
    """Returns RapidJSON's name of a value's type."""
    if isinstance(value, bool):
        return str(value)
    if value is None:
        return "Null"
    names: dict[Any, str] = {list: "Array", Members: "Object", str: "String"}
    return names.get(type(value), "Number")


def invalid(message: str) -> ServingError:
    """Returns an error that is the client's fault."""
    return ServingError("INVALID_ARGUMENT", message)


def is_base64(value: Any) -> bool:
    """Returns whether a value is an object that stands for bytes."""
    return (
        isinstance(value, Members)
        and len(value) == 1
        and value[0][0] == "b64"
        and isinstance(value[0][1], str)
    )


def decode_base64(value: Any) -> bytes:
    """Returns the bytes that an object stands for.

    Spaces, and the absence of padding, are accepted.

    Raises:
        ServingError: if it is not such an object, or no base64.
    """
    if not is_base64(value):
        raise invalid(
            f"JSON Value: {value_text(value)}"
            " not formatted correctly for base64 data"
        )
    match = _BASE64.fullmatch(value[0][1].translate(_ASCII_SPACE))
    if match:
        padding = -len(match[1]) % 4
        if padding < 3 and len(match[2]) in (0, padding):
            return base64.b64decode(match[1] + "=" * padding)
    raise invalid("Unable to base64 decode")


def shape_of(value: Any) -> tuple[int, ...]:
    """Returns the shape of nested lists, as the first elements have it."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def shape_text(shape: Sequence[int]) -> str:
    """Returns a shape as TensorFlow Serving writes it, such as "[2,3]"."""
    return f"[{','.join(map(str, shape))}]"


def make_array(
    leaves: Sequence[Any], shape: Sequence[int], dtype: int
) -> np.ndarray:
    """Returns an array of values that `convert` returned.

    Args:
        leaves: the elements.
        shape: shape of the array.
        dtype: the `DataType`.

    Raises:
        ServingError: if NumPy has no arrays of so many dimensions.
    """
    if len(shape) > _MAX_RANK:
        raise invalid(
            f"A tensor has at most {_MAX_RANK} dimensions. Received: "
            f"{len(shape)} dimensions."
        )
    numpy_dtype = NUMPY_DTYPES.get(dtype, np.object_)
    flat: np.ndarray
    if numpy_dtype is np.object_:
        flat = np.empty(len(leaves), np.object_)
        flat[:] = leaves
    elif _INTEGERS.get(dtype) == _INT32:
        flat = np.array(leaves, np.int64).astype(numpy_dtype)
    else:
        with np.errstate(under="ignore"):
            flat = np.array(leaves, numpy_dtype)
    return flat.reshape(shape)


def try_array(value: Any, dtype: int) -> np.ndarray | None:
    """Returns the array of nested lists, or `None` if anything is wrong.

    Args:
        value: a value of JSON.
        dtype: the `DataType` of the array.
    """
    shape, leaves = [], [value]
    while leaves and type(leaves[0]) is list:
        length = len(leaves[0])
        if any(type(x) is not list or len(x) != length for x in leaves):
            return None
        shape.append(length)
        leaves = list(chain.from_iterable(leaves))
    converted = _convert_all(leaves, dtype)
    return None if converted is None else make_array(converted, shape, dtype)


def _convert_all(leaves, dtype):
    """Returns the elements, or `None` if any of them is not of the dtype."""
    types = set(map(type, leaves))
    if dtype == types_pb2.DT_STRING and types <= {str, Members}:
        try:
            return [
                as_bytes(x) if type(x) is str else decode_base64(x)
                for x in leaves
            ]
        except ServingError:
            return None
    if dtype == types_pb2.DT_BOOL and types <= {bool}:
        return leaves
    if not leaves:
        return leaves
    if dtype in _INTEGERS and types == {int}:
        low, high = _INTEGERS[dtype]
        return leaves if low <= min(leaves) and max(leaves) <= high else None
    if dtype in _FLOATS and types <= {int, float}:
        return leaves if _are_exact(leaves, types, dtype) else None
    return None


def _are_exact(leaves, types, dtype):
    whole, largest = _FLOATS[dtype]
    if int in types:
        numbers = [x for x in leaves if type(x) is int]
        if max(numbers) > whole or min(numbers) < -whole:
            return False
    values = np.array(leaves, np.float64)
    return not np.any(np.isfinite(values) & (np.abs(values) > largest))


def convert(value: Any, dtype: int) -> Any:
    """Returns an element of an array; strings as bytes.

    Args:
        value: a value of JSON that is no list.
        dtype: the `DataType` of the array.

    Raises:
        ServingError: if the value is not of the dtype, or would not be exact.
    """
    is_string = dtype == types_pb2.DT_STRING
    if isinstance(value, Members):
        if is_string:
            return decode_base64(value)
        raise _wrong_type(value, dtype)
    if dtype not in NUMPY_DTYPES:
        raise ServingError(
            "UNIMPLEMENTED",
            f"Conversion of JSON Value: {value_text(value)} to type: "
            f"{dtype_name(dtype)}",
        )
    converted = _convert_all([value], dtype)
    if converted is not None:
        return converted[0]
    if dtype in _FLOATS and type(value) in (int, float):
        kind = "float" if dtype == types_pb2.DT_FLOAT else "double"
        raise lossy(value, kind)
    raise _wrong_type(value, dtype)


def lossy(value: Any, kind: str) -> ServingError:
    """Returns the error of a number that would not be exact."""
    return invalid(
        f"Cannot convert JSON value: {value_text(value)} to {kind}"
        " without loss of precision."
    )


def _wrong_type(value, dtype):
    return invalid(
        f"JSON Value: {value_text(value)} Type: {json_type(value)}"
        f" is not of expected type: {dtype_name(dtype)}"
    )


def collect(
    value: Any, shape: Sequence[int], dtype: int, level: int = 0
) -> Iterator[Any]:
    """Yields the elements of nested lists, and checks lists on the way.

    Args:
        value: a value of JSON.
        shape: shape that the lists should have.
        dtype: the `DataType` of the array.
        level: number of lists that the value is in. Defaults to 0.

    Raises:
        ServingError: at the first list or element that is wrong.
    """
    rank = len(shape)
    if not isinstance(value, list):
        if level != rank:
            raise invalid(
                f"JSON Value: {value_text(value)} found at incorrect level: "
                f"{level + 1} in the JSON DOM. Expected at level: {rank}"
            )
        yield convert(value, dtype)
        return
    if level >= rank:
        raise invalid(
            f"Encountered list at unexpected level: {level} expected < {rank}"
        )
    if len(value) != shape[level]:
        raise invalid(
            f"Encountered list at unexpected size: {len(value)} at level: "
            f"{level} expected size: {shape[level]}"
        )
    for item in value:
        yield from collect(item, shape, dtype, level + 1)
