"""Checks that the wheel works outside of the source tree."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

pytestmark = pytest.mark.programs

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Returns a folder with the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(
        ROOT / "keras_transformer",
        source / "keras_transformer",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ["--no-deps", "--no-build-isolation", "--quiet", "-w", folder]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", source, *options], check=True
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def run(installed, folder, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_runs_from_the_wheel(installed, tmp_path):
    result = run(installed, tmp_path, "-m", "keras_transformer", "--help")
    assert result.returncode == 0, result.stderr
    assert "train" in result.stdout


def test_the_wheel_has_the_data_files(installed, tmp_path):
    """Checks the files that an export reads, and `py.typed`."""
    code = """
import pathlib, keras_transformer
from keras_transformer.export import tensorflow_serving as serving
assert serving._known_operations()
assert serving._package_file("export_readme.md")
print(pathlib.Path(keras_transformer.__file__).with_name("py.typed").exists())
print(keras_transformer.__file__)
"""
    result = run(installed, tmp_path, "-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [
        "True",
        str(installed / "keras_transformer" / "__init__.py"),
    ]


def test_the_wheel_has_the_page(installed):
    folder = pathlib.Path("keras_transformer/serve/page")
    names = {path.name for path in (ROOT / folder).iterdir()}
    assert "index.html" in names
    assert {path.name for path in (installed / folder).iterdir()} == names


def test_the_wheel_has_no_tests_or_benchmarks(installed):
    names = {path.name for path in installed.iterdir()}
    assert "keras_transformer" in names
    assert not names & {"tests", "benchmarks", "examples", "docs"}
