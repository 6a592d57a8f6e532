"""Terms that translations must have, by a file of pairs of terms."""

import re

from keras_transformer.data.text_files import read_lines
from keras_transformer.validation import shown

# A word, or a sign of punctuation.
WORDS = re.compile(r"\w+|[^\w\s]")


class Glossary:
    """Holds pairs of terms, and finds those whose source term is in a line.

    Source terms are found as whole words, in any case.

    Args:
        path: a file that `read_lines` reads: a source term, a tab and its
            target term in each line. Blank lines are ignored.

    Raises:
        ValueError: if a line is another one, if a source term comes twice, or
            as `read_lines` does.
    """

    def __init__(self, path: str):
        self.terms: dict[tuple[str, ...], str] = {}
        for number, line in enumerate(read_lines(path), 1):
            if not line.strip():
                continue
            source, *rest = line.split("\t")
            words = _words(source)
            target = rest[0].strip() if len(rest) == 1 else ""
            if not (words and target) or words in self.terms:
                raise ValueError(
                    "A line of `--glossary` is a source term, a tab and a "
                    "target term, and each source term comes once. Received: "
                    f"line {number} of {path!r}, {shown(line)}. Mend or remove "
                    "it."
                )
            self.terms[words] = target
        self.longest = max(map(len, self.terms), default=0)

    def targets(self, line: str) -> list[str]:
        """Returns the target terms of a line. Of source terms that overlap, the
        longest one counts."""
        words = _words(line)
        found: dict[str, None] = {}  # in order
        free = [True] * len(words)
        for size in range(min(self.longest, len(words)), 0, -1):
            for start in range(len(words) - size + 1):
                places = slice(start, start + size)
                target = self.terms.get(words[places])
                if target is not None and all(free[places]):
                    free[places] = [False] * size
                    found[target] = None
        return list(found)


def read_terms(path: str) -> list[str]:
    """Returns the lines of a file that are not blank, see `read_lines`."""
    return [line.strip() for line in read_lines(path) if line.strip()]


def _words(text):
    return tuple(WORDS.findall(text.casefold()))
