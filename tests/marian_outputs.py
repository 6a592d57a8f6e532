"""Translates lines by transformers, for reference.

Part of `marian_reference.py`, which says how to run it.
"""

import copy

import marian_folders as folders
import torch
from transformers import MarianTokenizer

# Each search changes the folder's own generation settings by these.
RULES = {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "min_length": 9}
SEARCHES = {
    "greedy": {"num_beams": 1},
    "beam": {"num_beams": 4},
    "greedy with rules": {"num_beams": 1, **RULES},
    "beam with rules": {"num_beams": 4, **RULES},
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
    if settings.num_beams > 1:
        scores = found.sequences_scores
    else:
        # As `compute_transition_scores(normalize_logits=True)`, which does
        # not know of target vocabularies of another size. What is forbidden
        # has -inf by now, so that the padding token is not in the sum.
        scores = sum_of_log_probabilities(found.scores, sequences, settings)
    texts = tokenizer.batch_decode(sequences, skip_special_tokens=True)
    rows = []
    for row, text, score in zip(sequences, texts, scores, strict=True):
        # The start token is the padding token, which never occurs within.
        ids = [i for i in row.tolist() if i != settings.pad_token_id]
        rows.append({"text": text, "ids": ids, "score": float(score)})
    return rows


def outputs(folder, lines, batch_size=32):
    """Returns the settings of the searches; and for each line, translated in
    batches, its ids and its translations."""
    model = folders.load(folder)
    torch.manual_seed(0)
    tokenizer = MarianTokenizer.from_pretrained(folder)
    rows = [
        {"source": line, "ids": tokenizer(line)["input_ids"]} for line in lines
    ]
    head = {}
    for name, changes in SEARCHES.items():
        settings = search_settings(model.generation_config, changes)
        batched = []
        with torch.no_grad():
            for start in range(0, len(lines), batch_size):
                part = lines[start : start + batch_size]
                batched += translate(model, tokenizer, part, settings)
        head[name] = settings.to_diff_dict()
        for row, result in zip(rows, batched, strict=True):
            row[name] = result
    return head, rows
