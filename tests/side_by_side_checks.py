"""Checks the models that JAX trains side by side; `make test-jax` runs them.

Shapes: M = 2 models, B = 3 sentences, S = 17, T = 17, V = 281.
"""

import importlib
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
)
from keras_transformer.config import END, PAD, START
from keras_transformer.data.byte_pairs import learn_byte_pairs

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
    side_by_side.SEARCH = {LENGTH: 5}
    side_by_side.LONGER = LONGER
    yield side_by_side
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def pieces():
    lines = [line for pair in PAIRS for line in pair]
    model = learn_byte_pairs(lines, VOCABULARY)
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def make_team(example, pieces, seed=1, steps=3, beam_size=2, **options):
    config = TransformerConfig.preset(
        "tiny",
        vocab_size=VOCABULARY,
        num_layers=1,
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


def test_each_translates_as_it_does_alone(example, pieces):
    team = make_team(example, pieces)
    alone = make_team(example, pieces, together=True)
    found = team.translate(SOURCES)
    assert [len(beam) for beam in found[0]] == [2, 2, 2]
    assert found[0] != found[1]
    for i in range(2):
        alone.weights = [np.stack([w[i], w[i]]) for w in team.weights]
        assert alone.translate(SOURCES) == [found[i]]
