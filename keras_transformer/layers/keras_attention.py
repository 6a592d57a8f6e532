"""Arguments and weights of `keras.layers.MultiHeadAttention`."""

from typing import Any

import keras
from keras import ops

# Arguments of Keras' layer that are accepted as None or False only.
NOT_SUPPORTED = (
    "attention_axes",
    "sliding_window",
    "flash_attention",
    "use_gate",
)
# Arguments that are objects of Keras, and the modules that serialise them.
SERIALIZED = {
    "kernel_initializer": keras.initializers,
    "bias_initializer": keras.initializers,
    "kernel_regularizer": keras.regularizers,
    "bias_regularizer": keras.regularizers,
    "activity_regularizer": keras.regularizers,
    "kernel_constraint": keras.constraints,
    "bias_constraint": keras.constraints,
}


def check_supported(**arguments: Any) -> None:
    """Checks that arguments of `NOT_SUPPORTED` are `None` or `False`.

    Raises:
        ValueError: if one is not; the message names it.
    """
    for name, value in arguments.items():
        # Keras' layer itself fills in these axes where inputs have rank 3.
        is_rank_3 = name == "attention_axes" and value in ((1,), [1])
        if value not in (None, False) and not is_rank_3:
            raise ValueError(
                f"`{name}` of `keras.layers.MultiHeadAttention` is not "
                f"supported here. Received: {name}={value!r}. Leave it out, or "
                "use Keras' layer."
            )


def one_width(output_shape: int | tuple[int] | None) -> int | None:
    """Returns the width that `output_shape` gives, or `None`.

    Raises:
        ValueError: if it has more than one axis.
    """
    if isinstance(output_shape, int | None):
        return output_shape
    if len(output_shape) != 1:
        raise ValueError(
            "`output_shape` must be one width. Received: "
            f"output_shape={output_shape}"
        )
    return output_shape[0]


def serialize_objects(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the arguments of `SERIALIZED` for the layer's config."""
    private = {"activity_regularizer": "_activity_regularizer"}
    return {
        name: module.serialize(getattr(layer, private.get(name, name)))
        for name, module in SERIALIZED.items()
    }


def take_over(
    layer_class: type[keras.layers.Layer],
    layer: keras.layers.MultiHeadAttention,
) -> keras.layers.Layer:
    """Returns a `layer_class` with the arguments and weights of Keras' layer.

    Args:
        layer_class: class of the new layer, `MultiHeadAttention` of this
            package.
        layer: a built `keras.layers.MultiHeadAttention`.

    Raises:
        ValueError: if the layer is not built, or has arguments that are not
            supported.
    """
    if not layer.built:
        raise ValueError(
            "A layer must be built before its weights can be taken over. "
            f"Received: {layer.name!r}, which is not built. Call it first."
        )
    new_layer = layer_class.from_config(layer.get_config())
    # Each projection has a kernel, and a bias if there is one.
    weights = [w for w in layer.weights if "seed_generator" not in w.path]
    kernels = weights[:: 2 if new_layer.use_bias else 1]
    query, key, value = ((None, None, w.shape[0]) for w in kernels[:3])
    new_layer.build(query, value, key)
    for new_weight, weight in zip(new_layer.weights, weights, strict=True):
        new_weight.assign(ops.reshape(weight, new_weight.shape))
    return new_layer
