"""A layer that turns text into ids, and is saved with the model."""

import hashlib
import pathlib
import weakref
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import END, PAD
from keras_transformer.layers.arguments import Layer
from keras_transformer.validation import check_argument, checked_integer

FILE = "sentencepiece.model"
# Tokenizers by the SHA-256 of their models, as long as they live. A config has
# it, so that a layer that is copied in this process finds its tokenizer.
IN_USE: weakref.WeakValueDictionary[str, Tokenizer]
IN_USE = weakref.WeakValueDictionary()


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

    A `.keras` file of a model has the SentencePiece model in it; load only
    files that you trust, since native code parses them. Import `TextTokenizer`
    before, so that Keras knows the class; a `TextClassifier` does so itself.
    A config has only the SHA-256 of the SentencePiece model: what is made from
    a config, as by `keras.models.clone_model`, has the tokenizer as long as
    another layer of the process has it.

    Args:
        tokenizer: a `keras_transformer.data.Tokenizer`; `None` only until it
            is loaded from a file.
        max_length: largest number of ids of a text, its end token included.
            Defaults to 512.

    Call arguments:
        texts: strings `(B,)`: a list, an array, or a tensor of TensorFlow.

    Returns:
        int32 ids `(B, T)`, padded with 0.

    Raises:
        ValueError: if there is no tokenizer, if the input is not one axis of
            strings, or if the layer becomes part of a model on another backend
            than TensorFlow.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        max_length: int = 512,
        **kwargs: Any,
    ):
        super().__init__(autocast=False, **kwargs)
        self.max_length = checked_integer("max_length", max_length, least=2)
        self.supports_jit = False  # XLA has no strings
        self._tokenizer: Tokenizer | None = None
        self._vocab_size: int | None = None
        self._sha256 = ""
        if tokenizer is not None:
            remedy = "Make one by `train_tokenizer`."
            check_argument("tokenizer", tokenizer, Tokenizer, remedy)
            self._use(tokenizer)

    def _use(self, tokenizer):
        self._sha256 = hashlib.sha256(tokenizer.model).hexdigest()
        self._vocab_size = tokenizer.vocab_size
        self._tokenizer = IN_USE.setdefault(self._sha256, tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        """The `Tokenizer`."""
        if self._tokenizer is None:
            raise ValueError(
                "The layer must have a tokenizer before it is used. Received: "
                "tokenizer=None. Pass one to the constructor, or load the "
                "model by `keras.models.load_model`."
            )
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """The number of ids, which a config knows, too."""
        return self._vocab_size or self.tokenizer.vocab_size

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

    def decode(self, ids: KerasTensor) -> list[str]:
        """Returns the texts of ids `(B, T)`, see `Tokenizer.decode`."""
        return self.tokenizer.decode(ops.convert_to_numpy(ids))

    # === Config and files ===

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "vocab_size": self._vocab_size,
            "sha256": self._sha256,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TextTokenizer":
        config = dict(config)
        vocab_size = config.pop("vocab_size", None)
        sha256 = config.pop("sha256", "")
        layer = super().from_config(config)
        layer._vocab_size, layer._sha256 = vocab_size, sha256
        layer._tokenizer = IN_USE.get(sha256)
        return layer

    def save_assets(self, dir: str) -> None:
        """Writes the SentencePiece model; Keras calls this."""
        pathlib.Path(dir, FILE).write_bytes(self.tokenizer.model)

    def load_assets(self, dir: str | None) -> None:
        """Reads the SentencePiece model; Keras calls this.

        Raises:
            ValueError: if it is missing, or is not the one that was saved.
        """
        path = pathlib.Path(dir or "", FILE)
        found = path.read_bytes() if dir and path.is_file() else None
        if found is None or hashlib.sha256(found).hexdigest() != self._sha256:
            state = "no file" if found is None else f"{len(found)} other bytes"
            raise ValueError(
                f"{FILE} in the file of a model must be what was saved, with "
                f"SHA-256 {self._sha256}. Received: {state}. The file is "
                "damaged; take another copy of it."
            )
        self._use(Tokenizer(found))
