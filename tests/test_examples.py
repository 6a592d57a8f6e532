"""Runs every example in miniature; only full size keeps their promises."""

import ast
import dataclasses
import importlib.util
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from conftest import SMALL
from serving import Server

from keras_transformer.training import checkpoints

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def examples_import_each_other(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROGRAMS = [
    path
    for path in sorted(EXAMPLES.rglob("*.py"))
    if "__main__" in path.read_text()
]


@pytest.mark.parametrize("path", PROGRAMS, ids=str)
def test_each_example_says_how_to_run_it_and_what_it_promises(path):
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert f"python examples/{path.relative_to(EXAMPLES)}" in text
    assert "Promise: " in text
    own_tests = list(path.parent.glob("test_*.py"))
    assert own_tests or path.stem in pathlib.Path(__file__).read_text()


@pytest.mark.programs
def test_copy_task_returns_an_accuracy():
    assert 0 <= load("copy_task").main(count=256, epochs=1) <= 1


@pytest.mark.programs
def test_long_sequences_returns_an_accuracy():
    assert 0 <= load("long_sequences").main(length=331, steps=3) <= 1


def test_programs_say_the_value_that_was_set_last():
    example = load("long_sequences")
    ids, values = example.programs(2, 500, seed=1)
    for row in range(2):
        variables, reads = {}, 0
        for token, value in zip(ids[row], values[row], strict=True):
            if token >= example.SET:
                name, new = divmod(token - example.SET, example.VALUES)
                variables[name] = new
            elif token >= example.READ:
                reads += 1
                assert value == variables[token - example.READ]
                continue
            assert value == -1
        assert reads > 50


@pytest.mark.programs
def test_text_classifier_learns():
    accuracy = load("text_classifier").main(count=1500, epochs=4)
    assert accuracy > 0.25  # of twelve cities


@pytest.mark.programs
def test_language_model_learns_and_is_exported(capsys):
    assert load("language_model").main(count=1200, epochs=2) < 300
    assert "'Am Freitag':" in capsys.readouterr().out


@pytest.mark.programs
def test_speech_tells_two_voices_apart(tmp_path, monkeypatch, capsys):
    """The utterances of `aeon` are replaced by voices of different pitch."""
    example = load("speech")
    rng = np.random.default_rng(1)

    def utterances(split):
        speakers = np.arange(40) % 2
        frames = [
            rng.normal(size=(rng.integers(3, 8), 12)) + 2 * speaker
            for speaker in speakers
        ]
        return frames, speakers

    monkeypatch.setattr(example, "utterances", utterances)
    picture = tmp_path / "pictures" / "speech.png"
    assert example.main(seeds=1, epochs=15, picture=picture) > 0.9
    assert "of 40 speakers found" in capsys.readouterr().out
    assert picture.exists()


def drawn_digits():
    """Returns images `(B, 8, 8)`: a digit is the number of its black pixels,
    which lie in places of their own."""
    names = np.arange(200) // 2 % 10
    places = np.arange(64).reshape(8, 8) // 6  # 0 to 10
    images = (places[None] == names[:, None, None]).astype("float32")
    return images, names.astype("int32")


@pytest.mark.programs
def test_images_tells_digits_apart(tmp_path, monkeypatch, capsys):
    """The digits of scikit-learn are replaced by drawn ones."""
    example = load("images")
    monkeypatch.setattr(example, "digits", drawn_digits)
    picture = tmp_path / "pictures" / "images.png"
    assert example.main(seeds=1, epochs=10, picture=picture) > 0.9
    assert "of 100 digits read" in capsys.readouterr().out
    assert picture.exists()


def test_images_cuts_patches_in_the_order_of_reading():
    image = np.arange(64, dtype="float32").reshape(1, 8, 8, 1)
    found = np.asarray(load("images").patches(image))[0]
    assert found.shape == (16, 4)
    assert found[0].tolist() == [0, 1, 8, 9]
    assert found[1].tolist() == [2, 3, 10, 11]
    assert found[4].tolist() == [16, 17, 24, 25]


@pytest.fixture
def image_to_text(monkeypatch):
    example = load("image_to_text")
    monkeypatch.setattr(example, "digits", drawn_digits)
    return example


@pytest.mark.programs
def test_image_to_text_writes_german_numbers(
    image_to_text, tmp_path, monkeypatch, capsys
):
    """The digits of scikit-learn are replaced by drawn ones."""
    picture = tmp_path / "pictures" / "image_to_text.png"
    share = image_to_text.main(
        seeds=1, count=128, epochs=1, tested=5, picture=picture
    )
    assert 0 <= share <= 1
    assert "of 5 numbers read" in capsys.readouterr().out
    assert picture.exists()


def test_image_to_text_encodes_every_number(image_to_text):
    for number in range(1000):
        name = image_to_text.german_number(number)
        ids = image_to_text.encoded(name)
        assert len(ids) == image_to_text.LENGTH
        assert image_to_text.decoded(ids) == name


@pytest.mark.parametrize(
    "name", ["speech", "images", "image_to_text", "parsing/train"]
)
def test_examples_say_before_they_train_that_they_draw(name, monkeypatch):
    monkeypatch.delitem(sys.modules, "images", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        load(name)


def test_examples_say_which_data_they_need(monkeypatch):
    for package in ("aeon", "sklearn"):
        monkeypatch.setitem(sys.modules, f"{package}.datasets", None)
    with pytest.raises(ImportError, match="pip install aeon"):
        load("speech").utterances("train")
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        load("images").digits()


@pytest.mark.programs
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


@pytest.mark.programs
def test_translation_exports_a_model_that_use_saved_model_loads(
    tmp_path, monkeypatch, capsys, recipe
):
    from keras_transformer.data.builtin import dataset as builtin

    sizes = {"train": 600, "validation": 20, "test": 20}
    monkeypatch.setattr(builtin, "SIZES", sizes)
    example = load("translation")

    small = dataclasses.replace(
        example.RECIPE,
        vocab_size=400,
        validate_every=2,
        data_dir=str(tmp_path / "data"),
    )
    monkeypatch.setattr(example, "RECIPE", small)
    monkeypatch.setattr(example, "OVERRIDES", SMALL)
    export = tmp_path / "models" / "demo" / "1"
    for _ in range(2):  # the second time everything is done already
        result = example.main(tmp_path / "run", export, steps=2)
    assert result["sentences"] == 20
    load("use_saved_model").main(str(export))
    assert "quarter past five" in capsys.readouterr().out
    # Before it trains on, it says that the export would be another.
    with pytest.raises(ValueError, match="is there already"):
        example.main(tmp_path / "run", export, steps=4)
    assert max(dict(checkpoints.steps(tmp_path / "run" / "checkpoints"))) == 2


@pytest.mark.programs
def test_control_asks_by_rest_and_by_grpc(run, tmp_path, capsys):
    from keras_transformer.export import saved_model

    path = tmp_path / "demo" / "1"
    saved_model.export(run, path, dtype="float32", control=True)
    example = load("control")
    server = Server(path.parent, tmp_path / "log.txt")
    try:
        address = f"127.0.0.1:{server.port}"
        rows = example.main(address, server.grpc_address, "demo")
    finally:
        server.stop()
    assert [asked for asked, _, _ in rows] == example.ASKED
    assert rows[1][1].startswith("Eine schöne Lampe")
    assert rows[5][2] == "Uhr"
    assert capsys.readouterr().out.count("| `{") == len(rows)


@pytest.mark.programs
def test_paper_recipes_trains_and_refuses_other_settings(
    corpus, tmp_path, capsys
):
    small = {
        "corpus": str(corpus),
        "vocab_size": 400,
        "tokens_per_batch": 500,
        "validate_every": 1,
        "shape": SMALL,
        "steps": 2,
    }
    example = load("paper_recipes")
    # The second time everything is done already.
    for folder in (tmp_path / "run", f"{tmp_path}/run/"):
        example.main("base-de", folder, parts=3, **small)
    out = capsys.readouterr().out
    assert out.count('"sentences": 61') == 2
    assert "average of 2" in out
    for name, parts, expected in (
        ("base-de", 2, "gradient_accumulation_steps=2, .* has 3"),
        ("big-de", 3, "average_checkpoints=20, .* has 5"),
    ):
        with pytest.raises(ValueError, match=expected):
            example.main(name, tmp_path / "run", parts=parts, **small)


@pytest.mark.programs
def test_table_3_trains_each_row_once(corpus, tmp_path, capsys):
    example = load("table_3")
    example.RECIPE = dataclasses.replace(example.RECIPE, vocab_size=400)
    base, *_, learned = example.ROWS
    rows = [base, *(r for r in example.ROWS if r.group == "B"), learned]
    for _ in range(2):  # the second time everything is done already
        found = example.main(tmp_path, str(corpus), steps=2, rows=rows)
    base, narrow, wider, learned = (parameters for _, parameters, *_ in found)
    # Queries and keys of 4 heads, in 2 encoder and 2 + 2 decoder attentions:
    # matrices, and biases.
    assert base - narrow == 6 * 2 * 4 * (32 - 8) * (128 + 1)
    assert base - wider == 6 * 2 * 4 * (32 - 16) * (128 + 1)
    assert learned - base == 256 * 128
    out = capsys.readouterr().out
    assert out.count("Training ") == 4
    assert out.count("| B | d_k 8 |") == 2


@pytest.mark.programs
@pytest.mark.usefixtures("unscored")
def test_small_corpus_trains_on_both_directions_and_translations(
    tmp_path, recipe, monkeypatch
):
    from keras_transformer.data import load_pairs, read_lines
    from keras_transformer.training.run_data import load_training_pairs

    example = load("small_corpus")
    asked = []

    def made(is_backward):
        def make(run, files, folder, settings, references=()):
            asked.append((folder.name, len(files), len(references)))
            folder.mkdir()
            lines = [line for path in files for line in read_lines(path)]
            sides = lines, [f"({line})" for line in lines]
            languages = (settings.source, settings.target)[
                :: 1 - 2 * is_backward
            ]
            for language, side in zip(languages, sides, strict=True):
                path = folder / f"train-000000.{language}"
                path.write_text("".join(line + "\n" for line in side))

        return make

    def learned(run):
        pairs = load_training_pairs(run)
        pairs = pairs.read(np.arange(len(pairs)), epoch=0)
        tokenizers = run.source_tokenizer, run.target_tokenizer
        sides = pairs.source.tolist(), pairs.target.tolist()
        source, target = (
            t.decode(ids) for t, ids in zip(tokenizers, sides, strict=True)
        )
        return sorted(zip(source, target, strict=True))

    monkeypatch.setattr(example, "distill", made(False))
    monkeypatch.setattr(example, "back_translate", made(True))
    more = {
        language: tmp_path / f"more.{language}" for language in ("en", "de")
    }
    for path in more.values():
        path.write_text("One.\n")
    recipe = dataclasses.replace(recipe, steps=2, validate_every=2)
    arguments = {"changes": {"steps": 1}, **SMALL}
    arguments |= {"source_text": [more["en"]], "target_text": [more["de"]]}
    final = example.main(recipe, tmp_path / "a", **arguments)
    text = str(tmp_path / "a" / "text")
    pairs = load_pairs(text, "train", "en", "de")
    pairs = set(zip(pairs.source, pairs.target, strict=True))
    both = example.open_run(tmp_path / "a" / "both")
    found = learned(both)
    assert set(found) == pairs | {pair[::-1] for pair in pairs}
    assert len(found) == 2 * 700
    made_of_both = {(source, f"({source})") for source, _ in pairs}
    made_of_both |= {(f"({target})", target) for _, target in pairs}
    made_of_both |= {("One.", "(One.)"), ("(One.)", "One.")}
    assert learned(final) == sorted(pairs | made_of_both)  # each once
    assert final.recipe.initial_run == str(both.folder)
    assert asked == [
        ("forward", 1, 1),
        ("backward", 1, 0),
        ("backward-text", 1, 0),
        ("forward-text", 1, 0),
    ]

    # The last steps are with the pairs of the corpus.
    cooled = example.main(recipe, tmp_path / "a", cool_down=1, **arguments)
    more_made = {("One.", "(One.)"), ("(One.)", "One.")}
    assert learned(cooled) == sorted(pairs | made_of_both - more_made)
    assert cooled.recipe.initial_run == str(final.folder)

    # The student learns the first translation of every source there is.
    del asked[:]
    student = example.main(recipe, tmp_path / "a", student=True, **arguments)
    assert asked == [("new", 1, 0), ("taught", 4, 0)]
    depths = student.config.encoder_depth, student.config.decoder_depth
    assert depths == (6, 1)
    assert student.search.beam_size == 1
    assert student.recipe.initial_run == str(final.folder)
    taught = [s for s, _ in pairs] + [f"({t})" for _, t in pairs]
    taught += ["One.", "(One.)"]
    taught = {(source, f"({source})") for source in taught}
    assert learned(student) == sorted(pairs | taught)


def test_small_corpus_puts_each_sentence_on_one_line(
    recipe, monkeypatch, tmp_path
):
    from keras_transformer.data.corpus import SentencePairs

    example = load("small_corpus")
    broken = SentencePairs(["one\ntwo"], ["eins\r\nzwei"])
    monkeypatch.setattr(example, "load_pairs", lambda *_: broken)
    text, both = example.write_text(recipe, tmp_path)
    assert (text / "train.en").read_text() == "one two\n"
    assert (both / "train.de").read_text() == "eins zwei\none two\n"
    assert (both / "validation.de").read_text() == "eins zwei\n"
