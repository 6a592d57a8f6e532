"""Runs every guide, in miniature, as a program of its own."""

import ast
import os
import pathlib
import re
import runpy
import subprocess
import sys
from xml.etree import ElementTree

import pytest

DOCS = pathlib.Path(__file__).parents[1] / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.py"))
FIGURES = sorted((DOCS / "figures").glob("*.svg"))
each_guide = pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
STEPS = re.compile(r"^STEPS = \d+$", re.MULTILINE)


def test_there_are_guides():
    assert len(GUIDES) >= 6


@pytest.mark.programs
@each_guide
def test_it_runs_and_leaves_no_files(path, tmp_path):
    """In a process of its own: devices are set before TensorFlow starts."""
    program, here, temporary = (
        tmp_path / name for name in ("program", "here", "temporary")
    )
    for folder in (program, here, temporary):
        folder.mkdir()
    program = program / path.name
    program.write_text(STEPS.sub("STEPS = 2", path.read_text("utf-8")), "utf-8")
    result = subprocess.run(
        [sys.executable, str(program)],
        cwd=here,
        env={**os.environ, "MPLBACKEND": "Agg", "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert not list(here.iterdir())
    left = [p.name for p in temporary.iterdir() if p.name.startswith("tmp")]
    assert not left


@each_guide
def test_it_states_truths(path):
    """A guide asserts what it says, so that a wrong sentence fails here."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    asserts = [node for node in nodes if isinstance(node, ast.Assert)]
    calls = [
        node.func.attr
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    calls = [name for name in calls if name.startswith("assert_")]
    assert len(asserts) + len(calls) >= 2


@each_guide
def test_it_is_in_the_documentation(path):
    index = path.parents[1] / "index.md"
    assert f"guides/{path.stem}\n" in index.read_text("utf-8")


@each_guide
def test_its_first_cell_is_its_title(path):
    lines = path.read_text("utf-8").splitlines()
    assert lines[0] == "# %% [markdown]"
    assert re.fullmatch(r"# # \w.*", lines[1])


@each_guide
def test_it_has_a_picture_or_a_table(path):
    text = path.read_text("utf-8")
    assert "plt.show()" in text or "# |---|" in text


@each_guide
def test_a_picture_is_on_its_first_screen(path):
    """A file that is there, with words for those who cannot see it."""
    cells = re.findall(
        r"^# %% \[markdown\]\n((?:#.*\n)+)", path.read_text("utf-8"), re.M
    )
    text = re.sub(r"^# ?", "", "".join(cells[:2]), flags=re.M)
    pictures = [
        *re.finditer(r"!\[(?P<alt>.+?)\]\((?P<file>\S+?)\)", text),
        *re.finditer(r"\{figure\} (?P<file>.+)\n:alt: (?P<alt>.+)", text),
    ]
    assert pictures
    for picture in pictures:
        assert (path.parent / picture["file"]).is_file(), picture["file"]


def test_figures_are_what_their_program_draws():
    program = runpy.run_path(str(DOCS / "figures/draw.py"))
    assert {path.stem for path in FIGURES} == set(program["PICTURES"])
    for path in FIGURES:
        drawn = program["svg"](program["PICTURES"][path.stem])
        assert path.read_text("utf-8") == drawn, "run docs/figures/draw.py"


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_a_figure_has_a_title_and_fits_its_page(path):
    root = ElementTree.fromstring(path.read_text("utf-8"))
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert root.findtext(f"{space}title")
    width, height = root.get("width"), root.get("height")
    assert root.get("viewBox") == f"0 0 {width} {height}"
    assert int(width) <= 760
