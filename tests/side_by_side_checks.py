"""Checks the models that JAX trains side by side; `make test-jax` runs them.

Shapes: M = 2 models, B = 3 sentences, S = 17, T = 17, V = 281.
"""

import dataclasses
import importlib
import multiprocessing
import pathlib
import sys

import jax
import keras
import numpy as np
import pytest
import sentencepiece

from keras_transformer import (
    LabelSmoothedCrossEntropy,
    Transformer,
    TransformerConfig,
    TransformerSchedule,
    beam_search,
)
from keras_transformer.data.byte_pairs import learn_byte_pairs
from keras_transformer.ids import END, PAD, START

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
PAIRS = [
    ("one two three", "eins zwei drei"),
    ("two", "zwei"),
    ("three two one", "drei zwei eins"),
]
LENGTH, LONGER, VOCABULARY = 17, 3, 281
SOURCES = [source for source, _ in PAIRS]


@pytest.fixture(scope="module", autouse=True)
def example():
    sys.path.insert(0, str(EXAMPLES))
    side_by_side = importlib.import_module("side_by_side")
    side_by_side.TRAINING = {LENGTH: 3}
    side_by_side.SEARCH = {5: 2, LENGTH: 5}
    side_by_side.LONGER = LONGER
    yield side_by_side
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def pieces():
    lines = [line for pair in PAIRS for line in pair]
    model = learn_byte_pairs(lines, VOCABULARY)
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def make_team(
    example, pieces, seed=1, steps=3, beam_size=2, layers=1, **options
):
    config = TransformerConfig.preset(
        "tiny",
        vocab_size=VOCABULARY,
        num_layers=layers,
        d_model=22,
        num_heads=2,
        d_ff=31,
        dropout_rate=0.0,
    )
    stage = example.Stage(
        steps=steps,
        learning_rate_scale=0.3,
        warmup_steps=2,
        snapshot_every=1,
        averaged=1,
        beam_size=beam_size,
        members=2,
        dtype="float32",
    )
    return example.Team(stage, config, pieces, seed, **options)


def member(team, i):
    """Returns a member as a model of its own."""
    model = Transformer(team.model.config, dtype="float32")
    for variable, weight in zip(
        model.trainable_variables, team.weights, strict=True
    ):
        variable.assign(weight[i])
    return model


def batch_of(team):
    _, (source, target) = next(team._batches(by_length(team)))
    return source.astype("int32"), target.astype("int32")


def by_length(team):
    module = sys.modules[type(team).__module__]
    return module._by_length(team.pieces, PAIRS)


def test_members_learn_as_if_each_were_alone(example, pieces, monkeypatch):
    team = make_team(example, pieces)
    batches = team._batches(by_length(team))
    batches = [next(batches) for _ in range(3)]
    models = [member(team, i) for i in range(2)]
    assert not np.array_equal(team.weights[0][0], team.weights[0][1])
    monkeypatch.setattr(team, "_batches", lambda data: iter(batches))
    team.train(PAIRS)
    for i, model in enumerate(models):
        schedule = TransformerSchedule(22, warmup_steps=2, scale=0.3)
        model.compile(
            keras.optimizers.Adam(schedule, 0.9, 0.98, 1e-9),
            LabelSmoothedCrossEntropy(0.1),
        )
        for _, (source, target) in batches:
            source, target = source[i].astype(int), target[i].astype(int)
            inputs = {"source": source, "target": target[:, :-1]}
            model.train_on_batch(inputs, target[:, 1:])
        for variable, found in zip(
            model.trainable_variables, team.weights, strict=True
        ):
            if not variable.path.endswith("key/bias"):  # has no gradient
                np.testing.assert_allclose(found[i], variable, atol=2e-5)


def test_each_member_has_an_order_of_its_own_and_sees_all(example, pieces):
    team = make_team(example, pieces)
    source, target = batch_of(team)
    assert source.shape == (2, 3, LENGTH)
    assert target.shape == (2, 3, LENGTH + 1)
    assert not np.array_equal(source[0], source[1])
    for i in range(2):
        texts = [
            [pieces.decode([x for x in row if x > END]) for row in side[i]]
            for side in (source.tolist(), target.tolist())
        ]
        assert sorted(zip(*texts, strict=True)) == sorted(PAIRS)
    assert (target[..., 0] == START).all()


def test_students_learn_labels_and_the_mean_of_their_teachers(example, pieces):
    teachers = make_team(example, pieces, together=True)
    shares = [0.25, 1.0]
    team = make_team(
        example, pieces, seed=2, steps=1, teachers=teachers, shares=shares
    )
    students = [member(team, i) for i in range(2)]
    source, target = batch_of(team)
    assert source.shape == (3, LENGTH)  # the same for all
    inputs = {"source": source, "target": target[:, :-1]}
    labels = target[:, 1:]
    real = labels != PAD
    expected = np.mean(
        [jax.nn.softmax(member(teachers, i)(inputs)) for i in range(2)], axis=0
    )
    printed = []
    team.log = lambda *values: printed.append(values)
    team.train(PAIRS)
    for student, share, found in zip(
        students, shares, printed[-1][1:], strict=True
    ):
        logits = student(inputs)
        of_labels = LabelSmoothedCrossEntropy(0.1)(labels, logits)
        log_p = np.array(jax.nn.log_softmax(logits))
        of_teachers = -np.sum(expected * log_p, axis=-1)[real].mean()
        loss = (1 - share) * of_labels + share * of_teachers
        assert abs(float(found) - float(loss)) < 1e-3


def test_together_they_translate_by_the_mean_of_their_distributions(
    example, pieces
):
    team = make_team(example, pieces, steps=40, beam_size=1, together=True)
    team.train(PAIRS)
    models = [member(team, i) for i in range(2)]
    (found,) = team.translate(SOURCES)
    source = np.full((3, LENGTH), PAD)
    for row, line in zip(source, SOURCES, strict=True):
        ids = [*pieces.encode(line), END]
        row[: len(ids)] = ids
    # Longer than the search of short lines may be: those end before.
    target = np.full((3, LENGTH + LONGER), PAD)
    target[:, 0] = START
    for i in range(1, LENGTH + LONGER):
        inputs = {"source": source, "target": target}
        p = np.mean([jax.nn.softmax(x(inputs)) for x in models], axis=0)
        target[:, i] = p[:, i - 1].argmax(axis=-1)
    for beam, row in zip(found, target.tolist(), strict=True):
        ids = [*row[1:], END]
        assert beam == [pieces.decode(ids[: ids.index(END)])]
    assert len({beam[0] for beam in found}) == 3


def test_beams_are_those_of_the_package(example, pieces):
    team = make_team(example, pieces, steps=40, beam_size=3)
    team.train(PAIRS)
    found = team.translate(SOURCES)
    assert found[0] != found[1]
    for i, beams in enumerate(found):
        model = member(team, i)
        for line, beam in zip(SOURCES, beams, strict=True):
            assert beam == beam_alone(model, line, pieces)


def beam_alone(model, line, pieces):
    source = np.array([[*pieces.encode(line), END]])
    longest = LONGER + (LENGTH if source.size > 5 else 5)
    memory = model.project_memory(model.encode(source))

    def step(tokens, cache, index):
        return model.decode_step(tokens, cache, index, memory, source != PAD)

    cache = model.empty_cache(3, longest)
    ids, _ = beam_search(step, cache, [longest], 3, 1.0)
    rows = np.array(ids)[0].tolist()
    return [pieces.decode(row[: row.index(END)]) for row in rows]


def test_long_lines_are_cut_and_the_order_stays(example, pieces):
    team = make_team(example, pieces)
    printed = []
    team.log = printed.append
    long = " ".join(["three"] * 40)
    cut = pieces.decode(pieces.encode(long)[: LENGTH - 1])
    lines = ["two", long, "three two one", "one", "two"]
    found = team.translate(lines)
    assert printed == [f"1 lines are cut to {LENGTH - 1} word pieces"]
    for lines_found in found:
        alone = [team.translate([line]) for line in (*lines[:1], cut)]
        i = found.index(lines_found)
        assert lines_found[0] == lines_found[4] == alone[0][i][0]
        assert lines_found[1] == alone[1][i][0]
    with pytest.raises(ValueError, match=f"may have {LENGTH - 1} word pieces"):
        team.train([(long, "drei")])


def test_a_team_begins_with_the_first_layers_of_another(example, pieces):
    deep = make_team(example, pieces, layers=2)
    other = make_team(example, pieces, seed=2)
    deep.start_from(other)
    theirs = {
        v.path: w
        for v, w in zip(
            other.model.trainable_variables, other.weights, strict=True
        )
    }
    for variable, weight in zip(
        deep.model.trainable_variables, deep.weights, strict=True
    ):
        if variable.path in theirs:
            np.testing.assert_array_equal(weight, theirs[variable.path])
        else:
            assert "coder_1/" in variable.path
    other.stage = dataclasses.replace(other.stage, members=3)
    with pytest.raises(ValueError, match="as many members"):
        deep.start_from(other)


def test_snapshots_are_averaged(example, pieces):
    team = make_team(example, pieces)
    team.snapshots = [[np.full(2, x)] for x in (1.0, 4.0, 8.0)]
    assert team.average(2)[0].tolist() == [6.0, 6.0]
    assert team.average(9)[0][0] == pytest.approx(13 / 3)


def test_what_is_made_of_translations():
    example = importlib.import_module("small_corpus_jax")
    members = [[["a", "b"], ["d", "e"]], [["a", "c"], ["f", "d"]]]
    found = list(example.new_sources(members))
    assert found == ["a", "b", "c", "d", "f", "e"]
    pairs = [("x", "the old red house"), ("y", "a dog barks at night")]
    beams = [[["a house", "the old house"], ["a dog barks at day", "dogs"]]]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        made = example.nearest_pairs(pool, pairs, beams, "13a")
    assert made == [("x", "the old house"), ("y", "a dog barks at day")]
    more = example.enlarged(pairs, [*made, pairs[0], made[0]], lambda x: None)
    assert more == [*pairs, *made]
    assert example.without_blanks([*pairs, ("", "z"), ("z", " ")]) == pairs
    with pytest.raises(ValueError, match="1 pairs, none of them"):
        example.without_blanks([("", "z")])
