import errno
import gzip
import urllib.error

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.util import DownloadError

from keras_transformer.data import tfds_corpus
from keras_transformer.data.builtin import phrases
from keras_transformer.data.corpus import (
    SentencePairs,
    load_pairs,
    remove_unusable,
)
from keras_transformer.data.text_files import read_lines


def write(folder, name, data):
    (folder / name).write_bytes(
        gzip.compress(data) if name.endswith(".gz") else data
    )


def test_lines_end_at_newline_alone(tmp_path):
    text = "a\u2028b\x85c\x0bd\x0ce\r\n\nlast"
    write(tmp_path, "x.en", b"\xef\xbb\xbf" + text.encode())
    assert read_lines(tmp_path / "x.en") == [
        "a\u2028b\x85c\x0bd\x0ce",
        "",
        "last",
    ]


def test_an_empty_file_has_no_lines_and_an_empty_line_is_one(tmp_path):
    write(tmp_path, "none", b"")
    write(tmp_path, "one", b"\n")
    assert read_lines(tmp_path / "none") == []
    assert read_lines(tmp_path / "one") == [""]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("name", ["validation", "valid", "val", "dev"])
def test_folder_with_usual_names(tmp_path, name, suffix):
    write(tmp_path, f"{name}.en{suffix}", b"one\ntwo\n")
    write(tmp_path, f"{name}.de{suffix}", "eins\nzwölf\n".encode())
    pairs = load_pairs(str(tmp_path), "validation", "en", "de")
    assert pairs == SentencePairs(["one", "two"], ["eins", "zwölf"])


def test_not_utf_8_names_file_and_line(tmp_path):
    write(tmp_path, "x.en", b"good\nb\xffd\n")
    with pytest.raises(ValueError, match=r"Line 2 of .*x.en.* not UTF-8"):
        read_lines(tmp_path / "x.en")


@pytest.mark.parametrize(
    ("name", "split", "language", "message"),
    [
        ("nowhere", "train", "en", "nowhere.*no folder"),
        (".", "train", "fr", "train.fr, train.tsv, train.parquet"),
        (".", "../train", "en", "letters"),
        (".", "train", "../en", "letters"),
    ],
)
def test_what_is_not_there_is_named(
    tmp_path, monkeypatch, name, split, language, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_pairs(name, split, language, "de")


def test_blank_sides_are_dropped_and_counted():
    pairs = SentencePairs(["a", " ", "c", "d"], ["x", "y", "", "z"])
    kept, dropped = remove_unusable(pairs)
    assert (kept, dropped) == (SentencePairs(["a", "d"], ["x", "z"]), 2)


TFDS = "tfds:keras_transformer_phrases"


@pytest.fixture
def small_builtin(monkeypatch, tmp_path):
    """The built-in corpus, through TensorFlow Datasets, in small."""
    from keras_transformer.data.builtin import dataset as builtin

    monkeypatch.setattr(
        builtin, "SIZES", {"train": 53, "validation": 7, "test": 5}
    )
    return str(tmp_path)


def test_builtin_through_tensorflow_datasets(small_builtin):
    pairs = load_pairs(TFDS, "train", "en", "de", small_builtin)
    expected = list(phrases.pairs_of_split("train", 53))
    found = list(zip(pairs.source, pairs.target, strict=True))
    assert sorted(found) == sorted(expected)
    some = load_pairs(TFDS, "validation[:3]", "de", "en", small_builtin)
    assert len(some) == 3
    again = load_pairs(TFDS, "train", "en", "de", small_builtin)
    assert again == pairs


def test_builtin_needs_no_tensorflow_datasets(monkeypatch):
    monkeypatch.setattr(phrases, "SIZES", {"train": 53, "test": 5})
    pairs = load_pairs("builtin", "train", "de", "en")
    found = list(zip(pairs.target, pairs.source, strict=True))
    assert found == list(phrases.pairs_of_split("train", 53))
    with pytest.raises(ValueError, match=r"languages en and de.*'fr'"):
        load_pairs("builtin", "train", "fr", "en")


@pytest.mark.parametrize(
    ("name", "split", "language", "message"),
    [
        (TFDS, "train", "fr", "no language 'fr'. Expected one of: de, en"),
        (TFDS, "dev", "en", "no split 'dev'. Expected one of"),
        ("tfds:no_such_set", "train", "en", "no corpus 'no_such_set'"),
    ],
)
def test_what_tensorflow_datasets_lacks_is_named(
    small_builtin, name, split, language, message
):
    with pytest.raises(ValueError, match=message):
        load_pairs(name, split, language, "de", small_builtin)


def test_without_a_network_it_fails_at_once(monkeypatch, tmp_path):
    def no_network(*_):
        raise OSError("Name or service not known")

    monkeypatch.setattr(tfds_corpus.socket, "getaddrinfo", no_network)
    monkeypatch.setattr(tfds_corpus.urllib.request, "getproxies", dict)
    monkeypatch.setattr(
        tfds.core.DatasetBuilder,
        "download_and_prepare",
        lambda *_: pytest.fail("would have tried for minutes"),
    )
    with pytest.raises(ConnectionError, match=r"phontron.*--data-dir"):
        load_pairs(
            "tfds:ted_hrlr_translate/pt_to_en",
            "train",
            "pt",
            "en",
            str(tmp_path),
        )


def test_a_full_disk_is_no_missing_network(small_builtin, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", full)
    with pytest.raises(OSError, match=r"disk is full.*--data-dir") as caught:
        load_pairs(TFDS, "train", "en", "de", small_builtin)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/nowhere"),
            PermissionError,
            r"cannot be prepared: Permission denied.*--data-dir.*'/nowhere'",
        ),
        (
            urllib.error.HTTPError("http://x", 404, "Not Found", None, None),
            ConnectionError,
            "Cannot download .*404",
        ),
        (
            DownloadError("Failed to get url http://x. HTTP code: 404."),
            ConnectionError,
            "Cannot download .*HTTP code: 404",
        ),
    ],
    ids=["folder", "network", "download"],
)
def test_an_error_of_the_preparation_has_its_remedy(
    small_builtin, monkeypatch, error, expected, message
):
    def fail(*_):
        raise error

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(expected, match=message):
        load_pairs(TFDS, "train", "en", "de", small_builtin)
