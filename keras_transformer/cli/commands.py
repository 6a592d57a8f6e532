"""The commands of `keras-transformer`; TensorFlow is imported when one runs.

The argument of each command is a dictionary of the options that were given.
The functions that a command calls have the defaults.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from keras_transformer import hardware
from keras_transformer.atomic_files import write_aside
from keras_transformer.cli.command_line import integrated, load
from keras_transformer.cli.cut_counter import CutCounter
from keras_transformer.cli.options import (
    SEARCH_OF_A_CALL,
    refuse,
    settings_of,
)
from keras_transformer.cli.score_table import score_table
from keras_transformer.cli.stdio import (
    Progress,
    chunks_of_lines,
    show,
    standard_input,
    write_line,
)
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.synthetic_pairs import SyntheticPairs

BATCH_SIZE = 64
LINES_PER_THREAD = 16  # fewer lines of a batch are not worth a thread
# `translate --explain` has no place for these.
STREAM_OPTIONS = {"batch_size", "document", "language", "markup", "alignment"}
# `translate` asks for them by the signature `control`.
CONTROL_OPTIONS = {"prefix_file", "glossary", "avoid"}
STREAM_OPTIONS |= {*CONTROL_OPTIONS, *SEARCH_OF_A_CALL}


def train(given: dict[str, Any]) -> None:
    """Trains a new or a resumed run."""
    from keras_transformer.cli.run_options import run_of
    from keras_transformer.training import loop, train_run

    if "deterministic" in given:
        hardware.make_deterministic()
    trainer = loop.make_trainer()
    run = run_of(given, trainer.worker)
    train_run.train(run, given.get("steps"), trainer)
    if trainer.worker == 0:
        print(
            f"Trained {run.folder}. Next: keras-transformer export "
            f"{shlex.quote(str(run.folder))} saved_models/NAME/1"
        )


def prepare(given: dict[str, Any]) -> None:
    """Prepares corpora for training."""
    from keras_transformer.data.preparation import prepare

    prepare_by(prepare, given)


def prepare_by(function: Callable[..., Any], given: dict[str, Any]) -> None:
    """Prepares corpora by a function that has the arguments of `prepare`."""
    from keras_transformer.data.options import Preparation
    from keras_transformer.data.preparation import total_left_out, total_noise
    from keras_transformer.training.run import open_run

    tokenizers = None
    if "vocabulary_of" in given:
        names = {"vocab_size", "shared_vocabulary", "vocabulary_pairs", "tags"}
        refuse(given, names, "--vocabulary-of")
        run = open_run(given["vocabulary_of"])
        tokenizers = run.source_tokenizer, run.target_tokenizer
    languages = None
    if "languages" in given:
        refuse(given, {"source", "target"}, "prepare --languages")
        languages = [tuple(text.split("-", 1)) for text in given["languages"]]
    found = function(
        given["corpora"],
        given["folder"],
        Preparation(**settings_of(Preparation, given)),
        weights=given.get("weights"),
        tokenizers=tokenizers,
        languages=languages,
    )
    noise = ""
    if "noise" in given:
        noise = f"noisy copies: {total_noise(found.manifest)}; "
    print(
        f"Prepared {len(found):,} pairs with {found.target_tokens:,} target "
        f"tokens in {found.folder}; {noise}left out: "
        f"{total_left_out(found.manifest)}. Next: keras-transformer train "
        f"--corpus {shlex.quote(str(found.folder))} --out runs/NAME"
    )


def average(given: dict[str, Any]) -> None:
    """Chooses the weights of a run."""
    from keras_transformer.cli.run_options import with_moved_paths
    from keras_transformer.training.checkpoint_averaging import choose_weights
    from keras_transformer.training.run import open_run

    run = with_moved_paths(open_run(given["folder"]), given)
    choose_weights(run, given.get("last"))


def export_formats() -> dict[str, str]:
    """Returns the functions "module:name" that export a run, by format."""
    own = {"saved_model": "keras_transformer.export.saved_model:export"}
    return own | integrated("EXPORT_FORMATS")


def export(given: dict[str, Any]) -> None:
    """Exports a run in one of the formats."""
    from keras_transformer.cli.run_options import with_moved_paths
    from keras_transformer.training.run import open_run

    name = given.get("format", "saved_model")
    function = load(export_formats()[name])
    parameters = inspect.signature(function).parameters
    search = settings_of(SearchSettings, given)
    names = {"dtype", "shortlist", "draft_tokens", "ensemble", "control"}
    # A format takes the options that its function has as parameters.
    refused = names - parameters.keys()
    if "settings" not in parameters:
        refused |= search.keys()
    refuse(given, refused, f"--format {name}")
    options = {option: given[option] for option in names & given.keys()}
    run = open_run(given["folder"])
    if "corpus" in given:
        run = with_moved_paths(run, given)
    if "ensemble" in options:
        options["ensemble"] = [open_run(x) for x in options["ensemble"]]
    if "settings" in parameters:
        options["settings"] = dataclasses.replace(run.search, **search)
    if "dtype" in parameters:
        dtype = options.get("dtype", parameters["dtype"].default)
        if dtype == "auto":
            dtype = hardware.resolve_dtype(dtype)
        options["dtype"] = dtype
    path = function(run, given["path"], **options)
    if "dtype" in parameters:
        print(f"The matrices are in {dtype}.")
    print(f"Exported {path}")


def translate(given: dict[str, Any]) -> None:
    """Translates standard input."""
    from keras_transformer.inference import sentences
    from keras_transformer.inference.lines import translate_lines

    if "explain" in given:
        refuse(given, STREAM_OPTIONS | {"engine"}, "--explain")
        model = _exported(given["path"])
        attention = given.get("attention", "decoder")
        language = given.get("target_language")
        _draw_attention(model, given["explain"], attention, language)
        return
    refuse(given, {"attention"}, "translate without --explain")
    if "document" in given:
        sentences.load_splitter()  # fails before the model is loaded, not after
    else:
        refuse(given, {"language"}, "translate without --document")
    if "markup" in given:
        names = {"alignment", *CONTROL_OPTIONS, *SEARCH_OF_A_CALL}
        refuse(given, names, "--markup")
    if "document" in given:
        refuse(given, {"alignment", "prefix_file"}, "--document")
    batch_size = given.get("batch_size", BATCH_SIZE)
    if "engine" in given:
        names = {"alignment", "markup", *CONTROL_OPTIONS}
        refuse(given, names, f"--engine {given['engine']}")
        workers = min(hardware.cores(), max(batch_size // LINES_PER_THREAD, 1))
        model = load(integrated("TRANSLATORS")[given["engine"]])(given["path"])
    else:
        workers = _workers(batch_size)
        model = _exported(given["path"])
    function = _function(model, given)
    if "markup" in given:
        from keras_transformer.cli.markup import translate_with_markup

        explain = functools.partial(
            model.explain_batch, target_language=given.get("target_language")
        )
        language = None
        if "document" in given:
            language = given.get("language", model.metadata["source"])
        translate_with_markup(
            function, explain, given["markup"], batch_size, workers, language
        )
        return
    if "document" in given:
        from keras_transformer.cli.document import translate_document

        language = given.get("language", model.metadata["source"])
        tags = model.metadata["tags"]
        translate_document(function, language, batch_size, workers, tags)
        return
    counter, progress = CutCounter(function), Progress("lines")
    with contextlib.ExitStack() as stack:
        alignments = None
        if "alignment" in given:
            alignments = stack.enter_context(write_aside(given["alignment"]))
            counter = CutCounter(_with_alignment(function, model, given))
        prefixes: Iterator[bytes] | None = None
        if "prefix_file" in given:
            file = stack.enter_context(open(given["prefix_file"], "rb"))
            chunks = chunks_of_lines(file, 4096)
            prefixes = itertools.chain.from_iterable(chunks)
        # Enough lines to sort by length, and few enough to bound the memory.
        for lines in chunks_of_lines(standard_input(), 4096):
            if prefixes is not None:
                lines = _with_prefixes(lines, prefixes, given["prefix_file"])
            for line in translate_lines(
                counter, lines, batch_size, progress, workers
            ):
                line, *alignment = line.split("\n")
                write_line(line)
                if alignments is not None:
                    alignments.write(f"{alignment[0]}\n".encode())
            sys.stdout.flush()
            progress.begin_after(len(lines))
        if prefixes is not None and next(prefixes, None) is not None:
            raise ValueError(_UNEQUAL.format("more", given["prefix_file"]))
    progress.end()
    counter.warn("lines")


_UNEQUAL = (
    "`--prefix-file` must have as many lines as the input. Received: {} lines "
    "in {!r}. Write a blank line where a translation may begin anyhow."
)


def _with_prefixes(lines, prefixes, path):
    """Returns lines with the beginning of their translation in a line of its
    own, see `_function`."""
    prefixes = list(itertools.islice(prefixes, len(lines)))
    if len(prefixes) < len(lines):
        raise ValueError(_UNEQUAL.format("fewer", path))
    return [b"\n".join(pair) for pair in zip(lines, prefixes, strict=True)]


def _with_alignment(translate, model, given):
    """Returns a function whose translations have their alignment in a line of
    its own."""

    def function(text):
        found = translate(text)
        translation = found["translation"]
        language = given.get("target_language")
        text = [line.split(b"\n")[0] for line in text]  # without its beginning
        alignment = model.score(text, translation, language)["alignment"]
        lines = zip(translation.numpy(), alignment.numpy(), strict=True)
        return {**found, "translation": [b"\n".join(pair) for pair in lines]}

    return function


def _draw_attention(model, path, attention, target_language):
    from keras_transformer.inference.attention_plot import plot_attention

    chunks = chunks_of_lines(standard_input(), 4096)
    lines = [line for chunk in chunks for line in chunk]
    if len(lines) != 1:
        raise ValueError(
            f"`--explain` draws one line of text. Received: {len(lines)} lines."
        )
    found = model.explain(lines[0], target_language)
    if not found["source_pieces"]:
        raise ValueError(
            "`--explain` draws the pieces of a line. Received: a blank line."
        )
    source, target = found["source_pieces"], found["target_pieces"]
    if attention == "decoder":
        plot_attention(source, target, found["attention"], path)
    else:
        plot_attention(source, None, found["encoder_attention"], path)
    write_line(found["translation"])


def evaluate(given: dict[str, Any]) -> None:
    """Scores SavedModels on test sets and stores the results."""
    from keras_transformer.export.files import check_export, newest_version
    from keras_transformer.inference import evaluation

    tokenizer = given.get("tokenize", Recipe.bleu_tokenizer)
    evaluation.check_tokenizer(tokenizer)
    test_sets = _test_sets(given["source_file"], given["reference_file"])
    # All exports are checked before the first one translates for hours.
    paths = [newest_version(path) for path in given["paths"]]
    dtypes = {check_export(path)["dtype"] for path in paths}
    workers = _workers(given.get("batch_size", BATCH_SIZE))
    search = settings_of(SearchSettings, given)
    confidence = "confidence" in given
    rows: list[list[dict]] = []
    baselines: list[list[str]] = []  # each set, translated by the first model
    for path in paths:
        model = _exported(path, freeze=dtypes == {"bfloat16"})
        rows.append([])
        for i, (sources, references, names) in enumerate(test_sets):
            hypotheses, cut = _translations(model, given, sources, workers)
            if confidence:
                systems = [*baselines[i : i + 1], hypotheses]
                *_, scores = evaluation.compare(systems, references, tokenizer)
            else:
                scores = evaluation.score(
                    hypotheses, references, tokenizer, ter=True
                )
            if "certainty" in given:
                scores["certainty"] = _certainty(
                    model, given, sources, hypotheses, references
                )
            result = {
                **scores,
                **cut,
                **names,
                "export": str(path),
                "model": model.metadata["signature"],
                "search": model.metadata["search"] | search,
            }
            if "target_language" in given:
                result["target_language"] = given["target_language"]
            if path is paths[0]:
                baselines.append(hypotheses)
            elif confidence:
                result["baseline"] = str(paths[0])
            print(json.dumps(result), flush=True)
            try:
                evaluation.remember(path, result)
            except OSError as error:
                warnings.warn(
                    f"The result is not stored: {error}", stacklevel=2
                )
            rows[-1].append(result)
        del model  # before the next one is loaded
    if len(rows) > 1 or len(test_sets) > 1:
        print(score_table(rows), file=sys.stderr)


def _test_sets(source_files, reference_files):
    """Returns the sources, references and names of the files of each set."""
    from keras_transformer.data.text_files import read_lines

    if len(source_files) != len(reference_files):
        raise ValueError(
            "`--source-file` and `--reference-file` must name the same number "
            f"of files, in the same order. Received: {len(source_files)} and "
            f"{len(reference_files)} files."
        )
    test_sets = []
    for source, reference in zip(source_files, reference_files, strict=True):
        sources, references = read_lines(source), read_lines(reference)
        if len(sources) != len(references) or not sources:
            raise ValueError(
                "Source and reference must have the same number of lines, at "
                f"least one. Received: {len(sources)} in {source!r}, "
                f"{len(references)} in {reference!r}."
            )
        files = {"source": source, "reference": reference}
        names = {side: os.path.basename(path) for side, path in files.items()}
        test_sets.append((sources, references, names))
    return test_sets


def _translations(model, given, sources, workers):
    """Returns translations, and how many sources and translations were cut."""
    from keras_transformer.inference.lines import translate_lines

    progress = None
    if sys.stderr.isatty():

        def progress(done):
            end = "\n" if done == len(sources) else ""
            show(f"{done:,} of {len(sources):,} lines", end)

    counter = CutCounter(_function(model, given))
    batch_size = given.get("batch_size", BATCH_SIZE)
    found = translate_lines(counter, sources, batch_size, progress, workers)
    counter.warn("lines")
    return found, counter.totals()


def _certainty(model, given, sources, hypotheses, references):
    """Returns how well log-probabilities sort good lines, see `certainty`."""
    import numpy as np

    from keras_transformer.inference.certainty import certainty
    from keras_transformer.inference.lines import encoded

    size = given.get("batch_size", BATCH_SIZE)
    found = np.zeros(len(sources))
    order = np.argsort([len(line) for line in sources], kind="stable")
    for some in np.split(order, range(size, len(order), size)):
        scored = model.score(
            [encoded(sources[i]) for i in some],
            [encoded(hypotheses[i]) for i in some],
            given.get("target_language"),
        )
        found[some] = scored["score"] / scored["pieces"].numpy()
    return certainty(sources, hypotheses, references, found.tolist())


def back_translate(given: dict[str, Any]) -> None:
    """Writes a corpus of translations into the source language."""
    from keras_transformer.training.back_translation import back_translate

    path = _make_pairs(back_translate, given)
    tag = given.get("tag", SyntheticPairs.tag)
    tags = f" --tags {tag}" if tag else ""
    print(
        f"Wrote {path}. Next: keras-transformer prepare CORPUS "
        f"{shlex.quote(str(path))} prepared/NAME{tags}"
    )


def distill(given: dict[str, Any]) -> None:
    """Writes a corpus of translations into the target language."""
    from keras_transformer.training.back_translation import distill

    path = _make_pairs(distill, given, references=given.get("references"))
    print(
        f"Wrote {path}. Next: keras-transformer prepare CORPUS "
        f"{shlex.quote(str(path))} prepared/NAME"
    )


def _make_pairs(function, given, **arguments):
    """Calls one of the functions of `back_translation`."""
    from keras_transformer.training.run import open_run

    workers = _workers(BATCH_SIZE)
    return function(
        [open_run(folder) for folder in given["folders"]],
        given["files"],
        given["out"],
        SyntheticPairs(**settings_of(SyntheticPairs, given)),
        workers=workers,
        **arguments,
    )


def _workers(batch_size):
    """Chooses the number of translation threads.

    It also limits TensorFlow's threads per operation, so that all threads
    together use each core once: two threads that use one core each take two
    thirds of the time of one thread that uses both. Call it before a model is
    loaded, since TensorFlow starts its threads then.
    """
    import tensorflow as tf

    cores = hardware.cores()
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    workers = 1 if on_gpu else min(cores, batch_size // LINES_PER_THREAD)
    workers = max(workers, 1)
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(cores // workers))
    return workers


def _exported(path, freeze=True):
    from keras_transformer.export.saved_translator import SavedTranslator

    model = SavedTranslator(path)
    # With this setting TensorFlow rearranges each matrix once instead of at
    # every product, which is wrong only in processes that train. In float32 the
    # arrangement depends on the number of rows, so one that is kept is wrong
    # for other batches. TensorFlow reads the setting once in a process: give
    # `freeze=False` where models of other dtypes follow.
    if freeze and model.metadata["dtype"] == "bfloat16":
        os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")
    return model


def _function(model, given):
    """Returns a function of strings that translates as the options say.

    With a file of beginnings, each string has that of its translation in a
    second line.
    """
    search = settings_of(SearchSettings, given)
    has_prefixes = "prefix_file" in given
    further = search.keys() - {"beam_size", "alpha"}
    # Another engine takes all settings of the search at each call.
    if CONTROL_OPTIONS & given.keys() or (further and "engine" not in given):
        function = functools.partial(model.control, **search)
    else:
        function = model.searched_with(**search) if search else model.translate
    language = {"target_language"} & given.keys()
    function = functools.partial(function, **{n: given[n] for n in language})
    if "glossary" in given or "avoid" in given:
        function = _with_terms(function, given)
    if not has_prefixes:
        return function

    def with_prefixes(text):
        pairs = [line.split(b"\n") for line in text]
        text, prefixes = zip(*pairs, strict=True)
        return function(list(text), target_prefix=list(prefixes))

    return with_prefixes


def _with_terms(translate, given):
    """Returns a function whose translations have the terms of a glossary, and
    none of a list to avoid."""
    from keras_transformer.cli.glossary import Glossary, read_terms

    glossary = Glossary(given["glossary"]) if "glossary" in given else None
    avoid = "\n".join(read_terms(given["avoid"])) if "avoid" in given else ""

    def function(text, **options):
        terms = [""] * len(text)
        if glossary is not None:
            lines = [line.decode(errors="replace") for line in text]
            terms = ["\n".join(glossary.targets(line)) for line in lines]
        avoided = [avoid] * len(text)
        return translate(text, terms=terms, avoid=avoided, **options)

    return function
