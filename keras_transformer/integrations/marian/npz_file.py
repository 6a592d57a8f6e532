"""Reads a folder of the original Marian: weights in `.npz`, `decoder.yml`."""

import json
import pathlib
import re
import struct
import zipfile
import zlib
from typing import Any

import numpy as np

from keras_transformer.archives import check_arrays
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.integrations.marian.model_files import (
    EPSILON,
    Checkpoint,
    Side,
    read_bytes,
)
from keras_transformer.integrations.marian.search import (
    number,
    whole_number,
)
from keras_transformer.integrations.marian.vocabulary import ZEROS, SpecialIds
from keras_transformer.integrations.marian.weights import (
    LOGITS_BIAS,
    POSITIONS,
    PROJECTION,
    SHARED,
    SOURCE_TABLE,
    TARGET_TABLE,
)
from keras_transformer.validation import shown

DECODER = "decoder.yml"
CONFIG = "special:model.yml"  # a member of the archive
DAMAGED = (ValueError, KeyError, EOFError, OSError, RuntimeError, struct.error)
MOST_YAML = 200_000  # bytes; real ones have some thousands
ACTIVATIONS = ("swish", "relu")  # its gelu is another one than Keras'
BEAM_SIZE, NORMALIZE = 12, 0.0  # Marian's defaults
# Options of Marian that must have this value, or be missing.
REQUIRED = {
    "type": "transformer",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": False,
    "transformer-ffn-depth": 2,
}
SPECIAL_NAMES = {
    "Wemb": SHARED,
    "encoder_Wemb": SOURCE_TABLE[0],
    "decoder_Wemb": TARGET_TABLE[0],
    "Wpos": POSITIONS[0],
    "decoder_ff_logit_out_Wt": PROJECTION,
    "decoder_ff_logit_out_b": LOGITS_BIAS,
}
SUBLAYERS = {"self": "self_attn", "context": "encoder_attn"}
LINEAR = {"W": "weight", "b": "bias"}
NORMS = {"scale": "weight", "bias": "bias"}


def is_original(folder: pathlib.Path) -> bool:
    """Returns whether a folder has the files of the original Marian."""
    return (folder / DECODER).exists() and not (folder / "config.json").exists()


def read(folder: pathlib.Path) -> Checkpoint:
    """Reads a folder of the original Marian.

    Raises:
        ValueError: if a file is missing or damaged, or if the model has parts
            that this package does not know.
    """
    decoder = _yaml(read_bytes(folder / DECODER), folder / DECODER)
    models = _names(decoder.get("models"))
    vocabularies = _names(decoder.get("vocabs"))
    if len(models) != 1 or len(vocabularies) not in (1, 2):
        raise ValueError(
            f"{str(folder / DECODER)!r} must name one model and its one or two "
            "vocabularies, as the lists `models` and `vocabs`."
        )
    (model,) = models
    if number(decoder, "word-penalty", 0):
        raise ValueError(
            "Our search has no penalty of words. Received: word-penalty="
            f"{shown(decoder['word-penalty'])} in {str(folder / DECODER)!r}."
        )
    arrays = _arrays(folder / model)
    config = _yaml(arrays.pop(CONFIG, np.zeros(0, "int8")).tobytes(), CONFIG)
    _check(config)
    sides = [
        _side(folder / f"{side}.spm", folder / vocabulary)
        for side, vocabulary in zip(
            ("source", "target"),
            (vocabularies[0], vocabularies[-1]),
            strict=True,
        )
    ]
    depths = config["enc-depth"], config["dec-depth"]
    beam_size = whole_number(decoder, "beam-size", BEAM_SIZE)
    return Checkpoint(
        dict(_renamed(name, value) for name, value in arrays.items()),
        {
            "num_layers": depths[0],
            "num_decoder_layers": (
                None if depths[0] == depths[1] else depths[1]
            ),
            "d_model": config["dim-emb"],
            "num_heads": config["transformer-heads"],
            "d_ff": config["transformer-dim-ffn"],
            "activation": config.get("transformer-ffn-activation", "swish"),
            "dropout_rate": number(config, "transformer-dropout", 0.1),
        },
        (sides[0], sides[1]),
        _languages(folder),
        SearchSettings(
            beam_size=beam_size,
            max_beam_size=max(beam_size, SearchSettings.max_beam_size),
            alpha=number(decoder, "normalize", NORMALIZE),
            length_penalty="power",
            early_stopping="heuristic",
            extra_length=511,
            max_length=511,
            allow_unknown=bool(decoder.get("allow-unk", False)),
        ),
        EPSILON["marian"],
    )


def _yaml(data: bytes, name) -> dict[str, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses aliases, by which a few bytes describe any number."""

        def compose_node(self, parent, index):
            if self.check_event(yaml.AliasEvent):
                raise ValueError("it has aliases")
            return super().compose_node(parent, index)

    try:
        if len(data) > MOST_YAML:
            raise ValueError(f"it has {len(data):,} bytes")
        content = yaml.load(data.rstrip(b"\0").decode("utf-8"), Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{str(name)!r} is damaged: {error!s:.200}."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{str(name)!r} must hold names and values.")
    return content


def _arrays(path):
    """Returns the arrays of an archive; pickles in it are not read."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_arrays(archive, path.stat().st_size)
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except FileNotFoundError as error:
        raise ValueError(f"There is no {str(path)!r}.") from error
    except (*DAMAGED, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{str(path)!r} is damaged: {error}.") from error


def _names(found):
    """Returns a list of names from YAML, or none if it is anything else."""
    is_list = isinstance(found, list)
    are_names = is_list and all(isinstance(name, str) for name in found)
    return found if are_names else []


def _check(config):
    for name, expected in REQUIRED.items():
        if config.get(name, expected) != expected:
            raise ValueError(
                f"Marian's option {name} must be {expected!r}. Received: "
                f"{shown(config[name])}"
            )
    steps = config.get("transformer-postprocess-emb", "d")
    if not isinstance(steps, str) or "n" in steps:
        raise ValueError(
            "Marian's embeddings may not be normalised. Received: "
            f"transformer-postprocess-emb={shown(steps)}"
        )
    activation = config.get("transformer-ffn-activation", "swish")
    if activation not in ACTIVATIONS:
        raise ValueError(
            "Marian's option transformer-ffn-activation must be one of "
            f"{', '.join(ACTIVATIONS)}. Received: {shown(activation)}"
        )
    for name in (
        "enc-depth",
        "dec-depth",
        "dim-emb",
        "transformer-heads",
        "transformer-dim-ffn",
    ):
        whole_number(config, name)


def _renamed(name: str, value: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns the name that Hugging Face gives to a weight, and the weight as
    it stores it: vectors have one axis, matrices are (outputs, inputs)."""
    if name in SPECIAL_NAMES:
        return SPECIAL_NAMES[name], value
    if name == "decoder_ff_logit_out_W":
        return PROJECTION, value.T
    found = re.fullmatch(
        r"(encoder|decoder)_l(\d+)_(self|context|ffn)_(.*)", name
    )
    suffix = _suffix(found[3], found[4]) if found else None
    if not found or not suffix:
        raise ValueError(f"A Marian model has no such weight: {shown(name)}.")
    layer = f"model.{found[1]}.layers.{int(found[2]) - 1}"
    is_matrix = re.fullmatch(r"W.", found[4])
    return f"{layer}.{suffix}", value.T if is_matrix else value.reshape(-1)


def _suffix(part, name):
    """Returns the last parts of a name, or `None` if there is no such name."""
    if part == "ffn":
        if found := re.fullmatch(r"([Wb])([12])", name):
            return f"fc{found[2]}.{LINEAR[found[1]]}"
        if found := re.fullmatch(r"ffn_ln_(scale|bias)", name):
            return f"final_layer_norm.{NORMS[found[1]]}"
    elif found := re.fullmatch(r"([Wb])([qkvo])", name):
        kind = "out" if found[2] == "o" else found[2]
        return f"{SUBLAYERS[part]}.{kind}_proj.{LINEAR[found[1]]}"
    elif found := re.fullmatch(r"Wo_ln_(scale|bias)", name):
        return f"{SUBLAYERS[part]}_layer_norm.{NORMS[found[1]]}"
    return None


def _side(model, vocabulary):
    pieces = _pieces(vocabulary)
    for name in ("</s>", "<unk>"):
        if name not in pieces:
            raise ValueError(f"{str(vocabulary)!r} has no piece {name!r}.")
    special = SpecialIds(
        pieces.index("</s>"), pieces.index("<unk>"), pad=ZEROS, start=ZEROS
    )
    return Side(read_bytes(model), pieces, special)


def _pieces(path):
    """Returns the pieces of a vocabulary by their ids.

    Its lines are `"piece": id`. They are not read as YAML, in which some
    characters that pieces may have end a line.
    """
    ids = {}
    data = read_bytes(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} must have lines of a piece and its id, in UTF-8. "
            f"Received: {error}. A SentencePiece model cannot be read as a "
            "vocabulary."
        ) from error
    # A long piece has a line of its own: "? piece" and then ": id".
    text = re.sub(r"(?m)^\? (.*)\n: ", r"\1: ", text)
    for line in text.split("\n"):
        if not line.strip():
            continue
        piece, _, id_ = line.rstrip("\r").rpartition(":")
        if not id_.strip().isdecimal():
            raise ValueError(
                f"Lines of {str(path)!r} must be a piece and its id. "
                f"Received: {line[:80]!r}"
            )
        ids[int(id_)] = _unquoted(piece)
    is_once = len(set(ids.values())) == len(ids)
    if not is_once or sorted(ids) != list(range(len(ids))):
        raise ValueError(
            f"{str(path)!r} must number its pieces from 0, each once."
        )
    return [ids[i] for i in range(len(ids))]


def _unquoted(piece):
    if piece.startswith("'"):
        return piece[1:-1].replace("''", "'")
    if not piece.startswith('"'):
        return piece
    try:
        escaped = re.sub(r"\\x([0-9A-Fa-f]{2})", r"\\u00\1", piece)
        escaped = re.sub(
            r"\\U([0-9A-Fa-f]{8})", lambda m: chr(int(m[1], 16)), escaped
        )
        return json.loads(escaped, strict=False)
    except ValueError:
        return piece[1:-1]


def _languages(folder):
    found = re.search(r"([A-Za-z]\w*)-([A-Za-z]\w*)$", folder.resolve().name)
    return (found[1], found[2]) if found else ("source", "target")
