"""Puts this package's attention in place of Keras' own, in a whole model."""

import keras

from keras_transformer.layers.multi_head_attention import MultiHeadAttention


def replace_attention(model: keras.Model) -> keras.Model:
    """Returns a model with our attention in place of Keras'.

    Every `keras.layers.MultiHeadAttention` of the model becomes a
    `MultiHeadAttention` with its name, arguments and weights, also in
    functional and sequential models inside. All other layers are those of
    `model` itself, so that training one model changes both. The new model is
    compiled if `model` is, with an optimizer that begins anew.

    The outputs are the same, with one exception: Keras' layer removes the
    implicit mask of its inputs, as `Embedding(mask_zero=True)` makes it, so
    that layers behind a residual connection read padding. Ours keeps it, and a
    row with padding gets the output that it has without.

    Example:

    >>> x = keras.Input((None, 16))
    >>> y = keras.layers.MultiHeadAttention(2, 8, name="attention")(x, x)
    >>> model = replace_attention(keras.Model(x, y))
    >>> isinstance(model.get_layer("attention"), MultiHeadAttention)
    True

    Args:
        model: a functional or sequential model.

    Raises:
        ValueError: if `model` is another, has no such layer, or has one inside
            a layer or model of a class of its own, whose code says what it
            calls: change the import there.
    """
    # Models that are made from their inputs and outputs have `operations`.
    if not isinstance(model, keras.Sequential) and not hasattr(
        model, "operations"
    ):
        raise ValueError(
            "`model` must be a functional or a sequential model. Received: "
            f"model={model!r}. In a class of your own, change the import."
        )
    replaced = []

    def replace(layer):
        if _is_keras_attention(layer):
            replaced.append(layer)
            return MultiHeadAttention.from_keras(layer)
        # In the graph there are also operations that are no layers.
        parts: list = getattr(layer, "_flatten_layers", list)()
        if any(map(_is_keras_attention, parts)):
            raise ValueError(
                "A layer's own code says which attention it calls. Received: "
                f"{layer.name!r}, a {type(layer).__name__} with "
                "`keras.layers.MultiHeadAttention` inside. Change the import "
                "in that class, and its weights by `from_keras`."
            )
        return layer

    model = keras.models.clone_model(
        model, clone_function=replace, recursive=True
    )
    if not replaced:
        raise ValueError(
            "The model must have a layer to replace. Received: "
            f"{model.name!r}, which calls no `keras.layers.MultiHeadAttention`."
        )
    return model


def _is_keras_attention(layer):
    # Subclasses compute something of their own.
    return type(layer) is keras.layers.MultiHeadAttention
