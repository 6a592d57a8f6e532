"""The model card of a run: shape, training data, scores and limits."""

import os
import pathlib
import shutil

from keras_transformer.data.corpus import is_path
from keras_transformer.data.prepared_corpus import is_prepared, read_manifest
from keras_transformer.inference.evaluation import STORE
from keras_transformer.training import checkpoints
from keras_transformer.training.run import Run, read_records

MODEL_CARD = "MODEL_CARD.md"
CARD = """---
language: [{languages}]
pipeline_tag: translation
library_name: keras
---

# Translation from {source} to {target}

{kind}, made by keras_transformer.

## Model

| | |
|---|---|
| layers of encoder and decoder | {encoder_depth}, {decoder_depth} |
| d_model, d_ff, heads | {d_model}, {d_ff}, {num_heads} |
| positions, normalisation | {positions}, {normalization} |
| feed-forward network | {feed_forward} |
| word pieces | {vocabulary} |
| languages, as the corpus names them | {source}, {target} |

## Training

{training}

## Evaluation

{evaluation}

## Use and limits

It translates text of the kind that it was trained on, sentence by sentence. Of
other text, translations may be fluent and wrong: let somebody who knows both
languages read what matters. Nothing was done against prejudice or personal data
in the training data.

The licence is up to who trained the model, and may depend on the training data:
name it in the first lines of this file, as `license: NAME`.
"""


def write_model_card(run: Run, path: pathlib.Path, models: int = 1) -> None:
    """Writes the model card of a run.

    An imported model, and a run that began with one, has the card of its
    authors, which is copied. For another run the card says what its folder
    says.

    Args:
        run: the run.
        path: file to write.
        models: number of the models of an ensemble, whose first one the run
            has. Defaults to 1.

    Raises:
        ValueError: if the file with the scores of the run is damaged.
    """
    given = run.folder / MODEL_CARD
    if given.exists():
        shutil.copyfile(given, path)
        return
    config = run.config
    kind = 'A Transformer of "Attention Is All You Need"'
    if models > 1:
        kind = f"An ensemble of {models} models, the first of which is: {kind}"
    text = CARD.format(
        **{**vars(run.recipe), **config.to_dict()},
        kind=kind,
        languages=_languages(run),
        encoder_depth=config.encoder_depth,
        decoder_depth=config.decoder_depth,
        vocabulary=_vocabulary(run),
        training=_training(run),
        evaluation=_evaluation(run),
    )
    path.write_text(text, "utf-8")


def _languages(run):
    """Returns the languages; of several directions, a side names all its."""
    sides = [run.recipe.source, run.recipe.target]
    if run.source_tokenizer.tags:
        sides = "_".join(sides).split("_")
    return ", ".join(dict.fromkeys(sides))


def _vocabulary(run):
    sizes = run.source_tokenizer.vocab_size, run.target_tokenizer.vocab_size
    if run.config.shared_vocabulary:
        return f"{sizes[0]:,}, shared"
    return f"{sizes[0]:,} and {sizes[1]:,}"


def _training(run):
    recipe = run.recipe
    if not recipe.corpus:
        return "The model was not trained here, and came without a card."
    corpus = recipe.corpus
    if is_path(corpus):  # other folders than its own say nothing
        corpus = os.path.basename(os.path.normpath(corpus))
    pairs = ""
    if is_prepared(str(run.data)):
        corpora = read_manifest(run.data)["corpora"]
        pairs = f", {sum(x['pairs'] for x in corpora):,} sentence pairs"
    return (
        f"Corpus `{corpus}`, split `{recipe.train_split}`{pairs}; "
        f"steps of {recipe.tokens_per_batch:,} tokens, label smoothing "
        f"{recipe.label_smoothing}, dropout {run.config.dropout_rate}. "
        f"Weights: {_weights(run)}."
    )


def _weights(run):
    if run.weights.exists():
        return checkpoints.read_metadata(run.weights)["chosen"]
    found = checkpoints.steps(run.checkpoints)
    return f"step {found[-1][0]:,}" if found else "none yet"


def _evaluation(run):
    results = read_records(run.folder / STORE, "sentences")
    if not results:
        return "None is stored; `keras-transformer evaluate` scores an export."
    lines = ["| split | sentences | BLEU | chrF |", "|---|---|---|---|"]
    lines += [
        f"| {x['split']} | {x['sentences']:,} | {x['bleu']} | {x['chrf']} |"
        for x in results
    ]
    return "\n".join(
        [*lines, "", f"sacreBLEU: `{results[-1]['bleu_signature']}`"]
    )
