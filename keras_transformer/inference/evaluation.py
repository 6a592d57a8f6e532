"""Scores of translations by sacreBLEU, with its signature: section 6.1."""

import json
import os
import pathlib
from collections.abc import Sequence

from keras_transformer.atomic_files import write_aside

STORE = "evaluations.jsonl"
BLEU_TOKENIZERS = ("13a", "none", "intl", "char", "zh")  # sacreBLEU's


def score(
    hypotheses: list[str],
    references: list[str],
    tokenize: str = "13a",
    ter: bool = False,
) -> dict:
    """Computes corpus BLEU and chrF, with sacreBLEU's signatures.

    Scores are comparable only if their signatures are equal.

    Example:

    >>> german = ["Zimmer 7 ist im dritten Stock."]
    >>> result = score(german, references=german)
    >>> result["bleu"], result["chrf"], result["sentences"]
    (100.0, 100.0, 1)

    Args:
        hypotheses: translations, detokenised.
        references: reference translations, detokenised, in the same order.
        tokenize: sacreBLEU's tokenizer of BLEU. Defaults to "13a", for ordinary
            text; "none" is for tokenised text.
        ter: whether to compute TER too, which takes about 10 milliseconds a
            sentence. Defaults to False.

    Returns:
        A dictionary of `bleu`, `bleu_signature`, `chrf`, `chrf_signature` and
        `sentences`; and of `ter` and `ter_signature` if asked for.

    Raises:
        ValueError: if the lists differ in length, are empty or are single
            strings, or if sacreBLEU has no such tokenizer.
    """
    metrics = _metrics(tokenize, ter)
    _check_pairs(hypotheses, references)
    result = {}
    for name, metric in metrics.items():
        found = metric.corpus_score(hypotheses, [references])
        result[name] = round(found.score, 2)
        result[f"{name}_signature"] = str(metric.get_signature())
    return result | {"sentences": len(references)}


def compare(
    systems: Sequence[list[str]], references: list[str], tokenize: str = "13a"
) -> list[dict]:
    """Scores systems with confidence intervals, and compares them to the first.

    Intervals and p-values are those of sacreBLEU's paired bootstrap with 1,000
    resamples, which `SACREBLEU_SEED` seeds.

    Example:

    >>> german = ["Die Uhr geht nach.", "Zimmer 7 ist im dritten Stock."]
    >>> guesses = ["Die Uhr geht nach.", "Zimmer 7 ist im Keller."]
    >>> first, second = compare([guesses, german], references=german)
    >>> second["bleu"], second["bleu_mean"], second["bleu_ci"]
    (100.0, 100.0, 0.0)
    >>> 0 < second["bleu_p_value"] < 1
    True

    Args:
        systems: the translations of each system.
        references: see `score`.
        tokenize: see `score`.

    Returns:
        A dictionary for each system: that of `score` with TER and, for each
        metric, such as BLEU, `bleu_mean`, the mean of the resamples;
        `bleu_ci`, half the width of the 95 % confidence interval around it;
        and `bleu_p_value`, except for the first system. The p-value is 1 if
        both scores are equal; sacreBLEU's is 0.001 for equal translations.

    Raises:
        ValueError: if there is no system, or as for `score`.
    """
    metrics = _metrics(tokenize, ter=True)
    for hypotheses in systems:
        _check_pairs(hypotheses, references)
    if not systems:
        raise ValueError("Give at least one system. Received: systems=[]")
    from sacrebleu.significance import PairedTest

    named = [(str(i), system) for i, system in enumerate(systems)]
    signatures, found = PairedTest(named, metrics, [references], "bs")()
    _, *titles = found  # first the column of the systems' names
    results: list[dict] = [{} for _ in systems]
    for name, title in zip(metrics, titles, strict=True):
        first = found[title][0]
        for result, one in zip(results, found[title], strict=True):
            result[name] = round(one.score, 2)
            result[f"{name}_signature"] = str(signatures[title])
            result[f"{name}_mean"] = round(float(one.mean), 2)
            result[f"{name}_ci"] = round(float(one.ci), 2)
            if one is not first:
                p_value = 1.0 if one.score == first.score else one.p_value
                result[f"{name}_p_value"] = round(p_value, 4)
    return [result | {"sentences": len(references)} for result in results]


def _metrics(tokenize, ter):
    import sacrebleu  # here, so that the command's help starts fast

    check_tokenizer(tokenize)
    # `force` silences the warning that the text may be tokenised already.
    bleu = sacrebleu.metrics.BLEU(tokenize=tokenize, force=True)
    metrics = {"bleu": bleu, "chrf": sacrebleu.metrics.CHRF()}
    return metrics | {"ter": sacrebleu.metrics.TER()} if ter else metrics


def _check_pairs(hypotheses, references):
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError(
            "Translations and references are lists of strings. Received: a "
            "single string. Give `[text]`."
        )
    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            "Every sentence needs its reference. Received: "
            f"{len(hypotheses)} sentences, {len(references)} references."
        )


def check_tokenizer(tokenize: str) -> None:
    """Checks that a name is in `BLEU_TOKENIZERS`.

    Raises:
        ValueError: if it is not.
    """
    if tokenize not in BLEU_TOKENIZERS:
        raise ValueError(
            f"`tokenize` must be one of {', '.join(BLEU_TOKENIZERS)}. "
            f"Received: tokenize={tokenize!r}"
        )


def remember(folder: str | os.PathLike, result: dict) -> None:
    """Appends a result to the file of results in a run's or model's folder."""
    path = pathlib.Path(folder, STORE)
    old = path.read_bytes() if path.exists() else b""
    with write_aside(path) as file:
        file.write(old + (json.dumps(result) + "\n").encode())
