"""Checks that what README and guides say is true, and that it runs."""

import contextlib
import gzip
import json
import pathlib
import re
import shlex
import sys

import pytest

from keras_transformer.cli import main as command
from keras_transformer.training import checkpoints

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
MAKEFILE = ROOT / "Makefile"
GUIDES = sorted(ROOT.glob("docs/guides/*.py"))  # test_guides.py runs them
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("notes/*.md")),
    *GUIDES,
]
# Blocks of commands and their output are marked as one of these, or not at all.
SHELL = ("", "sh", "console")
FOLDERS = ("tests", "examples", "benchmarks")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(page):
    """Returns the Markdown of a page; of a guide, that of its text cells."""
    text = page.read_text("utf-8")
    if page not in GUIDES:
        return text
    cells = re.split(r"^# %%", text, flags=re.MULTILINE)
    return "\n".join(
        re.sub(r"^# ?", "", cell.split("\n", 1)[1], flags=re.MULTILINE)
        for cell in cells
        if cell.startswith(" [markdown]")
    )


def blocks(page, *languages):
    """Returns the code blocks of a page that are marked as such a language."""
    found = re.findall(
        r"^```([^\n]*)\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE
    )
    return [code for marked, code in found if marked in languages]


def commands(block):
    """Returns the commands in a block, each as one line."""
    text = block.replace("\\\n", " ")
    return re.findall(r"^keras-transformer .*", text, re.MULTILINE)


@each_page
def test_python_runs_from_top_to_bottom(page, exported):
    names = {}
    for block in blocks(page, "python"):
        block = block.replace("saved_models/demo/1", str(exported))
        block = block.replace("saved_models/demo", str(exported.parent))
        exec(compile(block, page.name, "exec"), names)


def test_the_readme_has_python_to_run():
    assert len(blocks(README, "python")) >= 2


@each_page
def test_every_file_that_a_page_names_exists(page):
    folders = [ROOT, *(ROOT / "keras_transformer").rglob("")]
    folders += [ROOT / name for name in FOLDERS]
    for name in set(re.findall(r"`([\w/]+\.(?:py|txt|yaml))`", text_of(page))):
        made = name.startswith(("train.", "validation.", "log."))
        assert made or any((folder / name).is_file() for folder in folders), (
            name
        )


@each_page
def test_every_page_that_a_page_links_to_exists(page):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(page)):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


@each_page
def test_every_option_that_a_page_names_exists(page):
    from keras_transformer.cli.arguments import parser

    parsers = parser()._subparsers._group_actions[0].choices
    for line in commands("".join(blocks(page, *SHELL))):
        name = line.split()[1]
        own = line.partition(" -- ")[0]  # the rest is for another program
        for option in re.findall(r"--[\w-]+", own):
            assert option in parsers[name]._option_string_actions, option


# Blocks of the README that are not run, by their first words.
NOT_RUN = {
    "make demo": "takes minutes; test_examples.py runs its programs in small",
    "My sister bought": "is output of the demo's model, after minutes",
    "pip install": "needs a network; test_wheel.py builds and runs the wheel",
}
# Options with which a new run takes seconds.
SMALL_RUN = [
    *("--steps=2", "--validate-every=2", "--tokens-per-batch=300"),
    *("--num-layers=1", "--num-heads=2", "--vocab-size=400"),
    *(
        "--d-model=22",
        "--d-ff=31",
        "--average-checkpoints=1",
        "--dtype-policy=float32",
    ),
]
MORE_STEPS = ["--steps=4"]
STREAMS = {"<": ("stdin", "r"), ">": ("stdout", "w")}


def run_line(line, monkeypatch):
    """Runs a command line in this process and returns its exit status.

    Of the shell's syntax it knows quotes and redirections.
    """
    words = iter(shlex.split(line)[1:])
    arguments = []
    with contextlib.ExitStack() as files, monkeypatch.context() as patch:
        for word in words:
            if word in STREAMS:
                stream, mode = STREAMS[word]
                file = files.enter_context(open(next(words), mode))
                patch.setattr(sys, stream, file)
            else:
                arguments.append(word)
        if arguments[0] == "train":
            resumes = "--resume" in arguments
            arguments += MORE_STEPS if resumes else SMALL_RUN
        return command.main(arguments)


@pytest.mark.programs
def test_the_commands_of_the_readme_run_in_order(
    corpus, tmp_path, monkeypatch, capsys
):
    """The placeholders of the README are names of files and folders here."""
    monkeypatch.chdir(tmp_path)
    for language in ("en", "de"):
        text = gzip.decompress((corpus / f"train.{language}.gz").read_bytes())
        pathlib.Path(f"text.{language}").write_bytes(text)
    for place, file in {
        "lines": "test.en",
        "FILE": "test.de",
    }.items():
        first = (corpus / file).read_bytes().splitlines(keepends=True)[:7]
        pathlib.Path(place).write_bytes(b"".join(first))
    lines = []
    for block in blocks(README, *SHELL):
        if not block.startswith(tuple(NOT_RUN)):
            found = commands(block)
            assert found, f"Run this block, or say why not in NOT_RUN: {block}"
            lines += found
    names = [line.split()[1] for line in lines]
    assert names == [
        "train",
        "train",
        "export",
        "translate",
        "evaluate",
    ]
    for line in lines:
        status = run_line(line, monkeypatch)
        captured = capsys.readouterr()
        assert status == 0, (line, captured.err)
    result = json.loads(captured.out)  # of the last command, `evaluate`
    assert result["sentences"] == 7
    saved = checkpoints.steps(pathlib.Path("runs/NAME/checkpoints"))
    assert [step for step, _ in saved] == [2, 4]
    translations = pathlib.Path("translations").read_bytes()
    assert translations.count(b"\n") == 7


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_first_screen_has_two_commands_and_a_result(command):
    first_screen = "\n".join(README.read_text().split("\n")[:30])
    assert command in first_screen
    assert re.search(r"BLEU.*\d\d\.\d", first_screen)
    assert "```python" in first_screen
    target = command.split()[1]
    assert re.search(rf"^{target}:", MAKEFILE.read_text(), re.MULTILINE)


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_ci_runs_the_test_command_and_then_the_rest_of_make_check():
    commands = re.findall(r"^make (.+)", (ROOT / ".ci/run").read_text(), re.M)
    (check,) = re.findall(r"^check: (.+)", MAKEFILE.read_text(), re.M)
    assert commands[0] == "test"
    assert sorted(" ".join(commands).split()) == sorted(check.split())


def test_the_package_names_no_parent_folder():
    for path in (ROOT / "keras_transformer").rglob("*.py"):
        assert "../" not in path.read_text(), path
