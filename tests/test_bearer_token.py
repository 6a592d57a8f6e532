"""Tests of the token that clients send."""

import pytest

from keras_transformer.serve.access import is_bearer, read_token


@pytest.mark.parametrize(
    "content",
    [b"secret", b"secret\r\n", b"\xef\xbb\xbfsecret\n", b"\n secret "],
)
def test_a_token_is_the_line_of_its_file(tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    assert read_token(tmp_path / "token") == "secret"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "'.*token' with 0 lines"),
        (b"one\ntwo\n", "with 2 lines"),
        (b"two words", "visible ASCII"),
        ("schlüssel".encode(), "visible ASCII"),
        (b"\xff\xfea\x00", "token' is not UTF-8.*iconv"),
    ],
)
def test_what_no_header_can_hold_is_refused(tmp_path, content, expected):
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(ValueError, match=expected):
        read_token(tmp_path / "token")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Bearer secret", True),
        (b"bearer secret", True),
        ("BEARER  secret ", True),
        ("Bearer secre", False),
        ("Bearer Secret", False),
        ("Basic secret", False),
        ("secret", False),
        ("Bearer", False),
        ("Bearer schlüssel", False),
        ("", False),
    ],
)
def test_the_scheme_may_be_in_capitals_and_the_token_not(given, expected):
    assert is_bearer(given, "secret") == expected
