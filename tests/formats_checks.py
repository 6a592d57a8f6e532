"""Models that are composed of our layers, exported by Keras in other formats.

`make test-formats` runs this. Each file is read by its own runtime alone, in a
process without Keras and TensorFlow, and gives what the model gives in Python.
"""

import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt

V, D, H, F = 31, 16, 2, 24
# Batches and lengths of sources and targets, none of them that of the export.
SHAPES = [(2, 5, 3), (1, 3, 7), (3, 17, 11)]
EMPTY = (0, 5, 3)  # for ONNX, without windows; the others refuse it
ENDINGS = {"onnx": "onnx", "openvino": "xml", "litert": "tflite"}


def ids_input(name="ids", length=None):
    return keras.Input((length,), dtype="int32", name=name)


def encoded(ids, causal=False, **options):
    x = kt.PositionalEmbedding(V, D)(ids)
    for _ in range(2):
        x = kt.EncoderLayer(D, H, F, **options)(x, use_causal_mask=causal)
    return x


def encoder(length=None):
    ids = ids_input(length=length)
    return keras.Model(ids, encoded(ids))


def encoder_of_one_length():
    return encoder(length=5)


def encoder_with_a_window():
    ids = ids_input()
    return keras.Model(ids, encoded(ids, sliding_window=3, norm_first=True))


def language_model():
    ids = ids_input()
    return keras.Model(ids, keras.layers.Dense(V)(encoded(ids, causal=True)))


def classifier():
    ids = ids_input()
    x = keras.layers.GlobalAveragePooling1D()(encoded(ids))
    return keras.Model(ids, keras.layers.Dense(3, activation="softmax")(x))


def encoder_of_vectors():
    x = keras.Input((None, D - 3), name="vectors")
    y = kt.FeatureEmbedding(D, positions="learned", max_length=32)(x)
    return keras.Model(x, kt.EncoderLayer(D, H, F)(y))


def decoder():
    memory = keras.Input((None, D), name="memory")
    ids = ids_input()
    x = kt.PositionalEmbedding(V, D)(ids)
    for _ in range(2):
        x = kt.DecoderLayer(D, H, F)(x, memory)
    return keras.Model([memory, ids], x)


def attention():
    x = keras.Input((None, D), name="vectors")
    return keras.Model(x, kt.MultiHeadAttention(H, 8)(x, x))


def keras_attention_replaced():
    x = keras.Input((None, D), name="vectors")
    y = keras.layers.MultiHeadAttention(H, 8, use_gate=True)(x, x)
    return kt.replace_attention(keras.Model(x, x + y))


def transformer():
    config = kt.TransformerConfig.preset(
        "tiny", vocab_size=V, num_layers=2, d_model=D, num_heads=H, d_ff=F
    )
    return kt.Transformer(config)


MODELS = [
    encoder,
    encoder_of_one_length,
    encoder_with_a_window,
    language_model,
    classifier,
    encoder_of_vectors,
    decoder,
    attention,
    keras_attention_replaced,
    transformer,
]


def with_weights(model):
    """Sets all weights to random numbers, biases and gains, too."""
    rng = np.random.default_rng(1)
    for weight in model.weights:
        if weight.dtype == "float32":
            around = 1.0 if weight.name == "gamma" else 0.0
            weight.assign(around + 0.3 * rng.normal(size=weight.shape))
    return model


def inputs_of(model, shapes):
    """Returns arrays for the inputs of a model, by their names."""
    batch, source, target = shapes
    rng, arrays = np.random.default_rng(sum(shapes)), {}
    for spec in keras.tree.flatten(model.inputs):
        name = spec.name
        length = spec.shape[1] or (source if name != "target" else target)
        if spec.dtype == "int32":
            ids = rng.integers(1, V, (batch, length), "int32")
            ids[-1:, length // 2 + 1 :] = 0  # padding
            arrays[name] = ids
        else:
            shape = (batch, length, spec.shape[-1])
            arrays[name] = rng.normal(size=shape).astype("float32")
    return arrays


def outputs_of(model, arrays):
    values = list(arrays.values())
    if isinstance(model.input, dict):
        return np.asarray(model(arrays))
    return np.asarray(model(values if len(values) > 1 else values[0]))


# Runs a file on each of the inputs that are saved beside it.
RUN = """
import pathlib, sys
import numpy as np

kind, file, folder = sys.argv[1:]

if kind == "onnx":
    import onnxruntime
    session = onnxruntime.InferenceSession(file)
    def run(arrays):
        return session.run(None, arrays)[0]
elif kind == "openvino":
    import openvino
    # Without the hint, processors with bfloat16 compute in it.
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(file, "CPU", exact)
    def run(arrays):
        return model(arrays)[0]
else:
    from ai_edge_litert.interpreter import Interpreter
    interpreter = Interpreter(file)
    names = interpreter.get_signature_list()["serving_default"]["inputs"]
    def run(arrays):
        details = interpreter.get_input_details()
        for d in details:
            # The names of inputs are those of the model, with an affix.
            [d["ours"]] = [n for n in arrays if f"_{n}:" in d["name"]]
            interpreter.resize_tensor_input(d["index"], arrays[d["ours"]].shape)
        interpreter.allocate_tensors()
        for d in details:
            interpreter.set_tensor(d["index"], arrays[d["ours"]])
        interpreter.invoke()
        [output] = interpreter.get_output_details()
        return interpreter.get_tensor(output["index"])

for i, path in enumerate(sorted(pathlib.Path(folder).glob("in*.npz"))):
    np.save(path.with_suffix(".npy"), run(dict(np.load(path))))
ours = {"keras", "tensorflow", "jax", "torch", "keras_transformer"}
assert not ours & sys.modules.keys(), ours & sys.modules.keys()
"""


def size_of(folder):
    return sum(
        f.stat().st_size for f in folder.iterdir() if f.suffix[:3] != ".np"
    )


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ENDINGS)
@pytest.mark.parametrize("build", MODELS, ids=lambda f: f.__name__)
def test_a_file_gives_what_the_model_gives(build, kind, tmp_path, capsys):
    model = with_weights(build())
    batches = [inputs_of(model, shapes) for shapes in SHAPES]
    if kind == "onnx" and build is not encoder_with_a_window:
        batches.append(inputs_of(model, EMPTY))
    expected = [outputs_of(model, arrays) for arrays in batches]
    file = tmp_path / f"model.{ENDINGS[kind]}"
    model.export(str(file), format=kind, verbose=False)
    for i, arrays in enumerate(batches):
        np.savez(tmp_path / f"in{i}.npz", **arrays)
    command = [sys.executable, "-I", "-c", RUN, kind, str(file), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    largest = 0.0
    for i, output in enumerate(expected):
        found = np.load(tmp_path / f"in{i}.npy")
        assert found.shape == output.shape
        difference = np.abs(found - output).max(initial=0.0)
        largest = max(largest, float(difference))
    with capsys.disabled():
        size = size_of(tmp_path) / 1000
        row = f"{build.__name__} | {kind} | {size:.0f} kB | {largest:.0e}"
        print(f"\n| {row} |")
    assert largest <= 1e-5


@pytest.mark.filterwarnings("default")
def test_the_page_about_formats_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = with_weights(classifier())
    model.save("classifier.keras")
    ids = inputs_of(model, SHAPES[0])["ids"]
    page = pathlib.Path(__file__).parents[1] / "docs/formats.md"
    blocks = re.findall(r"^```py\n(.*?)^```$", page.read_text(), re.S | re.M)
    assert len(blocks) == 4
    names = {"ids": ids}
    for block in blocks:
        exec(block, names)
        if "logits" in names:
            np.testing.assert_allclose(names.pop("logits"), model(ids), 1e-5)
