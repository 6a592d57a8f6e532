"""A layer that turns text into ids, and is saved with the model."""

import base64
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import END, PAD
from keras_transformer.layers.arguments import Layer
from keras_transformer.validation import check_argument, checked_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextTokenizer(Layer):
    """Turns strings into padded ids, as the first layer of a model.

    Example:

    >>> from keras_transformer.training import open_run
    >>> layer = TextTokenizer(open_run("runs/demo").source_tokenizer)
    >>> ids = layer(["Good morning.", "No."])
    >>> layer.decode(ids)
    ['Good morning.', 'No.']

    Each row has its end token, and is padded to the longest row of its batch. A
    text of more than `max_length` ids is cut, and keeps its end token.

    On TensorFlow the layer may be part of a model whose input is strings,
    `keras.Input((), dtype="string")`, and of a `tf.data` pipeline. Other
    backends have no tensors of strings: there, call it before the model.

    Its config has the SentencePiece model, and so has the `.keras` file of a
    model with it; load only files that you trust, since native code parses
    them. Import `TextTokenizer` before, so that Keras knows the class; a
    `TextClassifier` and a `LanguageModel` do so themselves.

    Args:
        tokenizer: a `keras_transformer.data.Tokenizer`.
        max_length: largest number of ids of a text, its end token included.
            Defaults to 512.

    Call arguments:
        texts: strings `(B,)`: a list, an array, or a tensor of TensorFlow.

    Returns:
        int32 ids `(B, T)`, padded with 0.

    Raises:
        ValueError: if the input is not one axis of strings, or if the layer
            becomes part of a model on another backend than TensorFlow.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_length: int = 512,
        **kwargs: Any,
    ):
        super().__init__(autocast=False, **kwargs)
        remedy = "Make one by `train_tokenizer`."
        check_argument("tokenizer", tokenizer, Tokenizer, remedy)
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.max_length = checked_integer("max_length", max_length, least=2)
        self.supports_jit = False  # XLA has no strings

    def __call__(self, texts: Any, **kwargs: Any) -> KerasTensor:
        # Keras takes tensors only, and TensorFlow alone has some of strings.
        is_tensor = keras.backend.backend() == "tensorflow" and ops.is_tensor(
            texts
        )
        if is_tensor or isinstance(texts, KerasTensor):
            return super().__call__(texts, **kwargs)
        return ops.convert_to_tensor(self._padded(texts), "int32")

    def _padded(self, texts: Iterable[str | bytes]) -> np.ndarray:
        rows = self.tokenizer.encode(texts)
        most = self.max_length
        rows = [r if len(r) <= most else [*r[: most - 1], END] for r in rows]
        ids = np.full((len(rows), max(map(len, rows), default=0)), PAD, "int32")
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        return ids

    def call(self, texts: Any) -> KerasTensor:
        # Here, since other backends run without TensorFlow.
        from keras_transformer.inference.graph_tokenizer import (
            GraphTokenizer,
            as_strings,
        )

        graph = GraphTokenizer(self.tokenizer)
        most = self.max_length - 1  # before the end token
        ids, _ = graph.encode_at_most(as_strings(texts), most)
        return ids.to_tensor(PAD)

    def compute_output_spec(self, texts: KerasTensor) -> KerasTensor:
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "Only TensorFlow has tensors of strings. Received: backend="
                f"{keras.backend.backend()!r}. Call the tokenizer before a "
                "model of ids: `model(tokenizer(texts))`."
            )
        if len(texts.shape) != 1 or texts.dtype != "string":
            raise ValueError(
                "The input of a TextTokenizer must be strings (batch,). "
                f"Received: texts.shape={tuple(texts.shape)}, texts.dtype="
                f'{texts.dtype}. Use `keras.Input((), dtype="string")`.'
            )
        return KerasTensor((texts.shape[0], None), dtype="int32")

    def decode(self, ids: KerasTensor | list[list[int]]) -> list[str]:
        """Returns the texts of ids, a tensor `(B, T)` or a list of rows; see
        `Tokenizer.decode`."""
        is_list = isinstance(ids, list)
        return self.tokenizer.decode(
            ids if is_list else ops.convert_to_numpy(ids)
        )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "tokenizer": base64.b64encode(self.tokenizer.model).decode(),
            "max_length": self.max_length,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TextTokenizer":
        model = base64.b64decode(config["tokenizer"])
        return super().from_config({**config, "tokenizer": Tokenizer(model)})
