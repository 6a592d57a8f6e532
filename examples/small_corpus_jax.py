"""A small corpus on one GPU: four teachers at once, then four students.

    KERAS_BACKEND=jax python examples/small_corpus_jax.py CORPUS FOLDER
        --train train --validation val [--source en --target de --tokenize none]
    python examples/small_corpus_jax.py --run FOLDER RUN

It has the stages of `small_corpus.py --student`, but trains four models at once
in each of them (`side_by_side.py`). Four teachers together translate better
than one, so there is more to learn from them:

1. Four models learn both directions, from twice the pairs.
2. Each of them translates both sides of the training text. Four models, which
   begin with their weights, learn one direction from all these pairs.
3. Together, by the mean of their distributions, they translate the sources and
   new ones, up to eight translations of each target. Four students with a
   decoder of one layer learn the original pairs and these, and for each word
   piece the mean distribution of the teachers, each with another weight. Greedy
   BLEU of the validation split chooses a student and an average of snapshots.

It writes FOLDER/vocabulary.model, FOLDER/student.keras and FOLDER/student.json,
which says what was chosen. It needs `jax[cuda12]`, and for a corpus in files no
TensorFlow. The second command runs on TensorFlow: it makes a run of the
student, for `keras-transformer export`. Sentences of more than 47 word pieces
are not learned, and cut where they are translated.

Promise: on Multi30k, with one H100, eight minutes, and the BLEU of
docs/results.md; the test does it in miniature.
"""

import argparse
import itertools
import json
import multiprocessing
import pathlib
import time

import keras
import sacrebleu
import sentencepiece

from keras_transformer import TransformerConfig
from keras_transformer.data import load_pairs
from keras_transformer.data.byte_pairs import learn_byte_pairs

VOCAB_SIZE = 6000
SHAPE = {"d_model": 192, "num_heads": 6, "d_ff": 512, "norm_first": True}
# Each with the fields of a `Stage`, and with those of the config.
BOTH = (
    {"steps": 5500, "learning_rate_scale": 1.5, "averaged": 5},
    {"dropout_rate": 0.2},
)
FINAL = (
    {"steps": 10_500, "learning_rate_scale": 1.0},
    {"dropout_rate": 0.3},
)
STUDENT = (
    {"steps": 12_000, "learning_rate_scale": 1.5, "beam_size": 1},
    {"dropout_rate": 0.1, "num_encoder_layers": 6, "num_decoder_layers": 1},
)
# The weight of the teachers' distribution, one for each student.
SHARES = (0.5, 0.7, 0.9, 1.0)
NEW_SOURCES = 8  # of each target


def main(
    pairs,
    validation,
    folder,
    languages=("en", "de"),
    tokenize="13a",
    vocab_size=VOCAB_SIZE,
    stages=(BOTH, FINAL, STUDENT),
    **shape,
):
    """Trains all teams, and writes the best student.

    Args:
        pairs: of source and target, to train on.
        validation: such pairs, to choose the student by.
        folder: folder of all that is written; it may have no student yet.
        languages: of source and target.
        tokenize: sacreBLEU's tokenizer.
        vocab_size: number of word pieces, of both languages.
        stages: fields of each `Stage` and of its models' config.
        shape: fields of every config, instead of `SHAPE`.

    Returns:
        What `student.json` has: validation BLEU and what was chosen.

    Raises:
        ValueError: if JAX is not the backend, if the folder has a student, or
            if a split has no pair without a blank side.
    """
    if keras.backend.backend() != "jax":
        raise ValueError(
            "The backend must be JAX. Received: "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=jax."
        )
    if (folder / "student.keras").exists():
        raise ValueError(
            f"The folder has a student already. Received: {str(folder)!r}. "
            "Name another."
        )
    pairs, validation = map(without_blanks, (pairs, validation))
    from side_by_side import Stage, Team

    log = clock()
    folder.mkdir(parents=True, exist_ok=True)
    # Processes are forked before JAX has threads, which would not be copied.
    with multiprocessing.get_context("fork").Pool() as pool:
        vocabulary = learn_byte_pairs(itertools.chain(*pairs), vocab_size)
        (folder / "vocabulary.model").write_bytes(vocabulary)
        pieces = sentencepiece.SentencePieceProcessor(model_proto=vocabulary)

        def team(seed, fields, config, **options):
            config = TransformerConfig.preset(
                "tiny", vocab_size=vocab_size, **{**SHAPE, **shape, **config}
            )
            stage = Stage(**fields)
            return Team(stage, config, pieces, seed, log=log, **options)

        # Their programs are compiled from now on, while the first ones run.
        both = team(1, *stages[0])
        final = team(2, *stages[1], together=True)
        student = team(
            3, *stages[2], teachers=final, shares=itertools.cycle(SHARES)
        )
        judge = Judge(validation, folder, languages, tokenize, pool, log)

        sources, targets = zip(*pairs, strict=True)
        both.train([*pairs, *zip(targets, sources, strict=True)])
        back = both.translate(targets)
        best = [beam[0] for member in back for beam in member]
        made = [
            *nearest_pairs(pool, pairs, both.translate(sources), tokenize),
            *zip(best, targets * len(back), strict=True),
        ]
        final.start_from(both)
        final.train(enlarged(pairs, made, log))

        new = dict.fromkeys([*sources, *new_sources(back)])
        (beams,) = final.translate(new)
        made = [(x, beam[0]) for x, beam in zip(new, beams, strict=True)]
        student.start_from(final)
        log("BLEU of the teachers together", judge.bleu(final))
        student.train(enlarged(pairs, made, log), judge)
        return judge.best


class Judge:
    """Scores averages of a team's snapshots, and keeps the best member.

    Args:
        validation: pairs.
        folder: where `student.keras` and `student.json` are written.
        languages: of source and target, for `student.json`.
        tokenize: sacreBLEU's tokenizer.
        pool: of processes.
        log: a function that prints values.
    """

    def __init__(self, validation, folder, languages, tokenize, pool, log):
        self.sources, self.references = zip(*validation, strict=True)
        self.folder, self.languages = folder, languages
        self.tokenize, self.pool, self.log = tokenize, pool, log
        self.best = {"bleu": -1.0}

    def __call__(self, team, step):
        most = len(team.snapshots)
        for count in sorted({most, min(most, -(-team.stage.averaged // 2))}):
            weights = team.average(count)
            scores = self.bleu(team, weights=weights)
            self.log(f"greedy BLEU, average of {count}", scores)
            best = max(scores)
            if best > self.best["bleu"]:
                member = scores.index(best)
                self.best = {
                    "bleu": best,
                    "step": step,
                    "averaged": count,
                    "languages": list(self.languages),
                    "teacher_weight": round(float(team.shares[member]), 4),
                }
                team.save(member, weights, self.folder / "student.keras")
                text = json.dumps(self.best, indent=2)
                (self.folder / "student.json").write_text(f"{text}\n")

    def bleu(self, team, **options):
        """Returns the BLEU of each member."""
        found = team.translate(self.sources, **options)
        jobs = [
            ([beam[0] for beam in member], self.references, self.tokenize)
            for member in found
        ]
        return self.pool.starmap(corpus_bleu, jobs, chunksize=1)


def without_blanks(pairs):
    """Returns the pairs of two sides with text, as the package takes them."""
    found = [pair for pair in pairs if all(text.strip() for text in pair)]
    if not found:
        raise ValueError(
            "A split needs pairs with text on both sides. Received: "
            f"{len(pairs)} pairs, none of them such. Look at its files."
        )
    return found


def corpus_bleu(translations, references, tokenize):
    score = sacrebleu.corpus_bleu(
        translations, [references], tokenize=tokenize, force=True
    )
    return round(score.score, 2)


def nearest_pairs(pool, pairs, members, tokenize):
    """Returns pairs of the sources and, of each member's translations, the one
    nearest to the reference."""
    jobs = [
        (source, target, beam, tokenize)
        for beams in members
        for (source, target), beam in zip(pairs, beams, strict=True)
    ]
    return pool.starmap(nearest, jobs, chunksize=500)


def nearest(source, target, beam, tokenize):
    bleu = sacrebleu.metrics.BLEU(
        effective_order=True, tokenize=tokenize, force=True
    )
    return source, max(
        beam, key=lambda x: bleu.sentence_score(x, [target]).score
    )


def new_sources(members):
    """Yields translations of the targets: of each, the best of every member
    first, none twice."""
    for beams in zip(*members, strict=True):
        ranked = itertools.chain(*zip(*beams, strict=True))
        yield from list(dict.fromkeys(ranked))[:NEW_SOURCES]


def enlarged(pairs, made, log):
    """Returns pairs, and of those that were made the new ones, each once."""
    known = set(pairs)
    new = [pair for pair in dict.fromkeys(made) if pair not in known]
    log(f"{len(new):,} new pairs are added to {len(pairs):,}")
    return [*pairs, *new]


def make_run(folder, run):
    """Makes a run of a folder's student, for `keras-transformer export`."""
    from keras_transformer.data import Tokenizer
    from keras_transformer.inference import SearchSettings
    from keras_transformer.training import run_of_model

    model = keras.models.load_model(folder / "student.keras", compile=False)
    tokenizer = Tokenizer((folder / "vocabulary.model").read_bytes())
    chosen = json.loads((folder / "student.json").read_text())
    source, target = chosen["languages"]
    search = SearchSettings(beam_size=1)
    return run_of_model(
        model, run, tokenizer, source=source, target=target, search=search
    )


def clock():
    """Returns a function that prints values after the seconds since now."""
    began = time.perf_counter()

    def log(*values):
        print(f"{time.perf_counter() - began:6.1f} s", *values, flush=True)

    return log


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("corpus", help="a folder, or tfds:NAME; or FOLDER")
    parser.add_argument("folder", type=pathlib.Path, help="or RUN")
    parser.add_argument("--run", action="store_true", help="make a run")
    parser.add_argument("--train", default="train")
    parser.add_argument("--validation", default="validation")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU's")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    options = parser.parse_args()
    languages = options.source, options.target
    if options.run:
        make_run(pathlib.Path(options.corpus), options.folder)
    else:
        splits = [
            load_pairs(options.corpus, split, *languages)
            for split in (options.train, options.validation)
        ]
        pairs, validation = (
            list(zip(x.source, x.target, strict=True)) for x in splits
        )
        main(
            pairs,
            validation,
            options.folder,
            languages,
            options.tokenize,
            options.vocab_size,
        )
