"""Scores of translations: section 6.1, by sacreBLEU with its signature."""

import json
import pathlib

from keras_transformer.atomic_files import write_aside

STORE = "evaluations.jsonl"
BLEU_TOKENIZERS = ("13a", "none", "intl", "char", "zh")  # of sacreBLEU


def score(
    hypotheses: list[str], references: list[str], tokenize: str = "13a"
) -> dict:
    """Corpus BLEU and chrF, with the signatures that make them comparable.

    Args:
        hypotheses, references: a sentence each, detokenised, in the same order.
        tokenize: sacreBLEU's tokenizer. "13a" (default) for text as people
            write it, "none" for text that is already in tokens.

    Returns:
        A dictionary of `bleu`, `bleu_signature`, `chrf`, `chrf_signature` and
        `sentences`.

    Raises:
        ValueError: if the lists differ in length or are empty.
    """
    import sacrebleu  # here: the command's help needs only the names above

    check_tokenizer(tokenize)
    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            "Every sentence needs its reference. Received: "
            f"{len(hypotheses)} sentences, {len(references)} references."
        )
    # `force` silences the question whether the text is tokenised already.
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


def check_tokenizer(tokenize: str):
    """Raises a `ValueError` if sacreBLEU's tokenizer is not one of ours."""
    if tokenize not in BLEU_TOKENIZERS:
        raise ValueError(
            f"`tokenize` must be one of {', '.join(BLEU_TOKENIZERS)}. "
            f"Received: tokenize={tokenize!r}"
        )


def remember(folder, result: dict):
    """Adds a result to those stored in the folder of a run or a model."""
    path = pathlib.Path(folder, STORE)
    old = path.read_bytes() if path.exists() else b""
    with write_aside(path) as file:
        file.write(old + (json.dumps(result) + "\n").encode())
