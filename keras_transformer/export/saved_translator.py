"""An exported SavedModel in Python."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the tokenizer's operations

from keras_transformer import hardware
from keras_transformer.export.files import check_export, newest_version
from keras_transformer.inference.graph_tokenizer import (
    as_strings,
    for_language,
)
from keras_transformer.inference.lines import encoded, translate_lines
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.inference.translator import best_of


class SavedTranslator:
    """Loads an exported model and translates with it.

    Example:

    >>> translator = SavedTranslator("saved_models/demo")
    >>> translator(["Good morning.", "Room 7 is on the third floor."])
    ['Guten Morgen.', 'Zimmer 7 ist im dritten Stock.']
    >>> found = translator.explain("Room 7 is on the third floor.")
    >>> found["translation"]
    'Zimmer 7 ist im dritten Stock.'

    Args:
        path: the folder `NAME`, of which the newest version is loaded, or
            `NAME/VERSION`.

    Raises:
        ValueError: if there is no export of this format, if it is damaged, or
            if this machine cannot compute in its dtype.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = newest_version(path)
        self.metadata = check_export(self.path)
        hardware.check_half_precision(self.metadata["dtype"])
        self.loaded = tf.saved_model.load(str(self.path))

    def __call__(
        self, text: str | Iterable[str], target_language: str | None = None
    ) -> str | list[str]:
        """Translates a string, or each of several.

        Args:
            text: a string, or strings, of which 64 are translated at a time.
            target_language: such as "de", for a model that knows tags such as
                `>>de<<`. Defaults to `None`: strings have their tags, if any.

        Returns:
            A string, or a list of strings in the same order.

        Raises:
            ValueError: if the model does not know the language.
        """
        lines = [text] if isinstance(text, str) else list(text)
        found = translate_lines(
            lambda some: self.translate(some, target_language), lines
        )
        return found[0] if isinstance(text, str) else found

    def translate(
        self, text: tf.Tensor, target_language: str | None = None
    ) -> dict:
        """Returns the best translation of each string.

        Args:
            text: strings `(B,)`; B may be 0.
            target_language: as for a call.

        Returns:
            A dictionary of `translation`, `score`, `truncated` and
            `incomplete`, see `Translator.translate`.
        """
        text = self._tagged(text, target_language)
        return self.loaded.signatures["serving_default"](text=text)

    def _tagged(self, text, target_language):
        """Returns strings as a tensor, with the tag of a language."""
        language, known = target_language or "", self.metadata["tags"]
        return for_language(as_strings(text), language, known)

    def control(
        self,
        text: tf.Tensor,
        target_prefix: tf.Tensor | None = None,
        target_language: str | None = None,
        terms: tf.Tensor | None = None,
        avoid: tf.Tensor | None = None,
        **options: Any,
    ) -> dict:
        """Returns the best translation of each string that is as asked for.

        Args:
            text: strings `(B,)`.
            target_prefix: strings `(B,)`, the beginnings of the translations.
                Defaults to none.
            target_language: as for a call.
            terms: strings `(B,)`, the words that each translation must have:
                several are lines, such as "Haus\\nTür". Defaults to none.
            avoid: strings `(B,)`, the words that it may not have, likewise.
                Defaults to none.
            options: `beam_size`, `alpha`, `min_length`,
                `no_repeat_ngram_size` and `repetition_penalty`, numbers, see
                `Translator.control`. Default to those of the export.

        Returns:
            As `translate` does, and `unmet`, strings `(B,)`, the terms that a
            translation lacks and those that it should not have, in lines.

        Raises:
            ValueError: if the export has no signature `control`, or if an
                option is out of range, see `SearchSettings`.
        """
        signature = self.loaded.signatures.get("control")
        if signature is None:
            raise ValueError(
                "This export has no signature `control`. Received: "
                f"{str(self.path)!r}. Export the run with `--control`."
            )
        search = self.metadata["search"]
        settings = SearchSettings(**search | options)  # checks them
        names = "min_length", "no_repeat_ngram_size", "repetition_penalty"
        inputs = {name: getattr(settings, name) for name in names}
        inputs |= {"beam_size": settings.beam_size, "alpha": settings.alpha}
        for name in ("alpha", "repetition_penalty"):
            inputs[name] = float(inputs[name])
        text = self._tagged(text, target_language)
        lines = {"target_prefix": target_prefix, "terms": terms, "avoid": avoid}
        none = tf.fill(tf.shape(text), "")
        found = signature(
            text=text,
            **{
                name: none if value is None else as_strings(value)
                for name, value in lines.items()
            },
            max_length=tf.constant(self.metadata["max_length"]),
            **{name: tf.constant(value) for name, value in inputs.items()},
            **self._no_language,
        )
        return best_of(found)

    @property
    def _no_language(self):
        """Returns inputs for texts that have their tags, if any."""
        tags = self.metadata["tags"]
        return {"target_language": tf.constant("")} if tags else {}

    def score(
        self,
        text: tf.Tensor,
        translation: tf.Tensor,
        target_language: str | None = None,
    ) -> dict:
        """Returns how likely translations are, and which words belong together.

        Args:
            text, translation: strings `(B,)`.
            target_language: as for a call.

        Returns:
            A dictionary of `score`, `pieces`, `alignment` and `truncated`, see
            `Translator.score`.
        """
        return self.loaded.signatures["score"](
            text=self._tagged(text, target_language),
            translation=as_strings(translation),
        )

    def explain(self, line: str, target_language: str | None = None) -> dict:
        """Returns the best translation of one string, and its attention.

        Args:
            line: the string.
            target_language: as for a call.

        Returns:
            A dictionary of `translation`, a string; `score`, a number;
            `source_pieces` and `target_pieces`, lists of S and T word pieces;
            `log_probs`, T numbers, and `mean_log_prob`; `alignment`, a string;
            `attention`, `(N, H, T, S)`; and `encoder_attention`,
            `(N, H, S, S)`, see `Translator.explain`.

        Raises:
            ValueError: if there is no single string, or if the model does not
                know the language.
        """
        if not isinstance(line, str | bytes):
            raise ValueError(
                "`explain` takes one string. Received: a "
                f"{type(line).__name__}. Call it for each."
            )
        found = self.explain_batch([encoded(line)], target_language)
        found = {name: value.numpy()[0] for name, value in found.items()}
        source, target = (
            [piece.decode() for piece in found[side] if piece]
            for side in ("source_pieces", "target_pieces")
        )
        rows, columns = len(target), len(source)
        weights = found["encoder_attention"]
        return {
            "translation": found["translation"].decode(),
            "score": float(found["score"]),
            "source_pieces": source,
            "target_pieces": target,
            "log_probs": found["log_probs"][:rows].tolist(),
            "mean_log_prob": float(found["mean_log_prob"]),
            "alignment": found["alignment"].decode(),
            "attention": found["attention"][:, :, :rows, :columns],
            "encoder_attention": weights[:, :, :columns, :columns],
        }

    def explain_batch(
        self, text: tf.Tensor, target_language: str | None = None
    ) -> dict:
        """Returns the best translation of each string, and its attention.

        Args:
            text: strings `(B,)`.
            target_language: as for a call.

        Returns:
            A dictionary of tensors, see `Translator.explain`.
        """
        text = self._tagged(text, target_language)
        return self.loaded.signatures["explain"](text=text)

    def searched_with(
        self, beam_size: int | None = None, alpha: float | None = None
    ) -> Callable[..., dict]:
        """Returns `translate` with another beam size or length penalty.

        Args:
            beam_size: number of hypotheses to keep. Defaults to the export's.
            alpha: exponent of the length penalty. Defaults to the export's.

        Returns:
            A function with the arguments and the result of `translate`.

        Raises:
            ValueError: if a value is out of range, see `SearchSettings`.
        """
        asked = {"beam_size": beam_size, "alpha": alpha}
        settings = SearchSettings(  # which checks them
            **self.metadata["search"]
            | {
                name: value
                for name, value in asked.items()
                if value is not None
            }
        )

        def translate(text, target_language=None):
            found = self.loaded.signatures["n_best"](
                text=self._tagged(text, target_language),
                beam_size=tf.constant(settings.beam_size),
                alpha=tf.constant(float(settings.alpha)),
                max_length=tf.constant(self.metadata["max_length"]),
                **self._no_language,
            )
            return best_of(found)

        return translate
