"""Sentence pairs of text in one language and its translations by runs.

They are written as a corpus: `back_translate` makes sources for given targets
(Sennrich et al., 2016), `distill` makes targets for given sources (Kim and
Rush, 2016, section 3.2). Text is read as a stream, some thousand lines at a
time. What is done is on the disk, so that the same call goes on after a stop.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import sacrebleu

from keras_transformer.atomic_files import (
    check_is_new,
    resumable_folder,
    write_aside,
)
from keras_transformer.data.text_files import (
    check_name_parts,
    identity_of,
    pairs_of_files,
    stream_lines,
)
from keras_transformer.inference.lines import translate_lines
from keras_transformer.training.models import digest, load_model
from keras_transformer.training.run import Run
from keras_transformer.training.synthetic_pairs import SyntheticPairs
from keras_transformer.validation import check_argument

LINES = 4096  # of a part; enough to sort by length
RECORD = "made.json"  # says of what, and how


def back_translate(
    runs: Run | Sequence[Run],
    files: Sequence[str | os.PathLike],
    folder: str | os.PathLike,
    settings: SyntheticPairs | None = None,
    workers: int = 1,
) -> pathlib.Path:
    """Writes a corpus whose targets are given and whose sources are made.

    Example:

    >>> from keras_transformer.training import open_run
    >>> run = open_run("runs/demo")  # which translates from "en" to "de"
    >>> path = back_translate(run, ["corpus/train.en"], "corpora/back")
    3 lines read, 3 pairs made.
    >>> sorted(x.name for x in path.iterdir())
    ['made.json', 'train-000000.de', 'train-000000.en']

    Lines that a reader sees as blank, sources that are too long, and
    translations without an end are left out.

    Args:
        runs: an open `Run` that translates the other way, from the target
            language of the pairs to their source language; or several, which
            translate as an ensemble, see `EnsembleDecoding`.
        files: text in the target language, one sentence per line; compressed
            or not.
        folder: the new corpus, which `prepare` and `train` take. It appears
            when all is done.
        settings: how. Defaults to `SyntheticPairs()`.
        workers: number of threads that translate. Sampling has one. Defaults
            to 1.

    Returns:
        The path of the folder.

    Raises:
        ValueError: if the folder exists, a file is none or is damaged, the
            runs have other vocabularies, or another process writes the folder.
    """
    made = _Making(runs, files, None, settings, is_backward=True)
    return made.write(folder, workers)


def distill(
    runs: Run | Sequence[Run],
    files: Sequence[str | os.PathLike],
    folder: str | os.PathLike,
    settings: SyntheticPairs | None = None,
    references: Sequence[str | os.PathLike] | None = None,
    workers: int = 1,
) -> pathlib.Path:
    """Writes a corpus whose sources are given and whose targets are made: what
    a student learns from one or several teachers.

    Example:

    >>> from keras_transformer.training import open_run
    >>> teacher = open_run("runs/demo")
    >>> path = distill(teacher, ["corpus/train.en"], "corpora/distilled")
    3 lines read, 3 pairs made.
    >>> print((path / "train-000000.de").read_text().splitlines()[0])
    Guten Morgen.

    Args:
        runs: an open `Run`, the teacher, or several.
        files: text in the source language.
        folder, settings, workers: as for `back_translate`. There is no tag.
        references: translations of the files. Of each beam the translation
            nearest to the reference is then taken, by BLEU of the sentence
            (Kim and Rush, 2016, section 3.3). Defaults to `None`: the most
            probable one.

    Returns:
        The path of the folder.

    Raises:
        ValueError: see `back_translate`; or if there are more or fewer
            references than lines.
    """
    made = _Making(runs, files, references, settings, is_backward=False)
    return made.write(folder, workers)


class _Making:
    """Holds what `back_translate` and `distill` share."""

    def __init__(self, runs, files, references, settings, is_backward):
        self.runs = [runs] if isinstance(runs, Run) else list(runs)
        for run in self.runs:
            check_argument("runs", run, Run, "Open a folder by `open_run`.")
        if not self.runs or not files or isinstance(files, str):
            raise ValueError(
                "Translations need a run and a list of files of text. "
                f"Received: {len(self.runs)} runs, files={files!r}"
            )
        self.settings = settings = settings or SyntheticPairs()
        check_argument(
            "settings", settings, SyntheticPairs, "Make them by that class."
        )
        self.files = [pathlib.Path(path) for path in files]
        self.references = references and [*map(pathlib.Path, references)]
        if references and len(references) != len(files):
            raise ValueError(
                "Each file needs its references. Received: "
                f"{len(files)} files, {len(references)} of references."
            )
        self.is_backward = is_backward
        recipe = self.runs[0].recipe
        languages = [recipe.source, recipe.target]
        source, target = languages[::-1] if is_backward else languages
        self.languages = (
            settings.source or source,
            settings.target or target,
        )
        check_name_parts(settings.split, *self.languages)

    def write(self, folder, workers):
        """Writes the folder; the other arguments are those above."""
        folder = pathlib.Path(folder).absolute()
        check_is_new(folder, "folder of a new corpus")
        models = [load_model(run) for run in self.runs]
        record = json.dumps(self._record(models), indent=1) + "\n"
        read = made = 0
        with resumable_folder(
            folder, RECORD, record, "write a corpus"
        ) as aside:
            translate = None
            for number, rows in enumerate(self._chunks()):
                paths = [
                    aside / f"{self.settings.split}-{number:06}.{language}"
                    for language in self.languages
                ]
                read += len(rows)
                if all(path.exists() for path in paths):
                    with open(paths[0], "rb") as file:
                        made += sum(1 for _ in file)
                    continue
                translate = translate or self._translate(models)
                pairs = self._pairs(rows, translate(number), workers)
                made += len(pairs)
                for path, side in zip(paths, (0, 1), strict=True):
                    with write_aside(path) as file:
                        for pair in pairs:
                            file.write(pair[side].encode() + b"\n")
                print(f"{read:,} lines read, {made:,} pairs made.", flush=True)
            if not made:
                raise ValueError(
                    f"No pair was made. Received: {read:,} lines of "
                    f"{', '.join(map(str, self.files))}. Look at the files, "
                    "or lower `min_score`."
                )
        return folder

    def _record(self, models):
        files = [*self.files, *(self.references or ())]
        return {
            "made": "sources" if self.is_backward else "targets",
            "text": identity_of(files),
            "models": [digest(model) for model in models],
            "settings": dataclasses.asdict(self.settings),
            "languages": self.languages,
        }

    def _chunks(self) -> Iterator[list[tuple[str, str | None]]]:
        """Yields lines with their references, if any."""
        if self.references:
            files = list(zip(self.files, self.references, strict=True))
            rows: Any = pairs_of_files(files)
        else:
            lines = map(stream_lines, self.files)
            rows = ((line, None) for line in itertools.chain(*lines))
        rows = iter(rows)
        while chunk := list(itertools.islice(rows, LINES)):
            yield chunk

    def _pairs(self, rows, translate, workers):
        """Returns the pairs of some lines."""
        made_in = self.languages[0 if self.is_backward else 1]
        tags = self.runs[0].source_tokenizer.tags
        direction = f">>{made_in}<< "
        direction = direction if direction.strip() in tags else ""
        lines = [direction + line for line, _ in rows]
        if self.settings.sampling:
            workers = 1  # they would share a state
        found = translate_lines(translate, lines, workers=workers)
        pairs = []
        for (line, reference), beam in zip(rows, found, strict=True):
            # Translations have no line breaks, see `suppressed_ids`.
            candidates = [x for x in beam.split("\n") if x]
            if reference is not None and candidates:
                candidates = [self._nearest(candidates, reference)]
            for candidate in candidates[: self.settings.per_line]:
                pairs.append(self._pair(line, candidate))
        return pairs

    def _pair(self, line, made):
        line = re.sub(r"[\r\n]+", " ", line)
        if not self.is_backward:
            return line, made
        tag = self.settings.tag
        return f">>{tag}<< {made}" if tag else made, line

    def _nearest(self, candidates, reference):
        bleu = sacrebleu.metrics.BLEU(
            effective_order=True,
            tokenize=self.runs[0].recipe.bleu_tokenizer,
            force=True,
        )

        def score(candidate):
            return bleu.sentence_score(candidate, [reference]).score

        return max(candidates, key=score)

    def _translate(self, models) -> Callable[[int], Callable]:
        """Returns a function of the number of a part, which returns one from
        strings to the candidates of each, joined by line breaks."""
        run, settings = self.runs[0], self.settings
        asked = {"beam_size": settings.beam_size, "alpha": settings.alpha}
        given = {name: x for name, x in asked.items() if x is not None}
        search = dataclasses.replace(run.search, **given)
        tokenizers = run.source_tokenizer, run.target_tokenizer
        if keras.backend.backend() == "tensorflow":
            # Here, since JAX needs no TensorFlow.
            from keras_transformer.training.run_translators import make_beams

            return make_beams(
                self.runs,
                models,
                search,
                settings.min_score,
                settings.seed if settings.sampling else None,
            )
        names = {"sampling": settings.sampling, "runs": len(models) > 1}
        names["min_score"] = settings.min_score is not None
        if refused := [name for name, is_given in names.items() if is_given]:
            raise ValueError(
                "Ensembles, sampling and a least score need TensorFlow. "
                f"Received: {', '.join(refused)} with the backend "
                f"{keras.backend.backend()}. Set KERAS_BACKEND=tensorflow."
            )
        from keras_transformer.inference.layer_translator import LayerTranslator

        n_best = LayerTranslator(models[0], *tokenizers, search).n_best

        def joined(text):
            beams = n_best(text)["translation"]
            return {"translation": ["\n".join(beam) for beam in beams]}

        return lambda number: joined
