"""Arguments of layers, each brought into one form."""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import KerasTensor, ops

Activation: TypeAlias = str | Callable[[KerasTensor], KerasTensor] | None
Initializer: TypeAlias = str | dict | keras.initializers.Initializer
Regularizer: TypeAlias = str | dict | keras.regularizers.Regularizer | None
Constraint: TypeAlias = str | dict | keras.constraints.Constraint | None
# The length of each axis, `None` where it is not known.
Shape: TypeAlias = tuple[int | None, ...]
# Keys `(B, H, S, d_k)` under "key" and values `(B, H, S, d_v)` under "value".
Cache: TypeAlias = dict[str, KerasTensor]
# The output alone, or followed by what the call asks for: weights, caches.
Output: TypeAlias = KerasTensor | tuple


def exact_dtype(dtype: str) -> str:
    """Returns the dtype of sums, scores and positions: float64 for float64,
    otherwise float32.

    `keras.backend.result_type` gives float32 for both on PyTorch.
    """
    is_double = keras.backend.standardize_dtype(dtype) == "float64"
    return "float64" if is_double else "float32"


def int32_index(index: int | KerasTensor | None) -> int | KerasTensor | None:
    """Returns a position as an integer or an int32 tensor, and `None` as it is.

    TensorFlow adds an int32 tensor to no other dtype.
    """
    if index is None:
        return None
    if isinstance(index, int | np.integer | np.ndarray):
        return int(index)
    return ops.cast(index, "int32")


def known_index(index: int | KerasTensor) -> int | None:
    """Returns an index as an integer, or `None` inside a compiled function."""
    try:
        return int(index)
    except (TypeError, ValueError):
        return None


def copy_of(initializer: Initializer) -> Initializer:
    """Returns an initializer of its own for each weight. A plain function is
    returned as it is."""
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.clone()
    return initializer


def arguments_of_call(
    layer: keras.layers.Layer, args: tuple, kwargs: dict[str, Any]
) -> tuple[KerasTensor, dict[str, Any]]:
    """Returns the first argument of a call of the layer, and the others by
    their names.

    Where the `*args` of a subclass's `call` are used, they are named as in the
    class above.
    """
    cls: Any
    for cls in type(layer).__mro__:
        signature = inspect.signature(cls.call)
        kinds = {p.kind: p.name for p in signature.parameters.values()}
        others = kinds.get(inspect.Parameter.VAR_KEYWORD, "")
        known = {
            name: value
            for name, value in kwargs.items()
            if others or name in signature.parameters
        }
        given = signature.bind(layer, *args, **known).arguments
        if kinds.get(inspect.Parameter.VAR_POSITIONAL, "") not in given:
            break
    _, first, *rest = given
    named = {**kwargs, **{name: given[name] for name in rest}}
    named |= named.pop(others, {})
    named.pop(first, None)  # it may be given by its name
    return given[first], named


def takes(function: Callable[..., Any], name: str) -> bool:
    """Returns whether a function takes an argument of this name."""
    parameters = inspect.signature(function).parameters
    kinds = {p.kind for p in parameters.values()}
    return name in parameters or inspect.Parameter.VAR_KEYWORD in kinds
