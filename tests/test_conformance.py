"""What holds for every public layer; a new one must be described."""

import inspect
import json
import subprocess
import sys

import conformance
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_transformer as kt
from keras_transformer.layers.keras_attention import NOT_SUPPORTED

CASES = list(conformance.LAYERS.values())
each_layer = pytest.mark.parametrize(
    ("layer_class", "arguments", "inputs"), CASES, ids=conformance.LAYERS
)


def symbolic(inputs):
    return [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]


def functional(layer, inputs):
    tensors = symbolic(inputs)
    tensors = tensors if len(tensors) > 1 else tensors[0]
    outputs = layer(*tensors) if isinstance(tensors, list) else layer(tensors)
    return keras.Model(tensors, outputs)


def test_every_public_layer_is_described():
    public = {
        name
        for name in kt.__all__
        if inspect.isclass(getattr(kt, name))
        and issubclass(getattr(kt, name), keras.layers.Layer)
        and not issubclass(getattr(kt, name), keras.Model)
    }
    assert public == set(conformance.LAYERS), (
        "Describe the layer in tests/conformance.py."
    )


@each_layer
def test_description_leaves_no_argument_at_its_default(
    layer_class, arguments, inputs
):
    owner = next(
        c
        for c in layer_class.__mro__
        if "kwargs" in inspect.signature(c.__init__).parameters
        and "args" not in inspect.signature(c.__init__).parameters
    )
    defaults = inspect.signature(owner.__init__).parameters
    for name, parameter in defaults.items():
        if name not in ("self", "kwargs", *NOT_SUPPORTED):
            assert name in arguments, f"{name} is not described"
            assert arguments[name] != parameter.default, name


@each_layer
def test_config_round_trips_through_json(layer_class, arguments, inputs):
    layer = layer_class(**arguments, name="x", dtype="mixed_bfloat16")
    config = json.loads(json.dumps(layer.get_config()))
    again = layer_class.from_config(config)
    assert again.get_config() == layer.get_config()
    for name in arguments:
        assert name in config
    assert again.dtype_policy.name == "mixed_bfloat16"


@each_layer
def test_outputs_are_as_announced(layer_class, arguments, inputs):
    layer = layer_class(**arguments)
    calls = [{}]
    if "return_attention_scores" in inspect.signature(layer.call).parameters:
        calls.append({"return_attention_scores": True})
    for options in calls:
        announced = layer(*symbolic(inputs), **options)
        found = layer(*inputs, **options)
        announced, found = (
            keras.tree.flatten(announced),
            keras.tree.flatten(found),
        )
        assert len(announced) == len(found) == 1 + len(options)
        for a, f in zip(announced, found, strict=True):
            assert len(a.shape) == len(f.shape)
            assert all(
                x in (None, y) for x, y in zip(a.shape, f.shape, strict=True)
            )
            assert a.shape[-1] == f.shape[-1]
            assert a.dtype == keras.backend.standardize_dtype(f.dtype)


@each_layer
def test_every_weight_is_built_by_build(layer_class, arguments, inputs):
    layer = layer_class(**arguments)
    layer.build(*[x.shape for x in inputs])
    before = [w.path for w in layer.weights]
    assert before
    layer(*inputs)
    assert [w.path for w in layer.weights] == before


def test_keras_files_load_in_a_fresh_process(tmp_path):
    expected = []
    for i, (layer_class, arguments, inputs) in enumerate(CASES):
        model = functional(layer_class(**arguments), inputs)
        model.save(tmp_path / f"{i}.keras")
        np.savez(tmp_path / f"{i}.npz", *inputs)
        expected.append(model(list(inputs) if len(inputs) > 1 else inputs[0]))
    program = (
        "import keras, keras_transformer, numpy as np\n"
        f"for i in range({len(CASES)}):\n"
        "    model = keras.models.load_model(f'{i}.keras')\n"
        "    inputs = list(np.load(f'{i}.npz').values())\n"
        "    inputs = inputs if len(inputs) > 1 else inputs[0]\n"
        "    np.save(f'{i}.npy', model(inputs))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    for i, output in enumerate(expected):
        np.testing.assert_array_equal(np.load(tmp_path / f"{i}.npy"), output)


@each_layer
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(layer_class, arguments, inputs, policy):
    layer = layer_class(**arguments, dtype=policy)
    found = layer(*inputs)
    assert keras.backend.standardize_dtype(found.dtype) == policy[6:]
    assert {w.dtype for w in layer.weights} == {"float32"}
    for sub in layer._flatten_layers():
        assert sub.dtype_policy.name == policy, sub.name
    full = layer_class(**arguments)
    full(*inputs)
    full.set_weights(layer.get_weights())
    np.testing.assert_allclose(
        ops.cast(found, "float32"), full(*inputs), atol=0.1
    )


@each_layer
def test_eager_and_graph_agree(layer_class, arguments, inputs):
    layer = layer_class(**arguments)
    expected = layer(*inputs)
    found = tf.function(lambda *args: layer(*args))(*inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@each_layer
def test_a_gradient_reaches_every_weight(layer_class, arguments, inputs):
    quiet = {**arguments, "use_bias": True}
    if "use_bias" not in arguments:
        quiet = arguments
    layer = layer_class(**quiet)
    with tf.GradientTape() as tape:
        out = layer(*[tf.convert_to_tensor(x) for x in inputs], training=True)
        loss = tf.reduce_sum(out * conformance.random(*out.shape))
    weights = layer.trainable_weights
    gradients = tape.gradient(loss, [w.value for w in weights])
    for weight, gradient in zip(weights, gradients, strict=True):
        assert gradient is not None, weight.path
        gradient = tf.convert_to_tensor(gradient)
        assert np.isfinite(gradient).all(), weight.path
        if not weight.path.endswith("key/bias"):  # softmax cancels it
            assert np.abs(gradient).max() > 1e-6, weight.path


@each_layer
def test_inside_a_strategy_of_two(layer_class, arguments, inputs):
    """Each replica computes what one device computes."""
    if layer_class is kt.PositionalEmbedding:
        arguments = {**arguments, "dropout_rate": 0.0}
    cpus = tf.config.list_logical_devices("CPU")
    strategy = tf.distribute.MirroredStrategy(
        [cpus[0].name, cpus[-1].name][: len(cpus)]
    )
    with strategy.scope():
        layer = layer_class(**arguments)
        layer.build(*[x.shape for x in inputs])
    expected = layer(*inputs)
    found = strategy.run(
        tf.function(lambda: layer(*[tf.convert_to_tensor(x) for x in inputs]))
    )
    for value in strategy.experimental_local_results(found):
        np.testing.assert_allclose(value, expected, atol=1e-5)


@each_layer
def test_implicit_masks_stay_on_what_came_in(layer_class, arguments, inputs):
    if layer_class is kt.PositionalEmbedding:
        inputs = [tf.convert_to_tensor(inputs[0])]
        found = layer_class(**{**arguments, "mask_zero": True})(*inputs)
        np.testing.assert_array_equal(found._keras_mask, inputs[0] != 0)
        return
    tensors = [tf.convert_to_tensor(x) for x in inputs]
    masks = [np.arange(x.shape[1])[None] < [[2], [1]] for x in inputs]
    for tensor, mask in zip(tensors, masks, strict=True):
        tensor._keras_mask = tf.convert_to_tensor(mask)
    found = layer_class(**arguments)(*tensors)
    for tensor, mask in zip(tensors, masks, strict=True):
        np.testing.assert_array_equal(tensor._keras_mask, mask)
    np.testing.assert_array_equal(found._keras_mask, masks[0])
