"""Checks how lines are read from files and pipes, and written."""

import io
import os
import subprocess
import sys

import pytest

from keras_transformer.cli import stdio
from keras_transformer.cli.stdio import chunks_of_lines


def test_a_slow_pipe_is_answered_line_by_line():
    reading, writing = os.pipe()
    with open(reading, "rb") as file:
        chunks = chunks_of_lines(file, 4096)
        for lines, expected in (
            (b"one\n", [b"one"]),
            (b"two\r\nthree\nfo", [b"two", b"three"]),
            (b"ur\n\n", [b"four", b""]),
        ):
            os.write(writing, lines)
            assert next(chunks) == expected
        os.write(writing, b"no newline at the end")
        os.close(writing)
        assert list(chunks) == [[b"no newline at the end"]]


def test_a_file_is_read_in_full_chunks(tmp_path):
    lines = [b"line %d" % i for i in range(10_000)]
    (tmp_path / "file").write_bytes(b"\n".join(lines) + b"\n")
    with open(tmp_path / "file", "rb") as file:
        found = list(chunks_of_lines(file, 4096))
    assert [len(chunk) for chunk in found] == [4096, 4096, 1808]
    assert [line for chunk in found for line in chunk] == lines


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", [b"a", b"\xef\xbb\xbfb"]),
        (b"a", [b"a"]),
        (b"\n", [b""]),
        (b"", []),
        (b"\xff\r\n\rb\n", [b"\xff", b"\rb"]),
    ],
)
def test_line_ends_and_a_first_byte_order_mark_are_removed(data, expected):
    found = list(chunks_of_lines(io.BytesIO(data), 7))
    assert [line for chunk in found for line in chunk] == expected


@pytest.mark.parametrize(
    "data", [b"\xef\xbb\xbfa\r\n\n\nb", b"\xef\xbb\xbf", b"\n", b"", b"a\r"]
)
def test_line_ends_and_a_byte_order_mark_can_be_kept(data):
    chunks = list(chunks_of_lines(io.BytesIO(data), 2, keep_ends=True))
    assert b"".join(line for lines in chunks for line in lines) == data
    assert all(len(lines) <= 2 for lines in chunks)


@pytest.mark.parametrize(
    "data", [b"\xef\xbb\xbf\xef\xbb\xbfab\r\n\nc", b"\xefa"]
)
@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize("keep_ends", [False, True])
def test_lines_do_not_depend_on_how_they_arrive(data, most, keep_ends):
    class Pipe(io.BytesIO):
        def read1(self, size=-1):
            return super().read1(most)

    found = list(chunks_of_lines(Pipe(data), 7, keep_ends))
    assert found == list(chunks_of_lines(io.BytesIO(data), 7, keep_ends))


def test_output_is_utf8_in_any_locale(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    stdio.write_line("schön")
    assert output.buffer.getvalue() == "schön\n".encode()


def test_a_closed_standard_output_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ValueError, match="Standard output must be open"):
        stdio.write_line("schön")


@pytest.mark.programs
def test_without_standard_error_the_output_has_no_messages(tmp_path):
    command = f"""{sys.executable} -m keras_transformer translate \
        {tmp_path} 2>&-"""
    done = subprocess.run(command, shell=True, capture_output=True, input=b"x")
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_closed_standard_input_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="Standard input must be open"):
        stdio.standard_input()
