"""Scores of translations by sacreBLEU, with its signature: section 6.1."""

import json
import os
import pathlib

from keras_transformer.atomic_files import write_aside

STORE = "evaluations.jsonl"
BLEU_TOKENIZERS = ("13a", "none", "intl", "char", "zh")  # sacreBLEU's


def score(
    hypotheses: list[str], references: list[str], tokenize: str = "13a"
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
        tokenize: sacreBLEU's tokenizer. Defaults to "13a", for ordinary text;
            "none" is for tokenised text.

    Returns:
        A dictionary of `bleu`, `bleu_signature`, `chrf`, `chrf_signature` and
        `sentences`.

    Raises:
        ValueError: if the lists differ in length, are empty or are single
            strings, or if sacreBLEU has no such tokenizer.
    """
    import sacrebleu  # here, so that the command's help starts fast

    check_tokenizer(tokenize)
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
    # `force` silences the warning that the text may be tokenised already.
    bleu = sacrebleu.metrics.BLEU(tokenize=tokenize, force=True)
    chrf = sacrebleu.metrics.CHRF()
    result = bleu.corpus_score(hypotheses, [references])
    characters = chrf.corpus_score(hypotheses, [references])
    return {
        "bleu": round(result.score, 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf": round(characters.score, 2),
        "chrf_signature": str(chrf.get_signature()),
        "sentences": len(references),
    }


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
