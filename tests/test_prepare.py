"""Checks the preparation of corpora: what is kept, where it is, and that it
does not depend on how the work was done."""

import collections
import csv
import dataclasses
import gzip
import json
import lzma
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import unicodedata

import numpy as np
import pyarrow
import pytest
from conftest import folder_bytes
from pyarrow import parquet

from keras_transformer.data import shards, table_files, text_files
from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.data.corpus import load_pairs, open_corpus
from keras_transformer.data.options import Preparation
from keras_transformer.data.preparation import prepare
from keras_transformer.data.prepared_corpus import PreparedCorpus, is_prepared
from keras_transformer.data.shards import find_duplicates
from keras_transformer.data.text_files import read_lines
from keras_transformer.training import Recipe, start_run

SETTINGS = Preparation(vocab_size=400)


@pytest.fixture
def small_blocks(monkeypatch):
    """The 700 pairs of the corpus make seven shards, the last one smaller."""
    monkeypatch.setattr(shards, "BLOCK", 113)


def text_of(prepared, epoch=0):
    """Returns the pairs of an epoch as text."""
    found = prepared.read(np.arange(len(prepared)), epoch)
    sides = []
    for rows, tokenizer in (
        (found.source, prepared.source_tokenizer),
        (found.target, prepared.target_tokenizer),
    ):
        sides.append(tokenizer.decode(rows.tolist()))
    return list(zip(*sides, strict=True))


def pairs_of(corpus, split="train"):
    pairs = load_pairs(str(corpus), split, "en", "de")
    return list(zip(pairs.source, pairs.target, strict=True))


def write_pairs(folder, pairs, split="train", languages=("en", "de")):
    folder.mkdir(exist_ok=True)
    for side, language in enumerate(languages):
        lines = "".join(pair[side] + "\n" for pair in pairs)
        (folder / f"{split}.{language}").write_text(lines)
    return str(folder)


@pytest.mark.usefixtures("small_blocks")
def test_prepared_pairs_are_those_of_the_corpus(corpus, tmp_path):
    prepared = prepare(str(corpus), tmp_path / "prepared", SETTINGS)
    assert text_of(prepared) == pairs_of(corpus)
    assert len(prepared.manifest["corpora"][0]["shards"]) == 7
    rows = np.array([699, 3, 113, 112, 3])
    found = prepared.read(rows, 0)
    everything = prepared.read(np.arange(700), 0)
    assert found.source.tolist() == everything.take(rows).source.tolist()
    assert found.target.tolist() == everything.take(rows).target.tolist()
    assert prepared.read([3], 0).target.tolist() == [found.target.tolist()[1]]
    assert len(prepared.read([], 0)) == 0
    assert prepared.read(np.array([]), 0).source.tolist() == []
    for wrong in (3, [[3]], [0.5], [-1], [700], [True], None):
        with pytest.raises(ValueError, match="`rows` must be a vector"):
            prepared.read(wrong, 0)
    lengths = everything.target.lengths
    assert prepared.target_tokens == lengths.sum()
    # The text of the other splits is beside them.
    assert pairs_of(prepared.folder, "validation") == pairs_of(
        corpus, "validation"
    )


def test_every_reason_is_counted(tmp_path):
    good = [(f"one {i} two", f"eins {i} zwei") for i in range(40)]
    bad = {
        "damaged": [],
        "blank": [(" ", "leer"), ("empty", "")],
        "identical": [("same", "same "), ("same", "same"), ("ok", "ok")],
        "duplicate": [good[3], good[3]],
        "too_long": [("1 " * 60, "eins"), ("one", "2 " * 60)],
        "length_ratio": [("one", "1 2 3 4 5 6 7 8 9 0 1 2")],
    }
    # The second corpus repeats a pair of the first one.
    first = [*good, *(pair for pairs in bad.values() for pair in pairs)]
    corpora = [
        write_pairs(tmp_path / "a", first),
        write_pairs(tmp_path / "b", [("new", "neu"), good[5]]),
    ]
    write_pairs(tmp_path / "a", good[:2], "validation")
    settings = dataclasses.replace(
        SETTINGS,
        vocab_size=310,
        max_length=50,
        max_length_ratio=3.0,
        drop_duplicates=True,
        drop_identical=True,
    )
    prepared = prepare(corpora, tmp_path / "prepared", settings)
    left_out = [c["left_out"] for c in prepared.manifest["corpora"]]
    assert left_out[0] == {name: len(pairs) for name, pairs in bad.items()}
    assert left_out[1] == {**dict.fromkeys(bad, 0), "duplicate": 1}
    assert text_of(prepared) == [*good, ("new", "neu")]
    # Without these settings, only blank and over-long pairs are left out.
    plain = dataclasses.replace(SETTINGS, vocab_size=310, max_length=50)
    kept = prepare(corpora, tmp_path / "plain", plain)
    assert len(kept) == len(first) + 2 - len(bad["blank"] + bad["too_long"])


def test_duplicates_are_found_across_blocks():
    hashes = {(0, 1): [5, 7, 5], (0, 0): [7, 9], (1, 0): [9, 1]}
    found = find_duplicates({k: np.array(v) for k, v in hashes.items()})
    assert {key: repeated.tolist() for key, repeated in found.items()} == {
        (0, 0): [False, False],
        (0, 1): [False, True, True],
        (1, 0): [True, False],
    }
    assert find_duplicates({}) == {}


def test_spaces_make_no_other_pair(tmp_path):
    """Pairs with the same ids are duplicates."""
    pairs = [("one two", "eins zwei"), (" one  two", "eins zwei  ")]
    pairs += [("one\u00a0two", "eins zwei"), ("onetwo", "eins zwei")]
    pairs += [
        ("one two", "eins\u00a0zwei"),
        ("one t\u00adwo", "ei\u200bns zwei"),
    ]
    corpus = write_pairs(tmp_path / "corpus", pairs)
    write_pairs(tmp_path / "corpus", pairs[:1], "validation")
    settings = Preparation(vocab_size=275, drop_duplicates=True)
    prepared = prepare(corpus, tmp_path / "prepared", settings)
    assert prepared.manifest["corpora"][0]["left_out"]["duplicate"] == 3
    assert len(prepared) == 3


def test_a_vocabulary_of_distinct_pairs_sees_each_once(corpus, tmp_path):
    """Text that comes a thousand times does not crowd out the rest."""
    pairs = pairs_of(corpus)[:200]
    folders = []
    for name, more in (("once", 1), ("often", 3000)):
        folder = tmp_path / name
        again = [("We use cookies.", "Wir nutzen Cookies.")] * more
        folders.append(write_pairs(folder, [*pairs, *again]))
        write_pairs(folder, pairs[:1], "validation")
    settings = Preparation(
        vocab_size=350, vocabulary_pairs=150, drop_duplicates=True
    )
    once, often = (
        prepare(folder, f"{folder}-prepared", settings) for folder in folders
    )
    assert once.source_tokenizer.model == often.source_tokenizer.model
    other = dataclasses.replace(settings, seed=2)
    other = prepare(folders[0], tmp_path / "other", other)
    assert other.source_tokenizer.model != once.source_tokenizer.model


def test_there_may_be_more_shards_than_open_files(
    corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(shards, "BLOCK", 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    now_open = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (now_open + 40, hard))
    try:
        prepared = prepare(str(corpus), tmp_path / "prepared", SETTINGS)
        assert len(prepared.manifest["corpora"][0]["shards"]) == 70
        assert text_of(prepared) == pairs_of(corpus)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_corpus_that_changes_in_use_is_not_read_on(corpus, tmp_path):
    folder = tmp_path / "prepared"
    prepared = prepare(str(corpus), folder, SETTINGS)
    rows = np.array([3])
    prepared.read(rows, 0)
    for path in folder.iterdir():  # as a copy of the files would have it
        os.utime(path, (1, 1))
    prepared.read(rows, 0)
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match=r"has changed while .* in use"):
        prepared.read(rows, 0)
    prepare(str(corpus), folder, Preparation(vocab_size=350))
    with pytest.raises(ValueError, match=r"has changed while .* in use"):
        prepared.read(rows, 0)


def test_a_corpus_may_be_a_path(corpus, tmp_path):
    path = pathlib.Path(corpus)
    found = load_pairs(path, "train", "en", "de")
    assert found == load_pairs(str(corpus), "train", "en", "de")
    prepared = prepare(path, tmp_path / "prepared", SETTINGS)
    again = prepare([path], tmp_path / "again", SETTINGS)
    assert prepared.digest == again.digest


def test_names_of_corpora_are_not_taken_for_folders(tmp_path, monkeypatch):
    """Here the folders of these names do hold a prepared corpus."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("builtin").mkdir()
    for folder in (".", "builtin"):
        pathlib.Path(folder, "manifest.json").write_text("{}")
    assert not is_prepared("")
    assert not is_prepared("builtin")
    assert is_prepared(".")


def test_weights_say_how_often_a_pair_comes(corpus, tmp_path):
    pairs = pairs_of(corpus)
    corpora = [
        write_pairs(tmp_path / "a", pairs[:31]),
        write_pairs(tmp_path / "b", pairs[31:48]),
    ]
    write_pairs(tmp_path / "a", pairs[:2], "validation")
    settings = dataclasses.replace(SETTINGS, vocab_size=330)
    prepared = prepare(corpora, tmp_path / "c", settings, weights=[1, 2.5])
    assert len(prepared) == 31 + round(2.5 * 17)
    extra = []
    for epoch in range(3):
        counts = collections.Counter(text_of(prepared, epoch))
        assert all(counts[pair] == 1 for pair in pairs[:31])
        assert {counts[pair] for pair in pairs[31:48]} == {2, 3}
        extra.append({pair for pair, n in counts.items() if n == 3})
    assert [len(found) for found in extra] == [8, 8, 8]
    assert len(set(map(frozenset, extra))) == 3  # other pairs in each epoch


def zstandard(data):
    stream = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(stream, "zstd") as file:
        file.write(data)
    return stream.getvalue().to_pybytes()


COMPRESS = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_that_was_cut_is_named(tmp_path, suffix):
    text = "".join(f"{number:x}\n" for number in range(99_999))
    path = tmp_path / f"train.en{suffix}"
    data = COMPRESS[suffix](text.encode())
    path.write_bytes(data)
    assert read_lines(path) == text.split()
    path.write_bytes(data[:-99])
    with pytest.raises(ValueError, match=rf"Cannot read .*train.en{suffix}"):
        read_lines(path)


@pytest.mark.parametrize("suffix", [*COMPRESS, ""])
def test_files_may_be_compressed_and_in_parts(corpus, tmp_path, suffix):
    pairs = pairs_of(corpus)
    for part, some in (("b", pairs[11:]), ("a", pairs[:11])):
        write_pairs(tmp_path, some, f"train-{part}")
    for path in tmp_path.glob("train-*"):
        data = path.read_bytes()
        if suffix:
            data = COMPRESS[suffix](data)
        path.rename(f"{path}{suffix}")
        path.with_name(path.name + suffix).write_bytes(data)
    assert pairs_of(tmp_path) == pairs
    # A compressed copy beside the file is not read twice.
    (tmp_path / "train-a.en.gz").write_bytes(b"")
    if not suffix:
        assert pairs_of(tmp_path) == pairs


def rows_of(pairs, nested):
    rows = [{"en": source, "de": target} for source, target in pairs]
    return [{"translation": row} for row in rows] if nested else rows


def test_tables_hold_pairs_in_columns(corpus, tmp_path):
    pairs = pairs_of(corpus)[:37]
    lines = [f"{i}\t{s}\t{t}" for i, (s, t) in enumerate(pairs)]
    (tmp_path / "train.tsv").write_text("\n".join(["id\ten\tde", *lines]))
    assert pairs_of(tmp_path) == pairs
    (tmp_path / "train.tsv").write_text("\n".join(lines))
    found = open_corpus(str(tmp_path), "train", "2", "3")
    assert list(found) == list(found) == pairs
    # A line that is empty is a pair of two blank sides, as in parallel files.
    (tmp_path / "train.tsv").write_text("\n".join([*lines, "", ""]))
    assert list(open_corpus(str(tmp_path), "train", "2", "3")) == [
        *pairs,
        ("", ""),
    ]


@pytest.mark.parametrize("nested", [False, True])
def test_rows_and_parquet_files_hold_pairs(corpus, tmp_path, nested):
    pairs = [*pairs_of(corpus)[:37], ("missing", "")]
    rows = rows_of(pairs, nested)
    found = open_corpus(rows, "train", "en", "de")
    assert list(found) == list(found) == pairs
    (rows[-1]["translation"] if nested else rows[-1])["de"] = None
    for name, part in (("00000-of-2", rows[:20]), ("00001-of-2", rows[20:])):
        table = pyarrow.Table.from_pylist(part)
        parquet.write_table(table, tmp_path / f"train-{name}.parquet")
    assert pairs_of(tmp_path) == pairs


def test_rows_in_python_are_prepared_and_trained_on(corpus, tmp_path):
    """As a data set of Hugging Face is, whose splits are rows each."""
    train, validation = (
        rows_of(pairs_of(corpus, split), nested=True)
        for split in ("train", "validation")
    )
    prepared = prepare(
        [train],
        tmp_path / "prepared",
        SETTINGS,
        evaluation={"validation": validation},
    )
    assert text_of(prepared) == pairs_of(corpus)
    assert pairs_of(prepared.folder, "validation") == pairs_of(
        corpus, "validation"
    )


def test_rows_are_validated_on_other_rows_only(corpus, tmp_path):
    rows = rows_of(pairs_of(corpus), nested=False)
    found = prepare([rows], tmp_path / "prepared", SETTINGS)
    assert found.manifest["evaluation"] == {}
    with pytest.raises(ValueError, match="keys"):
        prepare([rows], tmp_path / "x", SETTINGS, evaluation={"valid": rows})
    both = {"validation": rows[:3], "test": rows[:2]}
    found = prepare([rows], tmp_path / "x", SETTINGS, evaluation=both)
    assert found.manifest["evaluation"] == {"validation": 3, "test": 2}


def test_columns_may_be_named_translation(tmp_path):
    for rows in (
        [{"en": "one", "de": "eins", "translation": "un"}],
        [{"en": "one", "translation": "eins", "de": "eins"}],
    ):
        table = pyarrow.Table.from_pylist(rows)
        parquet.write_table(table, tmp_path / "train.parquet")
        assert pairs_of(tmp_path) == [("one", "eins")]
    found = open_corpus(str(tmp_path), "train", "en", "translation")
    assert list(found) == [("one", "eins")]
    rows = [{"translation": None}, {"translation": {"en": "a", "de": "b"}}]
    found = open_corpus(rows, "train", "en", "de")
    assert list(found) == [("", ""), ("a", "b")]


def test_names_of_parts_may_hold_the_language(tmp_path):
    """As those of WMT do: europarl-v7.de-en.de."""
    for part in ("a.de-en", "b.en"):
        write_pairs(tmp_path, [(part, f"{part}!")], f"train-{part}")
    assert pairs_of(tmp_path) == [("a.de-en", "a.de-en!"), ("b.en", "b.en!")]
    write_pairs(tmp_path, [("whole", "ganz")])
    with pytest.raises(ValueError, match="one file or has parts"):
        pairs_of(tmp_path)


def test_a_broken_validation_split_is_found_first(
    corpus, tmp_path, monkeypatch
):
    folder = tmp_path / "corpus"
    shutil.copytree(corpus, folder)
    for language in ("en", "de"):
        (folder / f"validation.{language}").write_text("")
    monkeypatch.setattr(shards, "write_shard", None)
    with pytest.raises(ValueError, match="Received: validation, without any"):
        prepare(str(folder), tmp_path / "prepared", SETTINGS)
    assert not list(tmp_path.glob(".*"))
    (folder / "validation.de").write_text("eins\n")
    with pytest.raises(ValueError, match="same number of lines"):
        prepare(str(folder), tmp_path / "prepared", SETTINGS)
    (folder / "validation.en").write_text(" \n")
    (folder / "validation.de").write_text("leer\n")
    recipe = Recipe(
        corpus=str(folder), source="en", target="de", vocab_size=400
    )
    with pytest.raises(ValueError, match=r"no pair to translate.*1 blank"):
        start_run(tmp_path / "run", "tiny", recipe)
    assert not (tmp_path / "run").exists()


def test_a_sample_of_the_text_teaches_the_vocabulary(corpus, tmp_path):
    """The seed decides which pairs are in the sample."""
    settings = dataclasses.replace(
        SETTINGS, vocabulary_pairs=199, vocab_size=350
    )
    models = {
        seed: prepare(
            str(corpus),
            tmp_path / str(seed),
            dataclasses.replace(settings, seed=seed),
        ).source_tokenizer.model
        for seed in (1, 2)
    }
    assert models[1] != models[2]


@pytest.mark.usefixtures("small_blocks")
def test_what_was_stopped_goes_on_and_gives_the_same_bytes(
    corpus, tmp_path, monkeypatch
):
    settings = dataclasses.replace(SETTINGS, drop_duplicates=True)
    whole = prepare(str(corpus), tmp_path / "whole", settings)
    written = []
    write = shards.write_shard

    def write_some(folder, name, *rest):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(name)
        return write(folder, name, *rest)

    monkeypatch.setattr(shards, "write_shard", write_some)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            prepare(str(corpus), tmp_path / "other", settings)
    assert not (tmp_path / "other").exists()
    monkeypatch.setattr(shards, "write_shard", write)
    prepare(str(corpus), tmp_path / "other", settings)
    assert len(written) == 3  # none of them was written again
    assert folder_bytes(tmp_path / "other") == folder_bytes(whole.folder)
    # Nothing is taken over by a job with other settings.
    monkeypatch.setattr(shards, "write_shard", write_some)
    with pytest.raises(KeyboardInterrupt):
        prepare(str(corpus), tmp_path / "third", settings)
    monkeypatch.setattr(shards, "write_shard", write)
    longer = dataclasses.replace(settings, max_length=25)
    third = prepare(str(corpus), tmp_path / "third", longer)
    assert third.read(np.arange(len(third)), 0).lengths.max() <= 25


KILLED_WHEN_WRITING = """
import os, signal, sys
from keras_transformer.data import prepare, shards
from keras_transformer.data.options import Preparation

shards.BLOCK = 29
count, replace = 0, os.replace

def killed(*names):
    global count
    count += 1
    if count > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*names)

os.replace = killed
prepare(sys.argv[1], sys.argv[2], Preparation(vocab_size=400))
"""


@pytest.mark.slow
def test_twenty_kills_while_preparing_change_nothing(
    corpus, tmp_path, monkeypatch
):
    """Each process is killed after four to six more files."""
    monkeypatch.setattr(shards, "BLOCK", 29)
    whole = prepare(str(corpus), tmp_path / "whole", SETTINGS)
    folder, kills, status = tmp_path / "other", 0, -signal.SIGKILL
    while status:
        assert status == -signal.SIGKILL
        assert not folder.exists()
        command = [sys.executable, "-c", KILLED_WHEN_WRITING, corpus, folder]
        status = subprocess.run(
            [*command, str(4 + kills % 3)], check=False
        ).returncode
        kills += status != 0
    assert kills >= 20
    assert folder_bytes(folder) == folder_bytes(whole.folder)


def test_a_flipped_byte_is_named(corpus, tmp_path):
    folder = prepare(str(corpus), tmp_path / "prepared", SETTINGS).folder
    texts = [*folder.glob("validation.*")]
    assert len(texts) == 2
    for path in [*folder.glob("*.npy"), *folder.glob("*.model"), *texts]:
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(ValueError, match=f"{path.name}' is damaged"):
            PreparedCorpus(folder)
        path.unlink()
        with pytest.raises(ValueError, match=f"Cannot read .*{path.name}"):
            PreparedCorpus(folder)
        path.write_bytes(data)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text()[:-9])
    with pytest.raises(ValueError, match=r"manifest.json' is damaged"):
        PreparedCorpus(folder)
    for content, found in (({"format": 999}, 999), ([{"name": "x"}], None)):
        manifest.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=f"format {found}, .*another name"):
            PreparedCorpus(folder)
    with pytest.raises(ValueError, match="Not a prepared corpus"):
        PreparedCorpus(tmp_path)


def unequal(folder):
    (folder / "train.en").write_text("one\ntwo\nthree\n")
    (folder / "train.de").write_text("eins\nzwei\n")


def missing_column(folder):
    (folder / "train.tsv").write_text("en\tfr\none\tun\n")


def short_row(folder):
    (folder / "train.tsv").write_text("en\tde\none\teins\ntwo\n")


def nothing_left(folder):
    (folder / "train.tsv").write_text("en\tde\none\t\n")


def no_text(folder):
    (folder / "train.tsv").write_text("")


def in_columns(**columns):
    def spoil(folder):
        table = pyarrow.table({name: [cell] for name, cell in columns.items()})
        parquet.write_table(table, folder / "train.parquet")

    return spoil


def not_unicode(folder):
    cells = pyarrow.array([b"caf\xe9"]).view(pyarrow.string())
    table = pyarrow.table({"en": cells, "de": ["eins"]})
    parquet.write_table(table, folder / "train.parquet")


def empty_gzip(folder):
    for language in ("en", "de"):
        (folder / f"train.{language}.gz").write_bytes(b"")


BROKEN = [
    (not_unicode, r"Cannot read .*train.parquet"),
    (empty_gzip, r"Cannot read .*train.en.gz.*it is empty.*complete"),
    (unequal, "3 in .*train.en.*2 in .*train.de"),
    (missing_column, r"no column 'de'\. Expected one of: \['en', 'fr'\]"),
    (short_row, "Line 3 of .*have 2 cells.*Received: 1"),
    (nothing_left, "no pair left|Cannot learn a vocabulary"),
    (no_text, "no column 'en'"),
    (in_columns(en="one", de=1), "'de' of .*train.parquet.*text.*: int"),
    (in_columns(en=b"one", de="eins"), "'en' of .*must hold text.*: bytes"),
    (
        in_columns(text="one", translation="eins is de for one in en"),
        r"no column 'en'\. Expected one of: \['translation'\]",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), BROKEN)
def test_a_broken_corpus_is_named_and_leaves_no_files(tmp_path, spoil, message):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "validation.tsv").write_text("en\tde\none\teins\n")
    spoil(corpus)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message):
        prepare(str(corpus), tmp_path / "new" / "prepared", SETTINGS)
    assert sorted(tmp_path.rglob("*")) == before


def test_composed_and_decomposed_corpora_give_the_same_shards(tmp_path):
    pairs = list(pairs_of_split("train", 400))
    assert any("ü" in target for _, target in pairs)
    made = []
    for form in ("NFC", "NFD"):
        some = [
            tuple(unicodedata.normalize(form, text) for text in pair)
            for pair in pairs
        ]
        corpus = write_pairs(tmp_path / form, some)
        write_pairs(tmp_path / form, pairs[:3], "validation")
        settings = dataclasses.replace(SETTINGS, drop_duplicates=True)
        made.append(prepare(corpus, tmp_path / f"prepared-{form}", settings))
    files = [
        {
            path.name: path.read_bytes()
            for pattern in ("*.npy", "*.model")
            for path in prepared.folder.glob(pattern)
        }
        for prepared in made
    ]
    assert len(files[0]) == 4
    assert files[0] == files[1]


def damaged_utf8(folder):
    pairs = [(f"one é {i}", f"eins ü {i}") for i in range(50)]
    write_pairs(folder, pairs)
    path = folder / "train.de"
    path.write_bytes(path.read_bytes().replace("ü 7\n".encode(), b"\xfc 7\n"))
    return pairs[:7] + pairs[8:]


def half_a_character(folder):
    pairs = [(f"one é {i}", f"eins ü {i}") for i in range(50)]
    write_pairs(folder, pairs)
    path = folder / "train.en"
    path.write_bytes(path.read_bytes() + "ü".encode()[:1])
    with open(folder / "train.de", "a") as file:
        file.write("eins\n")
    return pairs


def uneven_rows(folder):
    pairs = [(f"one {i}", f"eins {i}") for i in range(50)]
    rows = ["\t".join(pair) for pair in pairs]
    rows[3:3] = ["short", "a tab\tinside\tein Tab"]
    (folder / "train.tsv").write_text("\n".join(["en\tde", *rows]))
    return pairs


def surrogates(folder):  # as CESU-8 writes a character beyond 16 bits
    pairs = [(f"one é {i}", f"eins ü {i}") for i in range(50)]
    write_pairs(folder, pairs)
    path = folder / "train.en"
    data = path.read_bytes().replace(b"9\n", b"\xed\xa0\xbd\xed\xb8\x80\n")
    path.write_bytes(data)
    return [pair for pair in pairs if not pair[0].endswith("9")]


def damaged_quotes(folder):
    pairs = [(f'say "one" {i}', f"eins {i}") for i in range(50)]
    rows = [
        f'"{source.replace(chr(34), chr(34) * 2)}"\t{target}'
        for source, target in pairs
    ]
    text = "\n".join(["en\tde", *rows, '"a" b\tc', '"open\tb', ""])
    # Behind the lines that show how cells are quoted.
    (folder / "train.tsv").write_text(text)
    return pairs


@pytest.mark.parametrize(
    ("spoil", "count", "message"),
    [
        (damaged_utf8, 1, r"Line 8 of .*train.de.*byte 6.*Mend it.*--skip-dam"),
        (half_a_character, 1, r"Line 51 of .*train.en.*Mend it"),
        (surrogates, 5, r"Line 10 of .*train.en' is not UTF-8.*Mend it"),
        (uneven_rows, 2, r"Line 5 of .*2 cells.*Received: 1.*--skip-damaged"),
        (damaged_quotes, 2, r"Line 52 of .*quoted cell that is damaged"),
    ],
)
def test_damaged_pairs_are_counted_and_left_out_on_request(
    tmp_path, spoil, count, message, monkeypatch
):
    monkeypatch.setattr(table_files, "SAMPLE", 40)
    (tmp_path / "corpus").mkdir()
    kept = spoil(tmp_path / "corpus")
    (tmp_path / "corpus" / "validation.tsv").write_text("en\tde\none\teins\n")
    arguments = str(tmp_path / "corpus"), tmp_path / "prepared"
    settings = Preparation(vocab_size=280)
    with pytest.raises(ValueError, match=message):
        prepare(*arguments, settings)
    settings = dataclasses.replace(settings, skip_damaged=True)
    prepared = prepare(*arguments, settings)
    assert text_of(prepared) == kept
    (record,) = prepared.manifest["corpora"]
    assert record["left_out"]["damaged"] == count
    assert record["pairs_read"] == len(kept) + count


def test_a_file_of_damaged_lines_is_looked_at_once_each(tmp_path, monkeypatch):
    """Not from its start for each of its lines."""
    opened = []
    opener = text_files._opener
    monkeypatch.setattr(
        text_files, "_opener", lambda path: opened.append(path) or opener(path)
    )
    write_pairs(tmp_path, [("one", "eins")] * 1000)
    (tmp_path / "train.de").write_bytes(b"caf\xe9\n" * 1000)
    stream = open_corpus(str(tmp_path), "train", "en", "de")
    assert list(stream.with_damaged()) == [None] * 1000
    assert len(opened) == 2


def test_the_advice_fits_the_damage(tmp_path):
    lines = ["naïve", "plain", "café", "déjà vu"]
    path = tmp_path / "text"
    path.write_text("\n".join(lines), encoding="latin1")
    with pytest.raises(ValueError, match=r"Line 1 .*iconv -f latin1"):
        read_lines(path)
    path.write_text("\n".join(lines), encoding="utf-16")
    with pytest.raises(ValueError, match=r"is UTF-16.*iconv -f utf-16"):
        read_lines(path)
    path.write_bytes("\n".join(lines).encode() + b"\n\xe9")
    with pytest.raises(ValueError, match=r"Line 5 .*Mend it") as found:
        read_lines(path)
    assert "latin1" not in str(found.value)


def test_utf_16_is_no_damaged_line(tmp_path):
    pairs = [("one", "eins")] * 5
    corpus = write_pairs(tmp_path / "corpus", pairs)
    write_pairs(tmp_path / "corpus", pairs, "validation")
    text = "one\n" * 5
    (tmp_path / "corpus" / "train.en").write_text(text, encoding="utf-16")
    settings = Preparation(vocab_size=270, skip_damaged=True)
    with pytest.raises(ValueError, match="UTF-16"):
        prepare(corpus, tmp_path / "prepared", settings)


CELLS = [
    ("plain", "einfach"),
    ('5" screen', "5-Zoll-Bildschirm"),
    ('"All quoted."', '„Alles.“ "'),
    ("a\ttab", "ein\tTab"),
    ("two\nlines", "zwei\nZeilen"),
    ("commas, too", "auch; Kommas"),
    ("", "leer"),
]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_quoted_cells_are_read_as_they_were_written(tmp_path, quoting):
    """As pandas writes them, which uses this writer, and spreadsheets."""
    with open(tmp_path / "train.tsv", "w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=quoting)
        writer.writerows([("en", "de"), *CELLS])
    assert pairs_of(tmp_path) == CELLS


def test_quotation_marks_of_a_plain_table_are_text(tmp_path):
    cells = [pair for pair in CELLS if not {"\t", "\n"} & set("".join(pair))]
    cells += [('"Quoted."', '"Zitiert."'), ('"', '""')]
    text = "".join("\t".join(pair) + "\n" for pair in [("en", "de"), *cells])
    (tmp_path / "train.tsv").write_text(text)
    assert pairs_of(tmp_path) == cells


def test_wrong_arguments_are_refused(corpus, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="must not exist"):
        prepare(str(corpus), tmp_path / "there")
    with pytest.raises(ValueError, match=r"2 corpora, weights=\[1\]"):
        prepare([str(corpus)] * 2, tmp_path / "new", weights=[1])
    with pytest.raises(ValueError, match="positive weight"):
        prepare(str(corpus), tmp_path / "new", weights=[0])
    for weight in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive weight"):
            prepare(str(corpus), tmp_path / "new", weights=[weight])
    pair = write_pairs(tmp_path / "pair", [("one two three", "eins zwei")])
    write_pairs(tmp_path / "pair", [("one", "eins")], "validation")
    small = dataclasses.replace(SETTINGS, vocab_size=290)
    with (
        pytest.warns(UserWarning, match="leaves none of its pairs"),
        pytest.raises(ValueError, match="no pair left"),
    ):
        prepare(pair, tmp_path / "new", small, weights=[0.4])
    with pytest.warns(UserWarning, match="leaves none of its pairs"):
        found = prepare([pair] * 2, tmp_path / "half", small, weights=[1, 0.4])
    assert len(found) == 1
    same = dataclasses.replace(SETTINGS, source="de")
    with pytest.raises(ValueError, match="different names"):
        prepare(str(corpus), tmp_path / "new", same)
    with pytest.raises(ValueError, match="only once"):
        prepare([iter([])], tmp_path / "new")
    with pytest.raises(ValueError, match=r"Give `\[rows\]`"):
        prepare([{"en": "one", "de": "eins"}], tmp_path / "new")
    for wrong in ({"max_length_ratio": 0.5}, {"vocabulary_pairs": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Preparation(**wrong)
    assert not (tmp_path / "new").exists()
