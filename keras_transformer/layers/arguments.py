"""Arguments of layers: their types, and one form for each.

Shapes: B batch, S key length, H heads.
"""

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


class Layer(keras.layers.Layer):
    """A Keras layer that names a misspelt argument of its constructor."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Layer":
        _check_constructor(cls, args, kwargs)
        return super().__new__(cls, *args, **kwargs)


def _check_constructor(cls, args, kwargs):
    """Python's own error names the class that defines `__init__`, and the
    argument that is missing instead of the one that is misspelt."""
    signature = inspect.signature(cls)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        known = [name for name in signature.parameters if name != "kwargs"]
        of_keras = inspect.signature(keras.layers.Layer.__init__).parameters
        unknown = [n for n in kwargs if n not in known and n not in of_keras]
        if not unknown:
            raise TypeError(f"{cls.__name__}: {error}.") from None
        received = ", ".join(f"{name}={kwargs[name]!r}" for name in unknown)
        raise TypeError(
            f"{cls.__name__} has no argument {', '.join(unknown)}. Expected: "
            f"{', '.join(known)}. Received: {received[:200]}"
        ) from None


def unpack(outputs: Output) -> tuple:
    """Returns outputs as a tuple, also where there is only one."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def pack(output: KerasTensor, *extras: Any) -> Output:
    """Returns the output alone, or in a tuple with the extras."""
    return (output, *extras) if extras else output


def arguments_of_call(
    layer: keras.layers.Layer, args: tuple, kwargs: dict[str, Any]
) -> tuple[KerasTensor, dict[str, Any]]:
    """Returns the first argument of a call of the layer, and the others by
    their names.

    Where the `call` of a subclass takes `*args`, they have the names that the
    class above gives them.
    """
    names: list[str] = []
    cls: Any
    for cls in type(layer).__mro__:
        parameters = inspect.signature(cls.call).parameters.values()
        kinds = [p.kind for p in parameters]
        own = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        names += own[1 + len(names) :]  # without `self`
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            break
    if len(args) > len(names):
        raise TypeError(
            f"A call of {layer.name} takes {len(names)} positional arguments: "
            f"{', '.join(names)}. Received: {len(args)}."
        )
    # `dict` refuses a name that is given twice.
    named = dict(**dict(zip(names, args, strict=False)), **kwargs)
    return named.pop(names[0]), named


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Returns whether a function accepts an argument of this name."""
    parameters = inspect.signature(function).parameters
    kinds = {p.kind for p in parameters.values()}
    return name in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def clone_initializer(initializer: Initializer) -> Initializer:
    """Returns a copy of an initializer, since each weight needs its own. A
    plain function is returned as it is."""
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.clone()
    return initializer


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
