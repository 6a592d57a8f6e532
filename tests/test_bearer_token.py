"""Tests of the tokens that clients send."""

import os

import pytest

from keras_transformer.serve import access
from keras_transformer.serve.access import Tokens, read_tokens


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"secret", ["secret"]),
        (b"secret\r\n", ["secret"]),
        (b"\xef\xbb\xbfsecret\n", ["secret"]),
        (b"\n secret ", ["secret"]),
        (b"one\n\ntwo\nthree\n", ["one", "two", "three"]),
    ],
)
def test_tokens_are_the_lines_of_their_file(tmp_path, content, expected):
    (tmp_path / "tokens").write_bytes(content)
    assert read_tokens(tmp_path / "tokens") == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "'.*tokens' with 0 lines"),
        (b"\n \n", "'.*tokens' with 0 lines"),
        (b"one\ntwo words", "visible ASCII"),
        ("schlüssel".encode(), "visible ASCII"),
        (b"\xff\xfea\x00", "tokens' is not UTF-8.*iconv"),
    ],
)
def test_what_no_header_can_hold_is_refused(tmp_path, content, expected):
    (tmp_path / "tokens").write_bytes(content)
    with pytest.raises(ValueError, match=expected):
        Tokens(tmp_path / "tokens")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Bearer secret", True),
        (b"bearer secret", True),
        ("BEARER  secret ", True),
        ("Bearer other", True),
        ("Bearer secre", False),
        ("Bearer Secret", False),
        ("Bearer secret\nother", False),
        ("Basic secret", False),
        ("secret", False),
        ("Bearer", False),
        ("Bearer schlüssel", False),
        ("", False),
    ],
)
def test_the_scheme_may_be_in_capitals_and_the_token_not(
    tmp_path, given, expected
):
    (tmp_path / "tokens").write_text("secret\nother\n")
    assert Tokens(tmp_path / "tokens").allow(given) == expected


def test_a_file_that_changes_is_read_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(access, "SECONDS_BETWEEN_LOOKS", 0)
    path = tmp_path / "tokens"
    path.write_text("first\n")
    tokens = Tokens(path)

    def allowed():
        names = "first", "second", "third"
        return {name for name in names if tokens.allow(f"Bearer {name}")}

    assert allowed() == {"first"}
    path.write_text("first\nsecond\n")
    assert allowed() == {"first", "second"}
    # As Kubernetes changes a secret: a link to another file.
    (tmp_path / "new").write_text("third\nsecond")
    os.symlink(tmp_path / "new", tmp_path / "link")
    os.replace(tmp_path / "link", path)
    assert allowed() == {"second", "third"}
    # A file that is missing or holds none changes nothing, and is named.
    caplog.clear()
    path.unlink()
    assert allowed() == {"second", "third"}
    path.write_text("two words\n")
    assert allowed() == {"second", "third"}
    assert caplog.text.count("The tokens stay as they were") == 2
    path.write_text("first\n")
    assert allowed() == {"first"}
