"""Reads the folder of a Marian model as the Hugging Face hub has it."""

import dataclasses
import json
import os
import pathlib
import re
from typing import Any

import numpy as np

from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.integrations.marian.search import (
    number,
    search_settings,
    whole_number,
)
from keras_transformer.integrations.marian.torch_file import read_torch_file
from keras_transformer.integrations.marian.vocabulary import SpecialIds, is_text
from keras_transformer.validation import shown

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# Layer normalisation needs it, and the config of neither program names it.
EPSILON = {"transformers": 1e-5, "marian": 1e-6}
HUB_FILES = (
    "config.json",
    "generation_config.json",
    "source.spm",
    "target.spm",
    "vocab.json",
    "target_vocab.json",
    "tokenizer_config.json",
    "README.md",
)


@dataclasses.dataclass(frozen=True)
class Side:
    """Holds the SentencePiece model and the vocabulary of one side.

    Args:
        model: a SentencePiece model.
        pieces: Marian's vocabulary, by its ids.
        special: ids of its special pieces.
    """

    model: bytes
    pieces: list[str]
    special: SpecialIds


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Holds a Marian model in either of its formats.

    Args:
        weights: by the names of Hugging Face.
        shape: fields of the `TransformerConfig`, with Marian's name of the
            activation.
        sides: source and target.
        languages: of source and target.
        search: how it translates by default.
        epsilon: added to the variance in layer normalisation.
    """

    weights: dict[str, np.ndarray]
    shape: dict[str, Any]
    sides: tuple[Side, Side]
    languages: tuple[str, str]
    search: SearchSettings
    epsilon: float


def find(source: str | os.PathLike) -> pathlib.Path:
    """Returns the folder of a model, which is downloaded if it is none here.

    Raises:
        ValueError: if there is no such folder, and it is no name on the hub.
        ConnectionError: if the hub cannot be reached.
    """
    folder = pathlib.Path(source)
    if folder.is_dir():
        return folder
    if folder.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
        raise ValueError(
            "A model to import is a folder, or a name on the Hugging Face hub "
            f"such as Helsinki-NLP/opus-mt-en-de. Received: {str(source)!r}"
        )
    import huggingface_hub

    try:
        names = huggingface_hub.list_repo_files(str(source))
        wanted = next((n for n in WEIGHTS if n in names), WEIGHTS[0])
        return pathlib.Path(
            huggingface_hub.snapshot_download(
                str(source), allow_patterns=[*HUB_FILES, wanted]
            )
        )
    except Exception as error:  # the network library has many kinds
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise ConnectionError(
            f"{str(source)!r} is no folder here, and cannot be downloaded from "
            f"the Hugging Face hub: {reason}. Download its files where there "
            "is a network, and give their folder."
        ) from error


def read(folder: pathlib.Path) -> Checkpoint:
    """Reads a folder as the Hugging Face hub has it.

    Raises:
        ValueError: if it is no Marian model, or is damaged.
    """
    if not (folder / "config.json").exists():
        raise ValueError(
            f"Not the folder of a Marian model: {str(folder)!r} has neither "
            "config.json, as on the hub, nor decoder.yml, as Marian has it."
        )
    config = _json(folder / "config.json")
    if config.get("model_type") != "marian":
        raise ValueError(
            "Only Marian models can be imported. Received: model_type="
            f"{shown(config.get('model_type'))} in "
            f"{str(folder / 'config.json')!r}."
        )
    # transformers reads the search from the second file alone, if there is one.
    generation = _json(folder / "generation_config.json", {})
    tokenizer = _json(folder / "tokenizer_config.json", {})
    sides = _sides(folder, config | generation, tokenizer)
    return Checkpoint(
        _weights(folder),
        _shape(config),
        sides,
        _languages(folder, config, tokenizer),
        search_settings(
            generation or config,
            sides[1].pieces,
            sides[1].special,
            tokenizer.get("model_max_length"),
            is_whole=bool(generation),
        ),
        EPSILON["transformers"],
    )


def _json(path, default=None):
    if default is not None and not path.exists():
        return default
    data = read_bytes(path)
    try:
        content = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is damaged: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{str(path)!r} must hold a JSON object.")
    return content


def _weights(folder):
    for name in WEIGHTS:
        path = folder / name
        if not path.exists():
            continue
        if name.endswith(".bin"):
            return read_torch_file(path)
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return load_file(path)
        except (SafetensorError, TypeError, KeyError) as error:
            raise ValueError(
                f"{str(path)!r} is damaged: {error}. Download it again; a file "
                "of a few lines is a pointer of Git LFS."
            ) from error
    raise ValueError(
        f"Not the folder of a Marian model: {str(folder)!r} has neither "
        f"{' nor '.join(WEIGHTS)}."
    )


def _shape(config):
    """Returns the fields of the model's config."""

    def value(name):
        if name not in config:
            raise ValueError(
                f"config.json must have {name!r}. Received: "
                f"{shown(sorted(config))}. Download the file again."
            )
        return whole_number(config, name)

    for one, other in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
    ):
        if value(one) != value(other):
            raise ValueError(
                "Encoder and decoder must have layers of the same shape. "
                f"Received: {one}={value(one)}, {other}={value(other)}"
            )
    for name in (
        "normalize_before",
        "normalize_embedding",
        "add_final_layer_norm",
    ):
        if config.get(name):
            raise ValueError(
                f"A Marian model has no such normalisation. Received: {name}="
                f"{shown(config[name])}"
            )
    depths = value("encoder_layers"), value("decoder_layers")
    is_even = depths[0] == depths[1]
    return {
        "num_layers": depths[0],
        "num_decoder_layers": None if is_even else depths[1],
        "d_model": value("d_model"),
        "num_heads": value("encoder_attention_heads"),
        "d_ff": value("encoder_ffn_dim"),
        "activation": config.get("activation_function") or "gelu",
        "scale_embeddings": config.get("scale_embedding", False),
        "dropout_rate": number(config, "dropout", 0.1),
        "attention_dropout_rate": number(config, "attention_dropout", 0.0),
        "activation_dropout_rate": number(config, "activation_dropout", 0.0),
    }


def _sides(folder, generation, tokenizer):
    vocabularies = [folder / "vocab.json"] * 2
    other = folder / "target_vocab.json"
    # transformers does not read a file that the tokenizer does not name.
    if tokenizer.get("separate_vocabs", other.exists()):
        vocabularies[1] = other
    models = [read_bytes(folder / f"{s}.spm") for s in ("source", "target")]
    start = generation.get("decoder_start_token_id")
    if start is None:
        start = generation.get("pad_token_id")
    sides = []
    for model, path in zip(models, vocabularies, strict=True):
        ids = _json(path)
        if not all(type(i) is int for i in ids.values()) or (
            sorted(ids.values()) != list(range(len(ids)))
        ):
            raise ValueError(
                f"{str(path)!r} must number its pieces from 0, each once."
            )
        pieces = sorted(ids, key=lambda piece: ids[piece])
        special = {}
        for name in ("</s>", "<unk>", "<pad>"):
            if name not in ids:
                raise ValueError(f"{str(path)!r} has no piece {name!r}.")
            special[name] = ids[name]
        if type(start) is not int or not 0 <= start < len(pieces):
            start = special["<pad>"]
        sides.append(
            Side(
                model,
                pieces,
                SpecialIds(
                    special["</s>"],
                    special["<unk>"],
                    special["<pad>"],
                    start,
                    start not in special.values()
                    and is_text(model, pieces[start]),
                ),
            )
        )
    return tuple(sides)


def read_bytes(path: pathlib.Path) -> bytes:
    """Returns the content of a file that a model must have."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ValueError(
            f"Not the folder of a Marian model: {str(path.parent)!r} has no "
            f"{path.name}."
        ) from error


def _languages(folder, config, tokenizer):
    """Returns the languages, by the tokenizer or the model's name."""
    source, target = tokenizer.get("source_lang"), tokenizer.get("target_lang")
    if all(
        isinstance(name, str) and re.fullmatch(r"[\w.@+-]{1,50}", name)
        for name in (source, target)
    ):
        return source, target
    name = str(config.get("_name_or_path") or folder.resolve().name)
    found = re.search(r"opus-mt-(?:tc-\w+-)?(\w+)-(\w+)$", name)
    return (found[1], found[2]) if found else ("source", "target")
