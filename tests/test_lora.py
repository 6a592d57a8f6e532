"""Checks fine-tuning by LoRA: what is trained, stored, resumed and merged."""

import contextlib
import dataclasses
import io
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import SMALL, all_of_one_bleu
from replicas import train_small_model
from test_training_loop import CONFIG
from test_training_step import one_part

from keras_transformer.inference.graph_weights import inference_weights
from keras_transformer.integrations import ctranslate2
from keras_transformer.losses import LabelSmoothedCrossEntropy
from keras_transformer.training import checkpoint_averaging, checkpoints, lora
from keras_transformer.training.models import load_model, make_model
from keras_transformer.training.new_run import start_run
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.resume import resume
from keras_transformer.training.run import open_run
from keras_transformer.training.tensorflow_trainer import _gradients
from keras_transformer.training.train_run import train

RANK = 3
LORA = {"initial_run": "another", "lora_rank": RANK}
CLIPPED = LORA | {"clipnorm": 0.05}


def arrays_of(model):
    return {
        f"weights/{name}": keras.ops.convert_to_numpy(variable)
        for name, variable in checkpoints.weights_of(model).items()
    }


def assert_equal(found, expected, names=None):
    if names is None:
        assert found.keys() == expected.keys()
    for name in names or expected:
        np.testing.assert_array_equal(found[name], expected[name], name)


def model_with_factors(**recipe):
    """Returns a model whose factors are random numbers."""
    model = make_model(CONFIG, Recipe(**LORA, **recipe))
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(0.3 * rng.normal(size=variable.shape))
    return model


def start_tuning(initial, recipe, folder, **settings):
    settings = LORA | {"initial_run": str(initial.folder)} | settings
    recipe = dataclasses.replace(recipe, **settings)
    return start_run(folder, "tiny", recipe, **SMALL)


@pytest.fixture(scope="module", autouse=True)
def unscored():
    with all_of_one_bleu():
        yield


@pytest.fixture(scope="module")
def initial(recipe, tmp_path_factory):
    """Returns a run with a checkpoint, whose weights are random."""
    folder = tmp_path_factory.mktemp("runs") / "initial"
    run = start_run(folder, "tiny", recipe, **SMALL)
    model = make_model(run.config, recipe)
    checkpoints.save(run.checkpoints, model, step=0)
    return run


@pytest.fixture(scope="module")
def tuned(initial, recipe, tmp_path_factory):
    """Returns a run with LoRA after eight steps, its model and its output."""
    folder = tmp_path_factory.mktemp("runs") / "tuned"
    other = start_tuning(initial, recipe, folder)
    watcher = keras.callbacks.Callback()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        train(other, 8, verbose=0, callbacks=[watcher])
    return other, watcher.model, output.getvalue()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lora_rank": 3}, "lora_rank=3, initial_run=None. Name that run"),
        ({"lora_rank": 0, "initial_run": "x"}, "at least 1.*lora_rank=0"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings, expected):
    with pytest.raises(ValueError, match=expected):
        Recipe(**settings)


def test_factors_repeat_by_the_seed_and_differ_from_each_other():
    one, again, other = (
        checkpoints.state_of(make_model(CONFIG, Recipe(**LORA, seed=seed)))
        for seed in (5, 5, 7)
    )
    firsts = [n for n in one["weights"] if n.endswith("_a")]
    assert len(firsts) == 4 + 2 + 8 + 2  # an encoder and a decoder layer
    values = [one["weights"][name].numpy() for name in firsts]
    for i, (name, value) in enumerate(zip(firsts, values, strict=True)):
        np.testing.assert_array_equal(again["weights"][name], value)
        assert (other["weights"][name].numpy() != value).all()
        for more in values[:i]:
            assert (more[:7] != value[:7]).all()


def test_the_gate_of_a_feed_forward_network_has_factors():
    config = dataclasses.replace(CONFIG, feed_forward="swiglu")
    model = make_model(config, Recipe(**LORA))
    for layer in (*model.encoder_layers, *model.decoder_layers):
        gate = layer.feed_forward.gate
        names = [w.path.split("/")[-1] for w in gate.trainable_weights]
        assert names == ["lora_kernel_a", "lora_kernel_b"]


def test_only_the_factors_are_trained(initial, tuned):
    """All other weights are those of the initial run, bit for bit."""
    _, model, output = tuned
    found, before = arrays_of(model), arrays_of(load_model(initial))
    assert_equal(found, before, before)
    factors = [found[name] for name in found.keys() - before.keys()]
    assert {f"weights/{n}" for n in checkpoints.state_of(model)["weights"]} == (
        found.keys() - before.keys()
    )
    assert all(np.abs(value).max() > 0 for value in factors)  # B began with 0
    trained, every = sum(f.size for f in factors), model.count_params()
    assert f"Training {trained:,} of {every:,} parameters in " in output


def test_a_checkpoint_has_the_factors_alone(initial, tuned):
    """Files of the same run with and without LoRA have the same seeds."""
    (_, found), (_, full) = (
        checkpoints.read(checkpoints.steps(run.checkpoints)[-1][1])
        for run in (tuned[0], initial)
    )
    factors = [n for n in found if n.startswith("weights/")]
    assert all("/lora_kernel_" in name for name in factors)
    assert len(factors) == 2 * sum(n.endswith("/kernel") for n in full)
    others = found.keys() - factors
    slots = {name for name in others if name.startswith("optimizer/")}
    assert len(slots) == 2 * len(factors) + 1  # Adam's, and the iteration
    assert others - slots == {n for n in full if n.startswith("seeds/")}


def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(
    tuned, tmp_path
):
    copied = open_run(shutil.copytree(tuned[0].folder, tmp_path / "run"))
    copied.weights.unlink()
    dict(checkpoints.steps(copied.checkpoints))[8].unlink()
    train(copied, 8, verbose=0)
    found, expected = (
        checkpoints.read(dict(checkpoints.steps(run.checkpoints))[8])[1]
        for run in (copied, tuned[0])
    )
    assert_equal(found, expected)


def test_the_loaded_model_has_merged_matrices(initial, tuned, tmp_path):
    """Before and after the choice of weights: each W is W + A · B."""
    shutil.copytree(tuned[0].folder, tmp_path / "run")
    other = open_run(tmp_path / "run")
    assert_equal(
        arrays_of(load_model(other)), checkpoints.read(other.weights)[1]
    )
    other.weights.unlink()
    found, before = arrays_of(load_model(other)), arrays_of(load_model(initial))
    assert found.keys() == before.keys()
    path = dict(checkpoints.steps(other.checkpoints))[8]
    factors = checkpoints.read(path)[1]
    for name, value in before.items():
        layer, _, kind = name.rpartition("/")
        if kind == "kernel":
            a, b = (factors[f"{layer}/lora_kernel_{x}"] for x in "ab")
            value = value + a @ b
            assert (value != before[name]).any()
        np.testing.assert_array_equal(found[name], value)
    path.write_bytes(b"")
    with pytest.warns(UserWarning, match=r"step-00000008.*damaged"):
        load_model(other)  # reads step 4


def test_an_average_is_the_mean_of_the_merged_matrices(initial, tuned):
    """The product of mean factors is another matrix."""
    model = load_model(initial)
    read = lora.weights_reader(tuned[0], model)
    each = [read(path) for _, path in checkpoints.steps(tuned[0].checkpoints)]
    name, found = checkpoint_averaging._candidates(tuned[0], model, 2).popitem()
    assert name == "average of 2, steps 4 to 8"
    assert len(each) == 2
    for name, value in found.items():
        expected = np.mean([arrays[name] for arrays in each], axis=0)
        np.testing.assert_allclose(value, expected, atol=1e-7)


def test_factors_of_another_model_are_refused():
    base = {"weights/x/kernel": np.ones((5, 7))}
    factors = {
        "weights/y/lora_kernel_a": np.ones((5, 3)),
        "weights/y/lora_kernel_b": np.ones((3, 7)),
    }
    for arrays in ({}, factors):
        with pytest.raises(ValueError, match=f"Received: {len(arrays) // 2} p"):
            lora.merged(base, arrays)


def test_a_run_may_begin_with_merged_weights(recipe, tuned, tmp_path):
    """A run with LoRA can be the initial run of one without and one with."""
    merged = arrays_of(load_model(tuned[0]))
    for rank in (None, 2):
        folder = tmp_path / f"{rank}"
        other = start_tuning(tuned[0], recipe, folder, lora_rank=rank)
        model = make_model(other.config, other.recipe)
        resume(other, model, 8)
        found = arrays_of(model)
        assert_equal(found, merged, merged)
        assert len(found) == len(merged) + (rank is not None) * 2 * sum(
            name.endswith("/kernel") for name in merged
        )


def test_damaged_initial_weights_are_an_error(tuned, tmp_path):
    shutil.copytree(tuned[0].folder, tmp_path / "run")
    other = open_run(tmp_path / "run")
    (path,) = other.initial.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    model = make_model(other.config, other.recipe)
    with (
        pytest.warns(UserWarning, match="initial"),
        pytest.raises(ValueError, match=r"No checkpoint.*initial"),
    ):
        resume(other, model, 8)


@pytest.mark.parametrize(
    ("dtype_policy", "tolerance"), [("float32", 1e-6), ("mixed_bfloat16", 5e-3)]
)
def test_merged_matrices_are_what_the_model_computes_with(
    dtype_policy, tolerance
):
    """For both forward passes that are exported; in bfloat16 the model with
    LoRA rounds the sum, and the exports do not."""
    model = model_with_factors(dtype_policy=dtype_policy)
    plain = make_model(CONFIG, Recipe(dtype_policy=dtype_policy))
    arrays = arrays_of(model)
    base = {name: arrays[name] for name in arrays_of(plain)}
    merged = lora.merged(base, arrays)
    checkpoints.assign(plain, merged, with_optimizer=False)
    found, expected = (
        [
            *tf.nest.flatten(inference_weights(some)),
            *ctranslate2.specification(some).variables().values(),
        ]
        for some in (model, plain)
    )
    for one, other in zip(found, expected, strict=True):
        one, other = np.float32(one), np.float32(other)
        np.testing.assert_allclose(one, other, atol=tolerance)
    part = {name: one_part()[name][0] for name in ("source", "target")}
    logits, expected = model(part), plain(part)
    np.testing.assert_allclose(logits, expected, atol=30 * tolerance)


def test_gradients_equal_those_of_the_public_loss():
    config = dataclasses.replace(CONFIG, dropout_rate=0.0)
    model = make_model(config, Recipe(**LORA, dtype_policy="float32"))
    for variable in model.trainable_variables:
        variable.assign(variable + 0.1)
    part = {k: x[0] for k, x in one_part().items()}
    with tf.GradientTape() as tape:
        inputs = {k: part[k] for k in ("source", "target")}
        loss = LabelSmoothedCrossEntropy(0.1)
        value = loss(part["labels"], model(inputs, training=True))
    variables = model.trainable_variables
    expected = tape.gradient(value, [v.value for v in variables])
    found, _ = _gradients(model, part, 0.1)
    for variable, one, other in zip(variables, expected, found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, err_msg=variable.path)
        assert np.abs(other).max() > 0


@pytest.fixture(scope="module")
def undivided():
    """Trains on one device in float32."""
    return train_small_model(tf.distribute.get_strategy(), **CLIPPED)


@pytest.mark.programs
def test_replicas_with_parts_give_the_weights_of_one_device(
    undivided, monkeypatch
):
    # Sums over replicas have numbers, which count from here. TensorFlow refuses
    # a number that another strategy of this process used for another shape.
    monkeypatch.setattr(
        tf.distribute.MirroredStrategy, "_collective_key_base", 1000
    )
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    found = train_small_model(strategy, 2, **CLIPPED)
    assert any("lora_kernel_b" in name for name in found)
    assert found.keys() == undivided.keys()
    for name, value in undivided.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)
    assert undivided["moved"] > 1e-3


@pytest.mark.programs
def test_bfloat16_learns_what_float32_learns(undivided):
    settings = CLIPPED | {"dtype_policy": "mixed_bfloat16"}
    found = train_small_model(tf.distribute.get_strategy(), **settings)
    np.testing.assert_allclose(
        found["val_nll"], undivided["val_nll"], atol=0.02
    )
    np.testing.assert_allclose(found["moved"], undivided["moved"], rtol=0.2)


def test_to_fine_tune_the_rate_has_defaults_of_its_own():
    rates = [
        (recipe.warmup_steps, recipe.learning_rate_scale)
        for recipe in (
            Recipe(),
            Recipe(initial_run="run"),
            Recipe(initial_run="run", lora_rank=8),
            Recipe(initial_run="run", teacher_weight=0.5),
            Recipe(initial_run="run", warmup_steps=7, learning_rate_scale=0.3),
        )
    ]
    assert rates == [(4000, 1.0), (50, 0.1), (50, 0.5), (4000, 1.0), (7, 0.3)]
