"""Translates lines by transformers, for reference.

Part of `marian_reference.py`, which says how to run it.
"""

import copy

import marian_folders as folders
import torch
from transformers import MarianTokenizer

# Each search changes the folder's own generation settings by these. The
# hub's settings normalize the probabilities again after the padding token was
# forbidden (`renormalize_logits`); many users of a model do not.
SEARCHES = {
    "greedy": {"num_beams": 1},
    "beam": {"num_beams": 4},
    "beam_not_renormalized": {"num_beams": 4, "renormalize_logits": False},
}


def search_settings(config, changes):
    """Returns generation settings with what is left open made explicit."""
    settings = copy.deepcopy(config)
    settings.update(
        length_penalty=1.0,
        early_stopping=False,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **changes,
    )
    return settings


def sum_of_log_probabilities(logits, sequences, settings):
    """Returns the log-probability of each sequence, its end token included."""
    log_probabilities = torch.stack(logits, 1).log_softmax(-1)
    tokens = sequences[:, 1:]
    steps = log_probabilities.gather(2, tokens[..., None])[..., 0]
    return steps.masked_fill(tokens == settings.pad_token_id, 0).sum(1)


def translate(model, tokenizer, lines, settings):
    """Translates one batch; returns a dictionary for each line."""
    batch = tokenizer(list(lines), return_tensors="pt", padding=True)
    found = model.generate(**batch, generation_config=settings)
    sequences = found.sequences
    extra = [{} for _ in lines]
    if settings.num_beams > 1:
        scores = found.sequences_scores
    else:
        # As `compute_transition_scores(normalize_logits=True)`, which does
        # not know of target vocabularies of another size. What is forbidden
        # has -inf by now, so that the padding token is not in the sum.
        scores = sum_of_log_probabilities(found.scores, sequences, settings)
        raw = sum_of_log_probabilities(found.logits, sequences, settings)
        extra = [{"score_not_renormalized": float(score)} for score in raw]
    texts = tokenizer.batch_decode(sequences, skip_special_tokens=True)
    rows = []
    for row, text, score, more in zip(
        sequences, texts, scores, extra, strict=True
    ):
        # The start token is the padding token, which never occurs within.
        ids = [i for i in row.tolist() if i != settings.pad_token_id]
        rows.append({"text": text, "ids": ids, "score": float(score), **more})
    return rows


def outputs(folder, lines, batch_size=32, singly=50):
    """Translates lines in batches, and the first ones also one by one.

    Returns:
        What is to be known of the searches, and how far one by one and in
        batches agree; and for each line its ids and its translations.
    """
    model = folders.load(folder)
    torch.manual_seed(0)
    tokenizer = MarianTokenizer.from_pretrained(folder)
    rows = [
        {"source": line, "ids": tokenizer(line)["input_ids"]} for line in lines
    ]
    head = {"dtype": "float32", "searches": {}}
    for name, changes in SEARCHES.items():
        settings = search_settings(model.generation_config, changes)
        single, batched = [], []
        with torch.no_grad():
            for line in lines[:singly]:
                single += translate(model, tokenizer, [line], settings)
            for start in range(0, len(lines), batch_size):
                part = lines[start : start + batch_size]
                batched += translate(model, tokenizer, part, settings)
        pairs = list(zip(single, batched, strict=False))
        head["searches"][name] = {
            "settings": settings.to_diff_dict()
            | {"length_penalty": 1.0, "early_stopping": False},
            "score": "log-probability"
            if settings.num_beams == 1
            else "log-probability / number of tokens",
            "batch_size": batch_size,
            "same_ids_one_by_one": sum(a["ids"] == b["ids"] for a, b in pairs),
            "largest_difference_of_scores_one_by_one": max(
                abs(a["score"] - b["score"]) for a, b in pairs
            ),
            "lines_one_by_one": len(pairs),
        }
        for row, result in zip(rows, batched, strict=True):
            row[name] = result
    return head, rows
