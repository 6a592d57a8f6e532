"""Export to the format of Marian models on the Hugging Face hub.

transformers translates with the folder, and this package imports it again:

    model = MarianMTModel.from_pretrained(path)
    tokenizer = MarianTokenizer.from_pretrained(path)
    ids = model.generate(**tokenizer([text], return_tensors="pt"))
    text = tokenizer.decode(ids[0], skip_special_tokens=True)

Its score has the length penalty n^α, another one than ours. Ids stay as they
are. Our positions are sines and cosines in turn, Marian's first all sines; so
the dimensions of d_model are put in another order, which changes nothing else.
transformers adds 1e-5 to the variance in layer normalisation, whatever ours is.
"""

import json
import os
import pathlib

import numpy as np

from keras_transformer.atomic_files import check_is_new, folder_aside
from keras_transformer.ids import END, PAD, START, UNKNOWN
from keras_transformer.integrations.marian.importer import ACTIVATIONS
from keras_transformer.integrations.marian.search import EARLY_STOPPING
from keras_transformer.integrations.marian.weights import (
    BARRED,
    LOGITS_BIAS,
    PROJECTION,
    SHARED,
    SOURCE_TABLE,
    TARGET_TABLE,
    marian_weights,
)
from keras_transformer.layers.embeddings import SINUSOIDAL
from keras_transformer.model import Transformer
from keras_transformer.training.model_card import write_model_card
from keras_transformer.training.models import load_model
from keras_transformer.training.run import Run


def export(run: Run, path: str | os.PathLike) -> pathlib.Path:
    """Exports a run's chosen weights as a Marian model, whole or not at all.

    Args:
        run: an open `Run` with at least one checkpoint.
        path: the new folder.

    Returns:
        The path of the new folder.

    Raises:
        ValueError: if the path exists, if the run has no intact checkpoint, or
            if the format has no place for what the model is.
    """
    from safetensors.numpy import save_file

    path = pathlib.Path(path)
    check_is_new(path, "folder of an export")
    check_config(run)
    model = load_model(run)
    tokenizers = {
        "source": run.source_tokenizer,
        "target": run.target_tokenizer,
    }
    with folder_aside(path) as aside:
        weights = {
            name: np.ascontiguousarray(value, "float32")
            for name, value in _weights(model, run).items()
        }
        save_file(weights, aside / "model.safetensors", {"format": "pt"})
        for side, tokenizer in tokenizers.items():
            (aside / f"{side}.spm").write_bytes(tokenizer.model)
        for name, content in _json_files(run).items():
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (aside / name).write_text(text, encoding="utf-8")
        write_model_card(run, aside / "README.md")
    return path


def check_config(run: Run):
    """Checks that Marian has a place for all that a model is.

    Raises:
        ValueError: names what it has no place for.
    """
    config = run.config
    width = config.d_model // config.num_heads
    for name, value, expected in (
        ("norm_first", config.norm_first, (False,)),
        ("use_bias", config.use_bias, (True,)),
        ("positions", config.positions, SINUSOIDAL),
        ("key_dim", config.key_dim, (None, width)),
        ("value_dim", config.value_dim, (None, width)),
        ("activation", config.activation, tuple(ACTIVATIONS.values())),
        ("sliding_window", config.sliding_window, (None,)),
        ("normalization", config.normalization, ("layer",)),
        ("feed_forward", config.feed_forward, ("ffn",)),
        ("qk_norm", config.qk_norm, (False,)),
        (
            "num_key_value_heads",
            config.num_key_value_heads,
            (None, config.num_heads),
        ),
    ):
        if value not in expected:
            raise ValueError(
                f"A Marian model must have {name} in "
                f"{', '.join(map(repr, expected))}. Received: {name}={value!r}"
            )


def _weights(model: Transformer, run: Run):
    """Returns the weights by the names of Hugging Face."""
    config = run.config
    columns = np.arange(config.d_model)
    if config.positions == "sinusoidal":  # sine, cosine, sine, cosine, …
        columns = np.concatenate([columns[0::2], columns[1::2]])
    result = marian_weights(model, columns)
    target = np.asarray(model.target_embedding.embeddings)[:, columns]
    source = np.asarray(model.source_embedding.embeddings)[:, columns]
    if config.shared_vocabulary:
        result[SHARED] = target
    # Without tied embeddings, transformers reads no shared table.
    if not (config.shared_vocabulary and config.tie_projection):
        result[SOURCE_TABLE[0]], result[TARGET_TABLE[0]] = source, target
    if not config.tie_projection:
        projection = np.asarray(model.target_embedding.projection)
        result[PROJECTION] = projection[:, columns]
    bias = np.zeros(config.vocab_size)
    if config.use_logits_bias:
        bias = np.asarray(model.target_embedding.logits_bias).copy()
    bias[_suppressed_ids(run)] = BARRED
    result[LOGITS_BIAS] = bias[None]
    return result


def _suppressed_ids(run):
    """Returns the ids that must not be generated, as in our own search."""
    return run.target_tokenizer.suppressed_ids(run.search.allow_unknown)


def _json_files(run):
    """Returns the content of the JSON files by their names."""
    config, search, recipe = run.config, run.search, run.recipe
    activations, early_stopping = (
        {ours: theirs for theirs, ours in names.items()}
        for names in (ACTIVATIONS, EARLY_STOPPING)
    )
    longest = search.max_source_length + 1 + search.extra_length
    most = (search.max_length or max(longest, 511)) + 1  # with the start token
    generation = {
        "bos_token_id": None,
        "pad_token_id": PAD,
        "eos_token_id": END,
        "decoder_start_token_id": START,
        "forced_eos_token_id": END,
        "bad_words_ids": [[i] for i in _suppressed_ids(run)],
        "renormalize_logits": True,
        "num_beams": search.beam_size,
        "length_penalty": search.alpha,
        "early_stopping": early_stopping[search.early_stopping],
        "max_length": most,
        "min_length": search.min_length,
        "no_repeat_ngram_size": search.no_repeat_ngram_size,
        "repetition_penalty": search.repetition_penalty,
    }
    ids = {
        side: {
            piece: i
            for i, piece in enumerate(
                tokenizer.pieces(range(tokenizer.vocab_size))
            )
        }
        for side, tokenizer in (
            ("source", run.source_tokenizer),
            ("target", run.target_tokenizer),
        )
    }
    special = run.source_tokenizer.pieces([PAD, UNKNOWN, END])
    files = {
        "config.json": {
            "model_type": "marian",
            "architectures": ["MarianMTModel"],
            "is_encoder_decoder": True,
            "vocab_size": len(ids["source"]),
            "decoder_vocab_size": len(ids["target"]),
            "share_encoder_decoder_embeddings": config.shared_vocabulary,
            "tie_word_embeddings": config.tie_projection,
            "d_model": config.d_model,
            "encoder_layers": config.encoder_depth,
            "decoder_layers": config.decoder_depth,
            "encoder_attention_heads": config.num_heads,
            "decoder_attention_heads": config.num_heads,
            "encoder_ffn_dim": config.d_ff,
            "decoder_ffn_dim": config.d_ff,
            "activation_function": activations[config.activation],
            "scale_embedding": config.scale_embeddings,
            "max_position_embeddings": max(most, search.max_source_length + 1),
            "dropout": config.dropout_rate,
            "attention_dropout": config.attention_dropout_rate,
            "activation_dropout": config.activation_dropout_rate,
            "dtype": "float32",
            **generation,
        },
        "generation_config.json": generation,
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": recipe.source,
            "target_lang": recipe.target,
            "separate_vocabs": ids["source"] != ids["target"],
            "model_max_length": search.max_source_length + 1,
            "pad_token": special[0],
            "unk_token": special[1],
            "eos_token": special[2],
        },
        "vocab.json": ids["source"],
    }
    if ids["source"] != ids["target"]:
        files["target_vocab.json"] = ids["target"]
    return files
