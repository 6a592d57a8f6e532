"""Checks scores, intervals and p-values against those of sacreBLEU."""

import json
import re
import shutil
import statistics
import subprocess
import sys

import pytest
import sacrebleu

from keras_transformer.cli import main as command
from keras_transformer.cli.score_table import METRICS, score_table
from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.inference.evaluation import compare, score

LINES = ["Am 3. Mai um Viertel nach fünf.", "Zimmer 7 ist im ersten Stock."]


def test_perfect_translations_score_a_hundred_and_have_a_signature():
    found = score(LINES, LINES)
    assert found["bleu"] == found["chrf"] == 100.0
    assert found["sentences"] == 2
    version = sacrebleu.__version__
    assert found["bleu_signature"] == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    )


def test_the_score_equals_that_of_sacrebleu():
    guesses = ["Am 4. Mai um halb fünf.", "Büro 7 ist im ersten Stock."]
    found = score(guesses, LINES)
    expected = sacrebleu.corpus_bleu(guesses, [LINES]).score
    assert found["bleu"] == round(expected, 2)
    assert 0 < found["bleu"] < 100
    assert found.keys() == {
        *("bleu", "bleu_signature", "chrf", "chrf_signature", "sentences")
    }  # without TER, which would slow down validations
    with_ter = score(guesses, LINES, ter=True)
    expected = sacrebleu.corpus_ter(guesses, [LINES]).score
    assert with_ter["ter"] == round(expected, 2) > 0
    assert "case:lc|tok:tercom" in with_ter["ter_signature"]
    assert with_ter.items() > found.items()


def test_the_tokenizer_shows_in_the_signature():
    assert "tok:none" in score(LINES, LINES, "none")["bleu_signature"]


@pytest.mark.parametrize(
    ("hypotheses", "tokenize", "message"),
    [
        (LINES[:1], "13a", "1 sentences, 2 references"),
        (LINES, "moses", "'moses'"),
    ],
)
def test_errors_name_what_was_received(hypotheses, tokenize, message):
    with pytest.raises(ValueError, match=message):
        score(hypotheses, LINES, tokenize)


def translations():
    """Returns references, and systems that leave out or change some words."""
    references = [target for _, target in pairs_of_split("test", 61)]
    systems = [
        [
            " ".join(
                word if (i + j) % other == 0 else word.replace("e", "a")
                for j, word in enumerate(line.split())
                if (i * j) % missing != 1
            )
            for i, line in enumerate(references)
        ]
        for other, missing in ((2, 7), (2, 5), (3, 7))
    ]
    return systems, references


def sacrebleu_program(folder, systems, references, *options):
    """Returns what sacreBLEU's own command prints of the same files."""
    names = []
    for name, lines in enumerate((references, *systems)):
        (folder / str(name)).write_text("".join(x + "\n" for x in lines))
        names.append(str(name))
    command = [sys.executable, "-m", "sacrebleu", names[0], "-i", *names[1:]]
    command += ["-m", *METRICS, "--width", "2", "--no-color", *options]
    done = subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize("seed", [None, "7"])
def test_intervals_and_p_values_equal_those_of_the_command_sacrebleu(
    tmp_path, monkeypatch, seed
):
    """In its table, since its JSON has no place for the floats of TER."""
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    if seed:
        monkeypatch.setenv("SACREBLEU_SEED", seed)
    systems, references = translations()
    found = compare(systems, references)
    options = ("--paired-bs", "--format", "text")
    text = sacrebleu_program(tmp_path, systems, references, *options)
    number = r"(\d+\.\d+)"
    intervals = re.findall(rf"{number} \({number} ± {number}\)", text)
    assert len(intervals) == 9
    assert intervals == [
        tuple(f"{one[name + key]:.2f}" for key in ("", "_mean", "_ci"))
        for one in found
        for name in METRICS
    ]
    p_values = re.findall(rf"\(p = {number}\)", text)
    assert p_values == [
        f"{one[name + '_p_value']:.4f}" for one in found[1:] for name in METRICS
    ]
    assert len(set(p_values)) > 2
    assert not [name for name in found[0] if "p_value" in name]
    signatures = re.findall(r"nrefs:\S+", text)
    for one in found:
        assert [one[f"{name}_signature"] for name in METRICS] == signatures
    assert f"|bs:1000|seed:{seed or 12345}|" in signatures[0]


def test_the_interval_of_one_system_equals_that_of_the_command_sacrebleu(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    (system, *_), references = translations()
    (found,) = compare([system], references)
    options = ("--confidence", "--format", "json")
    text = sacrebleu_program(tmp_path, [system], references, *options)
    results = {one["name"]: one for one in json.loads(text)}
    for name, title in (("bleu", "BLEU"), ("chrf", "chrF2"), ("ter", "TER")):
        expected = results[title]
        assert found[name] == expected["score"]
        assert found[f"{name}_mean"] == expected["confidence_mean"]
        assert found[f"{name}_ci"] == expected["confidence_var"]
        assert found[f"{name}_signature"] == expected["signature"]
        assert f"{name}_p_value" not in found


def test_equal_scores_are_no_difference():
    """sacreBLEU's p-value is 0.001 for equal translations."""
    (system, *_), references = translations()
    lower = [line.lower() for line in system]  # which TER does not see
    _, same, other = compare([system, list(system), lower], references)
    assert {same[f"{x}_p_value"] for x in ("bleu", "chrf", "ter")} == {1.0}
    assert other["ter_p_value"] == 1.0 > other["bleu_p_value"]


@pytest.mark.parametrize(
    ("systems", "message"),
    [
        ([], r"Received: systems=\[\]"),
        (LINES, "a single string"),
        ([LINES, LINES[:1]], "1 sentences, 2 references"),
    ],
)
def test_compare_refuses_what_it_cannot_score(systems, message):
    with pytest.raises(ValueError, match=message):
        compare(systems, LINES)


@pytest.fixture(scope="module")
def models(run, exported, tmp_path_factory):
    """Returns two exports that translate differently, and a copy of one."""
    from keras_transformer.export import saved_model
    from keras_transformer.inference import SearchSettings

    folder = tmp_path_factory.mktemp("models")
    greedy = saved_model.export(
        run,
        folder / "greedy" / "1",
        SearchSettings(beam_size=1),
        dtype="float32",
    )
    for name in ("beam", "copy"):
        shutil.copytree(exported, folder / name)
        (folder / name / "evaluations.jsonl").unlink(missing_ok=True)
    return [folder / "beam", greedy, folder / "copy"]


def evaluate(capsys, *arguments):
    """Returns the results that the command prints, and its table if any."""
    status = command.main(["evaluate", *map(str, arguments)])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    lines = captured.err.splitlines()
    table = [x for x in lines if not x.startswith("keras-transformer: ")]
    return [json.loads(line) for line in captured.out.splitlines()], table


@pytest.mark.programs
def test_several_models_are_scored_on_several_test_sets(
    models, corpus, tmp_path, capsys
):
    """Each as by itself, and compared to the first."""
    from keras_transformer.export import SavedTranslator

    texts = {}
    for side, language in (("source", "en"), ("reference", "de")):
        lines = (corpus / f"test.{language}").read_text().splitlines()
        for name, part in (("first", lines[:23]), ("second", lines[23:60])):
            texts[side, name] = part
            text = "".join(line + "\n" for line in part)
            (tmp_path / f"{name}.{side}").write_text(text)
    names = ("first", "second")
    files = [
        part
        for side in ("source", "reference")
        for part in (
            f"--{side}-file",
            *(tmp_path / f"{name}.{side}" for name in names),
        )
    ]
    found, table = evaluate(capsys, *models, *files, "--confidence")
    assert [(x["export"], x["source"], x["reference"]) for x in found] == [
        (str(model), f"{name}.source", f"{name}.reference")
        for model in models
        for name in names
    ]
    translators = [SavedTranslator(model) for model in models]
    for i, name in enumerate(names):
        systems = [one(texts["source", name]) for one in translators]
        assert systems[0] == systems[2] != systems[1]
        results = found[i::2]
        expected = compare(systems, texts["reference", name])
        for result, scores in zip(results, expected, strict=True):
            assert result.items() >= scores.items()
        baselines = [result.get("baseline") for result in results]
        assert baselines == [None, str(models[0]), str(models[0])]
        assert results[2]["bleu_p_value"] == 1.0
    rows = [found[:2], found[2:4], found[4:]]
    assert "\n".join(table) == score_table(rows)
    for model, row in zip(models, rows, strict=True):
        stored = (model / "evaluations.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in stored] == row

    # One model alone has the same scores, no table and no p-values.
    one_set = [part for part in files if "second." not in str(part)]
    (alone,), table = evaluate(capsys, models[1], *one_set, "--confidence")
    assert not table
    compared = {k: v for k, v in found[2].items() if "p_value" not in k}
    assert alone | {"baseline": str(models[0])} == compared
    (alone,), table = evaluate(capsys, models[1], *one_set)
    assert not table
    assert not [key for key in alone if key.endswith(("_mean", "_ci"))]
    assert alone["ter"] == found[2]["ter"]
    assert "bs:" not in alone["bleu_signature"]


def test_the_table_has_means_and_standard_deviations_of_the_models():
    scores = {"bleu": (20.0, 21.0, 25.0), "chrf": (50.1, 50.2, 50.3)}
    scores["ter"] = (60.0, 60.0, 60.0)
    rows = [
        [
            {"export": f"models/{i}", "source": source}
            | {name: values[i] + more for name, values in scores.items()}
            for source, more in (("news.en", 0), ("talks.en", 7))
        ]
        for i in range(3)
    ]
    titles, head, *models, mean = score_table(rows).splitlines()
    assert titles.split() == ["news.en", "talks.en"]
    assert head.split() == ["BLEU", "chrF", "TER"] * 2
    assert titles.index("talks.en") == head.rindex("BLEU")
    assert models[2].split() == [
        *("models/2", "25.00", "50.30", "60.00", "32.00", "57.30", "67.00")
    ]
    deviation = statistics.stdev(scores["bleu"])
    assert round(deviation, 2) == 2.65  # by n - 1; 2.16 by n
    assert re.split("  +", mean) == [
        "mean ± standard deviation",
        *("22.00 ± 2.65", "50.20 ± 0.10", "60.00 ± 0.00"),
        *("29.00 ± 2.65", "57.20 ± 0.10", "67.00 ± 0.00"),
    ]
    assert mean.index("22.00") == head.index("BLEU")
    alone = score_table(rows[:1]).splitlines()
    assert len(alone) == 3  # nothing to take a mean of


def test_the_table_shows_intervals_and_p_values():
    result = {"export": "models/1", "source": "test.en"}
    for name, value in (("bleu", 20.0), ("chrf", 50.0), ("ter", 60.0)):
        result |= {name: value, f"{name}_ci": 1.25}
    other = result | {f"{name}_p_value": 0.021 for name in METRICS}
    table = score_table([[result], [other]])
    assert table.count("20.00 ± 1.25 ") == 2
    assert table.count("(p 0.021)") == 3
    assert "confidence interval" in table
    assert "paired bootstrap" in table
    assert "p:" not in score_table([[result]])


def test_files_and_exports_are_checked_before_any_is_translated(
    exported, corpus, tmp_path, capsys
):
    pair = "--source-file={0}/test.en", "--reference-file={0}/test.de"
    pair = [one.format(corpus) for one in pair]
    for arguments, message in (
        ([exported, *pair, pair[0]], "Received: 2 and 1 files"),
        ([exported, tmp_path / "none", *pair], "No export in .*none"),
    ):
        assert command.main(["evaluate", *map(str, arguments)]) == 1
        captured = capsys.readouterr()
        assert re.search(message, captured.err)
        assert captured.out == ""
