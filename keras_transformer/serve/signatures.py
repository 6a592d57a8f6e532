"""Signatures of a model: finds them and checks what a request gives them.

A signature is TensorFlow's `SignatureDef` message. An input may have a default.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import get_model_metadata_pb2

from keras_transformer.serve.errors import ServingError, invalid, quoted

DEFAULT = "serving_default"


def read_signatures(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the `SignatureDef` messages of a SavedModel, by name."""
    data = pathlib.Path(path, "saved_model.pb").read_bytes()
    graphs = saved_model_pb2.SavedModel.FromString(data).meta_graphs
    return dict(graphs[0].signature_def)


def find_signature(signatures: Mapping[str, Any], name: str) -> Any:
    """Returns the signature that a request names.

    Args:
        signatures: `SignatureDef` messages by name.
        name: name of the signature.

    Raises:
        ServingError: `FAILED_PRECONDITION` if there is none of that name.
    """
    known = [key for key in sorted(signatures) if not key.startswith("__")]
    if name not in known:  # the others are for loaders
        raise ServingError(
            "FAILED_PRECONDITION",
            f"The model has the signatures {', '.join(known)}. Received: "
            f"signature_name={quoted(name)}.",
        )
    return signatures[name]


def signature_map(
    signatures: Mapping[str, Any],
) -> get_model_metadata_pb2.SignatureDefMap:
    """Returns the `SignatureDef` messages of a model as one message."""
    found = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in signatures.items():
        found.signature_def[name].CopyFrom(signature)
    return found


def check_names(signature: Any, names: set[str]) -> None:
    """Checks the names of a request's inputs.

    Raises:
        ServingError: `INVALID_ARGUMENT` if an input is missing that has no
            default, or if the signature does not have an input.
    """
    known = set(signature.inputs)
    if not known - set(signature.defaults) <= names <= known:
        raise invalid(
            f"The inputs must be {_listed(signature.inputs)}, and those with "
            f"defaults may be missing. Received: {quoted(sorted(names))}."
        )


def check_dtypes(signature: Any, dtypes: Mapping[str, int]) -> None:
    """Checks the dtypes of a request's inputs, whose names are right.

    Args:
        signature: the `SignatureDef`.
        dtypes: values of `DataType` by name.

    Raises:
        ServingError: `INVALID_ARGUMENT` if one is not the signature's.
    """
    for name in sorted(dtypes):
        given, expected = dtypes[name], signature.inputs[name].dtype
        if given != expected:
            raise invalid(
                f"Input {name} must be of dtype {tf.as_dtype(expected).name}. "
                f"Received: {tf.as_dtype(given).name}."
            )


def check_shapes(signature: Any, inputs: Mapping[str, np.ndarray]) -> None:
    """Checks the shapes of a request's inputs, whose names are right.

    TensorFlow would let the operations of the graph fail.

    Raises:
        ServingError: `INVALID_ARGUMENT` if one does not fit the signature's.
    """
    for name in sorted(inputs):
        expected = tf.TensorShape(signature.inputs[name].tensor_shape)
        shape = inputs[name].shape
        if not expected.is_compatible_with(shape):
            raise invalid(
                f"Input {name} must have the shape {expected}, where None is "
                f"any size. Received: shape {shape}."
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
    chosen = list(output_filter) or sorted(signature.outputs)
    if len({*chosen}) < len(chosen) or not {*chosen} <= {*signature.outputs}:
        raise invalid(
            "`output_filter` must name different outputs among "
            f"{_listed(signature.outputs)}. Received: {quoted(chosen)}."
        )
    return chosen


def _listed(names):
    return ", ".join(sorted(names))
