"""Translation of strings by a search of word pieces, without a backend.

A `LayerTranslator` searches with the layers of a model, a
`CTranslate2Translator` with another program.

Shapes: B batch, K beam size.
"""

import abc
import math
import unicodedata
from collections.abc import Sequence

from keras_transformer.data.cleaning import is_blank
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import END
from keras_transformer.inference.search_settings import SearchSettings

# Hypotheses of each source, best first: ids with an end token, and scores.
Beams = list[list[tuple[Sequence[int], float]]]


class LineTranslator(abc.ABC):
    """Translates lists of strings; a subclass has the search.

    Args:
        source_tokenizer, target_tokenizer: a `Tokenizer` each.
        settings: settings of the search.
        positions: number of learned positions of the model. Defaults to
            `None`: it takes any number of word pieces.
    """

    def __init__(
        self,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        settings: SearchSettings,
        positions: int | None = None,
    ):
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.settings = settings
        self.longest = settings.longest(positions)

    @abc.abstractmethod
    def search(
        self,
        ids: list[list[int]],
        limits: list[int],
        settings: SearchSettings,
    ) -> Beams:
        """Returns at most K hypotheses of each source, best first.

        Args:
            ids: rows of ids with an end token, B.
            limits: maximum number of word pieces of each translation, end
                token included, B.
            settings: settings of the search.
        """

    def translate(
        self,
        lines: Sequence[str | bytes],
        target_language: str | None = None,
        settings: SearchSettings | None = None,
    ) -> dict[str, list]:
        """Returns the best translation of each string.

        Args:
            lines, target_language, settings: as for `n_best`.

        Returns:
            A dictionary of lists of B values: `translation`, `score`,
            `truncated` and `incomplete`, see `Translator.translate`.
        """
        found = self.n_best(lines, target_language, settings)
        several = "translation", "score", "incomplete"
        first = {name: [beam[0] for beam in found[name]] for name in several}
        return {**found, **first}

    def n_best(
        self,
        lines: Sequence[str | bytes],
        target_language: str | None = None,
        settings: SearchSettings | None = None,
    ) -> dict[str, list]:
        """Returns all K hypotheses of each string, best first.

        Args:
            lines: strings; bytes are taken as UTF-8.
            target_language: such as "de", for a vocabulary with tags such as
                `>>de<<`. Defaults to `None`: strings have their tags, if any.
            settings: settings of the search. Defaults to those of the
                translator.

        Returns:
            A dictionary as `Translator.n_best` returns it, of lists: for each
            string, `translation`, `score` and `incomplete` have K values and
            `truncated` has one.

        Raises:
            ValueError: if the vocabulary has no tag of the language.
        """
        settings = settings or self.settings
        tag = self._tag(target_language)
        texts = [
            tag + (x if isinstance(x, str) else x.decode("utf-8", "replace"))
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
        most_of_source, most_of_target = self.longest
        ids = self.source_tokenizer.encode(self.clean(texts))
        is_full = [
            len(row) > 1 and not is_blank(split(text)[1])
            for row, text in zip(ids, texts, strict=True)
        ]
        truncated = [
            full and len(row) > most_of_source
            for row, full in zip(ids, is_full, strict=True)
        ]
        ids = [
            [*row[: most_of_source - 1], END] if is_cut else row
            for row, is_cut in zip(ids, truncated, strict=True)
        ]
        most_of_target = min(
            most_of_target, settings.max_length or most_of_target
        )
        limits = [
            min(len(row) + settings.extra_length, most_of_target) for row in ids
        ]
        width = settings.beam_size
        found: dict[str, list] = {
            "translation": [[""] * width for _ in texts],
            "score": [[0.0] * width for _ in texts],
            "truncated": truncated,
            "incomplete": [[False] * width for _ in texts],
        }
        full = [i for i, x in enumerate(is_full) if x]
        beams = self.search(
            [ids[i] for i in full], [limits[i] for i in full], settings
        )
        for i, beam in zip(full, beams, strict=True):
            beam = [*beam, *[((), -math.inf)] * (width - len(beam))]
            rows, scores = zip(*beam, strict=True)
            text = self.target_tokenizer.decode(rows)
            if capitals[i]:
                text = [x.upper() for x in text]
            found["translation"][i] = text
            found["score"][i] = [*scores]
            found["incomplete"][i] = [len(row) >= limits[i] for row in rows]
        return found

    def clean(self, texts: list[str]) -> list[str]:
        """Changes sources before they are encoded, as the settings say."""
        return texts

    def _tag(self, language):
        """Returns the tag of a target language, as `for_language` does."""
        known = self.source_tokenizer.tag_names
        if not language:
            return ""
        if language not in known:
            raise ValueError(
                f"`target_language` may be {', '.join(known) or 'none'}. "
                f"Received: target_language={language!r}"
            )
        return f">>{language}<< "


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
