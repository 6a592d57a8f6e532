"""Export to CTranslate2, another engine for the same weights.

The folder holds CTranslate2's model and, for the text on both sides,
`source.model` and `target.model` of SentencePiece:

    engine = ctranslate2.Translator(path)
    pieces = source.encode(text, out_type=str)
    best = engine.translate_batch([pieces], beam_size=4, length_penalty=0)
    text = target.decode(best[0].hypotheses[0])

A tag of the target language, such as `>>fra<<`, is a piece of its own before
those of the other text: `[tag, *source.encode(text, out_type=str)]`.

The end token of the source is added by the engine. Its length penalty is n^α
for a length of n, another one than ours: values of α are not portable. A
`CTranslate2Translator` gives the engine none, and applies ours.
"""

import json
import os
import pathlib

import keras
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

from keras_transformer.atomic_files import check_is_new, folder_aside
from keras_transformer.export.description import description
from keras_transformer.export.files import METADATA, write_sums
from keras_transformer.ids import END, START, UNKNOWN
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.layers import positional_encoding
from keras_transformer.layers.embeddings import SINUSOIDAL
from keras_transformer.layers.normalization import RMSNormalization
from keras_transformer.model import Transformer
from keras_transformer.training.model_card import MODEL_CARD, write_model_card
from keras_transformer.training.models import load_model
from keras_transformer.training.run import Run

ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "silu": common_spec.Activation.SWISH,
    "gelu": common_spec.Activation.GELU,
}
DTYPES = ("float32", "bfloat16", "float16", "int16", "int8")


def export(
    run: Run,
    path: str | os.PathLike,
    dtype: str = "float32",
    positions: int | None = None,
    settings: SearchSettings | None = None,
) -> pathlib.Path:
    """Exports a run's chosen weights as a model of CTranslate2.

    Args:
        run: an open `Run` with at least one checkpoint.
        path: the new folder, for the server `NAME/VERSION`.
        dtype: dtype of the matrices: "float32" (default), "bfloat16",
            "float16", "int16" or "int8".
        positions: the longest source or target, in word pieces, that the
            engine will take. Defaults to `None`, 1024 or what the run's search
            takes if that is more. A model with learned positions has its own
            limit.
        settings: settings of the search. Defaults to the run's.

    Returns:
        The path of the new folder.

    Raises:
        ValueError: if the path exists, if the dtype is another one, if the run
            has no intact checkpoint, or if the format has no place for what
            the model is.
    """
    path = pathlib.Path(path)
    check_is_new(path, "folder of an export")
    if dtype not in DTYPES:
        raise ValueError(
            f"`dtype` must be one of {', '.join(DTYPES)} for CTranslate2. "
            f"Received: dtype={dtype!r}"
        )
    settings = settings or run.search
    if positions is None:
        positions = max(1024, *settings.longest())
    model = load_model(run)
    spec = specification(model, positions)
    for register, tokenizer in (
        (spec.register_source_vocabulary, run.source_tokenizer),
        (spec.register_target_vocabulary, run.target_tokenizer),
    ):
        register(tokenizer.pieces(range(tokenizer.vocab_size)))
    # A vocabulary may have a piece "<s>" that is not the start token.
    unknown, start, end = run.target_tokenizer.pieces([UNKNOWN, START, END])
    spec.config.unk_token, spec.config.eos_token = unknown, end
    spec.config.bos_token = spec.config.decoder_start_token = start
    spec.validate()
    spec.optimize(dtype)
    with folder_aside(path) as aside:
        spec.save(str(aside))
        (aside / "source.model").write_bytes(run.source_tokenizer.model)
        (aside / "target.model").write_bytes(run.target_tokenizer.model)
        metadata = description(run, model, settings, dtype, positions)
        (aside / METADATA).write_text(json.dumps(metadata, indent=2) + "\n")
        write_model_card(run, aside / MODEL_CARD)
        write_sums(aside)
    return path


def specification(
    model: Transformer, positions: int = 1024
) -> transformer_spec.TransformerSpec:
    """A `Transformer` as CTranslate2's `TransformerSpec`, vocabularies aside.

    Raises:
        ValueError: if the format has no place for what the model is.
    """
    config = model.config
    width = config.d_model // config.num_heads
    if (config.key_dim or width, config.value_dim or width) != (width, width):
        raise ValueError(
            "CTranslate2 wants heads of width d_model / num_heads. Received: "
            f"key_dim={config.key_dim}, value_dim={config.value_dim}"
        )
    if config.sliding_window is not None:
        raise ValueError(
            "CTranslate2 attends to all positions. Received: "
            f"sliding_window={config.sliding_window}. Export a SavedModel, "
            "or train a model without a window."
        )
    if config.qk_norm:  # its attention to the memory does not normalise
        raise ValueError(
            "CTranslate2 does not normalise all queries and keys. Received: "
            "qk_norm=True. Export a SavedModel, or train a model without it."
        )
    is_gated = config.feed_forward == "swiglu"
    activation = "silu" if is_gated else config.activation
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"CTranslate2 has the activations {', '.join(ACTIVATIONS)} of "
            f"ours. Received: activation={config.activation!r}"
        )
    options = {
        "pre_norm": config.norm_first,
        "activation": ACTIVATIONS[activation],
        "ffn_glu": is_gated,
        "rms_norm": config.normalization == "rms",
        "num_heads_kv": config.num_key_value_heads,
        "rotary_dim": 0 if config.positions == "rotary" else None,  # 0: all
        "rotary_interleave": False,
    }
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(
            config.encoder_depth, config.num_heads, **options
        ),
        transformer_spec.TransformerDecoderSpec(
            config.decoder_depth, config.num_heads, **options
        ),
    )
    spec.config.layer_norm_epsilon = config.layer_norm_epsilon
    spec.config.add_source_eos = True
    encoder, decoder = spec.encoder, spec.decoder
    for side, to, embedding in (
        (encoder, encoder.embeddings[0], model.source_embedding),
        (decoder, decoder.embeddings, model.target_embedding),
    ):
        to.weight = _array(embedding.embeddings)
        side.scale_embeddings = config.scale_embeddings
        if hasattr(side, "position_encodings"):
            side.position_encodings.encodings = _positions(
                embedding.positions, embedding, positions
            )
    projection = model.target_embedding
    decoder.projection.weight = (
        decoder.embeddings.weight  # which is shared, section 3.4
        if config.tie_projection
        else _array(projection.projection)
    )
    if config.use_logits_bias:
        decoder.projection.bias = _array(projection.logits_bias)
    for side, norm in (
        (encoder, model.encoder_norm),
        (decoder, model.decoder_norm),
    ):
        if norm is not None:
            _norm(side.layer_norm, norm)
    for to, layer in zip(encoder.layer, model.encoder_layers, strict=True):
        _attention(to.self_attention, layer, "self_attention", (3,))
        _feed_forward(to.ffn, layer)
    for to, layer in zip(decoder.layer, model.decoder_layers, strict=True):
        _attention(to.self_attention, layer, "self_attention", (3,))
        _attention(to.attention, layer, "cross_attention", (1, 2))
        _feed_forward(to.ffn, layer)
    return spec


def _positions(kind, embedding, length):
    if kind == "learned":
        return _array(embedding.position_embeddings)
    if kind is None:
        return np.zeros((length, embedding.d_model), "float32")
    if kind in SINUSOIDAL:
        halves = kind == "sinusoidal_halves"
        positions = np.arange(length)
        return _array(
            positional_encoding(positions, embedding.d_model, halves=halves)
        )
    raise ValueError(
        f"CTranslate2 has no such positions. Received: positions={kind!r}"
    )


def _attention(to, layer, name, groups):
    """`groups`: how many of query, key and value share a product."""
    attention = getattr(layer, name)
    projections = [
        attention.query_projection,
        attention.key_projection,
        attention.value_projection,
    ]
    for i, count in enumerate(groups):
        _linear(to.linear[i], *projections[:count])
        projections = projections[count:]
    _linear(to.linear[-1], attention.output_projection)
    _norm(to.layer_norm, getattr(layer, f"{name}_norm"))


def _feed_forward(to, layer):
    network = layer.feed_forward
    if network.use_gate:
        _linear(to.linear_0, network.gate)
        _linear(to.linear_0_noact, network.inner)
    else:
        _linear(to.linear_0, network.inner)
    _linear(to.linear_1, network.outer)
    _norm(to.layer_norm, layer.feed_forward_norm)


def _linear(to, *layers):
    """Side by side; CTranslate2's matrices are (outputs, inputs)."""
    to.weight = np.concatenate([_array(one.kernel).T for one in layers])
    if layers[0].use_bias:
        to.bias = np.concatenate([_array(one.bias) for one in layers])


def _norm(to, norm):
    if isinstance(norm, RMSNormalization):
        to.gamma = _array(norm.scale)
    else:
        to.gamma, to.beta = _array(norm.gamma), _array(norm.beta)


def _array(tensor):
    return np.ascontiguousarray(keras.ops.convert_to_numpy(tensor))
