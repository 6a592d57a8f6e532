"""Runs the command as users type it, with right and wrong input."""

import dataclasses
import errno
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import types

import pytest
from conftest import SMALL, all_of_one_bleu

from keras_transformer import integrations
from keras_transformer.cli import arguments as command_line
from keras_transformer.cli import commands
from keras_transformer.cli import main as command
from keras_transformer.cli.run_options import run_of
from keras_transformer.data.options import Preparation
from keras_transformer.data.preparation import prepare
from keras_transformer.data.prepared_corpus import PreparedCorpus
from keras_transformer.export import saved_model, saved_translator
from keras_transformer.training import checkpoints
from keras_transformer.training.new_run import start_run


def run_command(capsys, *arguments):
    status = command.main([str(a) for a in arguments])
    return status, capsys.readouterr()


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as exit_:
        command.main(["--help"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    for name in command_line.command_line().commands:
        assert name in out
        with pytest.raises(SystemExit):
            command.main([name, "--help"])
        assert "default" in capsys.readouterr().out


@pytest.mark.programs
def test_each_command_continues_from_the_one_before(
    run, corpus, tmp_path, capsys, monkeypatch
):
    """Resumes, exports, translates and evaluates, as in the README."""
    shutil.copytree(run.folder, tmp_path / "run")
    run, model = tmp_path / "run", tmp_path / "models" / "m" / "1"
    status, captured = run_command(
        capsys, "train", "--resume", "--steps", 9, "--out", run
    )
    assert status == 0, captured.err
    assert "Going on from step 8" in captured.out
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    chosen = [json.loads(line)["weights"] for line in lines]
    assert len(chosen) == 2
    assert chosen[0] == "average of 2, steps 4 to 8"
    assert json.loads(lines[-1])["sentences"] == 61
    assert lines[-1] in captured.out
    assert run_command(capsys, "export", run, model, "--beam-size", 2)[0] == 0

    class Input:
        buffer = io.BytesIO(b"room 7\n\n\xff\r\nno newline at the end")

    monkeypatch.setattr(sys, "stdin", Input)
    for options in ([], ["--beam-size", "3", "--alpha", "1"]):
        Input.buffer.seek(0)
        status, captured = run_command(capsys, "translate", model, *options)
        assert status == 0
        lines = captured.out.split("\n")
        assert len(lines) == 5
        assert lines[1] == lines[4] == ""
    # On a terminal, standard error shows the progress.
    Input.buffer = io.BytesIO(b"room 7\n" * 7)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, captured = run_command(
        capsys, "translate", model, "--batch-size", 3
    )
    assert status == 0
    progress, warning = captured.err.rstrip("\n").split("\n")
    assert progress.endswith("\r3 lines\r6 lines\r7 lines\r7 lines")
    assert re.search("warning: lines whose translation .* length.*: 7", warning)
    status, captured = run_command(capsys, "translate", model, "--beam-size=40")
    assert status == 1
    assert "at most 32. Received: beam_size=40" in captured.err
    picture = tmp_path / "attention.png"
    for text, expected in (
        (b"room 7\n", 0),
        ("\u3000\n".encode(), 1),
        (b"room 7\nand 8\n", 1),
    ):
        Input.buffer = io.BytesIO(text)
        status, captured = run_command(
            capsys, "translate", model, "--explain", picture
        )
        assert status == expected
    assert "one line of text. Received: 2 lines" in captured.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    Input.buffer = io.BytesIO(b"room 7\n")
    picture = tmp_path / "encoder.svg"
    options = "--explain", picture, "--attention", "encoder"
    assert run_command(capsys, "translate", model, *options)[0] == 0
    assert "attends from: source" in picture.read_text()
    Input.buffer = io.BytesIO(b"room 7\n")
    missing = tmp_path / "none" / "attention.png"
    status, captured = run_command(
        capsys, "translate", model, "--explain", missing
    )
    assert status == 1
    assert f"'{missing}'" in captured.err
    assert captured.out == ""  # nothing is printed before all is done

    status, captured = run_command(
        capsys,
        "evaluate",
        model,
        "--source-file",
        corpus / "test.en",
        "--reference-file",
        corpus / "test.de",
    )
    assert status == 0
    result = json.loads(captured.out)
    assert result["sentences"] == 61
    assert result["truncated"] == 0
    assert result["incomplete"] > 0
    assert "tok:13a" in result["bleu_signature"]
    assert result["search"]["beam_size"] == 2
    stored = (model / "evaluations.jsonl").read_text()
    assert json.loads(stored) == result


@pytest.mark.usefixtures("unscored")
def test_a_prepared_corpus_is_trained_on(corpus, tmp_path, capsys):
    folder, run = str(tmp_path / "prepared"), str(tmp_path / "run")
    settings = ["--vocab-size=400", "--max-length=25"]
    status, captured = run_command(
        capsys, "prepare", str(corpus), folder, *settings
    )
    assert status == 0
    pairs = len(PreparedCorpus(folder))
    assert f"Prepared {pairs} pairs" in captured.out
    assert f"left out: {700 - pairs} too long" in captured.out
    train = ["train", "--corpus", folder, "--out", run, "--steps=1"]
    train += ["--num-layers=1", "--d-model=22", "--num-heads=2", "--d-ff=31"]
    train += ["--test=validation"]
    status, captured = run_command(capsys, *train, "--max-length=26")
    assert status == 1
    assert re.search("max_length=26.* has 25", captured.err)
    status, captured = run_command(capsys, *train)
    assert status == 0
    assert f"on {pairs} pairs" in captured.out
    assert '"split": "validation"' in captured.out
    assert not (tmp_path / "run" / "data").exists()
    # The default is refused, too, where it is given and differs.
    again = [x if x != run else run + "-x" for x in train]
    status, captured = run_command(capsys, *again, "--vocab-size=8000")
    assert status == 1
    assert re.search("vocab_size=8000.* has 400", captured.err)
    status, captured = run_command(capsys, *train, "--resume")
    assert status == 0, captured.err
    # Its vocabulary serves for another corpus.
    other = str(tmp_path / "other")
    arguments = ["prepare", str(corpus), other, "--vocabulary-of", run]
    status, captured = run_command(capsys, *arguments, "--weights=2")
    assert status == 0
    assert "Prepared 1,400 pairs" in captured.out
    found, expected = PreparedCorpus(other), PreparedCorpus(folder)
    assert found.source_tokenizer.model == expected.source_tokenizer.model
    tune = [*train, "--initial-run", run]
    tune[tune.index(folder)], tune[tune.index(run)] = other, run + "-2"
    tune += ["--max-length=256"]
    tuned = run_of(command_line.parse(tune), worker=0)
    assert tuned.recipe.initial_run == run


def test_options_of_a_runner_need_a_runner(capsys):
    with pytest.raises(SystemExit):
        command.main(["prepare", "a", "b", "--", "--direct_num_workers=2"])
    assert "are for `--runner`" in capsys.readouterr().err
    given = command_line.parse(
        ["prepare", "a", "b", "--runner", "X", "--", "--x=1", "--y"]
    )
    assert given["passed_on"] == ["--x=1", "--y"]


@pytest.fixture
def unequal_files(tmp_path):
    folder = tmp_path / "unequal"
    folder.mkdir()
    for split in ("train", "validation"):
        (folder / f"{split}.en").write_text("one\ntwo\nthree\n")
        (folder / f"{split}.de").write_text("eins\nzwei\n")
    return folder


WRONG_OPTIONS = [
    ("an unknown preset", ["--preset", "huge"], "tiny, base, big"),
    ("no such split", ["--train", "trian"], "trian.en, trian.tsv"),
    ("no such test split", ["--test", "tset"], r"tset\.en"),
    ("unequal files", ["--corpus", "unequal"], "3 in .*2 in "),
    ("no tokens", ["--tokens-per-batch", "0"], "tokens_per_batch=0"),
    ("a dropout of one", ["--dropout-rate", "1"], r"dropout_rate=1\.0"),
    ("too much teacher", ["--teacher-weight", "2"], r"teacher_weight=2\.0"),
    ("heads of unequal width", ["--d-model", "126"], "num_heads=4"),
    ("all weights zero", ["--initializer-scale", "0"], "initializer_scale=0"),
    ("no such tokenizer", ["--bleu-tokenizer", "13b"], "bleu_tokenizer='13b'"),
    ("a smoothing of 1.5", ["--label-smoothing", "1.5"], "label_smoothing=1"),
    ("no learning", ["--learning-rate-scale", "0"], r"learning_rate_scale=0"),
    ("endless norm", ["--global-clipnorm", "inf"], r"global_clipnorm=inf"),
    ("a rate of inf", ["--learning-rate-scale", "inf"], r"scale=inf"),
    ("a negative seed", ["--seed", "-1"], "seed=-1"),
    ("no steps", ["--steps", "0"], "steps=0"),
    ("nothing short enough", ["--max-length", "2"], "no pair left"),
]


@pytest.mark.parametrize(
    ("options", "message"),
    [case[1:] for case in WRONG_OPTIONS],
    ids=[case[0] for case in WRONG_OPTIONS],
)
def test_wrong_options_print_one_line_and_leave_no_files(
    corpus, unequal_files, tmp_path, capsys, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    arguments = ["train", "--corpus", str(corpus), "--vocab-size", "400"]
    arguments += ["--steps", "1", "--out", "runs/new", *options]
    status, captured = run_command(capsys, *arguments)
    assert status == 1
    lines = captured.err.strip().split("\n")
    lines = [line for line in lines if "normalizer.cc" not in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("keras-transformer: error: ")
    assert re.search(message, lines[0])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_backend_that_is_missing_is_named_with_the_one_to_take(
    monkeypatch, capsys
):
    """`pip install` would not bring PyTorch."""
    refused = "KERAS_BACKEND=torch. Set KERAS_BACKEND=tensorflow"

    for backend, name, missing, expected in (
        ("torch", "translate", "torch", refused),
        ("torch", "translate", None, refused),
        ("torch", "translate", "apache_beam", "needs more packages"),
        ("tensorflow", "translate", "torch", "`translate` needs more packages"),
        ("tensorflow", "average", "tensorflow", "Or set KERAS_BACKEND=jax"),
        ("jax", "average", "jax", r"pip install '.[jax]'"),
    ):

        def imports(given, name=missing):
            raise ImportError(f"{name} is missing.", name=name)

        monkeypatch.setenv("KERAS_BACKEND", backend)
        monkeypatch.setattr(commands, name, imports)
        status, captured = run_command(capsys, name, "folder")
        assert status == 1
        assert expected in captured.err


@pytest.mark.parametrize(
    ("name", "missing", "extras"),
    [
        ("translate", "sentencex", "serve,text"),
        ("translate", "apache_beam", "beam,text"),
        ("export", "ctranslate2", "ctranslate2,text"),
        ("import", "yaml", "marian,text"),
        ("serve", "ray", "ray,serve,text"),
        ("serve", "tensorflow", "serve,text"),
        ("evaluate", "tensorflow", "text"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    name, missing, extras
):
    error = ImportError(f"No module named {missing!r}", name=missing)
    line = command_line.command_line().commands[name]
    expected = f"`{name}` needs more .*pip install '.\\[{extras}\\]'"
    assert re.search(expected, command._missing(error, name, line))


def test_an_export_format_is_a_function_and_a_line(
    run, tmp_path, capsys, monkeypatch
):
    """The command refuses the options that the function does not take."""
    monkeypatch.setitem(
        integrations.EXPORT_FORMATS, "names", f"{__name__}:export_names"
    )
    arguments = ["export", run.folder, tmp_path / "new", "--format=names"]
    status, captured = run_command(capsys, *arguments, "--dtype", "float8")
    assert status == 0, captured.err
    assert (tmp_path / "new").read_text() == f"{run.folder}, float8"
    status, captured = run_command(
        capsys, *arguments, "--shortlist=5", "--alpha=1"
    )
    assert status == 1
    assert "`--format names` does not" in captured.err
    assert "Received: --alpha, --shortlist." in captured.err


def export_names(run, path, dtype="float32"):
    pathlib.Path(path).write_text(f"{run.folder}, {dtype}")
    return path


def test_resuming_where_there_is_no_run_is_an_error(tmp_path, capsys):
    arguments = ("train", "--resume", "--out", tmp_path / "nothing")
    status, captured = run_command(capsys, *arguments)
    assert status == 1
    assert "has no run.json" in captured.err


def test_a_run_resumes_from_any_folder(recipe, tmp_path, monkeypatch):
    corpus = pathlib.Path(recipe.corpus)
    monkeypatch.chdir(corpus.parent)
    small = {"num_layers": 1, "d_model": 8, "num_heads": 1, "d_ff": 8}
    given = dataclasses.replace(recipe, corpus=corpus.name, max_length=700)
    run = start_run(tmp_path / "run", "tiny", given, **small)
    assert run.search.max_source_length == 700  # as long as in training
    monkeypatch.chdir(corpus)
    given = {"out": str(tmp_path / "run"), "resume": True}
    for corpus_option in ({}, {"corpus": "."}, {"corpus": f"{corpus}/"}):
        found = run_of({**given, **corpus_option}, worker=0)
        assert found.recipe.corpus == str(corpus)
    with pytest.raises(ValueError, match=r"--corpus /.*, the run has"):
        run_of({**given, "corpus": ".."}, worker=0)


def test_a_corpus_may_be_moved(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text().replace(run.recipe.corpus, "/was/here"))
    given = {"out": str(path.parent), "resume": True}
    with pytest.raises(ValueError, match=r"was/here'.* by --corpus"):
        run_of(given, worker=0)
    found = run_of({**given, "corpus": run.recipe.corpus}, worker=0)
    assert found.recipe == run.recipe
    with pytest.raises(ValueError, match="--seed 7"):
        run_of({**given, "corpus": run.recipe.corpus, "seed": 7}, worker=0)
    # `average` validates on the corpus.
    average = {"folder": given["out"], "last": 2}
    with pytest.raises(ValueError, match="by --corpus"):
        commands.average(average)
    with all_of_one_bleu():
        commands.average({**average, "corpus": run.recipe.corpus})


def test_another_corpus_than_that_of_the_run_is_refused(run, tmp_path):
    """The corpus of the run is there, so another has not taken its place."""
    given = {"folder": str(run.folder), "corpus": str(tmp_path)}
    for command_ in (
        lambda: commands.average({**given, "last": 2}),
        lambda: commands.export({**given, "path": str(tmp_path / "1")}),
    ):
        with pytest.raises(ValueError, match=r"--corpus /.*, the run has /"):
            command_()


@pytest.mark.programs
def test_a_run_is_trained_where_standard_output_is_closed(
    run, tmp_path, monkeypatch
):
    shutil.copytree(run.folder, tmp_path / "run")
    monkeypatch.setattr(sys, "stdout", None)
    arguments = ["train", "--resume", "--out", str(tmp_path / "run")]
    with all_of_one_bleu():
        assert command.main([*arguments, "--steps=9"]) == 0
    assert checkpoints.steps(tmp_path / "run/checkpoints")[-1][0] == 9


def test_an_export_that_learns_needs_the_prepared_corpus(
    recipe, tmp_path, monkeypatch
):
    corpora = []
    monkeypatch.setattr(
        saved_model,
        "export",
        lambda run, path, shortlist=None: corpora.append(run.recipe.corpus),
    )
    there = tmp_path / "there"
    prepare(recipe.corpus, tmp_path / "here", Preparation(vocab_size=400))
    prepared = dataclasses.replace(recipe, corpus=str(tmp_path / "here"))
    run = start_run(tmp_path / "run", "tiny", prepared, **SMALL)
    shutil.move(tmp_path / "here", there)
    with pytest.raises(ValueError, match="by --corpus"):
        saved_model.learn_shortlist(run, 5)
    export = {"folder": str(run.folder), "path": "m/1"}
    commands.export({**export, "shortlist": 5, "corpus": str(there)})
    commands.export(export)  # which needs no corpus
    assert corpora == [str(there), prepared.corpus]


def test_paths_that_decide_nothing_may_change(run, tmp_path):
    """Where data sets are downloaded, and an initial run that has gone."""
    shutil.copytree(run.folder, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    text = path.read_text()
    text = text.replace('"initial_run": null', '"initial_run": "/gone"')
    path.write_text(text)
    given = {"out": str(path.parent), "resume": True}
    other = {"initial_run": str(tmp_path), "data_dir": "gs://bucket/data"}
    recipe = run_of({**given, **other}, worker=0).recipe
    assert recipe.initial_run == str(tmp_path)
    assert recipe.data_dir == "gs://bucket/data"


def test_evaluate_refuses_unequal_files(exported, unequal_files, capsys):
    status, captured = run_command(
        capsys,
        "evaluate",
        exported,
        "--source-file",
        unequal_files / "train.en",
        "--reference-file",
        unequal_files / "train.de",
    )
    assert status == 1
    assert "3 in" in captured.err
    assert "2 in" in captured.err


def test_an_unknown_option_exits_with_2(capsys):
    with pytest.raises(SystemExit) as exit_:
        command.main(["train", "--out", "x", "--no-such-option"])
    assert exit_.value.code == 2


@pytest.mark.programs
def test_a_failing_command_prints_one_line(tmp_path):
    """Runs a real process, whose native libraries must not write either, where
    the terminal has no letters but those of ASCII."""
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "keras_transformer", "train"]
    result = subprocess.run(
        [*command, "--seed", "-1", "--out", "x"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={**os.environ, **locale},
    )
    assert result.returncode == 1
    assert result.stdout == ""
    lines = result.stderr.strip().split("\n")
    assert len(lines) == 1, lines
    assert "Received: seed=-1" in lines[0]
    assert r"2\xb3\xb2" in lines[0]


@pytest.mark.usefixtures("unscored")
def test_the_command_that_started_a_run_also_resumes_it(run, capsys):
    """A job that restarts after a failure repeats all options, and --resume."""
    recipe = run.recipe
    command = [
        "train",
        "--resume",
        "--out",
        run.folder,
        "--corpus",
        recipe.corpus,
        "--vocab-size",
        recipe.vocab_size,
        f"--tokens-per-batch={recipe.tokens_per_batch}",
        "--steps",
        8,
    ]
    status, captured = run_command(capsys, *command)
    assert status == 0
    assert "Nothing to do" in captured.out


def test_a_resumed_run_keeps_its_own_shape(corpus, tmp_path, capsys):
    """Starts and resumes a run whose shape differs from that of its preset."""
    shape = {"num_layers": 1, "d_model": 22, "num_heads": 2, "d_ff": 17}
    command = ["train", "--resume", "--out", tmp_path / "run"]
    command += ["--corpus", corpus, "--vocab-size", 400, "--steps", 1]
    options = [f"--{x.replace('_', '-')}={n}" for x, n in shape.items()]
    given = command_line.parse([str(x) for x in [*command, *options]])
    for _ in range(2):
        run = run_of(given, worker=0)
        assert shape.items() <= run.config.to_dict().items()
    for other, message in (
        (["--preset", "base"], "--preset base, the run has another shape"),
        (["--d-ff", 19], "--d-ff 19, the run has 17"),
    ):
        status, captured = run_command(capsys, *command, *other)
        assert status == 1
        assert message in captured.err


FROZEN_WEIGHTS = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"


@pytest.mark.parametrize(
    ("dtype", "freeze", "before", "after"),
    [
        ("bfloat16", True, {}, "1"),
        ("bfloat16", True, {FROZEN_WEIGHTS: "0"}, "0"),
        ("bfloat16", False, {}, None),
        ("float32", True, {}, None),
    ],
)
def test_only_bfloat16_exports_get_frozen_weights(
    monkeypatch, dtype, freeze, before, after
):
    monkeypatch.setattr(commands.os, "environ", before)
    loaded = types.SimpleNamespace(metadata={"dtype": dtype})
    monkeypatch.setattr(
        saved_translator, "SavedTranslator", lambda path: loaded
    )
    assert commands._exported("folder", freeze) is loaded
    assert before.get(FROZEN_WEIGHTS) == after


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["bfloat16", "bfloat16"], True),
        (["bfloat16", "float32"], False),
        (["float32", "bfloat16"], False),
    ],
)
def test_evaluate_freezes_weights_if_all_exports_are_in_bfloat16(
    corpus, monkeypatch, capsys, dtypes, expected
):
    """TensorFlow reads the setting once, and it is wrong for float32."""
    found = []

    def refuse(path, freeze):
        found.append(freeze)
        raise ValueError("Not loaded.")

    monkeypatch.setattr(commands, "_exported", refuse)
    monkeypatch.setattr(
        "keras_transformer.export.files.check_export",
        lambda path: {"dtype": dtypes[int(path.name)]},
    )
    files = (
        f"--source-file={corpus}/test.en",
        f"--reference-file={corpus}/test.de",
    )
    status, captured = run_command(capsys, "evaluate", "0", "1", *files)
    assert status == 1
    assert "Not loaded" in captured.err
    assert found == [expected]


@pytest.mark.parametrize(
    ("cores", "gpus", "batch", "workers", "threads"),
    [
        (2, [], 64, 2, "1"),
        (2, [], 31, 1, "2"),
        (16, [], 64, 4, "4"),
        (1, [], 64, 1, "1"),
        (2, ["a GPU"], 64, 1, "2"),
    ],
)
def test_workers_share_the_cores(
    monkeypatch, cores, gpus, batch, workers, threads
):
    import tensorflow as tf

    environment = {}
    monkeypatch.setattr(commands.os, "environ", environment)
    monkeypatch.setattr(commands.hardware, "cores", lambda: cores)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: gpus)
    assert commands._workers(batch) == workers
    assert environment == {"TF_NUM_INTRAOP_THREADS": threads}


def test_help_imports_no_backend_and_a_native_abort_is_reported():
    """Runs a process in the way the installed script does."""
    program = """
import os, runpy, sys
for arguments in (["--help"], ["train", "--help"]):
    sys.argv = ["keras-transformer", *arguments]
    try:
        runpy.run_module("keras_transformer", run_name="__main__")
    except SystemExit as exit_:
        assert exit_.code == 0
heavy = {"keras", "tensorflow", "numpy", "sentencepiece"}
assert not heavy & sys.modules.keys()
assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1"
os.abort()
"""
    environment = dict(os.environ)
    environment.pop("TF_ENABLE_ONEDNN_OPTS", None)
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert result.returncode == -signal.SIGABRT
    assert "--resume" in result.stdout
    assert "Fatal Python error: Aborted" in result.stderr


@pytest.mark.programs
def test_threads_that_others_left_do_not_keep_the_process():
    code = """if True:
        import sys, threading
        from keras_transformer.cli import main

        threading.Thread(target=threading.Event().wait).start()
        sys.argv = ["keras-transformer", "export", "--nothing"]
        sys.exit(main.run())
    """
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "required: RUN, FOLDER" in result.stderr


@pytest.mark.programs
def test_sigterm_removes_what_is_half_written(tmp_path):
    code = """if True:
        import sys, time
        from keras_transformer.atomic_files import folder_aside
        from keras_transformer.cli import commands, main

        def write(given):
            with folder_aside(given["paths"][0]) as aside:
                (aside / "half").write_text("")
                print("begun", flush=True)
                time.sleep(100)

        commands.evaluate = write
        sys.argv = ["keras-transformer", "evaluate", "new/1"]
        sys.argv += ["--source-file=x", "--reference-file=x"]
        sys.exit(main.run())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout.readline() == b"begun\n"
        assert os.listdir(tmp_path) == ["new"]
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == []


def test_a_closed_pipe_ends_translate_quietly(exported, monkeypatch, capsys):
    class Closed(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            raise BrokenPipeError

    monkeypatch.setattr(
        sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b"7\n" * 3))
    )
    output = io.TextIOWrapper(io.BufferedWriter(Closed()))
    monkeypatch.setattr(sys, "stdout", output)
    assert command.main(["translate", str(exported)]) == 141
    assert capsys.readouterr().err == ""
    output.buffer.raw.write = len  # so that closing it does not fail


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--explain=x.png", "--beam-size=-3"], "`--explain` .* --beam-size"),
        (["--explain=x.png", "--output", "out"], "without --runner` .* --out"),
        (["--document", "--explain=x.png"], "`--explain` .* --document"),
        (["--markup=html", "--explain=x.png"], "`--explain` .* --markup"),
        (["--markup=html", "--runner=DirectRunner"], "`--runner` .* --markup"),
        (["--document", "--runner=DirectRunner"], "`--runner` .* --document"),
        (["--language=en"], "without --document` .* --language"),
        (["--attention=encoder"], "without --explain` .* --attention"),
    ],
)
def test_options_that_do_not_apply_are_refused(capsys, arguments, message):
    """Before the model, which is not there, is looked for."""
    status, captured = run_command(capsys, "translate", "MODEL", *arguments)
    assert status == 1
    assert re.search(message, captured.err)


def test_what_is_cut_is_counted(exported, tmp_path, capsys, monkeypatch):
    text = "room 7\n" + "word " * 900 + "\n\n" + "next " * 900 + "\n"
    for side in ("source", "reference"):
        (tmp_path / side).write_text(text)
    path, model = tmp_path / "1", str(exported)
    shutil.copytree(exported, path)
    status, captured = run_command(
        capsys,
        *[
            "evaluate",
            path,
            "--beam-size=1",
            "--source-file",
            tmp_path / "source",
        ],
        *["--reference-file", tmp_path / "reference"],
    )
    assert status == 0
    result = json.loads(captured.out)
    assert result["truncated"] == 2
    assert 0 < result["incomplete"] <= 3  # the blank line is neither
    message = r"warning: lines that were too long .*: 2\n"
    assert re.search(message, captured.err)
    monkeypatch.setattr(
        sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(text.encode()))
    )
    status, captured = run_command(capsys, "translate", model, "--beam-size=1")
    assert status == 0
    assert captured.out.count("\n") == 4
    assert re.search(message, captured.err)


def test_a_result_that_cannot_be_stored_is_printed(
    exported, corpus, capsys, monkeypatch
):
    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(
        "keras_transformer.inference.evaluation.remember", refuse
    )
    files = [
        "--source-file",
        corpus / "test.en",
        "--reference-file",
        corpus / "test.de",
    ]
    with pytest.warns(UserWarning, match="not stored: .*Read-only"):
        status, captured = run_command(capsys, "evaluate", exported, *files)
    assert status == 0
    assert json.loads(captured.out)["sentences"] == 61


@pytest.mark.parametrize(
    ("name", "backend"), [("train", "torch"), ("export", "jax")]
)
def test_another_backend_is_refused_at_once(
    tmp_path, capsys, name, backend, monkeypatch
):
    monkeypatch.setattr("keras.backend.backend", lambda: backend)
    arguments = {
        "train": ["--out", tmp_path / "run"],
        "export": [tmp_path / "run", tmp_path / "1"],
    }
    status, captured = run_command(capsys, name, *arguments[name])
    assert status == 1
    assert f"Received: KERAS_BACKEND={backend}. Set" in captured.err
    assert not list(tmp_path.iterdir())
