"""Writes folders of Marian models, as the Hugging Face hub has them.

Part of `marian_reference.py`, which says how to run it.
"""

import collections
import copy
import io
import json
import pathlib
import random

import numpy as np
import sentencepiece
import torch
from transformers import (
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
)

from keras_transformer.data.builtin import grammar
from keras_transformer.data.builtin.phrases import pairs_of_split

SIZES = {"train": 30_000, "valid": 500, "test": 1_000}
TAGS = (">>deu<<", ">>fra<<", ">>sr_Latn<<")
# Older versions of transformers left these in the hub's config.json.
LEGACY_CONFIG = {
    "_num_labels": 3,
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    "normalize_before": False,
    "normalize_embedding": False,
    "static_position_embeddings": True,
}


def corpus_pairs(split, size):
    """Yields English-German pairs of the built-in corpus' own split."""
    return pairs_of_split("validation" if split == "valid" else split, size)


def write_corpus(folder, sizes=SIZES):
    """Writes `train.en`, `train.de`, `valid.en` … into a folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in sizes.items():
        for language, lines in zip(
            ("en", "de"),
            zip(*corpus_pairs(split, size), strict=True),
            strict=True,
        ):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def read_lines(path):
    """Returns the lines of a text file; only a newline ends a line."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n")


def train_sentencepiece(lines, path, size, rule="nmt_nfkc"):
    """Writes a unigram SentencePiece model; returns its processor."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=size,
        model_type="unigram",
        character_coverage=1.0,
        normalization_rule_name=rule,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    pathlib.Path(path).write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def vocabulary_of(sides, tags=(), size=None):
    """Returns a vocabulary as OPUS builds it, from `(processor, lines)` pairs.

    The end token and the unknown piece come first, then the pieces of the
    encoded text in order of their frequency, and the padding token last.
    Invented pieces fill it up to `size`.
    """
    counts = collections.Counter()
    for processor, lines in sides:
        for pieces in processor.encode(list(lines), out_type=str):
            counts.update(pieces)
    # Sorted also by piece, so that equal counts have one order.
    pieces = sorted(counts, key=lambda piece: (-counts[piece], piece))
    names = ["</s>", "<unk>", *tags, *pieces]
    if size is not None:
        names += [f"▁invented{i}" for i in range(size - 1 - len(names))]
    names.append("<pad>")
    assert len(set(names)) == len(names)
    return {name: i for i, name in enumerate(names)}


def write_json(path, value):
    """Writes JSON as the hub has it: indented, and with Unicode as it is."""
    text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    pathlib.Path(path).write_text(text, encoding="utf-8")


def write_tokenizer(
    folder, source, target, *, pieces, separate=False, tags=(), **options
):
    """Writes the tokenizer's files, learned from lines; returns tokenizer.

    Args:
        folder: where to write.
        source, target: lines to learn from.
        pieces: sizes of the two SentencePiece models.
        separate: whether each side has a vocabulary of its own.
        tags: language tags to add to the source's vocabulary.
        options: `sizes`, of the vocabularies; `target_rule`, how the target's
            SentencePiece model normalizes; `extra`, how many more pieces the
            target's vocabulary has, after its padding token.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = options.get("sizes", (None, None))
    sides = []
    for name, lines, rule in (
        ("source", source, "nmt_nfkc"),
        ("target", target, options.get("target_rule", "nmt_nfkc")),
    ):
        size = pieces[len(sides)]
        path = folder / f"{name}.spm"
        sides.append((train_sentencepiece(lines, path, size, rule), lines))
    files = {"source_spm": "source.spm", "target_spm": "target.spm"}
    if separate:
        # Both padding tokens need the same id: the config has only one.
        encoder = vocabulary_of(sides[:1], tags, sizes[0])
        decoder = vocabulary_of(sides[1:])
        size = sizes[0] or max(len(encoder), len(decoder))
        encoder = vocabulary_of(sides[:1], tags, size)
        decoder = vocabulary_of(sides[1:], (), size)
        for i in range(options.get("extra", 0)):
            decoder[f"▁more{i}"] = len(decoder)
        write_json(folder / "vocab.json", encoder)
        write_json(folder / "target_vocab.json", decoder)
        files["target_vocab_file"] = "target_vocab.json"
    else:
        vocabulary = vocabulary_of(sides, tags, sizes[0])
        write_json(folder / "vocab.json", vocabulary)
    tokenizer = MarianTokenizer(
        vocab=str(folder / "vocab.json"),
        **{key: str(folder / name) for key, name in files.items()},
        source_lang="en",
        target_lang="de",
        separate_vocabs=separate,
    )
    tokenizer.save_pretrained(folder)
    # save_pretrained records where the tokenizer's files were made.
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key, name in files.items():
        if key in config:
            config[key] = name
    write_json(path, config)
    return tokenizer


def hub_config(vocab_size, **settings):
    """Returns a configuration with what all OPUS-MT folders have."""
    padding = vocab_size - 1
    return MarianConfig(
        vocab_size=vocab_size,
        pad_token_id=padding,
        decoder_start_token_id=padding,
        eos_token_id=0,
        bos_token_id=0,
        forced_eos_token_id=0,
        **settings,
    )


def generation_config(config, num_beams=4, max_length=512):
    """Returns the hub's generation settings for a configuration."""
    return GenerationConfig(
        bad_words_ids=[[config.pad_token_id]],
        bos_token_id=0,
        decoder_start_token_id=config.pad_token_id,
        eos_token_id=0,
        forced_eos_token_id=0,
        max_length=max_length,
        num_beams=num_beams,
        pad_token_id=config.pad_token_id,
        renormalize_logits=True,
    )


def add_legacy_config(folder, generation):
    """Adds to config.json what older versions of transformers wrote there."""
    path = pathlib.Path(folder) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["torch_dtype"] = config.pop("dtype", "float32")
    config["num_hidden_layers"] = config["encoder_layers"]
    config["bad_words_ids"] = generation.bad_words_ids
    config["num_beams"] = generation.num_beams
    config["max_length"] = generation.max_length
    config.update(LEGACY_CONFIG)
    write_json(path, dict(sorted(config.items())))


def load(folder):
    """Loads the model of a folder, for inference in float32."""
    model = MarianMTModel.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


# --- Random weights ---


def draw_settings(seed):
    """Returns the settings of a random folder."""
    rng = random.Random(seed)
    heads = rng.choice((1, 2, 3, 4, 5))
    separate = rng.random() < 0.4
    return {
        "separate": separate,
        "extra": rng.choice((0, 0, 7)) if separate else 0,
        "tied": rng.random() < 0.6,
        "tags": rng.random() < 0.5,
        "encoder_layers": rng.randint(1, 3),
        "decoder_layers": rng.randint(1, 3),
        "heads": heads,
        "d_model": heads * rng.randint(3, 13),
        "d_ff": rng.choice((17, 31, 64)),
        "activation": rng.choice(("swish", "swish", "relu", "gelu")),
        "scale_embedding": rng.random() < 0.7,
        "zero_padding_row": rng.random() < 0.8,
        "format": rng.choice(("safetensors", "zip", "legacy")),
        "dtype": rng.choice(("float32", "float16")),
        "legacy_config": rng.random() < 0.5,
        # Whether a .bin also holds the tables of positions and, where they
        # are tied, every name of the embedding: so did the first converter.
        "all_names": rng.random() < 0.5,
        "positions": 64,
        "pieces": (120, 120),
        "sizes": (None, None),
        "max_length": 40,
    }


SHAPES = {
    "base": {"d_model": 512, "d_ff": 2048, "heads": 8, "positions": 512}
    | {"separate": False, "sizes": (58_101, None), "dtype": "float32"},
    "tc-big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "positions": 1024}
    | {"separate": True, "sizes": (32_001, 32_001), "dtype": "float16"},
}
REAL_SHAPE = {
    "encoder_layers": 6,
    "decoder_layers": 6,
    "extra": 0,
    "tied": True,
    "tags": False,
    "activation": "swish",
    "scale_embedding": True,
    "zero_padding_row": True,
    "format": "safetensors",
    "legacy_config": True,
    "all_names": False,
    "max_length": 512,
}


def random_model(config, settings, seed):
    """Returns a model whose logits depend visibly on every weight."""
    model = MarianMTModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    embeddings = ("shared.weight", "embed_tokens.weight", "lm_head.weight")
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if "embed_positions" in name:
                continue
            noise = torch.empty_like(value).normal_(generator=generator)
            if name.endswith(embeddings):
                # With the scale √d, components are of order one.
                noise /= config.d_model**0.5
                if not config.scale_embedding and "lm_head" not in name:
                    noise *= config.d_model**0.5
                if settings["tied"] and not config.scale_embedding:
                    noise /= config.d_model**0.25
                if settings["zero_padding_row"] and "lm_head" not in name:
                    noise[config.pad_token_id] = 0
            elif name.endswith("norm.weight"):
                noise = 1 + noise / 5
            elif name.endswith("bias"):
                noise /= 5
            else:
                noise /= value.shape[-1] ** 0.5
            value.copy_(noise)
        if not settings["separate"]:
            # All three are one matrix on the hub. Where the output layer is
            # not tied, transformers no longer ties these either.
            for part in (model.model.encoder, model.model.decoder):
                part.embed_tokens.weight.copy_(model.model.shared.weight)
        if settings["dtype"] == "float16":
            for name, value in model.state_dict().items():
                if "embed_positions" not in name:
                    value.copy_(value.half().float())
    return model


def save_model(folder, model, settings):
    """Writes weights and configurations in the format of the settings."""
    folder = pathlib.Path(folder)
    half = settings["dtype"] == "float16"
    if half:
        model = copy.deepcopy(model).half()
    model.save_pretrained(folder)
    if settings["format"] != "safetensors":
        (folder / "model.safetensors").unlink()
        state = model.state_dict()
        kept = "model.decoder.embed_tokens.weight"
        if not settings["separate"]:
            kept = "model.shared.weight"
        for name in list(state):
            same = state[name].data_ptr() == state[kept].data_ptr()
            surplus = same and name != kept and not settings["all_names"]
            if "embed_positions" in name:
                # A table of positions in float16 would be a rounded one.
                surplus = half or not settings["all_names"]
            if surplus:
                del state[name]
        torch.save(
            dict(state),
            folder / "pytorch_model.bin",
            _use_new_zipfile_serialization=settings["format"] == "zip",
        )


def random_batch(config, seed, rows, source, target):
    """Returns ids of random sentences, padded, and the mask."""
    rng = np.random.default_rng(seed)
    padding = config.pad_token_id
    # Neither the end token nor padding occurs within a sentence.
    ids = rng.integers(1, padding, (rows, source))
    mask = np.ones((rows, source), np.int64)
    for row in range(1, rows):
        length = int(rng.integers(1, source + 1))
        ids[row, length:], mask[row, length:] = padding, 0
    ids[np.arange(rows), mask.sum(1) - 1] = 0
    decoder = rng.integers(1, padding, (rows, target))
    decoder[:, 0] = padding
    for row in range(1, rows):
        length = int(rng.integers(2, target + 1))
        decoder[row, length:] = padding
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "decoder_input_ids": decoder,
    }


def logits_of(model, batch):
    """Returns the model's logits in NumPy."""
    with torch.no_grad():
        tensors = {key: torch.from_numpy(ids) for key, ids in batch.items()}
        return model(**tensors).logits.numpy()


def write_random(folder, seed, shape=None):
    """Writes a folder with random weights and `reference.npz`."""
    folder = pathlib.Path(folder)
    settings = draw_settings(seed)
    if shape:
        settings |= REAL_SHAPE | SHAPES[shape]
    tags = TAGS if settings["tags"] else ()
    rng = random.Random(seed)
    pairs = [grammar.sentence_pair(rng) for _ in range(600)]
    source, target = zip(*pairs, strict=True)
    tokenizer = write_tokenizer(
        folder,
        source,
        target,
        pieces=settings["pieces"],
        separate=settings["separate"],
        tags=tags,
        sizes=settings["sizes"],
        extra=settings["extra"],
    )
    decoder_size = len(
        tokenizer.target_encoder if settings["separate"] else tokenizer.encoder
    )
    config = hub_config(
        len(tokenizer.encoder),
        decoder_vocab_size=decoder_size,
        d_model=settings["d_model"],
        encoder_layers=settings["encoder_layers"],
        decoder_layers=settings["decoder_layers"],
        encoder_attention_heads=settings["heads"],
        decoder_attention_heads=settings["heads"],
        encoder_ffn_dim=settings["d_ff"],
        decoder_ffn_dim=settings["d_ff"],
        activation_function=settings["activation"],
        scale_embedding=settings["scale_embedding"],
        share_encoder_decoder_embeddings=not settings["separate"],
        tie_word_embeddings=settings["tied"],
        max_position_embeddings=settings["positions"],
    )
    model = random_model(config, settings, seed)
    generation = generation_config(config, 4, settings["max_length"])
    model.generation_config = generation
    batches = [
        random_batch(config, seed + 1, 3, 7, 5),
        random_batch(config, seed + 2, 2, 11, 13),
    ]
    expected = [logits_of(model, batch) for batch in batches]
    save_model(folder, model, settings)
    if settings["legacy_config"]:
        add_legacy_config(folder, generation)
    del model
    loaded = load(folder)
    arrays = {"settings": np.array(json.dumps(settings))}
    for i, batch in enumerate(batches):
        logits = logits_of(loaded, batch)
        np.testing.assert_allclose(logits, expected[i], rtol=0, atol=1e-5)
        assert logits.std() > 0.1, "logits hardly depend on the weights"
        arrays |= {f"{key}_{i}": ids for key, ids in batch.items()}
        arrays[f"logits_{i}"] = logits
    np.savez_compressed(folder / "reference.npz", **arrays)
    return settings
