"""Does what README and guides say can be done."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
GUIDES = sorted(ROOT.glob("docs/guides/*.py"))  # test_guides.py runs them
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/*.md")),
    *GUIDES,
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(page):
    """Returns the Markdown of a page: of a guide, that of its cells."""
    text = page.read_text("utf-8")
    if page not in GUIDES:
        return text
    cells = re.split(r"^# %%", text, flags=re.MULTILINE)
    return "\n".join(
        re.sub(r"^# ?", "", cell.split("\n", 1)[1], flags=re.MULTILINE)
        for cell in cells
        if cell.startswith(" [markdown]")
    )


def blocks(page, language=""):
    """The blocks of code of a page, each with what is before it."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$",
        text_of(page),
        re.DOTALL | re.MULTILINE,
    )


@each_page
def test_python_runs_from_top_to_bottom(page, exported):
    names = {}
    for block in blocks(page, "python"):
        block = block.replace("saved_models/demo/1", str(exported))
        exec(compile(block, page.name, "exec"), names)


def test_there_is_python_to_run():
    assert len(blocks(README, "python")) >= 2


@each_page
def test_every_file_it_names_is_there(page):
    folders = [ROOT, *(ROOT / "keras_transformer").rglob("")]
    folders += [ROOT / name for name in ("tests", "examples", "benchmarks")]
    for name in set(re.findall(r"`([\w/]+\.(?:py|txt|yaml))`", text_of(page))):
        made = name.startswith(("train.", "validation.", "log."))
        assert made or any((folder / name).is_file() for folder in folders), (
            name
        )


@each_page
def test_every_page_it_links_to_is_there(page):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(page)):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


@each_page
def test_every_option_it_names_is_there(page):
    from keras_transformer.cli.arguments import parser

    commands = parser()._subparsers._group_actions[0].choices
    text = "".join(blocks(page)).replace("\\\n", " ")
    for line in re.findall(r"^keras-transformer .*", text, re.MULTILINE):
        name = line.split()[1]
        for option in re.findall(r"--[\w-]+", line):
            assert option in commands[name]._option_string_actions, option


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_first_screen_has_two_commands_and_a_result(command):
    first_screen = "\n".join(README.read_text().split("\n")[:30])
    assert command in first_screen
    assert re.search(r"BLEU.*\d\d\.\d", first_screen)
    assert "```python" in first_screen
    target = command.split()[1]
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_ci_runs_the_test_command():
    assert "make test" in (ROOT / ".ci/run").read_text()


def test_the_package_needs_nothing_beside_its_repository():
    for path in (ROOT / "keras_transformer").rglob("*.py"):
        assert "../" not in path.read_text(), path
