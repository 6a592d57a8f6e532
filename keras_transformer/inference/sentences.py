"""Splits a document into sentences, and puts their translations together."""

import dataclasses
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

MAX_CHARACTERS = 1000  # models cut sources after 512 pieces or so
# The time that sentencex takes grows with the square of some texts' length.
WINDOW = 10_000

# Marks of lists, headings and quotations at the start of a line.
LINE_MARKS = re.compile(r"[\s\ufeff]*(?:[-–—*+•‣◦>#]+\s+)*")
SPACE = re.compile(r"\s")
SURROGATE = re.compile("[\ud800-\udfff]")
# Places to cut a long sentence, best first: behind a clause, or a word.
CLAUSE_END, WORD_END = re.compile(r"[,;:…–—]\s+|[、，；：]"), re.compile(r"\s+")
ITEM_NUMBER = re.compile(r"\(?\d{1,3}[.)]")
ORDINAL_AT_END = re.compile(r"(?<![\d.,:])\d{1,2}\.$")
# These languages write ordinals such as "3." before nouns and names.
ORDINAL_LANGUAGES = {"de", "hu", "lb"}
# sentencex knows codes of two letters; many models are called by three.
TWO_LETTERS = {
    "ara": "ar",
    "bul": "bg",
    "ces": "cs",
    "cze": "cs",
    "dan": "da",
    "deu": "de",
    "ell": "el",
    "eng": "en",
    "fin": "fi",
    "fra": "fr",
    "fre": "fr",
    "ger": "de",
    "hun": "hu",
    "ita": "it",
    "jpn": "ja",
    "nld": "nl",
    "pol": "pl",
    "por": "pt",
    "rus": "ru",
    "spa": "es",
    "ukr": "uk",
    "zho": "zh",
}


@dataclasses.dataclass(frozen=True)
class SplitText:
    """Holds the sentences of a text, and what stands between them.

    The text is `separators[0] + sentences[0] + separators[1] + … +
    sentences[-1] + separators[-1]`, exactly.

    Example:

    >>> from keras_transformer.inference import split_sentences
    >>> split = split_sentences("Good morning!  Dr. Smith is in.\\n", "en")
    >>> split.separators
    ['', '  ', '\\n']
    >>> split.joined(["Guten Morgen!", "Dr. Smith ist da."])
    'Guten Morgen!  Dr. Smith ist da.\\n'

    Args:
        sentences: the sentences; none is empty, or starts or ends with white
            space.
        separators: the strings before, between and after the sentences, one
            more than sentences.
    """

    sentences: list[str]
    separators: list[str]

    def joined(self, translations: Sequence[str]) -> str:
        """Puts translations into the places of the sentences.

        The separators are kept. A space is added where sentences of Chinese
        or Japanese, which have none between them, become another script.

        Args:
            translations: the translation of each sentence.

        Raises:
            ValueError: if there is not one translation for each sentence.
        """
        if len(translations) != len(self.sentences):
            raise ValueError(
                "Each sentence needs a translation. Received: "
                f"{len(translations)} translations of {len(self.sentences)} "
                "sentences. Pass them in the order of the sentences."
            )
        separators = list(self.separators)
        for i in range(1, len(translations)):
            before = self.sentences[i - 1], translations[i - 1]
            was_wide, is_wide = map(_ends_wide, before)
            if not separators[i] and was_wide and not is_wide:
                separators[i] = " "
        parts = [separators[0]]
        for translation, separator in zip(
            translations, separators[1:], strict=True
        ):
            parts += [translation, separator]
        return "".join(parts)


def split_sentences(text: str, language: str) -> SplitText:
    """Splits a text into sentences.

    A sentence ends at the latest with its line: a paragraph is expected to be
    one line. Where the lines of a paragraph were wrapped, join them before.
    Sentences of more than 1,000 characters are cut behind a comma or a word,
    since models cut long sources. Separators also hold the marks of lists,
    headings and quotations, and whatever else has no letter or digit.

    It needs the package `sentencex`, of the extra `serve`.

    Example:

    >>> text = "See No. 7, e.g. today. Or call Dr. Smith.\\n\\n- It is 3.14 m."
    >>> for sentence in split_sentences(text, "en").sentences:
    ...     print(sentence)
    See No. 7, e.g. today.
    Or call Dr. Smith.
    It is 3.14 m.

    Args:
        text: any string.
        language: code of the text's language, such as "en" or "de-AT". Other
            languages than those of sentencex are split by English rules.
    """
    segment = load_splitter()
    language = re.split("[-_]", language.lower())[0]
    language = TWO_LETTERS.get(language, language)
    spans = []
    before = 0
    for line in text.splitlines(keepends=True):
        spans += [
            (before + start, before + end)
            for start, end in _spans_of_line(line, language, segment)
        ]
        before += len(line)
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(text)]
    return SplitText(
        [text[start:end] for start, end in spans],
        [text[i:j] for i, j in zip(ends, starts, strict=True)],
    )


def load_splitter() -> Callable[[str, str], Sequence[str]]:
    """Returns the function that splits text of a language.

    Raises:
        ImportError: if the package `sentencex` is not installed.
    """
    import sentencex

    return sentencex.segment


def _spans_of_line(line, language, segment):
    """Yields start and end of each sentence of a line."""
    marks = LINE_MARKS.match(line)
    start = marks.end() if marks else 0
    for end in _ends_of_sentences(line, start, language, segment):
        for cut in [*_cuts(line, start, end), end]:
            sentence = line[start:cut].strip()
            if any(map(str.isalnum, sentence)):
                first = line.index(sentence, start)
                yield first, first + len(sentence)
            start = cut


def _ends_of_sentences(line, start, language, segment) -> Iterator[int]:
    """Yields the ends of the sentences of a line, with their white space."""
    first = start  # where the sentence begins
    while start < len(line):
        window = line[start : start + WINDOW]
        pieces = _pieces(window, language, segment)
        if start + len(window) < len(line):
            # The last one may continue after the window.
            pieces = pieces[:-1] or [window[: _cut(window)]]
        for piece in pieces:
            start += len(piece)
            # Its last characters say enough, however long it has become.
            sentence = line[max(first, start - 30) : start].rstrip()
            if start < len(line) and _continues(sentence, language):
                continue
            yield start
            first = start
    if first < len(line):
        yield len(line)


def _pieces(text, language, segment) -> list[str]:
    """Splits a text by sentencex; returns it whole where that fails."""
    # Version 1.0.32 panics at spaces of several bytes, and does not accept
    # surrogates.
    plain = SURROGATE.sub("\ufffd", SPACE.sub(" ", text))
    try:
        pieces = list(segment(language, plain))
    except BaseException as error:  # a panic of Rust is no `Exception`
        if type(error).__name__ != "PanicException":
            raise
        return [text]
    return pieces if "".join(pieces) == plain else [text]


def _continues(sentence, language):
    """Returns whether a sentence continues after what looks like its end.

    Half a sentence is translated worse than two sentences at once.
    """
    if ITEM_NUMBER.fullmatch(sentence):
        return True
    return language in ORDINAL_LANGUAGES and ORDINAL_AT_END.search(sentence)


def _cuts(line, start, end):
    """Yields where a sentence has to be cut to be short enough."""
    while end - start > MAX_CHARACTERS:
        start += _cut(line[start : start + MAX_CHARACTERS])
        yield start


def _cut(text):
    """Returns the best place to cut off the start of a text."""
    for pattern, least in ((CLAUSE_END, MAX_CHARACTERS // 2), (WORD_END, 1)):
        head = text[:MAX_CHARACTERS]
        places = [found.end() for found in pattern.finditer(head)]
        if places and places[-1] >= least:
            return places[-1]
    return len(head)


def _ends_wide(text):
    """Returns whether the last letter or digit of a text, or a mark behind it,
    is as wide as in Chinese."""
    places = [i for i, character in enumerate(text) if character.isalnum()]
    end = text[places[-1] :] if places else ""
    return any(unicodedata.east_asian_width(c) in "WF" for c in end)
