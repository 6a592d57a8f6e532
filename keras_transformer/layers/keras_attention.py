"""Takes over arguments and weights of `keras.layers.MultiHeadAttention`."""

from keras import ops

# Arguments of Keras' layer that only their default values are accepted of.
NOT_SUPPORTED = {
    "attention_axes": None,
    "sliding_window": None,
    "flash_attention": None,
    "use_gate": False,
}


def check_supported(**arguments):
    """Checks that arguments of `NOT_SUPPORTED` have their default values.

    Raises:
        ValueError: names the argument that has not.
    """
    for name, value in arguments.items():
        # The axes that Keras' layer fills in where inputs have rank 3.
        own = name == "attention_axes" and value in ((1,), [1])
        if value not in (None, False) and not own:
            raise ValueError(
                f"`{name}` of `keras.layers.MultiHeadAttention` is not "
                f"supported here. Received: {name}={value!r}. Leave it out, or "
                "use that layer."
            )


def take_over(layer_class, layer):
    """Returns a `layer_class` with the arguments and the weights of a built
    `keras.layers.MultiHeadAttention`.

    Raises:
        ValueError: if the layer is not built, or has arguments that are not
            supported.
    """
    if not layer.built:
        raise ValueError(
            "A layer must be built before its weights can be taken over. "
            f"Received: {layer.name!r}, which is not. Call it first."
        )
    ours = layer_class.from_config(layer.get_config())
    # Weights of a projection: a kernel, and a bias if there is one.
    theirs = [w for w in layer.weights if "seed_generator" not in w.path]
    kernels = theirs[:: 2 if ours.use_bias else 1]
    query, key, value = ((None, None, w.shape[0]) for w in kernels[:3])
    ours.build(query, value, key)
    for mine, other in zip(ours.weights, theirs, strict=True):
        mine.assign(ops.reshape(other, mine.shape))
    return ours
