"""The description of an exported model, the file `keras_transformer.json`.

It needs no TensorFlow: exports for other engines have it, too.
"""

import dataclasses
from typing import Any

import keras_transformer
from keras_transformer.export.files import FORMAT
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.model import Transformer
from keras_transformer.training import checkpoints
from keras_transformer.training.models import digest
from keras_transformer.training.run import Run


def description(
    run: Run,
    model: Transformer,
    settings: SearchSettings,
    dtype: str,
    positions: int | None = None,
    models: int = 1,
) -> dict[str, Any]:
    """Describes an exported run.

    Args:
        run: the run.
        model: the model of its chosen weights.
        settings: settings of the search.
        dtype: dtype of the matrices.
        positions: number of positions that the export takes. Defaults to
            `None`: the number of learned positions, if there are any.
        models: number of models, if it is an ensemble. Defaults to 1.
    """
    if model.config.positions == "learned":
        positions = model.config.max_length
    source, target = settings.longest(positions)
    return {
        "format": FORMAT,
        "keras_transformer": keras_transformer.__version__,
        "signature": signature(run, models),
        "source": run.recipe.source,
        "target": run.recipe.target,
        "weights": digest(model),
        "dtype": dtype,
        "search": dataclasses.asdict(settings),
        "max_pieces": source - 1,  # without the end token
        "max_length": target,
        "tags": run.source_tokenizer.tag_names,
    }


def signature(run: Run, models: int = 1) -> str:
    """Returns a line that says what a model is, as sacreBLEU's signatures do
    for scores; of an ensemble, what the first of its models is."""
    config, recipe = run.config, run.recipe
    fields = {
        **({"ensemble": models} if models > 1 else {}),
        "layers": _depth(config),
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "heads": config.num_heads,
        "norm": "pre" if config.norm_first else "post",
        "positions": config.positions,
        **_block(config),
        "tied": _tied(config),
        "dropout": config.dropout_rate,
        # An imported run does not know it.
        "smooth": recipe.label_smoothing if recipe.corpus else "unknown",
        "vocab": f"{run.target_tokenizer.kind}-{config.vocab_size}",
        "languages": f"{recipe.source}-{recipe.target}",
        "val_bleu": _validation_bleu(run),
        "version": keras_transformer.__version__,
    }
    return "|".join(f"{name}:{value}" for name, value in fields.items())


def _block(config):
    """Returns the options of the layers that are not the paper's."""
    names = "num_key_value_heads", "normalization", "feed_forward", "qk_norm"
    defaults = {x.name: x.default for x in dataclasses.fields(config)}
    found = {name: getattr(config, name) for name in names}
    return {k: v for k, v in found.items() if v != defaults[k]}


def _tied(config):
    """Says which of embeddings and projection are one matrix."""
    if config.tie_projection:
        return "yes" if config.shared_vocabulary else "target"
    return "embeddings" if config.shared_vocabulary else "no"


def _depth(config):
    """Returns the number of layers, such as "6", or "12+1" if it differs."""
    depths = config.encoder_depth, config.decoder_depth
    return "+".join(map(str, dict.fromkeys(depths)))


def _validation_bleu(run):
    """Returns the chosen weights' BLEU on the validation split."""
    if not run.weights.exists():
        return "unknown"
    bleu = checkpoints.read_metadata(run.weights)["val_bleu"]
    return "unknown" if bleu is None else bleu
