"""Translation of text by the layers of a model, without TensorFlow.

In float32 it finds what `translator` finds there, which is faster: see
`graph_model`. A model of bfloat16 searches in bfloat16 here, in float32 there.

Shapes: B batch, K beam size, S source length, L maximum length, V vocabulary.
"""

import unicodedata
from collections.abc import Sequence

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_transformer.data.cleaning import is_blank
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import END, PAD
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.model import Transformer
from keras_transformer.search.beam_search import beam_search

SHORTEST = 16  # to which sources are padded, or to twice as many, and so on


class LayerTranslator:
    """Translates lists of strings with a `Transformer`, on any backend.

    Args:
        model: the model, whose weights may change between calls.
        source_tokenizer, target_tokenizer: a `Tokenizer` each.
        settings: settings of the search.

    Call arguments:
        lines: strings; bytes are taken as UTF-8.

    Returns:
        A dictionary of `translation`, a list of strings.

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
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.settings = settings
        suppressed = target_tokenizer.suppressed_ids(settings.allow_unknown)
        self._suppressed = np.zeros(target_tokenizer.vocab_size, bool)
        self._suppressed[suppressed] = True
        self._search_of_arrays = self._search
        if keras.backend.backend() == "jax":
            import jax

            self._search_of_arrays = jax.jit(
                self._search, static_argnames="longest"
            )

    def __call__(self, lines: Sequence[str | bytes]) -> dict[str, list[str]]:
        best = [beam[0] for beam in self.n_best(lines)["translation"]]
        return {"translation": best}

    def n_best(
        self, lines: Sequence[str | bytes]
    ) -> dict[str, list[list[str]]]:
        """Returns all K hypotheses of each line, best first; see
        `Translator.n_best`."""
        settings = self.settings
        texts = [
            x if isinstance(x, str) else x.decode("utf-8", "replace")
            for x in lines
        ]
        split = self.source_tokenizer.split_tags
        keeps_tags = self.source_tokenizer.rule is not None
        parts = [split(x) if keeps_tags else ("", x) for x in texts]
        capitals = [
            settings.recase_capitals and is_in_capitals(x) for _, x in parts
        ]
        texts = [
            tags + (as_sentence(x) if is_capital else x)
            for (tags, x), is_capital in zip(parts, capitals, strict=True)
        ]
        most = self._at_most(settings.max_source_length + 1)
        ids = self.source_tokenizer.encode(texts)
        ids = [x if len(x) <= most else [*x[: most - 1], END] for x in ids]
        full = [
            i
            for i, text in enumerate(texts)
            if len(ids[i]) > 1 and not is_blank(split(text)[1])
        ]
        found = [[""] * settings.beam_size for _ in texts]
        if full:
            hypotheses = self.search([ids[i] for i in full], most)
            for i, beam in zip(full, hypotheses, strict=True):
                beam = self.target_tokenizer.decode(beam)
                found[i] = [x.upper() for x in beam] if capitals[i] else beam
        return {"translation": found}

    def search(self, ids: list[list[int]], most: int) -> np.ndarray:
        """Returns target ids `(B, K, L)` of rows of ids, of at most `most`
        each."""
        length = SHORTEST
        while length < max(map(len, ids)):
            length *= 2
        length = self._at_most(length)
        rows = 1 << (len(ids) - 1).bit_length()  # few shapes, few programs
        source = np.full((rows, length), PAD, "int32")
        source[:, 0] = END  # a row without a token has nothing to attend to
        for row, values in zip(source, ids, strict=False):
            row[: len(values)] = values
        settings = self.settings
        longest = most + settings.extra_length
        longest = min(longest, settings.max_length or longest)
        longest = self._at_most(longest)
        limits = np.sum(source != PAD, axis=1) + settings.extra_length
        found = self._search_of_arrays(
            [v.value for v in self.model.variables],
            source,
            np.minimum(limits, longest).astype("int32"),
            longest=min(length + settings.extra_length, longest),
        )
        return ops.convert_to_numpy(found)[: len(ids)]

    def _search(
        self,
        values: list[KerasTensor],
        source: KerasTensor,
        limits: KerasTensor,
        longest: int,
    ) -> KerasTensor:
        """Returns target ids `(B, K, L)`.

        Args:
            values: of the model's variables.
            source: ids `(B, S)`.
            limits: maximum length of each translation, `(B,)`.
            longest: L.
        """
        model, settings = self.model, self.settings
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
        found, _ = beam_search(
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
        return found

    def _at_most(self, length):
        """Returns the length, or the number of learned positions if smaller."""
        config = self.model.config
        if config.positions == "learned":
            return min(length, config.max_length)
        return length


def is_in_capitals(text: str) -> bool:
    """Returns whether a text is two or more words in capitals, as in
    `capitals`."""
    kinds = {"Lu": "U", "Ll": "l", "Lt": "L", "Lm": "L", "Lo": "L"}
    found = "".join(kinds.get(unicodedata.category(x), "-") for x in text)
    first, last = found.find("UU"), found.rfind("UU")
    return "l" not in found and first >= 0 and "-" in found[first + 2 : last]


def as_sentence(text: str) -> str:
    """Returns a text in small letters, with a capital at the start."""
    text = text.lower()
    return text[:1].upper() + text[1:]
