"""Reads requests of TensorFlow Serving's Predict API.

A request has all inputs of its signature, also those that have defaults: the
REST API of TensorFlow Serving does not look at the defaults.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from keras_transformer.serve.errors import ServingError
from keras_transformer.serve.json_text import Members, parse
from keras_transformer.serve.json_writer import value_text
from keras_transformer.serve.tensors import (
    collect,
    invalid,
    is_base64,
    make_array,
    shape_of,
    shape_text,
    try_array,
)

_MANY_INPUTS = "as multiple input tensors required as per tensorinfo_map"


@dataclasses.dataclass(frozen=True)
class PredictCall:
    """A request for predictions.

    Args:
        signature_name: name of the signature; "" for the default one.
        is_row_form: whether inputs came as `instances`, so that the answer
            has `predictions`. Else they came as `inputs`, for `outputs`.
        inputs: arrays by name; strings are arrays of `bytes` objects.
    """

    signature_name: str
    is_row_form: bool
    inputs: dict[str, np.ndarray]


@contextlib.contextmanager
def refusing_deep_nesting() -> Iterator[None]:
    """Refuses a document that needs more levels of calls than Python has."""
    try:
        yield
    except RecursionError:
        raise invalid(
            "JSON Parse error: The document is nested too deeply."
        ) from None


@refusing_deep_nesting()
def read_predict_request(
    body: bytes, inputs_of: Callable[[str], Mapping[str, Any]]
) -> PredictCall:
    """Reads a request for predictions.

    Args:
        body: the JSON document. What follows it is ignored.
        inputs_of: returns the `TensorInfo` messages of a signature's inputs,
            by name; "" is the default signature. It may raise `ServingError`.

    Raises:
        ServingError: `INVALID_ARGUMENT` with TensorFlow Serving's text, or
            what `inputs_of` raises.
    """
    document = parse_object(body)
    name = signature_name_of(document)
    infos = inputs_of(name)
    if not infos:
        raise invalid(
            f"Failed to get input map for signature: {name or 'DEFAULT'}"
        )
    dtypes = {key: infos[key].dtype for key in sorted(infos)}
    if "instances" in document:
        instances = _instances(document)
        arrays = _fast_rows(instances, dtypes) or _rows(instances, dtypes)
        return PredictCall(name, True, arrays)
    if "inputs" in document:
        arrays = _columns(document.find("inputs"), dtypes)
        return PredictCall(name, False, arrays)
    raise invalid("Missing 'inputs' or 'instances' key")


def parse_object(body: bytes) -> Members:
    """Reads a document that is an object."""
    document = parse(body)
    if not isinstance(document, Members):
        raise wrong_format(document, "Is not object")
    return document


def wrong_format(value: Any, problem: str) -> ServingError:
    """Returns the error of a value that has another form than expected."""
    return invalid(f"JSON Value: {value_text(value)} {problem}")


def signature_name_of(document: Members) -> str:
    """Returns the signature that a request names, "" if it names none."""
    name = document.find("signature_name", "")
    if not isinstance(name, str):
        raise invalid(
            f"JSON Value: {value_text(document)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return name


def _instances(document):
    """Returns the list of instances."""
    instances = document.find("instances")
    if "inputs" in document:
        raise wrong_format(
            document,
            "Not formatted correctly expecting only one of 'inputs' or "
            "'instances' keys to exist ",
        )
    if not isinstance(instances, list):
        # The word is TensorFlow Serving's.
        raise wrong_format(
            document, "Excepting 'instances' to be an list/array"
        )
    if not instances:
        raise wrong_format(document, "No values in 'instances' array")
    return instances


def _is_named(instance):
    return isinstance(instance, Members) and not is_base64(instance)


def _fast_rows(instances, dtypes):
    """Returns the arrays of all instances, or `None` if anything is wrong."""
    names = set(dtypes)
    if all(map(_is_named, instances)):
        rows = list(map(dict, instances))
        if any(
            len(instance) != len(names) or row.keys() != names
            for instance, row in zip(instances, rows, strict=True)
        ):
            return None
        columns = {name: [row[name] for row in rows] for name in dtypes}
    elif len(names) == 1 and not any(map(_is_named, instances)):
        columns = {next(iter(dtypes)): instances}
    else:
        return None
    arrays = {
        name: try_array(values, dtypes[name])
        for name, values in columns.items()
    }
    return None if any(x is None for x in arrays.values()) else arrays


class _Rows:
    """Collects the tensors of instances, which must have equal shapes."""

    def __init__(self, dtypes):
        self.dtypes = dtypes
        self.leaves = {}
        self.sizes = {}
        self.shapes = {}

    def add(self, name, value):
        if name not in self.dtypes:
            raise invalid(f"JSON object: does not have named input: {name}")
        shape = shape_of(value)
        leaves = list(collect(value, shape, self.dtypes[name]))
        size = self.sizes.setdefault(name, len(leaves))
        expected = self.shapes.setdefault(name, shape)
        if size != len(leaves):
            raise invalid(
                f"Expecting tensor size: {size} but got: {len(leaves)}"
            )
        if shape != expected:
            raise invalid(
                f"Expecting shape {shape_text(expected)}"
                f" but got: {shape_text(shape)}"
            )
        self.leaves.setdefault(name, []).extend(leaves)

    def arrays(self, count):
        return {
            name: make_array(
                leaves[: count * self.sizes[name]],
                (count, *self.shapes[name]),
                self.dtypes[name],
            )
            for name, leaves in self.leaves.items()
        }


def _rows(instances, dtypes):
    """Reads the instances one by one."""
    if not isinstance(instances[0], Members) and len(dtypes) > 1:
        raise invalid(
            "instances is a plain list, but expecting list of objects "
            f"{_MANY_INPUTS}"
        )
    rows = _Rows(dtypes)
    are_named = _is_named(instances[0])
    for index, instance in enumerate(instances):
        if are_named and not _is_named(instance):
            raise invalid(
                f"Expecting object but got list at item {index} of input list"
            )
        if not are_named and _is_named(instance):
            raise invalid(
                f"Expecting value/list but got object at item {index} of "
                "input list"
            )
        if are_named:
            _add_named(rows, index, instance)
        else:
            # TensorFlow Serving takes the first input of a map, which has no
            # order if there are several.
            _add(rows, index, next(iter(dtypes)), instance, "")
    return rows.arrays(len(instances))


def _add_named(rows, index, instance):
    for name, value in instance:
        _add(rows, index, name, value, f" key: {name}")
    if {name for name, _ in instance} != set(rows.dtypes):
        raise invalid(
            f"Failed to process element: {index} of 'instances' list. JSON "
            f"object: {value_text(instance)} keys must be equal to: "
            f"{','.join(rows.dtypes)}"
        )


def _add(rows, index, name, value, key):
    try:
        rows.add(name, value)
    except ServingError as error:
        raise invalid(
            f"Failed to process element: {index}{key} of 'instances' list. "
            f"Error: {error.code}: {error}"
        ) from error


def _columns(value, dtypes):
    """Reads the value of `inputs`."""
    if _is_named(value):
        pairs = {}
        for name, dtype in dtypes.items():
            if name not in value:
                raise invalid(
                    f"Missing named input: {name} in 'inputs' object."
                )
            pairs[name] = _column(value.find(name), dtype)
        return pairs
    if len(dtypes) > 1:
        raise invalid(
            "inputs is a plain value/list, but expecting an object "
            f"{_MANY_INPUTS}"
        )
    ((name, dtype),) = dtypes.items()
    return {name: _column(value, dtype)}


def _column(value, dtype):
    array = try_array(value, dtype)
    if array is None:
        shape = shape_of(value)
        array = make_array(list(collect(value, shape, dtype)), shape, dtype)
    return array
