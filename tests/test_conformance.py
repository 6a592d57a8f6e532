"""Checks every public name on any Keras backend.

A new public name needs a row in `tests/conformance.py`. The suite runs this
file on TensorFlow, `make test-jax` on JAX, and `make test-torch` on PyTorch.
"""

import inspect
import itertools
import json
import math
import os
import subprocess
import sys

import conformance
import keras
import numpy as np
import pytest
from conformance import (
    CLASSIFIERS,
    LABELS,
    LANGUAGE_MODELS,
    LAYERS,
    MODELS,
    PLAIN_LAYERS,
    SOURCE,
    TARGET,
    assert_close,
    compiled_on_jax,
    numpy_of,
)
from keras import ops

import keras_transformer as kt
from keras_transformer.testing import assert_no_leak

BACKEND = keras.backend.backend()
ALL_LAYERS = [*LAYERS, *PLAIN_LAYERS]
POLICIES = ["float32", "mixed_bfloat16", "mixed_float16"]


def a_program(test):
    """Marks a test that other backends, which run this file alone, need."""
    return pytest.mark.programs(test) if BACKEND == "tensorflow" else test


def each(rows):
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)


def symbolic(inputs):
    return [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]


def compiled(function):
    """Returns the function, compiled by the backend."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    import jax

    return jax.jit(function)


# === The table ===


def test_every_public_name_has_a_row():
    names = set(kt.__all__) - {"replace_attention"}  # see test_drop_in.py
    assert {row.name for row in conformance.ROWS} == names, (
        "Describe the name in tests/conformance.py."
    )


def test_a_mask_of_queries_and_keys_needs_no_batch():
    x = conformance.random(2, 5, 14)
    mask = np.random.default_rng(1).random((5, 5)) > 0.4
    mask[3] = False  # attends to nothing
    for layer, inputs in (
        (kt.MultiHeadAttention(2, 7), (x, x)),
        (kt.EncoderLayer(14, 2, 17), (x,)),
        (kt.DecoderLayer(14, 2, 17), (x, x)),
        (kt.EncoderLayer(14, 2, 17, sliding_window=3), (x,)),
    ):
        found = layer(*inputs, attention_mask=mask)
        every = np.repeat(mask[None], 2, axis=0)
        expected = layer(*inputs, attention_mask=every)
        np.testing.assert_allclose(
            numpy_of(found), numpy_of(expected), atol=1e-6
        )


def test_tensorflow_is_absent_from_other_backends():
    if BACKEND == "tensorflow":
        import tensorflow
    else:
        with pytest.raises(ImportError):
            import tensorflow  # noqa: F401


@each(LAYERS)
def test_the_row_of_a_layer_leaves_no_argument_at_its_default(row):
    for name, parameter in inspect.signature(row.public).parameters.items():
        if name not in ("kwargs", "attention_axes"):  # which has one value
            assert name in row.arguments, f"{name} is not described"
            assert row.arguments[name] != parameter.default, name


# === Configs and files ===


@each(conformance.OBJECTS)
def test_config_round_trips_through_json(row):
    made = row.make(dtype="mixed_bfloat16") if row in ALL_LAYERS else row.make()
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(made)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(made)
    assert again.get_config() == made.get_config()
    for name, value in row.arguments.items():
        kept = config["config"][name]
        assert kept == value or isinstance(kept, dict), name  # an object
    if row in ALL_LAYERS:
        assert again.dtype_policy.name == "mixed_bfloat16"


@each(conformance.CONFIGS)
def test_a_transformer_config_round_trips_through_json(row):
    made = row.make()
    again = json.loads(json.dumps(made.to_dict()))
    assert row.public.from_dict(again) == made


def trainable_model(row):
    """Returns a Transformer with the public loss, metrics and schedule."""
    model = conformance.with_seeded_weights(row.make())
    model.compile(
        keras.optimizers.Adam(kt.TransformerSchedule(22, 10)),
        kt.LabelSmoothedCrossEntropy(),
        metrics=[kt.TokenLoss(), kt.TokenAccuracy(), kt.Perplexity()],
        jit_compile=BACKEND == "jax",
        # Tracing takes seconds on TensorFlow; tests/test_model.py trains a
        # traced model.
        run_eagerly=BACKEND == "tensorflow",
    )
    return model


IDS = {"source": SOURCE, "target": TARGET}
RELOAD = """
import sys
import conformance
import keras
import numpy as np

for i, row in enumerate(conformance.LAYERS):
    model = keras.models.load_model(f"{i}.keras")
    found = conformance.compiled_on_jax(model)(list(row.inputs))
    np.save(f"{i}.npy", keras.ops.convert_to_numpy(found))
ids = {"source": conformance.SOURCE, "target": conformance.TARGET}
model = keras.models.load_model("plain.keras")
found = conformance.compiled_on_jax(model)(ids)
np.save("plain.npy", keras.ops.convert_to_numpy(found))
model = keras.models.load_model("compiled.keras")
np.save("compiled.npy", model.evaluate(ids, conformance.LABELS, verbose=0))
"""


@a_program
def test_keras_files_load_in_a_fresh_process(tmp_path):
    expected = {}
    for i, row in enumerate(LAYERS):
        model = conformance.model_of(row)
        model.save(tmp_path / f"{i}.keras")
        expected[f"{i}.npy"] = compiled_on_jax(model)(list(row.inputs))
    plain, other = MODELS[0], MODELS[-1]
    model = conformance.model_with_seeded_weights(plain)
    model.save(tmp_path / "plain.keras")
    expected["plain.npy"] = compiled_on_jax(model)(IDS)
    model = trainable_model(other)
    model.save(tmp_path / "compiled.keras")
    expected["compiled.npy"] = model.evaluate(
        IDS, conformance.LABELS, verbose=0
    )
    result = subprocess.run(
        [sys.executable, "-c", RELOAD],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    for file, output in expected.items():
        assert_close(np.load(tmp_path / file), output, 1e-6)


@a_program
def test_importing_the_package_after_keras_registers_its_classes(tmp_path):
    conformance.model_of(LAYERS[0]).save(tmp_path / "model.keras")
    program = "keras.models.load_model('model.keras')"
    for imports, returncode in (("keras, keras_transformer", 0), ("keras", 1)):
        result = subprocess.run(
            [sys.executable, "-c", f"import {imports}; {program}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
        )
        assert result.returncode == returncode, result.stderr
    assert "Could not locate class" in result.stderr


# === Outputs ===


@each(ALL_LAYERS)
def test_outputs_match_those_of_a_symbolic_call(row):
    layer = row.make()
    calls = [{}]
    if "return_attention_scores" in inspect.signature(layer.call).parameters:
        calls.append({"return_attention_scores": True})
    for options in calls:
        specified = layer(*symbolic(row.inputs), **options)
        found = layer(*row.inputs, **options)
        specified, found = (
            keras.tree.flatten(specified),
            keras.tree.flatten(found),
        )
        assert len(specified) == len(found) == 1 + len(options)
        for a, f in zip(specified, found, strict=True):
            assert len(a.shape) == len(f.shape)
            assert all(
                x in (None, y) for x, y in zip(a.shape, f.shape, strict=True)
            )
            assert a.shape[-1] == f.shape[-1]
            assert a.dtype == keras.backend.standardize_dtype(f.dtype)


@each(ALL_LAYERS)
def test_every_weight_is_built_by_build(row):
    layer = row.make()
    layer.build(*[x.shape for x in row.inputs])
    before = [w.path for w in layer.weights]
    assert before
    layer(*row.inputs)
    assert [w.path for w in layer.weights] == before


@each(ALL_LAYERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_layer_obeys_its_dtype_policy(row, policy):
    layer = conformance.built(row, dtype=policy)
    found = compiled_on_jax(layer)(*row.inputs)
    compute = policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(found.dtype) == compute
    assert {w.dtype for w in layer.weights} == {"float32"}
    for sub in layer._flatten_layers():
        assert sub.dtype_policy.name == policy, sub.name
    expected = numpy_of(compiled_on_jax(conformance.built(row))(*row.inputs))
    # Each weight is used in one operation. It rounds its input, the weight and
    # its output, each by at most half a unit in the last place.
    units = {"float32": 2**-23, "bfloat16": 2**-7, "float16": 2**-10}[compute]
    error = numpy_of(ops.cast(found, "float32")) - expected
    bound = 1.5 * units * len(layer.weights)
    assert np.linalg.norm(error) <= bound * np.linalg.norm(expected)


@each(MODELS)
@pytest.mark.parametrize("policy", POLICIES[1:])
def test_the_model_obeys_its_dtype_policy(row, policy):
    full = conformance.model_with_seeded_weights(row)
    mixed = conformance.with_seeded_weights(row.make(dtype=policy))
    found = numpy_of(compiled_on_jax(mixed)(IDS))
    expected = numpy_of(compiled_on_jax(full)(IDS))
    assert found.dtype == "float32"
    assert {w.dtype for w in mixed.weights} == {"float32"}
    for layer in mixed._flatten_layers(include_self=False):
        if not isinstance(layer, keras.layers.InputLayer) and layer.weights:
            assert layer.compute_dtype == policy.removeprefix("mixed_")
    units = {"mixed_bfloat16": 2**-7, "mixed_float16": 2**-10}[policy]
    # Roundings of many weights partly cancel out.
    bound = 1.5 * units * len(full.weights) ** 0.5
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error <= bound


# === Masks ===

MASKED = [row for row in ALL_LAYERS if row.masks]
CAUSAL = [row for row in ALL_LAYERS if row.causal is not None]


def lengths_mask(x, *lengths):
    """Boolean `(B, T)`, True up to each row's length."""
    return np.arange(x.shape[1])[None] < np.reshape(lengths, (-1, 1))


@each(MASKED)
def test_masked_positions_change_nothing(row):
    layer = conformance.built(row)
    masks = [lengths_mask(x, 3, 2) for x in row.inputs]
    expected = layer(*row.inputs, **dict(zip(row.masks, masks, strict=True)))
    real = lengths_mask(row.inputs[0], 3, 2)
    noisy = [
        np.pad(np.where(m[..., None], x, 100), ((0, 0), (0, 2), (0, 0)))
        for x, m in zip(row.inputs, masks, strict=True)
    ]
    masks = [np.pad(m, ((0, 0), (0, 2))) for m in masks]
    found = layer(*noisy, **dict(zip(row.masks, masks, strict=True)))
    found = numpy_of(found)[:, : real.shape[1]]
    assert_close(found[real], numpy_of(expected)[real])


@each(MASKED)
def test_implicit_masks_act_like_explicit_ones(row):
    """The mask comes from Keras' embedding."""
    layer = conformance.built(row)
    embedding = keras.layers.Embedding(7, conformance.D, mask_zero=True)
    ids = [np.array([[5, 3, 6], [4, 1, 0]]), np.array([[5, 3], [4, 0]])]
    ids = ids[: len(row.inputs)]
    tensors = [keras.Input((None,), dtype="int32") for _ in ids]
    model = keras.Model(tensors, layer(*[embedding(x) for x in tensors]))
    explicit = {name: x != 0 for name, x in zip(row.masks, ids, strict=True)}
    # The embedded inputs are arrays here, which have no implicit mask.
    expected = layer(*[numpy_of(embedding(x)) for x in ids], **explicit)
    # At padding, outputs are not specified.
    real = ids[0] != 0
    assert_close(numpy_of(model(ids))[real], numpy_of(expected)[real])


@each(MASKED)
def test_explicit_masks_replace_implicit_ones(row):
    """Token 0 is real here, and 6 is padding."""
    layer = conformance.built(row)
    embedding = keras.layers.Embedding(7, conformance.D, mask_zero=True)
    ids = [np.array([[5, 0, 6], [0, 1, 6]]), np.array([[0, 3], [4, 6]])]
    ids = ids[: len(row.inputs)]
    explicit = {name: x != 6 for name, x in zip(row.masks, ids, strict=True)}
    found = layer(*[embedding(x) for x in ids], **explicit)
    expected = layer(*[numpy_of(embedding(x)) for x in ids], **explicit)
    real = ids[0] != 6
    assert_close(numpy_of(found)[real], numpy_of(expected)[real])


class Mask(keras.layers.Layer):
    """Returns the implicit mask of its input."""

    supports_masking = True

    def call(self, x, mask=None):
        return ops.cast(mask, "float32")


@each(ALL_LAYERS)
def test_the_mask_of_the_first_input_is_passed_on(row):
    ids = np.array([[5, 3, 6], [4, 1, 0]])
    x = tensor = keras.Input((None,), dtype="int32")
    if row.name == "PositionalEmbedding":
        found = Mask()(row.make(mask_zero=True)(x))
    else:
        x = keras.layers.Embedding(7, conformance.D, mask_zero=True)(x)
        found = Mask()(row.make()(*[x for _ in row.inputs]))
    assert_close(keras.Model(tensor, found)(ids), ids != 0)


@each(CAUSAL)
def test_later_positions_change_no_earlier_output(row):
    layer = conformance.built(row)
    x, *memory = row.inputs
    # Causal attention has one input, which attends to itself.
    rest = [x] if row.name == "MultiHeadAttention" else memory
    expected = numpy_of(layer(x, *rest, **row.causal))
    for t in range(1, x.shape[1]):
        other = np.where(np.arange(x.shape[1])[:, None] >= t, -x, x)
        rest = [other] if row.name == "MultiHeadAttention" else memory
        found = numpy_of(layer(other, *rest, **row.causal))
        assert_close(found[:, :t], expected[:, :t], 1e-6)
        assert np.abs(found[:, t:] - expected[:, t:]).max() > 1e-3


@each(MODELS)
def test_nothing_leaks_in_the_model(row):
    model = conformance.model_with_seeded_weights(row)
    assert_no_leak(compiled_on_jax(model), IDS, causal="target")


@each(CLASSIFIERS)
def test_nothing_leaks_in_the_classifier(row):
    model = conformance.model_with_seeded_weights(row)
    assert_no_leak(compiled_on_jax(model), *row.inputs)


@each(LANGUAGE_MODELS)
def test_nothing_leaks_in_the_language_model(row):
    model = conformance.model_with_seeded_weights(row)
    assert_no_leak(compiled_on_jax(model), *row.inputs, causal=True)


# === Step by step ===


@each(LANGUAGE_MODELS)
def test_the_language_model_finds_what_its_logits_say(row):
    """Prompts are read at once and one by one, by their lengths."""
    model = conformance.model_with_seeded_weights(row)
    rng = np.random.default_rng(3)
    prompts = [rng.integers(4, 31, size=n).tolist() for n in (17, 35, 20)]
    found = model.generate(prompts, max_new_tokens=3)
    for prompt, text in zip(prompts, found, strict=True):
        assert text[: len(prompt)] == prompt
        for i in range(len(prompt), len(text)):
            logits = numpy_of(model(np.array([[2, *text[:i]]])))[0, -1, 3:]
            # Rounding may order two almost equal logits otherwise.
            assert logits[text[i] - 3] > logits.max() - 1e-4
    drawn = [
        model.generate(prompts, 3, temperature=0.7, top_k=9, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert model.generate([]) == []


@each(CAUSAL)
def test_cached_steps_equal_the_full_pass(row):
    layer = conformance.built(row)
    x, *memory = row.inputs
    attention = row.name == "MultiHeadAttention"
    rest = [x] if attention else memory
    expected = layer(x, *rest, **row.causal)
    options = {}
    if row.name == "DecoderLayer":
        options["memory_cache"] = layer.project_memory(*memory)
    cache = layer.empty_cache(len(x), x.shape[1])
    steps = []
    for t in range(x.shape[1]):
        now = x[:, t : t + 1]
        step, cache = layer(
            *([now, now] if attention else [now]),
            cache=cache,
            cache_index=t,
            **options,
        )
        steps.append(numpy_of(step))
    assert_close(np.concatenate(steps, axis=1), expected)


@each(MODELS)
def test_cached_steps_equal_the_logits_of_the_model(row):
    model = conformance.model_with_seeded_weights(row)
    expected = numpy_of(compiled_on_jax(model)(IDS))
    memory = model.project_memory(compiled_on_jax(model.encode)(SOURCE))
    cache = model.empty_cache(*TARGET.shape)
    real = TARGET != 0
    step = compiled_on_jax(model.decode_step)
    for t in range(TARGET.shape[1]):
        tokens = ops.convert_to_tensor(TARGET[:, t])
        found, cache = step(tokens, cache, t, memory, SOURCE != 0)
        assert_close(numpy_of(found)[real[:, t]], expected[real[:, t], t])


@each(conformance.WITHOUT_REPEATS)
def test_searches_find_no_pair_of_tokens_twice(row):
    ids, _, _ = conformance.search(row)
    for tokens in ids.reshape(-1, ids.shape[-1]).tolist():
        tokens = tokens[: tokens.index(3) + 1] if 3 in tokens else []
        pairs = list(itertools.pairwise(tokens))
        assert len(set(pairs)) == len(pairs)


@each(conformance.SEARCHES)
def test_search_scores_equal_those_of_the_model(row):
    """The model scores the ids without the caches that the search uses."""
    ids, scores, model = conformance.search(row)
    (limits,) = row.inputs
    for b in range(ids.shape[0]):
        for k in range(ids.shape[1]):
            if scores[b, k] == -np.inf:
                assert (ids[b, k] == 0).all()
                continue
            (length,) = np.flatnonzero(ids[b, k] == 3) + 1
            assert length <= limits[b]
            found = ids[b, k, :length][None]
            shifted = np.concatenate([[[2]], found[:, :-1]], axis=1)
            source = SOURCE[b : b + 1]
            # Later positions change nothing, so all rows get one shape.
            shifted = np.pad(shifted, ((0, 0), (0, 7 - length)))
            logits = compiled_on_jax(model)(
                {"source": source, "target": shifted}
            )
            logits = numpy_of(ops.log_softmax(logits))[:, :length]
            score = np.take_along_axis(logits, found[..., None], axis=-1).sum()
            if row.name == "beam_search":
                alpha = row.arguments.get("alpha", 0.6)
                if row.arguments.get("length_penalty") != "power":
                    length = (5 + length) / 6
                score = score / length**alpha
            assert_close(scores[b, k], score)


@each(conformance.SEARCHES)
def test_searches_obey_minimum_lengths_prefixes_and_terms(row):
    ids, scores, _ = conformance.search(row)
    for b, minimum in enumerate(row.arguments.get("min_lengths", [1, 1])):
        assert (ids[b, :, : minimum - 1] != 3).all()
    for b, tokens in enumerate(row.arguments.get("prefix", [])):
        for i, token in enumerate(tokens):
            assert token < 0 or (ids[b, :, i] == token).all()
    for b, ((first, second),) in enumerate(row.arguments.get("terms", [])):
        is_there = ids[b] == first
        if second >= 0:
            is_there = is_there[:, :-1] & (ids[b, :, 1:] == second)
        assert is_there.any(axis=1)[np.isfinite(scores[b])].all()
        assert np.isfinite(scores[b, 0])


# === Training ===


@each(ALL_LAYERS)
def test_one_training_step_changes_every_weight(row):
    """With SGD at rate 1, a weight changes by its gradient."""
    free = {
        name: True if name == "use_bias" else None
        for name in row.arguments
        if name.endswith(("use_bias", "regularizer", "constraint"))
    }
    if "tie_projection" in row.arguments:  # a call has no logits
        free |= {"tie_projection": True, "use_logits_bias": False}
    model = conformance.model_of(row, **free)
    model.compile(
        keras.optimizers.SGD(1.0),
        lambda y_true, y_pred: ops.sum(y_true * y_pred),
        jit_compile=BACKEND == "jax",
    )
    before = [numpy_of(w) for w in model.trainable_weights]
    target = conformance.random(*model(list(row.inputs)).shape)
    loss = model.train_on_batch(list(row.inputs), target)
    assert math.isfinite(loss)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        new = numpy_of(weight)
        assert np.isfinite(new).all(), weight.path
        if not weight.path.endswith("key/bias"):  # softmax cancels it
            assert np.abs(new - old).max() > 1e-6, weight.path


@each(MODELS)
def test_one_training_step_changes_every_weight_of_the_model(row):
    model = trainable_model(row)
    before = [numpy_of(w) for w in model.trainable_weights]
    values = model.train_on_batch(IDS, conformance.LABELS)
    assert np.isfinite(values).all()
    for weight, old in zip(model.trainable_weights, before, strict=True):
        new = numpy_of(weight)
        assert np.isfinite(new).all(), weight.path
        assert (new != old).any(), weight.path


@each([*CLASSIFIERS, *LANGUAGE_MODELS])
def test_one_training_step_changes_every_weight_of_other_models(row):
    model = conformance.with_seeded_weights(row.make())
    model.compile(
        keras.optimizers.Adam(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=BACKEND == "jax",
        run_eagerly=BACKEND == "tensorflow",
    )
    before = [numpy_of(w) for w in model.trainable_weights]
    labels = np.array([6, 0]) if row in CLASSIFIERS else LABELS
    assert math.isfinite(model.train_on_batch(*row.inputs, labels))
    for weight, old in zip(model.trainable_weights, before, strict=True):
        new = numpy_of(weight)
        assert np.isfinite(new).all(), weight.path
        assert (new != old).any(), weight.path


# === Compiled ===

# On PyTorch, Keras' own `fit` is eager; `torch.compile` needs a C++ compiler.
if BACKEND != "torch":

    @each(ALL_LAYERS)
    def test_eager_and_compiled_layers_agree(row):
        layer = conformance.built(row)
        inputs = [ops.convert_to_tensor(x) for x in row.inputs]
        expected = layer(*inputs)
        assert_close(compiled(lambda *args: layer(*args))(*inputs), expected)

    @each(MODELS)
    def test_eager_and_compiled_models_agree(row):
        model = conformance.model_with_seeded_weights(row)
        ids = [ops.convert_to_tensor(x) for x in (SOURCE, TARGET)]

        def call(source, target):
            return model({"source": source, "target": target})

        assert_close(compiled(call)(*ids), call(*ids))

    @each([*conformance.LOSSES, *conformance.METRICS, *conformance.SCHEDULES])
    def test_eager_and_compiled_losses_metrics_and_schedules_agree(row):
        made = row.make()
        inputs = [ops.convert_to_tensor(x) for x in row.inputs]
        if row in conformance.METRICS:
            (expected,) = conformance.outputs(row)
            variables = made.variables

            def run(labels, logits):
                state = made.stateless_update_state(variables, labels, logits)
                state = made.stateless_update_state(
                    state, labels[:1], logits[1:]
                )
                return made.stateless_result(state)

        else:
            expected, run = made(*inputs), lambda *args: made(*args)
        assert_close(compiled(run)(*inputs), expected)

    @each([conformance.SEARCHES[i] for i in (0, 5, 7)])
    def test_searches_can_be_compiled(row):
        model, step = conformance.model_and_step()
        (limits,) = row.inputs
        beams = row.arguments.get("beam_size", 1)

        def search(cache):
            return row.public(step, cache, limits, **row.arguments)

        cache = model.empty_cache(len(limits) * beams, max(limits))
        ids, scores, _ = conformance.search(row)
        found_ids, found_scores = compiled(search)(cache)
        np.testing.assert_array_equal(
            numpy_of(found_ids).reshape(ids.shape), ids
        )
        assert_close(numpy_of(found_scores).reshape(scores.shape), scores)

    @each(conformance.BLOCKWISE)
    def test_blockwise_search_can_be_compiled(row):
        def search():
            return conformance.blockwise_search(row)

        for found, expected in zip(compiled(search)(), search(), strict=True):
            assert_close(found, expected)


# === TensorFlow's own ===

if BACKEND == "tensorflow":

    @each(LAYERS)
    def test_a_call_leaves_the_implicit_masks_of_its_inputs(row):
        if row.name == "PositionalEmbedding":
            ids = ops.convert_to_tensor(row.inputs[0])
            found = row.make(mask_zero=True)(ids)
            np.testing.assert_array_equal(found._keras_mask, ids != 0)
            return
        tensors = [ops.convert_to_tensor(x) for x in row.inputs]
        masks = [np.arange(x.shape[1])[None] < [[2], [1]] for x in row.inputs]
        for tensor, mask in zip(tensors, masks, strict=True):
            tensor._keras_mask = ops.convert_to_tensor(mask)
        found = row.make()(*tensors)
        for tensor, mask in zip(tensors, masks, strict=True):
            np.testing.assert_array_equal(tensor._keras_mask, mask)
        np.testing.assert_array_equal(found._keras_mask, masks[0])
