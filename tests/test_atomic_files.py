"""Checks that files are written whole or not at all, names included."""

import os
import pathlib
import re
import stat
import subprocess
import sys

import pytest

from keras_transformer.atomic_files import folder_aside, write_aside
from keras_transformer.training.new_run import start_run


@pytest.fixture
def events(monkeypatch):
    """Returns a list that records flushes to the disk and renames, in order."""
    found = []
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def flush(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        found.append("folder flushed" if is_folder else "file flushed")
        fsync(descriptor)

    def move(function):
        def moved(*paths):
            found.append("renamed")
            function(*paths)

        return moved

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", move(replace))
    monkeypatch.setattr(os, "rename", move(rename))
    return found


WRITTEN = ["file flushed", "renamed", "folder flushed"]


def test_a_file_and_its_name_are_flushed(tmp_path, events):
    with write_aside(tmp_path / "file") as file:
        file.write(b"whole")
    assert events == WRITTEN
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_leaves_the_old_file_unchanged(tmp_path, events):
    (tmp_path / "file").write_bytes(b"old")

    def write_half(file):
        file.write(b"half")
        raise ValueError("no more")

    with (
        pytest.raises(ValueError, match="no more"),
        write_aside(tmp_path / "file") as file,
    ):
        write_half(file)
    assert events == []
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_names_the_file_that_was_to_be_written(tmp_path):
    path = tmp_path / "none" / "file"
    with (
        pytest.raises(FileNotFoundError, match=re.escape(f"'{path}'")),
        write_aside(path),
    ):
        pass


def test_a_new_run_is_flushed_with_its_vocabularies(recipe, tmp_path, events):
    run = start_run(tmp_path / "run", "tiny", recipe, num_layers=1)
    renamed = ["renamed", "folder flushed"]
    # The prepared pairs: two records, a shard, vocabularies and manifest; the
    # folder of these; vocabularies and record of the run; its folder.
    written = [*WRITTEN * 8, *renamed, *WRITTEN * 3, *renamed]
    assert events == written
    assert not list(run.folder.rglob(".*"))


def test_folders_of_killed_processes_are_swept(tmp_path):
    """But not those that a process is writing, nor others."""
    left = tmp_path / ".run.123"
    others = [
        tmp_path / name for name in (".run.old", ".other.123", ".run[1].9")
    ]
    for folder in (left, *others):
        folder.mkdir()
        (folder / "half").write_text("")
    code = """if True:
        import sys
        from keras_transformer.atomic_files import folder_aside
        with folder_aside(sys.argv[1]) as aside:
            (aside / "half").write_text("")
            print(aside, flush=True)
            input()
    """
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writing:
        path = pathlib.Path(writing.stdout.readline().strip())
        with folder_aside(tmp_path / "run"):
            assert not left.exists()
            assert all(folder.exists() for folder in others)
            assert path.exists()
        writing.kill()
    (tmp_path / "run").rmdir()
    with folder_aside(tmp_path / "run"):
        assert not path.exists()
