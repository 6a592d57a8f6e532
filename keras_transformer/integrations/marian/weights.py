"""The weights of a Marian model by the names of Hugging Face, and ours."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.ids import PAD, START
from keras_transformer.integrations.marian.vocabulary import ZEROS
from keras_transformer.layers import positional_encoding
from keras_transformer.model import Transformer
from keras_transformer.training.checkpoints import state_of
from keras_transformer.validation import shown

Weights = Mapping[str, np.ndarray]

SUBLAYERS = {
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "self_attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward_norm": "final_layer_norm",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "out_proj",
    "inner": "fc1",
    "outer": "fc2",
    "kernel": "weight",
    "gamma": "weight",
    "bias": "bias",
    "beta": "bias",
}
# The names under which a table may be found, the first that is there counts.
SHARED = "model.shared.weight"
SOURCE_TABLE = ("model.encoder.embed_tokens.weight", SHARED)
TARGET_TABLE = (
    "model.decoder.embed_tokens.weight",
    SHARED,
    "model.encoder.embed_tokens.weight",
)
PROJECTION = "lm_head.weight"
LOGITS_BIAS = "final_logits_bias"
# The bias of ids that are never generated: their probability is 0 in float32,
# and the sum that label smoothing makes of all logits stays moderate.
BARRED = -100.0
POSITIONS = (
    "model.encoder.embed_positions.weight",
    "model.decoder.embed_positions.weight",
)


def name_of(path: str) -> str:
    """Returns the name that Hugging Face gives to a weight of a layer.

    Example:

    >>> name_of("encoder_0/self_attention/query/kernel")
    'model.encoder.layers.0.self_attn.q_proj.weight'
    """
    layer, _, rest = path.partition("/")
    side, number = layer.split("_")
    parts = rest.removeprefix("feed_forward/").split("/")
    name = ".".join(SUBLAYERS[part] for part in parts)
    return f"model.{side}.layers.{number}.{name}"


def tables(weights: Weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the tables of source, target and projection.

    A table that is the same as another one may be stored once: those that are
    missing are tied.

    Raises:
        ValueError: if there is none.
    """
    source = _first(weights, SOURCE_TABLE)
    target = _first(weights, TARGET_TABLE)
    projection = weights.get(PROJECTION, target)
    return source, target, projection


def _first(weights, names):
    for name in names:
        if name in weights:
            return weights[name]
    raise ValueError(
        "A Marian model must have a table of embeddings. Received: none of "
        f"{', '.join(names)}."
    )


def our_weights(
    weights: Weights,
    config: TransformerConfig,
    source_rows: Sequence[int],
    target_rows: Sequence[int],
) -> dict[str, np.ndarray]:
    """Returns the weights of a `Transformer` by the names of a checkpoint.

    Padding and start get a bias of `BARRED`: Marian never generates them, and
    their rows, which are zeros, would have a part in all probabilities.

    Args:
        weights: by the names of Hugging Face.
        config: of the `Transformer`.
        source_rows, target_rows: from `rows_in_our_order`.

    Raises:
        ValueError: if a weight is missing, not used, not finite, or has
            another shape; if positions are not those of the paper.
    """
    for name, value in weights.items():
        # bfloat16 is not NumPy's.
        if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
            raise ValueError(
                "Weights must be floating-point numbers. Received: "
                f"{shown(name)} of {value.dtype}."
            )
    _check_sizes(weights, config)
    left = dict(weights)
    source, target, projection = tables(weights)
    for name in {*SOURCE_TABLE, *TARGET_TABLE, PROJECTION}:
        left.pop(name, None)
    for name in POSITIONS:
        _check_positions(left.pop(name, None), config)
    bias = left.pop(LOGITS_BIAS, np.zeros(0))
    rows = {
        "source_embedding/embeddings": (source, source_rows),
        "target_embedding/embeddings": (target, target_rows),
        "embedding/embeddings": (target, target_rows),
        "target_embedding/projection": (projection, target_rows),
        "embedding/projection": (projection, target_rows),
    }
    found = {}
    for path, variable in state_of(Transformer(config))["weights"].items():
        if path in rows:
            value = _rows(path, *rows[path])
        elif path.endswith("logits_bias"):
            value = _rows(path, np.reshape(bias, (-1, 1)), target_rows)[:, 0]
            value[[PAD, START]] = BARRED
        else:
            name = name_of(path)
            if name not in left:
                raise ValueError(
                    f"A Marian model must have all its weights. Received: no "
                    f"{name}."
                )
            value = np.asarray(left.pop(name), "float32")
            value = value.T if path.endswith("kernel") else value
        if value.shape != tuple(variable.shape):
            raise ValueError(
                f"A weight has another shape than the config says. Received: "
                f"{path} with {value.shape}, expected {tuple(variable.shape)}."
            )
        if not np.isfinite(value).all():
            raise ValueError(
                f"Weights must be finite. Received: {path} with NaN or "
                "infinity."
            )
        found[f"weights/{path}"] = np.ascontiguousarray(value)
    if left:
        raise ValueError(
            "A Marian model has no such weights. Received: "
            f"{shown(sorted(left)[:3])}, {len(left)} in all. Is it "
            "another architecture?"
        )
    return found


def _check_sizes(weights, config):
    """Checks the sizes of a config before layers of these sizes are built."""
    table = tables(weights)[1]
    if table.shape[1:] != (config.d_model,):
        raise ValueError(
            "Embeddings must be as wide as the model. Received: d_model="
            f"{config.d_model}, a table of shape {table.shape}."
        )
    for side, depth in (
        ("encoder", config.encoder_depth),
        ("decoder", config.decoder_depth),
    ):
        layer = re.compile(rf"model\.{side}\.layers\.(\d+)\.")
        found = {match[1] for match in map(layer.match, weights) if match}
        if len(found) != depth:
            raise ValueError(
                f"The {side} must have weights for each layer. Received: "
                f"{depth:,} layers, weights for {len(found):,}."
            )
        name = f"model.{side}.layers.0.fc1.weight"
        expected = config.d_ff, config.d_model
        if name in weights and weights[name].shape != expected:
            raise ValueError(
                "A weight has another shape than the config says. Received: "
                f"{name} with {weights[name].shape}, expected {expected}."
            )


def _rows(path, table, rows):
    """Returns rows of a table, zeros for `ZEROS`."""
    size = max(rows) + 1  # number of Marian's pieces
    if np.ndim(table) != 2 or len(table) != size:
        raise ValueError(
            "A table must have one row for each piece of the vocabulary. "
            f"Received: {path} with {np.shape(table)}, {size:,} pieces."
        )
    result = np.asarray(table, "float32")[rows]
    result[np.asarray(rows) == ZEROS] = 0
    return result


def _check_positions(table, config):
    if table is None:
        return
    expected = positional_encoding(
        np.arange(len(table)), config.d_model, halves=True
    )
    if table.shape != expected.shape or not np.allclose(
        table, expected, atol=2e-3
    ):  # stored in float16
        raise ValueError(
            "Positions must be the sines and cosines of section 3.5. Received "
            "a table of other numbers."
        )


def marian_weights(
    model: Transformer, columns: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the weights of a `Transformer` by the names of Hugging Face.

    Args:
        model: a `Transformer`.
        columns: for each dimension of Marian's d_model, the number of ours.
            It puts dimensions in another order, which changes nothing but the
            order of the positions' sines and cosines.
    """
    result: dict[str, np.ndarray] = {}
    for path, variable in state_of(model)["weights"].items():
        value = np.asarray(variable)
        if not re.match(r"(encoder|decoder)_\d+/", path):
            continue  # tables, below
        for axis in _model_axes(path):
            value = np.take(value, columns, axis=axis)
        result[name_of(path)] = value.T if path.endswith("kernel") else value
    return result


def _model_axes(path):
    """Returns the axes of a weight that are d_model wide."""
    if path.endswith(("norm/gamma", "norm/beta")):
        return (0,)
    *_, layer, kind = path.split("/")
    if layer in ("output", "outer"):
        return (1,) if kind == "kernel" else (0,)
    return (0,) if kind == "kernel" else ()
