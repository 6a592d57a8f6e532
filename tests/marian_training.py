"""Trains a small Marian model, and writes its folder.

Part of `marian_reference.py`, which says how to run it.
"""

import json
import random
import time

import marian_folders as folders
import torch
from transformers import MarianMTModel

CARD = """\
---
language:
- en
- de
license: mit
pipeline_tag: translation
tags:
- translation
---

# A small English-German Marian model

It was trained by `tests/marian_reference.py trained` of keras_transformer, by
its authors, on the built-in corpus of that package: sentences of a grammar,
about numbers, dates, clock times and prices. The folder is written by
transformers, and has the files of an OPUS-MT model on the Hugging Face hub.
It serves to test the import of such models, and translates nothing else.

| | |
|---|---|
| training sentences | {lines:,} |
| steps | {steps:,} |
| parameters | {parameters:,} |
| normalization of target.spm | {rule} |
| test sentences translated exactly, greedily | {exact:.1%} of {tested} |
"""


def encode(tokenizer, source, target, rng, tagged):
    """Returns ids of the pairs; tags go before about half of the sources."""
    if tagged:
        source = [
            f"{folders.TAGS[0]} {line}" if rng.random() < 0.5 else line
            for line in source
        ]
    ids = tokenizer(source)["input_ids"]
    labels = tokenizer(text_target=target)["input_ids"]
    return list(zip(ids, labels, strict=True))


def batches_of(pairs, tokens, rng):
    """Yields batches without end: pairs of like length, padded by the model."""
    while True:
        order = sorted(
            pairs, key=lambda p: (len(p[1]) + rng.random() * 4, len(p[0]))
        )
        groups, group, longest = [], [], 0
        for pair in order:
            length = max(longest, len(pair[0]), len(pair[1]))
            if group and length * (len(group) + 1) > tokens:
                groups.append(group)
                group, length = [], max(map(len, pair))
            group.append(pair)
            longest = length
        groups.append(group)
        rng.shuffle(groups)
        yield from groups


def padded(rows, value):
    """Returns rows of ids as one tensor."""
    length = max(map(len, rows))
    return torch.tensor([row + [value] * (length - len(row)) for row in rows])


def rate(step, progress, options):
    """Returns the learning rate: inverse square root, and at last linear.

    Where the minutes end before the steps do, `progress`, of 0 to 1, is that
    of the minutes.
    """
    if step <= options.warmup:
        return options.rate * step / options.warmup
    cooling = min(1, 4 * (1 - progress))
    return options.rate * (options.warmup / step) ** 0.5 * cooling


def train(model, pairs, options, rng):
    """Trains the model in place; returns the number of steps."""
    start = time.monotonic()
    padding = model.config.pad_token_id
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    losses = []
    batches = batches_of(pairs, options.tokens, rng)
    for step in range(1, options.steps + 1):
        sources, targets = zip(*next(batches), strict=True)
        ids = padded(sources, padding)
        labels = padded(targets, -100)
        logits = model(
            input_ids=ids,
            attention_mask=(ids != padding).long(),
            decoder_input_ids=padded(
                [[padding, *row[:-1]] for row in targets], padding
            ),
        ).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1
        )
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        minutes = (time.monotonic() - start) / 60
        progress = max(step / options.steps, minutes / options.minutes)
        for group in adam.param_groups:
            group["lr"] = rate(step, min(progress, 1), options)
        adam.step()
        losses.append(loss.item())
        if step % 100 == 0:
            recent = sum(losses[-100:]) / 100
            print(f"{step} loss {recent:.4f}, {minutes:.1f} min", flush=True)
        if minutes > options.minutes:
            print(f"stopped after {minutes:.1f} minutes")
            break
    return step


def exact_share(model, tokenizer, pairs):
    """Returns the share of pairs that greedy search translates exactly."""
    model.eval()
    exact = 0
    for start in range(0, len(pairs), 64):
        source, target = zip(*pairs[start : start + 64], strict=True)
        batch = tokenizer(list(source), return_tensors="pt", padding=True)
        ids = model.generate(**batch, num_beams=1, max_length=100)
        found = tokenizer.batch_decode(ids, skip_special_tokens=True)
        exact += sum(a == b for a, b in zip(found, target, strict=True))
    model.train()
    return exact / len(pairs)


def read_pairs(corpus, split, options):
    """Returns the pairs of a split, those that are short enough."""
    source = folders.read_lines(corpus / f"{split}.en")
    target = folders.read_lines(corpus / f"{split}.de")
    pairs = list(zip(source, target, strict=True))
    if options.longest:
        pairs = [p for p in pairs if len(p[0].split()) <= options.longest]
    return pairs


def write_trained(options):
    """Trains and saves a model, its tokenizer and its model card."""
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    corpus = options.corpus or folder.parent / f"{folder.name}-corpus"
    if not corpus.exists():
        folders.write_corpus(corpus)
    pairs = {
        split: read_pairs(corpus, split, options) for split in folders.SIZES
    }
    source, target = zip(*pairs["train"][: options.lines], strict=True)

    # A second thread does not pay off for matrices as small as these.
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    tokenizer = folders.write_tokenizer(
        folder,
        source,
        target,
        pieces=(options.pieces, options.pieces),
        tags=folders.TAGS[:2] if options.tags else (),
        target_rule=options.target_rule,
    )
    config = folders.hub_config(
        len(tokenizer.encoder),
        d_model=options.d_model,
        encoder_layers=options.encoder_layers,
        decoder_layers=options.decoder_layers,
        encoder_attention_heads=options.heads,
        decoder_attention_heads=options.heads,
        encoder_ffn_dim=options.d_ff,
        decoder_ffn_dim=options.d_ff,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=512,
        dropout=options.dropout,
        init_std=options.d_model**-0.5,
    )
    model = MarianMTModel(config)
    model.generation_config = folders.generation_config(config)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(source)} sentences, vocabulary {config.vocab_size}")
    print(f"{parameters} numbers, also those of positions", flush=True)

    start = time.monotonic()
    encoded = encode(tokenizer, source, target, rng, options.tags)
    model.train()
    steps = train(model, encoded, options, rng)
    minutes = (time.monotonic() - start) / 60
    if options.dtype == "float16":
        model.half()
    model.save_pretrained(folder)
    folders.add_legacy_config(folder, model.generation_config)
    saved = folders.load(folder)
    exact = exact_share(saved, tokenizer, pairs["test"][:500])
    card = CARD.format(
        lines=len(source),
        steps=steps,
        parameters=sum(
            p.numel() for p in saved.parameters() if p.requires_grad
        ),
        exact=exact,
        tested=len(pairs["test"][:500]),
        rule=options.target_rule,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    result = {"minutes": round(minutes, 1), "steps": steps, "exact": exact}
    print(json.dumps(result))
