"""A classifier of texts: the encoder of figure 1, a mean and a projection.

Shapes: B batch, T length, D d_model, C classes.
"""

from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_transformer.config import TransformerConfig
from keras_transformer.configured_model import (
    TextModel,
    embedding_arguments,
    layer_arguments,
)
from keras_transformer.ids import PAD
from keras_transformer.layers import (
    EncoderLayer,
    PositionalEmbedding,
    padding_mask,
)
from keras_transformer.layers.arguments import exact_dtype
from keras_transformer.layers.normalization import Dropout
from keras_transformer.validation import checked_integer

UTF_8 = "utf-8", "replace"


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextClassifier(TextModel):
    """Builds an encoder whose mean output is projected to classes.

    Example:

    >>> import numpy as np
    >>> config = TransformerConfig.preset("tiny", vocab_size=100)
    >>> model = TextClassifier(config, num_classes=5)
    >>> tuple(model(np.array([[5, 7, 3], [9, 3, 0]])).shape)
    (2, 5)

    The logits are Dropout(mean(x)) W + b, where x is the output of
    `config.num_layers` encoder layers and the mean is that of real positions:
    padding changes nothing, and a text without a real position has mean 0. It
    is a functional model with named parts: `embedding`, `encoder_layers`,
    `encoder_norm` and `projection`. Train it with
    `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`.

    With a tokenizer, on TensorFlow, the input is strings. A call takes a list,
    an array or a tensor of them; `fit`, `evaluate` and `predict` take tensors,
    a `tf.data.Dataset`, or arrays such as `np.array(texts, object)`. A `.keras`
    file and what `model.export` writes have the tokenizer in them. A program
    that loads the latter imports `tensorflow_text`.

    Args:
        config: a `TransformerConfig` with one vocabulary and one number of
            layers. Fields about the projection to tokens have no effect.
        num_classes: C.
        tokenizer: a `keras_transformer.inference.TextTokenizer`. Defaults to
            `None`: the input is ids.
        seed: seed of the dropout; each layer derives its own.

    Call arguments:
        inputs: integer ids `(B, T)`, padded with 0; with a tokenizer, strings
            `(B,)`.

    Returns:
        logits `(B, C)`, float32 in every policy but float64.

    Raises:
        ValueError: if the config has fields of a source beside a target, if the
            tokenizer does not fit the config, or if there is one on another
            backend than TensorFlow.
    """

    def __init__(
        self,
        config: TransformerConfig,
        num_classes: int,
        tokenizer: keras.layers.Layer | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        seeds = self._begin(config, seed, tokenizer)
        self.num_classes = checked_integer("num_classes", num_classes)
        dtype = kwargs.pop("dtype", None)

        # === Layers ===
        self.embedding = PositionalEmbedding(
            config.vocab_size,
            seed=next(seeds),
            name="embedding",
            **embedding_arguments(config, dtype),
        )
        self.encoder_layers = [
            EncoderLayer(
                name=f"encoder_{i}",
                seed=next(seeds),
                **layer_arguments(config, dtype),
            )
            for i in range(config.num_layers)
        ]
        self.encoder_norm = self._final_norm("encoder_norm", dtype)
        exact = exact_dtype(self.embedding.compute_dtype)
        dropout = Dropout(
            config.dropout_rate, seed=next(seeds), dtype=exact, name="dropout"
        )
        self.projection = keras.layers.Dense(
            self.num_classes, dtype=exact, name="projection"
        )

        # === Functional model ===
        if tokenizer is None:
            inputs = keras.Input((None,), dtype="int32", name="ids")
            ids = inputs
        else:
            inputs = keras.Input((), dtype="string", name="texts")
            ids = tokenizer(inputs)
        mask = padding_mask(ids, PAD)  # [B, T]
        x = self.embedding(ids)
        for layer in self.encoder_layers:
            x = layer(x, mask=mask)
        if self.encoder_norm is not None:
            x = self.encoder_norm(x)
        logits = self.projection(dropout(_mean(x, mask)))  # [B, C]
        super().__init__(inputs=inputs, outputs=logits, **kwargs)
        if dtype is not None:
            self.dtype_policy = dtype

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> KerasTensor:
        # Keras takes a list of strings for several inputs.
        is_list = isinstance(inputs, list | tuple | np.ndarray)
        if is_list and self.tokenizer is not None:
            inputs = ops.convert_to_tensor(
                [x.encode(*UTF_8) if isinstance(x, str) else x for x in inputs],
                "string",
            )
        return super().__call__(inputs, *args, **kwargs)

    def get_config(self) -> dict:
        return {**super().get_config(), "num_classes": self.num_classes}


def _mean(x, mask):
    """Returns the mean `(B, D)` of the real positions of `(B, T, D)`."""
    dtype = exact_dtype(x.dtype)
    mask = ops.expand_dims(mask, -1)  # [B, T, 1]
    total = ops.sum(ops.where(mask, ops.cast(x, dtype), 0.0), axis=1)
    count = ops.sum(ops.cast(mask, dtype), axis=1)  # [B, 1]
    return total / ops.maximum(count, 1.0)
