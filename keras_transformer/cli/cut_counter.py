"""Counts what a model cuts, so that nothing is lost without a word."""

import sys
from collections.abc import Callable
from typing import Any

# The meaning of each output, of the lines or sentences that it counts.
MEANINGS = {
    "truncated": "that were too long for the model, so that their ends are not "
    "translated",
    "incomplete": "whose translation reached its maximum length, so that its "
    "end may be missing",
    "unmet": "whose translation lacks a required term, or has one to avoid",
}


class CutCounter:
    """Translates by a function, and counts what was cut.

    Threads may call it at the same time.

    Args:
        translate: function of strings `(B,)` that returns a dictionary with
            `translation`, and with `truncated` and `incomplete`, bool `(B,)`,
            and `unmet`, strings `(B,)`, if it knows of them.
    """

    def __init__(self, translate: Callable[[Any], dict[str, Any]]):
        self.translate = translate
        self._counts: dict[str, list[int]] = {name: [] for name in MEANINGS}

    def __call__(self, text: Any) -> dict[str, Any]:
        """Returns what the function returns."""
        import numpy as np  # not while the command reads its arguments

        found = self.translate(text)
        for name, counts in self._counts.items():
            if name in found:
                counts.append(int(np.count_nonzero(np.asarray(found[name]))))
        return found

    def totals(self) -> dict[str, int]:
        """Returns how many strings so far were `truncated`, how many
        translations `incomplete`, and with how many terms were `unmet`, if
        there were any."""
        totals = {name: sum(counts) for name, counts in self._counts.items()}
        return {x: n for x, n in totals.items() if n or x != "unmet"}

    def warn(self, unit: str) -> None:
        """Says on standard error what was cut, if anything was.

        Args:
            unit: noun for what is counted, such as "lines".
        """
        for name, count in self.totals().items():
            if count:
                print(
                    f"keras-transformer: warning: {unit} {MEANINGS[name]}: "
                    f"{count:,}",
                    file=sys.stderr,
                )
