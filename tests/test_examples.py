"""Runs every example in miniature; only full size keeps their promises."""

import ast
import importlib.util
import pathlib
import subprocess
import sys

import pytest
from conftest import SMALL

pytestmark = pytest.mark.usefixtures("unoptimized_graphs")

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=str)
def test_each_example_says_how_to_run_it_and_what_it_promises(path):
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert f"python examples/{path.name}" in text
    assert "Promise: " in text
    assert path.stem in pathlib.Path(__file__).read_text(), "not tested"


def test_copy_task_returns_an_accuracy():
    assert 0 <= load("copy_task").main(count=256, epochs=1) <= 1


def test_text_classifier_learns():
    accuracy = load("text_classifier").main(count=1500, epochs=4)
    assert accuracy > 0.25  # of twelve cities


def test_language_model_learns_and_samples(capsys):
    assert load("language_model").main(count=1200, epochs=2) < 25
    assert "a letter, of" in capsys.readouterr().out


def test_two_replicas_trains_on_two(corpus):
    """Runs in a new process, since TensorFlow must not have started before."""
    program = (
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        f"from two_replicas import main; main(3, {str(corpus)!r}, **{SMALL})"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "2 replicas, loss" in result.stdout


def test_translation_exports_a_model_that_use_saved_model_loads(
    tmp_path, monkeypatch, capsys, recipe
):
    from keras_transformer.data.builtin import dataset as builtin

    sizes = {"train": 600, "validation": 20, "test": 20}
    monkeypatch.setattr(builtin, "SIZES", sizes)
    example = load("translation")
    import dataclasses

    small = dataclasses.replace(
        example.RECIPE,
        vocab_size=400,
        validate_every=2,
        data_dir=str(tmp_path / "data"),
    )
    monkeypatch.setattr(example, "RECIPE", small)
    export = tmp_path / "models" / "demo" / "1"
    for _ in range(2):  # the second time everything is done already
        result = example.main(tmp_path / "run", export, steps=2)
    assert result["sentences"] == 20
    load("use_saved_model").main(str(export))
    assert "quarter past five" in capsys.readouterr().out


def test_paper_recipes_trains_and_refuses_other_settings(
    corpus, tmp_path, capsys
):
    small = {
        "corpus": str(corpus),
        "vocab_size": 400,
        "tokens_per_batch": 500,
        "validate_every": 1,
        "shape": {"num_layers": 1, "d_model": 22, "num_heads": 2, "d_ff": 31},
        "steps": 2,
    }
    example = load("paper_recipes")
    for _ in range(2):  # the second time everything is done already
        example.main("base-de", tmp_path / "run", parts=3, **small)
    out = capsys.readouterr().out
    assert out.count('"sentences": 61') == 2
    assert "average of 2" in out
    for name, parts, expected in (
        ("base-de", 2, "gradient_accumulation_steps=2, .* has 3"),
        ("big-de", 3, "average_checkpoints=20, .* has 5"),
    ):
        with pytest.raises(ValueError, match=expected):
            example.main(name, tmp_path / "run", parts=parts, **small)


def test_small_corpus_trains_on_both_directions_and_translations(
    tmp_path, recipe, monkeypatch
):
    import dataclasses

    from keras_transformer.training.split import read_pairs

    example = load("small_corpus")
    small = {"num_layers": 1, "d_model": 22, "num_heads": 2, "d_ff": 31}
    recipe = dataclasses.replace(recipe, steps=2, validate_every=2)
    pairs = example.pairs_of(recipe, "train")
    sources, targets = zip(*pairs, strict=True)
    shorter = [target.rsplit(" ", 1)[0] for target in targets]

    def translated(run, lines):
        near = {sources: shorter, targets: sources}[tuple(lines)]
        return [["far from it", line] for line in near]

    with monkeypatch.context() as patch:
        patch.setattr(example, "translated", translated)
        run = example.main(recipe, tmp_path / "a", {"steps": 1}, **small)
    found = read_pairs(run.recipe, "train")
    assert found.source == [*sources, *sources, *["far from it"] * len(pairs)]
    assert found.target == [*targets, *shorter, *targets]

    both = example.open_run(tmp_path / "a" / "both")
    found = read_pairs(both.recipe, "train")
    assert found.source == [*sources, *targets]
    assert found.target == [*targets, *sources]
    assert run.recipe.initial_run == str(both.folder)
    beams = example.translated(both, sources[:3])
    assert [len(beam) for beam in beams] == [example.BEAM] * 3
    monkeypatch.setattr(example, "translate_lines", None)
    assert example.translated(both, sources[:3]) == beams  # from its file
    other = dataclasses.replace(recipe, source="de", target="en")
    with pytest.raises(ValueError, match="of another recipe"):
        example.trained(both.folder, other, **small)


def test_small_corpus_puts_each_sentence_on_one_line(recipe, monkeypatch):
    from keras_transformer.data.corpus import SentencePairs

    example = load("small_corpus")
    broken = SentencePairs(["one\ntwo"], ["eins\r\nzwei"])
    monkeypatch.setattr(example, "load_pairs", lambda *_: broken)
    assert example.pairs_of(recipe, "train") == [("one two", "eins zwei")]
