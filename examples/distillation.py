"""A trained model teaches a small one that translates faster.

    python examples/distillation.py TEACHER FOLDER

TEACHER is the folder of a run that was trained on a corpus of text, not on a
prepared one. The teacher translates the sources of its own training pairs. A
student learns the original pairs and these translations, and of each word piece
also the teacher's whole distribution (Kim and Rush, 2016).
Most of the time of a translation goes into the decoder, which runs once for
each word piece. So the student has a deep encoder and a decoder of one layer
(Kasai et al., 2021), and searches greedily. It begins with the teacher's
vocabulary and first layers. A second start goes on where the first one stopped.
The program writes:

    TEACHER/beams-….json    the translations of the teacher
    FOLDER/corpus/          the original pairs and those of the teacher
    FOLDER/student/         the run of the student; `log.jsonl` has its course
    FOLDER/export/STEPS/    its SavedModel

The validation pairs choose the student's weights, by greedy search; neither
they nor test pairs are trained on.

Promise: one command from a teacher to an export. On Multi30k, a student
of this shape is 3 times as fast as 4 + 4 layers with beam 4
(docs/benchmarks.md). With new sources besides, as `small_corpus.py` makes them,
it has a BLEU of 41.27 where 4 + 4 layers have 42.25, and with four teachers
41.60 (docs/results.md). Without new sources is not measured.
"""

import argparse
import dataclasses
import pathlib

from small_corpus import (
    best_translated,
    enlarged,
    pairs_of,
    trained,
    write,
)

from keras_transformer.data.prepared_corpus import is_prepared
from keras_transformer.export import export
from keras_transformer.training import open_run

# The student's recipe is the teacher's but for these.
RECIPE = {
    "steps": 12_000,
    "warmup_steps": 2000,
    "learning_rate_scale": 1.5,
    "teacher_weight": 0.5,
    "validate_every": 500,
    "keep_checkpoints": 10,
    "average_checkpoints": 10,
}
DROPOUT = 0.1  # with 0.3, it takes twice as many steps


def main(
    teacher,
    folder,
    num_encoder_layers=6,
    num_decoder_layers=1,
    recipe=RECIPE,
):
    """Does what is not done yet; returns the path of the export.

    Args:
        teacher: folder of the teacher's run.
        folder: folder of all that is written.
        num_encoder_layers, num_decoder_layers: of the student.
        recipe: fields of the recipe in which the student differs.
    """
    teacher, folder = open_run(teacher), pathlib.Path(folder).resolve()
    of_teacher = teacher.recipe
    if is_prepared(of_teacher.corpus):
        raise ValueError(
            "A student needs the text of the corpus, and prepared ones have "
            f"none. Received: a teacher of {of_teacher.corpus!r}. Train a "
            "teacher on the corpus itself."
        )
    pairs = pairs_of(of_teacher, of_teacher.train_split)
    made = best_translated(teacher, [source for source, _ in pairs])
    splits = {
        "train": enlarged(pairs, made),
        "validation": pairs_of(of_teacher, of_teacher.validation_split),
    }
    write(folder / "corpus", of_teacher, splits)
    student_recipe = dataclasses.replace(
        of_teacher,
        corpus=str(folder / "corpus"),
        train_split="train",
        validation_split="validation",
        test_split=None,
        initial_run=str(teacher.folder),
        lora_rank=None,
        **recipe,
    )
    student = trained(
        folder / "student",
        student_recipe,
        dataclasses.replace(teacher.search, beam_size=1),
        preset=None,
        dropout_rate=DROPOUT,
        num_encoder_layers=num_encoder_layers,
        num_decoder_layers=num_decoder_layers,
    )
    path = folder / "export" / str(student_recipe.steps)
    if not path.exists():
        export(student, path)
    print(f"The student's SavedModel: {path}")
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("teacher")
    parser.add_argument("folder")
    for side, default in (("encoder", 6), ("decoder", 1)):
        parser.add_argument(f"--num-{side}-layers", type=int, default=default)
    main(**vars(parser.parse_args()))
