"""Checks the pipelines on Apache Beam: they do what the functions do that run
in one process."""

import json
import shutil

import apache_beam as beam
import pytest
from apache_beam.ml.inference.base import RunInference
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from conftest import folder_bytes

from keras_transformer.data import shards
from keras_transformer.data.options import Preparation
from keras_transformer.data.preparation import prepare
from keras_transformer.data.text_files import read_lines
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.inference.lines import translate_lines
from keras_transformer.integrations import beam as pipelines
from keras_transformer.integrations.beam import (
    TranslationHandler,
    prepare_on_beam,
    run_pipeline,
    translate_file,
)

# In this process: the tests change constants of modules.
OPTIONS = ["--runner=DirectRunner", "--direct_running_mode=in_memory"]


@pytest.mark.parametrize(
    "shared", [True, pytest.param(False, marks=pytest.mark.programs)]
)
def test_a_pipeline_prepares_the_same_bytes(
    corpus, tmp_path, monkeypatch, shared
):
    monkeypatch.setattr(shards, "BLOCK", 113)
    settings = Preparation(
        vocab_size=350,
        shared_vocabulary=shared,
        vocabulary_pairs=299,
        max_length=30,
        drop_duplicates=True,
    )
    corpora, weights = [str(corpus)] * 2, [1, 2.5]
    # In both directions, or as two corpora of one.
    languages = None if shared else [("en", "de"), ("de", "en")]
    found = prepare_on_beam(
        corpora,
        tmp_path / "beam",
        settings,
        weights,
        languages=languages,
        options=OPTIONS,
    )
    expected = prepare(
        corpora, tmp_path / "local", settings, weights, languages=languages
    )
    assert len(expected.source_tokenizer.tags) == (0 if shared else 2)
    assert folder_bytes(found.folder) == folder_bytes(expected.folder)
    # With a vocabulary that is given, and without looking for duplicates.
    given = expected.source_tokenizer, expected.target_tokenizer
    settings = Preparation(shared_vocabulary=shared)
    for name, function, more in (
        ("beam-2", prepare_on_beam, {"options": OPTIONS}),
        ("local-2", prepare, {}),
    ):
        function(
            str(corpus), tmp_path / name, settings, tokenizers=given, **more
        )
    assert folder_bytes(tmp_path / "beam-2") == folder_bytes(
        tmp_path / "local-2"
    )


@pytest.fixture(scope="module")
def lines(corpus):
    return [*read_lines(corpus / "test.en")[:19], "", "One.", "One."]


@pytest.fixture(scope="module")
def loaded(exported):
    return SavedTranslator(exported)


@pytest.fixture(scope="module")
def translations(loaded, lines):
    return translate_lines(loaded.translate, lines)


@pytest.fixture
def shared_model(loaded, monkeypatch):
    """Lets pipelines share a model, which takes seconds to load."""
    monkeypatch.setattr(pipelines, "SavedTranslator", lambda path: loaded)


@pytest.mark.programs
def test_the_handler_translates_in_a_pipeline(exported, lines, translations):
    elements = [*lines, lines[:3]]
    expected = [*translations, translations[:3]]
    with beam.Pipeline(options=PipelineOptions(OPTIONS)) as pipeline:
        results = (
            pipeline
            | beam.Create(elements)
            | RunInference(TranslationHandler(str(exported)))
            | beam.Map(lambda result: (result.example, result.inference))
        )
        assert_that(
            results, equal_to(list(zip(elements, expected, strict=True)))
        )


@pytest.fixture
def source(tmp_path, lines):
    path = tmp_path / "lines"
    path.write_text("".join(line + "\n" for line in lines))
    return path


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(pipelines, "CHUNK", 5)


@pytest.mark.usefixtures("small_chunks", "shared_model")
def test_a_file_is_translated_in_order(
    exported, source, tmp_path, translations
):
    target = tmp_path / "new" / "translations"
    assert translate_file(exported, source, target, OPTIONS) == 0
    assert read_lines(target) == translations
    assert list(target.parent.iterdir()) == [target]
    with pytest.raises(ValueError, match="must not exist"):
        translate_file(exported, source, target, OPTIONS)


@pytest.mark.usefixtures("shared_model")
def test_a_line_may_have_any_bytes(exported, loaded, tmp_path):
    """As where `translate` reads its standard input."""
    source, target = tmp_path / "lines", tmp_path / "translations"
    lines = [b"One.", b"bad \xff byte", b"room 7"]
    source.write_bytes(b"\n".join(lines) + b"\n")
    assert translate_file(exported, source, target, OPTIONS) == 0
    expected = loaded.translate(lines)["translation"]
    assert [line.encode() for line in read_lines(target)] == list(
        expected.numpy()
    )


@pytest.mark.usefixtures("small_chunks", "shared_model")
def test_a_line_that_fails_is_kept_apart(
    exported, source, tmp_path, lines, translations, monkeypatch
):
    translate_all = pipelines.translate_lines

    def fails(function, some, batch_size):
        if lines[7] in some:
            raise RuntimeError("cannot be translated")
        return translate_all(function, some, batch_size)

    monkeypatch.setattr(pipelines, "translate_lines", fails)
    target = tmp_path / "translations"
    assert translate_file(exported, source, target, OPTIONS) == 1
    expected = [*translations[:7], "", *translations[8:]]
    assert read_lines(target) == expected
    (failure,) = read_lines(tmp_path / "translations.failed")
    assert json.loads(failure) == {
        "line": 8,
        "text": lines[7],
        "error": "RuntimeError: cannot be translated",
    }


@pytest.mark.usefixtures("small_chunks", "shared_model")
def test_a_stopped_translation_goes_on(
    exported, source, tmp_path, translations, monkeypatch
):
    """Parts that are complete are not translated again."""
    write, written = pipelines._write, []

    def stops(folder, number, *rest):
        if len(written) == 2:
            raise OSError("No space left on device")
        written.append(number)
        write(folder, number, *rest)

    target = tmp_path / "translations"
    with monkeypatch.context() as patch:
        patch.setattr(pipelines, "_write", stops)
        with pytest.raises(Exception, match="No space left"):
            translate_file(exported, source, target, OPTIONS)
    assert not target.exists()
    again = []

    def counted(folder, number, *rest):
        again.append(number)
        write(folder, number, *rest)

    monkeypatch.setattr(pipelines, "_write", counted)
    translate_file(exported, source, target, OPTIONS)
    assert read_lines(target) == translations
    assert sorted([*written, *again]) == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("small_chunks", "shared_model")
def test_parts_of_another_file_are_not_used(
    exported, source, tmp_path, translations
):
    parts = tmp_path / ".translations.parts"
    parts.mkdir()
    pipelines._write(parts, 0, ["of another file"], {})
    target = tmp_path / "translations"
    translate_file(exported, source, target, OPTIONS)
    assert read_lines(target) == translations
    with pytest.raises(ValueError, match="does not exist"):
        translate_file(exported, tmp_path / "x", tmp_path / "y", OPTIONS)
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_export_is_refused_before_the_pipeline(
    exported, source, tmp_path
):
    model = tmp_path / "1"
    shutil.copytree(exported, model)
    (model / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ValueError, match="Copy the export again") as found:
        translate_file(model, source, tmp_path / "y", OPTIONS)
    assert "while running" not in str(found.value)
    with pytest.raises(ValueError, match="No export in"):
        translate_file(tmp_path / "2", source, tmp_path / "y", OPTIONS)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.programs
def test_a_pipeline_whose_worker_is_killed_runs_again(tmp_path, capsys):
    """DirectRunner alone would wait for the worker for ever."""
    names = [str(tmp_path / str(number)) for number in range(7)]
    killed = str(tmp_path / "killed")

    def write(name):
        import os
        import signal

        if name.endswith("3") and not os.path.exists(killed):
            open(killed, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        open(name, "w").close()

    run_pipeline(
        lambda pipeline: (
            pipeline | beam.Create(names) | beam.Reshuffle() | beam.Map(write)
        ),
        [
            "--runner=DirectRunner",
            "--direct_num_workers=2",
            "--direct_running_mode=multi_processing",
        ],
    )
    assert {str(path) for path in tmp_path.iterdir()} == {*names, killed}
    assert "The pipeline is run again." in capsys.readouterr().out


def test_an_error_of_a_worker_process_is_that_of_the_step():
    """Beam sends it as the text of a `RuntimeError`."""

    def build(_):
        raise RuntimeError(
            'Traceback:\n  File "x"\nValueError: Line 3 is too long.\n\n'
        )

    with pytest.raises(ValueError, match=r"^Line 3 is too long\.$"):
        run_pipeline(build, OPTIONS)

    def build_full(_):
        raise RuntimeError(
            "ValueError: short\n\nDuring handling of the above exception, "
            "another exception occurred:\nOSError: No space left on device\n"
        )

    with pytest.raises(OSError, match=r"^No space left on device$"):
        run_pipeline(build_full, OPTIONS)

    def build_wrong(_):
        raise RuntimeError("KeyError: 'a mistake of ours'")

    with pytest.raises(RuntimeError, match="KeyError"):
        run_pipeline(build_wrong, OPTIONS)
