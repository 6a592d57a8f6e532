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

    def get_config(self) -> dict[str, Any]:
        frozen = frozen_parts(self)
        # Keras saves the weights of parts, and not whether they are frozen.
        return super().get_config() | ({"frozen": frozen} if frozen else {})

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Layer":
        config = dict(config)
        frozen = config.pop("frozen", ())
        layer = super().from_config(config)
        for path in frozen:
            layer.freeze_part(path)
        return layer

    def freeze_part(self, path: str) -> None:
        """Makes a part, such as "self_attention/query_projection", not
        trainable; one that `build` makes, as soon as it is there."""
        name, _, rest = path.partition("/")
        part = getattr(self, name, None)
        if part is None:
            self._to_freeze = (*getattr(self, "_to_freeze", ()), path)
        elif rest:
            part.freeze_part(rest)
        else:
            part.trainable = False

    def freeze_parts_that_were_built(self) -> None:
        """Freezes the parts that were missing; called at the end of `build`."""
        for path in getattr(self, "_to_freeze", ()):
            self.freeze_part(path)


def frozen_parts(layer: keras.layers.Layer) -> list[str]:
    """Returns the paths of the parts of a trainable layer that are frozen."""
    found: list[str] = []
    if layer.trainable:
        # On PyTorch, layers are no plain attributes.
        attributes = vars(layer) | vars(layer).get("_modules", {})
        for name, part in attributes.items():
            if not isinstance(part, keras.layers.Layer):
                continue
            if not part.trainable:
                found.append(name)
            else:
                found += [f"{name}/{path}" for path in frozen_parts(part)]
    return sorted(found)


def says_its_shape(layer: keras.layers.Layer) -> bool:
    """Returns whether `compute_output_shape` is that of the layer's `call`: a
    subclass of ours may have another `call` alone."""
    for cls in type(layer).__mro__:
        if "compute_output_shape" in vars(cls):
            return True
        is_ours = cls.__module__.startswith("keras_transformer.")
        if "call" in vars(cls) and not is_ours:
            return False
    return True


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


def mixed_seed(seed: int | None, site: int) -> int | None:
    """Returns the seed of one use of random numbers, `None` without a seed.

    Neighbouring seeds and sites share no numbers, as they would in a sum.
    """
    if seed is None:
        return None
    entropy = seed % 2**64, site
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)


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

    Raises:
        ValueError: if it is neither a scalar nor one position for each row,
            `(B,)`.
    """
    if index is None or isinstance(index, int | np.integer):
        return index if index is None else int(index)
    positions: Any = ops.cast(index, "int32")
    if len(positions.shape) > 1:
        raise ValueError(
            "A position is a scalar, or has shape (batch,): one for each row. "
            f"Received: shape {tuple(positions.shape)}."
        )
    return positions


def before_axes(index: int | KerasTensor, axes: int) -> int | KerasTensor:
    """Returns positions of rows `(B,)` with so many axes more, `(B, 1, …)`, and
    a position of all rows as it is."""
    if isinstance(index, int) or not len(index.shape):
        return index
    return ops.reshape(index, (-1, *[1] * axes))


def known_range(index: int | KerasTensor) -> tuple[int, int] | None:
    """Returns the lowest and the highest of positions, or `None` inside a
    compiled function."""
    if isinstance(index, int):
        return index, index
    found = known_values(index)
    if found is None or not found.size:
        return None
    return int(found.min()), int(found.max())


def known_values(x: KerasTensor) -> np.ndarray | None:
    """Returns the numbers of a tensor, or `None` inside a compiled function."""
    try:
        return ops.convert_to_numpy(x)
    # Each backend has an error of its own for a tensor without numbers.
    except (TypeError, ValueError, AttributeError, NotImplementedError):
        return None
