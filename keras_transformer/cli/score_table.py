"""A table of the scores of several models on several test sets."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

METRICS = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}


def score_table(rows: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Returns a table with a row for each model, and their mean.

    The rows are the results of each model, one for each test set. The standard
    deviation over the models, such as runs of several seeds, is the sample's.
    """
    several = len(rows) > 1
    names = [row[0]["export"] for row in rows]
    columns = [["", "", *names, *["mean ± standard deviation"] * several]]
    for results in zip(*rows, strict=True):
        title = results[0]["source"]
        for name, metric in METRICS.items():
            column = [title, metric, *(_cell(one, name) for one in results)]
            if several:
                scores = [one[name] for one in results]
                mean = statistics.mean(scores)
                column.append(f"{mean:.2f} ± {statistics.stdev(scores):.2f}")
            columns.append(column)
            title = ""  # above the first metric only
    widths = [max(map(len, column)) for column in columns]
    rows_of_cells = zip(*columns, strict=True)
    lines = ["  ".join(map(str.ljust, row, widths)) for row in rows_of_cells]
    if "bleu_ci" in rows[0][0]:
        lines.append("± of a model: 95 % confidence interval")
    if "bleu_p_value" in rows[-1][0]:
        lines.append("p: paired bootstrap against the first model")
    return "\n".join(line.rstrip() for line in lines)


def _cell(result, name):
    cell = f"{result[name]:.2f}"
    if f"{name}_ci" in result:
        cell += f" ± {result[f'{name}_ci']:.2f}"
    if f"{name}_p_value" in result:
        cell += f" (p {result[f'{name}_p_value']:.3f})"
    return cell
