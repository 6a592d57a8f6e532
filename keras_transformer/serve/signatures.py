"""Checks requests against the signatures of a model.

The texts are those of TensorFlow Serving's `predict_util.cc`. There is one
difference: TensorFlow Serving takes the defaults of a signature in its newer
runtime only, and else wants all inputs. Here an input that has a default may
be missing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.serve.errors import ServingError
from keras_transformer.serve.tensors import dtype_name, invalid, shape_text

DEFAULT = "serving_default"


def find_signature(signatures: Mapping[str, Any], name: str) -> Any:
    """Returns the signature that a request over gRPC names.

    Args:
        signatures: `SignatureDef` messages by name.
        name: name of the signature, "" for the default one.

    Raises:
        ServingError: `FAILED_PRECONDITION` if there is none of that name.
    """
    name = name or DEFAULT
    if name not in signatures or name.startswith("__"):  # for loaders
        raise ServingError(
            "FAILED_PRECONDITION", f'Serving signature key "{name}" not found.'
        )
    return signatures[name]


def check_inputs(signature: Any, inputs: Mapping[str, np.ndarray]):
    """Checks names and shapes of a request's inputs.

    Args:
        signature: the `SignatureDef`.
        inputs: arrays by name.

    Raises:
        ServingError: `INVALID_ARGUMENT` if an input is missing that has no
            default, if the signature does not have an input, or if an array
            has another shape than the signature says.
    """
    check_names(signature, set(inputs))
    for name in _order(signature, inputs):
        _check_shape(name, signature.inputs[name], inputs[name].shape)


def check_dtypes(signature: Any, dtypes: Mapping[str, int]) -> None:
    """Checks the dtypes of a request's inputs, whose names are right.

    Args:
        signature: the `SignatureDef`.
        dtypes: values of `DataType` by name.

    Raises:
        ServingError: `INVALID_ARGUMENT` if one is not the signature's.
    """
    for index, name in enumerate(_order(signature, dtypes)):
        expected, given = signature.inputs[name].dtype, dtypes[name]
        if given != expected:
            raise invalid(
                f"Expects arg[{index}] to be {dtype_name(expected)} but "
                f"{dtype_name(given)} is provided"
            )


def _order(signature, names):
    """Returns names as TensorFlow counts arguments: by their tensors'."""
    return sorted(names, key=lambda name: signature.inputs[name].name)


def check_names(signature: Any, names: set[str]) -> None:
    """Checks the names of a request's inputs.

    Raises:
        ServingError: as `check_inputs`.
    """
    known = set(signature.inputs)
    missing = known - names - set(signature.defaults)
    extra = names - known
    if extra and len(names) == len(known):
        raise invalid(
            f"input tensor alias not found in signature: {min(extra)}. "
            f"Inputs expected to be in the set {_in_braces(known)}."
        )
    if extra or missing:
        raise invalid(
            f"input size does not match signature: {len(names)}!={len(known)} "
            f"len({_in_braces(names)}) != len({_in_braces(known)}). "
            f"Sent extra: {_in_braces(extra)}. "
            f"Missing but required: {_in_braces(missing)}."
        )


def _in_braces(names):
    return f"{{{','.join(sorted(names))}}}"


def _check_shape(name, info, shape):
    """Checks a shape; TensorFlow would let the graph's operations fail."""
    if info.tensor_shape.unknown_rank:
        return
    expected = [dim.size for dim in info.tensor_shape.dim]
    fits = len(shape) == len(expected) and all(
        wanted in (-1, size)
        for wanted, size in zip(expected, shape, strict=True)
    )
    if not fits:
        raise invalid(
            f"Input {name} has shape {shape_text(shape)}. Expected shape: "
            f"{shape_text(expected)}, where -1 is any size."
        )


def choose_outputs(signature: Any, output_filter: Sequence[str]) -> list[str]:
    """Returns the names of the outputs that a request over gRPC asks for.

    Args:
        signature: the `SignatureDef`.
        output_filter: names of outputs; all outputs if there is none.

    Raises:
        ServingError: `INVALID_ARGUMENT` if there is no output of a name, or
            a name comes twice.
    """
    chosen: list[str] = []
    for name in output_filter:
        if name not in signature.outputs:
            # There is no full stop after the name in TensorFlow Serving.
            raise invalid(
                f"output tensor alias not found in signature: {name} Outputs "
                f"expected to be in the set {_in_braces(signature.outputs)}."
            )
        if name in chosen:
            raise invalid(f"duplicate output tensor alias: {name}")
        chosen.append(name)
    return chosen or sorted(signature.outputs)
