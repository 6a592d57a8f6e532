"""Translation of text by the layers of a model, without TensorFlow.

In float32 it finds what `translator` finds there, which is faster: see
`graph_model`. A model of bfloat16 searches in bfloat16 here, in float32 there.

Shapes: B batch, K beam size, S source length, L maximum length, V vocabulary.
"""

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import END, PAD
from keras_transformer.inference.line_translator import Beams, LineTranslator
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.model import Transformer
from keras_transformer.search.beam_search import beam_search

SHORTEST = 16  # to which sources are padded, or to twice as many, and so on


class LayerTranslator(LineTranslator):
    """Translates lists of strings with a `Transformer`, on any backend.

    Args:
        model: the model, whose weights may change between calls.
        source_tokenizer, target_tokenizer: a `Tokenizer` each.
        settings: settings of the search.

    Raises:
        ValueError: if the settings change the punctuation of sources, which
            TensorFlow alone does.
    """

    def __init__(
        self,
        model: Transformer,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        settings: SearchSettings,
    ):
        for name in ("replace_punctuation", "normalize_punctuation"):
            if value := getattr(settings, name):
                raise ValueError(
                    "The punctuation of sources is changed on TensorFlow "
                    f"alone. Received: {name}={value!r}. Set "
                    "KERAS_BACKEND=tensorflow."
                )
        config = model.config
        positions = config.max_length if config.positions == "learned" else None
        super().__init__(
            source_tokenizer, target_tokenizer, settings, positions
        )
        self.model = model
        self._positions = positions
        suppressed = target_tokenizer.suppressed_ids(settings.allow_unknown)
        self._suppressed = np.zeros(target_tokenizer.vocab_size, bool)
        self._suppressed[suppressed] = True
        self._search_of_arrays = self._search
        if keras.backend.backend() == "jax":
            import jax

            self._search_of_arrays = jax.jit(
                self._search, static_argnames=("settings", "longest")
            )

    def search(
        self,
        ids: list[list[int]],
        limits: list[int],
        settings: SearchSettings,
    ) -> Beams:
        if not ids:
            return []
        length = SHORTEST
        while length < max(map(len, ids)):
            length *= 2
        length = min(length, self._positions or length)
        rows = 1 << (len(ids) - 1).bit_length()  # few shapes, few programs
        source = np.full((rows, length), PAD, "int32")
        source[:, 0] = END  # a row without a token has nothing to attend to
        for row, values in zip(source, ids, strict=False):
            row[: len(values)] = values
        most = np.ones(rows, "int32")
        most[: len(ids)] = limits
        found, scores = self._search_of_arrays(
            [v.value for v in self.model.variables],
            source,
            most,
            settings=settings,
            longest=min(length + settings.extra_length, self.longest[1]),
        )
        found, scores = map(ops.convert_to_numpy, (found, scores))
        return [
            [(row[row != PAD], score) for row, score in zip(*beam, strict=True)]
            for beam in zip(found[: len(ids)], scores.tolist(), strict=False)
        ]

    def _search(
        self,
        values: list[KerasTensor],
        source: KerasTensor,
        limits: KerasTensor,
        settings: SearchSettings,
        longest: int,
    ) -> tuple[KerasTensor, KerasTensor]:
        """Returns target ids `(B, K, L)` and scores `(B, K)`.

        Args:
            values: of the model's variables.
            source: ids `(B, S)`.
            limits: maximum length of each translation, `(B,)`.
            settings: settings of the search.
            longest: L.
        """
        model = self.model
        state = list(zip(model.variables, values, strict=True))

        def step(tokens, cache, index):
            with keras.StatelessScope(state):
                logits, cache = model.decode_step(
                    tokens, cache, index, memory, source != PAD
                )
            return ops.where(self._suppressed, -np.inf, logits), cache

        with keras.StatelessScope(state):
            source = ops.convert_to_tensor(source)
            memory = model.project_memory(model.encode(source))
            rows = source.shape[0] * settings.beam_size
            cache = model.empty_cache(rows, longest)
        return beam_search(
            step,
            cache,
            limits,
            settings.beam_size,
            settings.alpha,
            length_penalty=settings.length_penalty,
            early_stopping=settings.early_stopping,
            longest=longest,
            **settings.rules,
        )
