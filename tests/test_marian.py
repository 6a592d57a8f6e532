"""Checks the import of Marian models, and the export to their format.

`tests/pretrained/opus-mt-tiny` was trained and stored by transformers, with
what it translates lines to. `marian_parity.py` compares larger models.
"""

import dataclasses
import io
import json
import os
import pathlib
import pickle
import re
import shutil
import zipfile

import ctranslate2
import marian_checks
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from conftest import SMALL, translator_of
from ctranslate2.converters import MarianConverter
from look_alikes import look_alikes
from safetensors.numpy import load_file, save_file

from keras_transformer import Transformer
from keras_transformer.cli.main import main
from keras_transformer.cli.run_options import run_of
from keras_transformer.data import sentencepiece_file
from keras_transformer.export import saved_model
from keras_transformer.export.files import SUMS
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.inference.lines import translate_lines
from keras_transformer.integrations import ctranslate2 as ctranslate2_export
from keras_transformer.integrations.marian import exporter as marian_export
from keras_transformer.integrations.marian import npz_file
from keras_transformer.integrations.marian.importer import import_marian
from keras_transformer.integrations.marian.vocabulary import sentencepiece_model
from keras_transformer.training import checkpoints, load_model
from keras_transformer.training.new_run import start_run
from keras_transformer.training.train_run import train

TINY = pathlib.Path(__file__).parent / "pretrained" / "opus-mt-tiny"
OUTPUTS = json.loads((TINY / "outputs.json").read_text("utf-8"))["rows"]
TOKENS = json.loads((TINY / "tokens.json").read_text("utf-8"))
SOURCES = [row["source"] for row in OUTPUTS]
HUB_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "vocab.json",
    "source.spm",
    "target.spm",
    "model.safetensors",
    "README.md",
)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported") / "run"
    return import_marian(TINY, folder, clean_sources=False)


@pytest.fixture(scope="module")
def exported(imported, tmp_path_factory):
    path = tmp_path_factory.mktemp("exports") / "opus" / "1"
    return saved_model.export(imported, path, dtype="float32")


@pytest.fixture(scope="module")
def translator(exported):
    return SavedTranslator(exported)


@pytest.fixture
def folder(tmp_path):
    """Returns a copy of the model, to be changed."""
    folder = tmp_path / "opus-mt-en-de"
    folder.mkdir()
    for name in HUB_FILES:
        shutil.copyfile(TINY / name, folder / name)
    return folder


def change_json(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values))


# === Translations ===


def test_greedy_translations_are_those_of_transformers(translator):
    found = translator.searched_with(beam_size=1)(tf.constant(SOURCES))
    expected = [row["greedy"] for row in OUTPUTS]
    texts = [text.decode() for text in found["translation"].numpy()]
    assert texts == [row["text"] for row in expected]
    # Theirs is the sum; ours is divided by the length, end token included.
    theirs = [row["score"] / (len(row["ids"])) for row in expected]
    np.testing.assert_allclose(found["score"], theirs, atol=1e-4)


def test_beam_translations_are_those_of_transformers(translator):
    """Its hub folders ask for probabilities without the padding token
    (`renormalize_logits`), as ours are."""
    found = translator.translate(tf.constant(SOURCES))
    expected = [row["beam"] for row in OUTPUTS]
    texts = [text.decode() for text in found["translation"].numpy()]
    assert texts == [row["text"] for row in expected]
    theirs = [row["score"] for row in expected]
    np.testing.assert_allclose(found["score"], theirs, atol=1e-4)


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_rules_against_repetition_are_those_of_transformers(imported, search):
    rules = {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3}
    beam_size = {"greedy": 1, "beam": 4}[search]
    settings = dataclasses.replace(
        imported.search, beam_size=beam_size, min_length=9, **rules
    )
    translator = translator_of(imported, settings)
    found = translator.compiled()(tf.constant(SOURCES))["translation"]
    texts = [text.decode() for text in found.numpy()]
    assert texts == [row[f"{search} with rules"]["text"] for row in OUTPUTS]
    assert sum(
        row[f"{search} with rules"]["text"] != row[search]["text"]
        for row in OUTPUTS
    )


def test_the_score_of_a_translation_is_that_of_its_search(exported):
    """Padding and start, which Marian never generates, have no part in it."""
    signatures = tf.saved_model.load(exported).signatures
    text = tf.constant([s for s in SOURCES if not s.startswith(">>")][:7])
    best = signatures["serving_default"](text=text)
    found = signatures["score"](text=text, translation=best["translation"])
    expected = best["score"] * tf.cast(found["pieces"], "float32")
    np.testing.assert_allclose(found["score"], expected, atol=1e-4)


def test_ctranslate2_translates_an_imported_run_alike(
    imported, translator, tmp_path
):
    """A language tag, which SentencePiece does not know, comes first."""
    path = ctranslate2_export.export(imported, tmp_path / "engine")
    source, target = (
        sentencepiece.SentencePieceProcessor(str(path / f"{side}.model"))
        for side in ("source", "target")
    )
    pieces = []
    for line in SOURCES:
        tag, text = re.fullmatch("(>>.*?<<)?(.*)", line).groups()
        pieces.append([tag] * bool(tag) + source.encode(text, out_type=str))
    engine = ctranslate2.Translator(str(path), inter_threads=1)
    found = engine.translate_batch(pieces, beam_size=1, return_scores=True)
    expected = translator.searched_with(beam_size=1)(tf.constant(SOURCES))
    texts = [target.decode(one.hypotheses[0]) for one in found]
    assert texts == [text.decode() for text in expected["translation"].numpy()]
    scores = [one.scores[0] for one in found]
    np.testing.assert_allclose(scores, expected["score"], atol=1e-4)


def test_ctranslate2_begins_with_the_start_token(folder, tmp_path):
    """Also where the vocabulary has a piece of text of that name."""
    path = folder / "vocab.json"
    pieces = json.loads(path.read_text("utf-8"))
    pieces = {("<s>" if i == 50 else p): i for p, i in pieces.items()}
    path.write_text(json.dumps(pieces))
    run = import_marian(folder, tmp_path / "run")
    engine = ctranslate2_export.export(run, tmp_path / "engine")
    config = json.loads((engine / "config.json").read_text())
    assert config["decoder_start_token"] == run.target_tokenizer.pieces([2])[0]
    assert config["decoder_start_token"] != "<s>"


def test_hard_inputs_have_valid_answers(translator):
    texts = [
        b"",
        b"   ",
        b"\xff\xfe invalid \xc3",
        b"</s> <s> <unk> <pad>",
        b">>deu<< Room 7",
        b">>fra<<",
        b">>xyz<< Room 7",
        b">>fra<< \n",
        b">>fra<< Room >>7<<",
        "🦄👩‍👩‍👧 ①② ｆｕｌｌ".encode(),
        b"Room 7 " * 3000,
    ]
    found = translator.translate(tf.constant(texts))
    for text, translation in zip(
        texts, found["translation"].numpy(), strict=True
    ):
        translation.decode("utf-8")
        is_blank = not text.removeprefix(b">>fra<<").strip()
        assert (translation == b"") == is_blank
    assert np.isfinite(found["score"]).all()
    np.testing.assert_array_equal(found["truncated"], [False] * 10 + [True])


def test_each_export_and_each_fine_tuned_run_has_the_model_card(
    imported, exported, corpus, recipe, tmp_path
):
    """It has the licence, which may ask for the names of the authors."""
    card = (TINY / "README.md").read_bytes()
    recipe = dataclasses.replace(recipe, initial_run=str(imported.folder))
    tuned = start_run(tmp_path / "tuned", None, recipe)
    engine = ctranslate2_export.export(imported, tmp_path / "engine")
    for folder in (imported.folder, exported, engine, tuned.folder):
        assert (folder / "MODEL_CARD.md").read_bytes() == card
    sums = (exported / SUMS).read_text()
    assert "MODEL_CARD.md" in sums
    marian = marian_export.export(imported, tmp_path / "marian")
    assert (marian / "README.md").read_bytes() == card


def test_the_page_of_an_export_has_the_formula_of_its_scores(exported):
    page = (exported / "README.md").read_text("utf-8")
    assert "|vocab:unigram-340|" in page
    assert page.count("pieces^α") == 2
    assert "(5 + pieces)" not in page


# === Tokenizer ===


def test_ids_are_those_of_marian_tokenizer():
    assert marian_checks.check_tokens(TINY, TOKENS) > 100


def test_characters_of_the_vocabulary_alone_are_rated_below_all_pieces():
    """As SentencePiece rates unknown ones, so that others are preferred."""
    (side, _), _ = marian_checks.sides_of(TINY)
    known = {p.piece for p in sentencepiece_file.parse(side.model).pieces}
    model = sentencepiece_model(side.model, side.pieces, side.special)
    pieces = sentencepiece_file.parse(model).pieces
    text = [p for p in pieces if p.type == sentencepiece_file.NORMAL]
    least = min(p.score for p in text if p.piece in known)
    others = [p for p in text if p.piece not in known]
    assert others
    scores = [p.score for p in others]
    np.testing.assert_allclose(scores, least - 10, rtol=1e-6)


# === Other files with the same model ===


def original_files(folder, target):
    """Writes the model of a hub folder as the original Marian does."""
    target.mkdir()
    config = json.loads((folder / "config.json").read_text("utf-8"))
    arrays = {}
    names = {
        "self_attn.": "self_",
        "encoder_attn.": "context_",
        "_proj.weight": "W",
        "_proj.bias": "b",
        "self_attn_layer_norm.weight": "self_Wo_ln_scale",
        "self_attn_layer_norm.bias": "self_Wo_ln_bias",
        "encoder_attn_layer_norm.weight": "context_Wo_ln_scale",
        "encoder_attn_layer_norm.bias": "context_Wo_ln_bias",
        "final_layer_norm.weight": "ffn_ffn_ln_scale",
        "final_layer_norm.bias": "ffn_ffn_ln_bias",
    }
    for name, value in load_file(folder / "model.safetensors").items():
        value = value.astype("float32")
        if name == "model.shared.weight":
            arrays["Wemb"] = value[:-1]  # the last one is padding
            continue
        if name == "final_logits_bias":
            arrays["decoder_ff_logit_out_b"] = value[:, :-1]
            continue
        if "embed" in name or name == "lm_head.weight":
            continue
        _, side, _, number, rest = name.split(".", 4)
        short = names.get(rest)
        if rest.startswith("fc"):
            short = f"ffn_{'Wb'['bias' in rest]}{rest[2]}"
        elif short is None:
            part, matrix, kind = rest.split(".")
            short = names[f"{part}."] + "Wb"[kind == "bias"] + matrix[0]
        matrix = value.T if value.ndim == 2 else value[None]
        arrays[f"{side}_l{int(number) + 1}_{short}"] = matrix
    options = {
        "type": "transformer",
        "dim-emb": config["d_model"],
        "enc-depth": config["encoder_layers"],
        "dec-depth": config["decoder_layers"],
        "transformer-heads": config["encoder_attention_heads"],
        "transformer-dim-ffn": config["encoder_ffn_dim"],
        "transformer-ffn-activation": config["activation_function"],
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-decoder-autoreg": "self-attention",
        "transformer-no-projection": False,
        "transformer-guided-alignment-layer": "last",
        "tied-embeddings-all": True,
    }
    text = json.dumps(options).encode() + b"\0"  # JSON is YAML
    arrays["special:model.yml"] = np.frombuffer(text, "int8")
    np.savez(target / "model.npz", **arrays)
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    lines = [
        f"{json.dumps(piece, ensure_ascii=False)}: {i}\n"
        for piece, i in vocabulary.items()
        if piece != "<pad>"
    ]
    (target / "vocab.yml").write_text("".join(lines), "utf-8")
    (target / "decoder.yml").write_text(
        "models: [model.npz]\nvocabs: [vocab.yml, vocab.yml]\n"
        "beam-size: 4\nnormalize: 1\n"
    )
    for side in ("source", "target"):
        shutil.copyfile(folder / f"{side}.spm", target / f"{side}.spm")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "en-de"
    original_files(TINY, folder)
    return folder


def test_the_original_files_give_the_same_logits(original, imported, tmp_path):
    """But for padding, and for the start, which is a zero embedding there."""
    run = import_marian(original, tmp_path / "run")
    assert run.config == imported.config.from_dict(
        {
            **imported.config.to_dict(),
            "dropout_rate": 0.1,
            "layer_norm_epsilon": 1e-6,
        }
    )
    rng = np.random.default_rng(1)
    inputs = {
        "source": rng.integers(3, 300, (3, 7)),
        "target": rng.integers(3, 300, (3, 5)),
    }
    inputs["source"][1, 4:] = 0
    found, expected = (
        np.asarray(load_model(one)(inputs)) for one in (run, imported)
    )
    np.testing.assert_allclose(found[..., 3:], expected[..., 3:], atol=1e-3)


@pytest.mark.programs
def test_the_original_files_translate_as_in_ctranslate2(original, tmp_path):
    """Its own converter of Marian's files reads them independently of ours."""
    run = import_marian(original, tmp_path / "run")
    greedy = dataclasses.replace(run.search, beam_size=1)
    translate = translator_of(run, greedy).compiled()
    vocabularies = [str(original / "vocab.yml")] * 2
    converter = MarianConverter(str(original / "model.npz"), vocabularies)
    engine = ctranslate2.Translator(
        converter.convert(str(tmp_path / "engine")), inter_threads=1
    )
    rule = marian_checks.TokenRule(marian_checks.sides_of(TINY)[0][0])
    pieces = sorted(rule.ids, key=rule.ids.get)
    lines = [s for s in SOURCES if not s.startswith(">>")]
    found = engine.translate_batch(
        [[pieces[i] for i in rule.ours(line)[:-1]] for line in lines],
        beam_size=1,
    )
    expected = [
        "".join(one.hypotheses[0]).replace("▁", " ").strip() for one in found
    ]
    assert translate_lines(translate, lines, 32) == expected


DECODER = "models: [model.npz]\nvocabs: [vocab.yml, vocab.yml]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: model.npz\nvocabs: vocab.yml\n", "as the lists"),
        ("models: [model.npz]\nvocabs: []\n", "as the lists"),
        ("models: [{a: 1}]\nvocabs: [vocab.yml]\n", "as the lists"),
        (f"{DECODER}beam-size: x\n", "beam-size='x'"),
        (f"{DECODER}word-penalty: 0.5\n", "word-penalty=0.5"),
        (f"{DECODER}beam-size: 2.5\n", "whole number.*beam-size=2.5"),
        (f"{DECODER}normalize: .inf\n", "finite number.*normalize=inf"),
        (f"{DECODER}a: &a [x]\nb: *a\n", "decoder.yml' is damaged.*aliases"),
        (f"{DECODER}a: &a {{x: y}}\nb: {{<<: *a}}\n", "aliases"),
        (f"{DECODER}a: {'[' * 5000}", "decoder.yml' is damaged.*recursion"),
        (f"{DECODER}a: {'x' * 200_000}", "decoder.yml' is damaged.*200,0"),
        (f"{DECODER}a: 2026-99-99\n", "decoder.yml' is damaged.*month"),
    ],
)
def test_a_bad_decoder_file_is_named(original, tmp_path, text, message):
    folder = tmp_path / "en-de"
    shutil.copytree(original, folder)
    (folder / "decoder.yml").write_text(text)
    with pytest.raises(ValueError, match=message):
        import_marian(folder, tmp_path / "run")


def test_a_value_that_an_error_quotes_is_cut(original, tmp_path):
    folder = tmp_path / "en-de"
    shutil.copytree(original, folder)
    text = f"{DECODER}beam-size: {[['x'] * 9] * 999}\n"
    (folder / "decoder.yml").write_text(text)
    with pytest.raises(ValueError, match=r"beam-size=\[\[") as caught:
        import_marian(folder, tmp_path / "run")
    assert len(str(caught.value)) < 500


def compressed(arrays, path):
    np.savez_compressed(path, **arrays)


def claiming(arrays, path):
    """Writes an array that says that it is a trillion times as long."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                data,
                {"descr": "<f4", "fortran_order": False, "shape": (10**12,)},
            )
            archive.writestr(f"{name}.npy", data.getvalue() + array.tobytes())


@pytest.mark.parametrize("write", [compressed, claiming])
def test_arrays_are_not_longer_than_their_file(original, tmp_path, write):
    folder = tmp_path / "en-de"
    shutil.copytree(original, folder)
    write(dict(np.load(original / "model.npz")), folder / "model.npz")
    with pytest.raises(ValueError, match=r"model.npz' is damaged"):
        import_marian(folder, tmp_path / "run")


def test_what_decoder_yml_leaves_out_is_marians_default(original, tmp_path):
    folder = tmp_path / "en-de"
    shutil.copytree(original, folder)
    (folder / "decoder.yml").write_text(DECODER)
    search = import_marian(folder, tmp_path / "run").search
    assert (search.beam_size, search.alpha) == (12, 0)


def test_a_sentencepiece_model_is_no_vocabulary(original, tmp_path):
    path = tmp_path / "vocab.spm"
    shutil.copyfile(original / "source.spm", path)
    with pytest.raises(ValueError, match="cannot be read as a vocabulary"):
        npz_file._pieces(path)


@pytest.mark.parametrize(
    ("name", "languages"),
    [
        ("opus-en-de", ("en", "de")),
        ("deu-ZLE", ("deu", "ZLE")),
        ("opus-2020-02-26", ("source", "target")),
    ],
)
def test_languages_are_those_of_a_name(tmp_path, name, languages):
    assert npz_file._languages(tmp_path / name) == languages


def test_pieces_of_a_vocabulary_are_read_as_marian_writes_them(tmp_path):
    path = tmp_path / "vocab.yml"
    path.write_text(
        '"a\\x85": 0\n"\\U0001F600": 1\n? "long"\n: 2\n"\\"": 3\n', "utf-8"
    )
    assert npz_file._pieces(path) == ["a\x85", "😀", "long", '"']
    path.write_text('"a": 0\n"a": 1\n')
    with pytest.raises(ValueError, match="each once"):
        npz_file._pieces(path)


def test_untied_and_separate_tables_are_found(folder, tmp_path):
    weights = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(2)
    shared = weights.pop("model.shared.weight")
    for name in (
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
    ):
        weights[name] = rng.normal(size=shared.shape).astype("float16")
    save_file(weights, folder / "model.safetensors")
    run = import_marian(folder, tmp_path / "run")
    size = len(shared) + 1  # the start token has a row of its own
    assert run.config.source_vocab_size == run.config.vocab_size == size
    assert not run.config.tie_projection
    model = load_model(run)
    for found, name in (
        (model.source_embedding.embeddings, "model.encoder.embed_tokens"),
        (model.target_embedding.embeddings, "model.decoder.embed_tokens"),
        (model.target_embedding.projection, "lm_head"),
    ):
        expected = weights[f"{name}.weight"][2:-1]
        np.testing.assert_array_equal(np.asarray(found)[4:], expected)


def test_a_start_token_that_is_also_text_keeps_its_id(folder, tmp_path):
    """Where the target's vocabulary is the larger one, the source's padding
    token, with which the decoder begins, has the id of a piece of text."""
    pieces = json.loads((folder / "vocab.json").read_text("utf-8"))
    (piece,) = (piece for piece, i in pieces.items() if i == 50)
    change_json(folder / "generation_config.json", decoder_start_token_id=50)
    run = import_marian(folder, tmp_path / "run")
    assert run.target_tokenizer.vocab_size == len(pieces) + 1
    (place,) = run.target_tokenizer.ids([piece])
    table = load_model(run).target_embedding.embeddings.numpy()
    np.testing.assert_array_equal(table[2], table[place])
    assert table[2].any()


def test_two_vocabularies_may_have_one_table_in_another_order(folder, tmp_path):
    pieces = json.loads((folder / "vocab.json").read_text("utf-8"))
    names = {i: piece for piece, i in pieces.items()}
    other = pieces | {"<unk>": 50, names[50]: 1}
    (folder / "target_vocab.json").write_text(json.dumps(other))
    change_json(folder / "tokenizer_config.json", separate_vocabs=True)
    run = import_marian(folder, tmp_path / "run")
    assert not run.config.shared_vocabulary
    model = load_model(run)
    source = model.source_embedding.embeddings.numpy()
    target = model.target_embedding.embeddings.numpy()
    (place,) = run.source_tokenizer.ids([names[50]])
    (other_place,) = run.target_tokenizer.ids([names[50]])
    np.testing.assert_array_equal(source[1], target[other_place])
    np.testing.assert_array_equal(source[place], target[1])
    assert (source[1] != target[1]).any()


# === Export to the same format ===


@pytest.mark.parametrize(
    ("positions", "tie_projection"),
    [
        ("sinusoidal", True),
        ("sinusoidal", False),
        ("sinusoidal_halves", True),
    ],
)
def test_an_exported_run_is_imported_with_the_same_logits(
    recipe, tmp_path, positions, tie_projection
):
    run = start_run(
        tmp_path / "run",
        "tiny",
        recipe,
        **SMALL,
        positions=positions,
        tie_projection=tie_projection,
        num_decoder_layers=2,
        layer_norm_epsilon=1e-5,
    )
    model = Transformer(run.config, seed=3)
    rng = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(weight + 0.2 * rng.normal(size=weight.shape))
    checkpoints.save(run.checkpoints, model, step=1)
    path = marian_export.export(run, tmp_path / "marian")
    again = import_marian(path, tmp_path / "again")
    assert again.source_tokenizer.vocab_size == 400
    assert again.config.shared_vocabulary
    assert again.config.tie_projection == tie_projection
    # Without tied embeddings, transformers does not read the shared table.
    names = load_file(path / "model.safetensors").keys()
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_tokens.weight"
        assert (name in names) == (not tie_projection)
    ids = rng.integers(4, 400, (3, 7))
    inputs = {"source": ids, "target": np.pad(ids[:, :4], ((0, 0), (1, 0)))}
    inputs["target"][:, 0] = 2
    found = np.asarray(load_model(again)(inputs))
    expected = np.asarray(model(inputs))
    # Neither can generate a line break.
    columns = sorted(set(range(3, 400)) - {*run.target_tokenizer.line_breaks})
    np.testing.assert_allclose(
        found[..., columns], expected[..., columns], atol=1e-5
    )
    text = ["Room 7 is on the third floor.", "größe ☃"]
    ids = run.source_tokenizer.encode(text)
    assert again.source_tokenizer.encode(text) == ids


def test_an_export_has_room_for_the_longest_sources(recipe, tmp_path):
    long = dataclasses.replace(recipe, max_length=1100)
    run = start_run(tmp_path / "run", "tiny", long, **SMALL)
    checkpoints.save(run.checkpoints, Transformer(run.config), step=1)
    again = import_marian(
        marian_export.export(run, tmp_path / "marian"), tmp_path / "again"
    )
    assert run.search.max_source_length == 1100
    assert again.search.max_source_length == 1100
    assert again.search.max_length == 1151  # 50 more than the source with end
    engine = ctranslate2.Translator(
        str(ctranslate2_export.export(run, tmp_path / "engine"))
    )
    source = [run.source_tokenizer.pieces([7]) * 1100]
    engine.translate_batch(source, max_input_length=0, max_decoding_length=3)


@pytest.mark.parametrize(
    "departure",
    [
        {"norm_first": True},
        {"use_bias": False},
        {"positions": None},
        {"key_dim": 7},
        {"activation": "tanh"},
        {"sliding_window": 3},
    ],
    ids=str,
)
def test_what_marian_has_no_place_for_is_refused(imported, tmp_path, departure):
    config = dataclasses.replace(imported.config, **departure)
    ((name, value),) = departure.items()
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        marian_export.export(
            dataclasses.replace(imported, config=config), tmp_path / "marian"
        )
    assert not (tmp_path / "marian").exists()


# === Fine-tuning ===


@pytest.mark.programs
@pytest.mark.usefixtures("unscored")
def test_an_imported_run_is_fine_tuned(imported, corpus, recipe, tmp_path):
    recipe = dataclasses.replace(
        recipe, initial_run=str(imported.folder), learning_rate_scale=0.1
    )
    run = start_run(tmp_path / "tuned", None, recipe)
    assert run.config == imported.config
    assert run.search == imported.search
    train(run, steps=8, verbose=0)
    logs = [
        json.loads(line)
        for line in (run.folder / "log.jsonl").read_text().splitlines()
    ]
    losses = [log["val_loss"] for log in logs if "val_loss" in log]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"vocab_size": 8000}, "vocab_size=8000"),
        ({"shared_vocabulary": False}, "shared_vocabulary=False"),
    ],
    ids=str,
)
def test_a_vocabulary_option_that_disagrees_is_refused(
    imported, tmp_path, option, message
):
    """Also one that names the default of runs that learn a vocabulary."""
    given = {"out": str(tmp_path / "run"), "initial_run": str(imported.folder)}
    with pytest.raises(ValueError, match=message):
        run_of({**given, **option}, worker=0)
    assert not (tmp_path / "run").exists()


def test_an_imported_run_is_not_trained_itself(imported):
    with pytest.raises(ValueError, match="--initial-run"):
        train(imported, steps=1)


# === Errors ===


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def without_a_piece(folder):
    pieces = json.loads((folder / "vocab.json").read_text("utf-8"))
    pieces.pop(max(pieces, key=pieces.get))
    (folder / "vocab.json").write_text(json.dumps(pieces))


def one_piece_more(folder):
    pieces = json.loads((folder / "vocab.json").read_text("utf-8"))
    change_json(folder / "vocab.json", another=len(pieces))


def code_in_a_pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(os.system))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def rename(weights):
    weights["model.encoder.layers.0.fc3.weight"] = weights.pop(
        "model.encoder.layers.0.fc1.weight"
    )


def add(weights):
    weights["model.encoder.layernorm_embedding.weight"] = np.ones(36, "float16")


def reshape(weights):
    name = "model.encoder.layers.0.fc1.weight"
    weights[name] = np.ascontiguousarray(weights[name][:-1])


def spoil(weights):
    weights["model.encoder.layers.0.fc1.bias"][3] = np.nan


def integers(weights):
    weights["model.encoder.layers.0.fc1.bias"] = np.ones(76, "int32")


def complex_numbers(weights):
    weights["model.encoder.layers.0.fc1.bias"] = np.ones(76, "complex64")


def shorten_bias(weights):
    weights["final_logits_bias"] = np.ones((1, 7), "float32")


def other_positions(weights):
    weights["model.encoder.embed_positions.weight"] = np.ones(
        (7, 36), "float16"
    )


def both(*functions):
    return lambda folder: [function(folder) for function in functions]


BAD = {
    "another architecture": (
        lambda f: change_json(f / "config.json", model_type="t5"),
        "model_type='t5'",
    ),
    "no config": (
        lambda f: (f / "config.json").unlink(),
        "neither config.json.* nor decoder.yml",
    ),
    "length penalty": (
        lambda f: change_json(
            f / "generation_config.json", length_penalty=-0.5
        ),
        "length_penalty=-0.5",
    ),
    "no ids": (
        lambda f: change_json(f / "vocab.json", another="x"),
        "number its pieces from 0",
    ),
    "beam size": (
        lambda f: change_json(f / "generation_config.json", num_beams=[4]),
        r"Cannot import.*num_beams=\[4\]",
    ),
    "early stopping": (
        lambda f: change_json(f / "generation_config.json", early_stopping="x"),
        "early_stopping='x'",
    ),
    "barred": (
        lambda f: change_json(f / "generation_config.json", bad_words_ids=[3]),
        r"bad_words_ids=\[3\]",
    ),
    "integers": (
        lambda f: change_weights(f, integers),
        "floating-point.*fc1.bias' of int32",
    ),
    "short bias": (
        lambda f: change_weights(f, shorten_bias),
        r"\(7, 1\), 339 pieces",
    ),
    "broken JSON": (
        lambda f: (f / "config.json").write_text("{"),
        "config.json' is damaged",
    ),
    "no size": (
        lambda f: (f / "config.json").write_text('{"model_type": "marian"}'),
        "must have 'encoder_attention_heads'",
    ),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        "neither model.safetensors nor pytorch_model.bin",
    ),
    "truncated weights": (
        lambda f: truncate(f / "model.safetensors"),
        "model.safetensors' is damaged",
    ),
    "truncated SentencePiece": (
        lambda f: truncate(f / "source.spm"),
        "SentencePiece",
    ),
    "empty SentencePiece": (
        lambda f: (f / "source.spm").write_bytes(b""),
        "must have pieces",
    ),
    "no SentencePiece": (
        lambda f: (f / "target.spm").unlink(),
        "no target.spm",
    ),
    "vocabulary without padding": (without_a_piece, "no piece '<pad>'"),
    "vocabulary too large": (one_piece_more, "340 pieces, 339 rows"),
    "activation": (
        lambda f: change_json(f / "config.json", activation_function="tanh"),
        "'tanh'",
    ),
    "norm": (
        lambda f: change_json(f / "config.json", normalize_before=True),
        "normalize_before=True",
    ),
    "heads": (
        lambda f: change_json(f / "config.json", decoder_attention_heads=4),
        "decoder_attention_heads=4",
    ),
    "missing weight": (lambda f: change_weights(f, rename), "no model.encoder"),
    "unknown weight": (lambda f: change_weights(f, add), "layernorm_embedding"),
    "shape": (lambda f: change_weights(f, reshape), r"expected \(76, 36\)"),
    "complex": (
        lambda f: change_weights(f, complex_numbers),
        "floating-point.*fc1.bias' of complex64",
    ),
    "more layers than weights": (
        lambda f: change_json(f / "config.json", encoder_layers=100_000),
        "encoder must have weights for each layer.*100,000 layers",
    ),
    "wider than its weights": (
        lambda f: change_json(f / "config.json", d_model=360_000),
        "d_model=360000, a table of shape",
    ),
    "infinite": (
        lambda f: (f / "config.json").write_text(
            (f / "config.json").read_text().replace("76", "1e999")
        ),
        "whole number.*ffn_dim=inf",
    ),
    "a fraction of a beam": (
        lambda f: change_json(f / "generation_config.json", num_beams=2.5),
        "whole number.*num_beams=2.5",
    ),
    "a very large beam": (
        lambda f: change_json(f / "generation_config.json", num_beams=10**21),
        "at most 1,000,000.*num_beams=1000000000000000000000",
    ),
    "a penalty that is no number": (
        lambda f: change_json(
            f / "generation_config.json", length_penalty=float("nan")
        ),
        "finite number.*length_penalty=nan",
    ),
    "a penalty beyond all numbers": (
        lambda f: change_json(
            f / "generation_config.json", length_penalty=10**400
        ),
        "finite number.*length_penalty=1000",
    ),
    "not finite": (lambda f: change_weights(f, spoil), "NaN"),
    "code in a pickle": (code_in_a_pickle, "Nothing in it was executed"),
    "positions": (
        lambda f: change_weights(f, other_positions),
        "sines and cosines",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_folder_is_named_and_leaves_nothing(folder, tmp_path, case):
    change, message = BAD[case]
    change(folder)
    with pytest.raises(ValueError, match=message):
        import_marian(folder, tmp_path / "runs" / "run")
    assert not (tmp_path / "runs").exists()


def test_null_is_the_default_of_a_setting(folder, tmp_path):
    nothing = dict.fromkeys(
        ("num_beams", "max_length", "length_penalty", "early_stopping")
    )
    change_json(folder / "generation_config.json", **nothing)
    search = import_marian(folder, tmp_path / "run").search
    assert (search.beam_size, search.max_length, search.alpha) == (1, 511, 1)
    assert search.early_stopping == "heuristic"


def test_the_search_is_that_of_generation_config_alone(folder, tmp_path):
    """As in transformers, which does not look into config.json then."""
    change_json(folder / "config.json", num_beams=6, length_penalty=0.5)
    path = folder / "generation_config.json"
    kept = json.loads(path.read_text())
    for name in ("num_beams", "length_penalty"):
        kept.pop(name, None)
    path.write_text(json.dumps(kept))
    search = import_marian(folder, tmp_path / "run").search
    assert (search.beam_size, search.alpha) == (1, 1)
    path.unlink()
    search = import_marian(folder, tmp_path / "other").search
    assert (search.beam_size, search.alpha) == (6, 0.5)


@pytest.mark.parametrize(
    ("name", "files", "cleaning"),
    [
        ("opus-mt-en-de", {}, (True, "en")),
        ("opus-mt-tc-big-en-de", {"README.md": "# opus-mt-tc-big-en-de"}, None),
        ("a", {"tokenizer_config.json": '{"x": "opusTCv20210807"}'}, None),
        ("b", {"preprocess.sh": "sed -e 's/，/,/g' |"}, None),
        (
            "c",
            {"preprocess.sh": "#normalize-punctuation.perl\nspm_encode"},
            (False, None),
        ),
        (
            "d-x",
            {"preprocess.sh": "a/normalize-punctuation.perl -l $1 |"},
            (False, "en"),
        ),
    ],
)
def test_an_imported_model_cleans_text_as_it_was_trained(
    folder, tmp_path, name, files, cleaning
):
    place = tmp_path / "models" / name
    shutil.copytree(folder, place)
    change_json(place / "tokenizer_config.json", source_lang="en")
    for file, text in files.items():
        if file.endswith(".json"):
            change_json(place / file, **json.loads(text))
        else:
            (place / file).write_text(text)
    search = import_marian(place, tmp_path / "run").search
    found = search.replace_punctuation, search.normalize_punctuation
    assert found == (cleaning or (True, None))
    plain = import_marian(place, tmp_path / "plain", clean_sources=False).search
    assert not plain.replace_punctuation
    assert plain.normalize_punctuation is None


def test_the_original_files_are_cleaned_by_their_script(original, tmp_path):
    shutil.copytree(original, tmp_path / "en-de")
    search = import_marian(tmp_path / "en-de", tmp_path / "one").search
    assert not search.replace_punctuation
    script = tmp_path / "en-de" / "preprocess.sh"
    script.write_text("${TOKENIZER}/replace-unicode-punctuation.perl |")
    search = import_marian(tmp_path / "en-de", tmp_path / "other").search
    assert search.replace_punctuation
    assert search.normalize_punctuation is None


@pytest.mark.parametrize(
    "sentence",
    [
        "Room 17 is on the third floor.",
        "The blue table costs €1,249.50.",
        "Größe 3: ¿Qué, señora?",
    ],
)
def test_what_looks_the_same_has_the_same_ids(folder, tmp_path, sentence):
    run = import_marian(folder, tmp_path / "run")
    translator = translator_of(run, run.search)
    texts = [sentence, *look_alikes(sentence).values()]
    ids = translator._source(tf.constant(texts))[0].to_list()
    assert len(texts) > 40
    assert ids == [ids[0]] * len(texts)


def test_a_large_beam_of_a_model_is_kept(folder, tmp_path):
    change_json(folder / "generation_config.json", num_beams=40)
    search = import_marian(folder, tmp_path / "run").search
    assert search.beam_size == search.max_beam_size == 40


def test_a_large_beam_of_an_original_model_is_kept(original, tmp_path):
    shutil.copytree(original, tmp_path / "en-de")
    with open(tmp_path / "en-de" / "decoder.yml", "a") as file:
        file.write("beam-size: 40\n")  # the last one counts
    search = import_marian(tmp_path / "en-de", tmp_path / "run").search
    assert search.beam_size == search.max_beam_size == 40


def test_the_activation_has_the_default_of_transformers(folder, tmp_path):
    change_json(folder / "config.json", activation_function=None)
    run = import_marian(folder, tmp_path / "run")
    assert run.config.activation == "gelu"


@pytest.mark.parametrize(
    "setting",
    [
        {"encoder_no_repeat_ngram_size": 3},
        {"eos_token_id": [0, 7]},
        {"bad_words_ids": [[338], [5, 6]]},
        {"sequence_bias": [[[5], -1.5]]},
        {"exponential_decay_length_penalty": [9, 1.5]},
        {"penalty_alpha": 0.6},
        {"forced_eos_token_id": None},
        {"a_setting_of_next_year": "x"},
    ],
    ids=str,
)
def test_settings_that_our_search_does_not_have_are_named(
    folder, tmp_path, setting
):
    change_json(folder / "generation_config.json", **setting)
    with pytest.warns(UserWarning, match=next(iter(setting))):
        import_marian(folder, tmp_path / "run")


def test_settings_that_change_no_translation_are_not_named(
    folder, tmp_path, recwarn
):
    change_json(
        folder / "generation_config.json",
        top_k=9,
        no_repeat_ngram_size=0,
        sequence_bias=None,
        num_return_sequences=1,
    )
    import_marian(folder, tmp_path / "run")
    assert not [x for x in recwarn if "settings" in str(x.message)]


def test_rules_against_repetition_are_taken_over(folder, tmp_path, recwarn):
    rules = {"no_repeat_ngram_size": 3, "repetition_penalty": 1.5}
    change_json(folder / "generation_config.json", **rules, min_length=4)
    run = import_marian(folder, tmp_path / "run")
    assert run.search.rules == {**rules, "min_lengths": [4]}
    assert not [x for x in recwarn if "settings" in str(x.message)]
    files = marian_export.export(run, tmp_path / "exported")
    written = json.loads((files / "generation_config.json").read_text())
    assert {name: written[name] for name in rules} == rules
    assert written["min_length"] == 4


def test_a_terminal_only_shows_what_a_model_says(folder, tmp_path, capsys):
    """Its files may hold sequences that a terminal would follow."""
    card = folder / "README.md"
    card.write_text("---\nlicense: \x1b[2Jmit\n---\n")
    import_marian(folder, tmp_path / "run")
    name = "\x1b]0;title\x07\u202e"
    change_json(folder / "config.json", **{name: 1, "model_type": "marian"})
    config = json.loads((folder / "config.json").read_text())
    del config["d_model"]
    (folder / "config.json").write_text(json.dumps(config))
    arguments = ["import", str(folder), str(tmp_path / "other" / name)]
    assert main(arguments) == 1
    shutil.rmtree(folder)
    assert main([arguments[0], name, arguments[2]]) == 1
    printed = "".join(capsys.readouterr())
    assert "must have 'd_model'" in printed
    assert "Licence: not named" in printed
    assert printed.replace("\n", "").isprintable()


def test_a_folder_of_a_run_is_not_overwritten(tmp_path):
    with pytest.raises(ValueError, match="must not exist"):
        import_marian(TINY, tmp_path)


def test_a_name_on_the_hub_needs_the_network(tmp_path, monkeypatch):
    import huggingface_hub

    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "list_repo_files", offline)
    with pytest.raises(ConnectionError, match="no network"):
        import_marian("Helsinki-NLP/opus-mt-en-de", tmp_path / "run")
    with pytest.raises(ValueError, match="'nowhere'"):
        import_marian("nowhere", tmp_path / "run")
