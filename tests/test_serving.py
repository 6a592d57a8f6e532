"""Checks what TensorFlow Serving requires of an export."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import translator_of
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer import LanguageModel, Transformer, TransformerConfig
from keras_transformer.data.byte_pairs import learn_byte_pairs
from keras_transformer.data.sentencepiece_file import with_rule
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.export import export_language_model, saved_model
from keras_transformer.export import tensorflow_serving as serving
from keras_transformer.export.files import SUMS, check_intact
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.inference import GraphTokenizer, TextTokenizer
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.inference.shortlist import Shortlist, ShortlistDecoding
from keras_transformer.inference.translator import Translator
from keras_transformer.search.next_token import most_probable

pytestmark = pytest.mark.usefixtures("optimized_graphs")


def test_servers_know_every_operation(exported):
    serving.check_operations(exported)
    used = {
        node.op
        for node in serving._nodes((exported / "saved_model.pb").read_bytes())
    }
    assert {"SentencepieceOp", "While", "MatMul"} <= used


def operations_of(function, *signature):
    graph = (
        tf.function(function, input_signature=signature, autograph=False)
        .get_concrete_function()
        .graph.as_graph_def()
    )
    inner = [n for f in graph.library.function for n in f.node_def]
    return {node.op for node in (*graph.node, *inner)}


def test_the_list_of_operations_is_exactly_what_exports_use(
    exported, run, tmp_path
):
    """The exports take every path through the graph.

    All activations of Keras are added, and the search in chunks, which only a
    large vocabulary has.
    """
    used = set()
    size = run.config.vocab_size
    other = {
        **run.config.to_dict(),
        "num_layers": 1,
        "norm_first": True,
        "positions": "learned",
        "max_length": 600,
        "source_vocab_size": size,
        "key_dim": 7,
        "value_dim": 5,
        "sliding_window": 3,
    }
    translator = Translator(
        Transformer(TransformerConfig.from_dict(other)),
        run.source_tokenizer,
        run.target_tokenizer,
        SearchSettings(beam_size=1),  # greedy search has its own graph
        ShortlistDecoding(
            Shortlist(
                np.zeros((size, 3), np.int32), np.arange(100, dtype=np.int32)
            )
        ),
    )
    saved_model.write(translator, tmp_path / "other", "bfloat16")
    control = tmp_path / "control"
    saved_model.write(translator_of(run), control, control=True)
    config = TransformerConfig(size, num_layers=1, sliding_window=3)
    model = LanguageModel(config, TextTokenizer(run.target_tokenizer))
    language = tmp_path / "language/1"
    export_language_model(model, language, temperature=0.7, top_p=0.9)
    for path in (exported, tmp_path / "other", control, language):
        data = (path / "saved_model.pb").read_bytes()
        used |= {node.op for node in serving._nodes(data)}
    model = learn_byte_pairs(["one two three, four."] * 9, 290, [">>de<<"])
    tagged = GraphTokenizer(Tokenizer(with_rule(model, "source")))
    used |= operations_of(tagged.encode, tf.TensorSpec([None], tf.string))
    for name in ACTIVATIONS:
        activation = keras.activations.get(name)
        for dtype in ("float32", "bfloat16"):
            used |= operations_of(
                lambda x, f=activation: f(x), tf.TensorSpec([None, 8], dtype)
            )
    used |= operations_of(
        lambda x, forced, count: most_probable(x, count, forced, None, 3),
        tf.TensorSpec([None, 8192]),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([], tf.int32),
    )
    # `PartitionedCall` calls functions without state.
    known = set(serving._known_operations()) - {"PartitionedCall"}
    assert used - known == set(), (
        "Exports use operations that are not on the list of servers."
    )
    assert known - used == set(), "The list has operations that no export uses."


NO_ACTIVATIONS = {"get", "serialize", "deserialize"}
NOT_SERVED = {"sparse_sigmoid", "sparsemax", "threshold"}
ACTIVATIONS = {
    name
    for name, value in vars(keras.activations).items()
    if inspect.isfunction(value)
} - (NO_ACTIVATIONS | NOT_SERVED)


def doubled_in_python(text):
    return tf.py_function(lambda t: t, [text], tf.string)


def read_from_a_file(text):
    return tf.strings.join([text, tf.io.read_file("/etc/hostname")])


def too_new(text):
    # An operation of tensorflow-text that TensorFlow Serving 2.19 lacks.
    import tensorflow_text

    return tensorflow_text.utf8_binarize(text)


@pytest.mark.parametrize(
    ("planted", "operation"),
    [
        (doubled_in_python, "EagerPyFunc"),
        (read_from_a_file, "ReadFile"),
        (too_new, "TFText>Utf8Binarize"),
    ],
)
def test_a_foreign_operation_is_named_and_nothing_published(
    run, tmp_path, monkeypatch, planted, operation
):
    def write(translator, path, dtype, control):
        text = tf.TensorSpec([None], tf.string, name="text")
        module = tf.Module()
        function = tf.function(
            lambda text: {"translation": planted(text)}, input_signature=[text]
        )
        tf.saved_model.save(module, str(path), signatures=function)

    monkeypatch.setattr(saved_model, "write", write)
    with pytest.raises(ValueError, match=re.escape(repr(operation))):
        saved_model.export(run, tmp_path / "name" / "1")
    assert list(tmp_path.iterdir()) == []


def test_an_attribute_that_servers_do_not_know_is_named(exported, monkeypatch):
    known = serving._known_operations()
    known["MatMul"].discard("T")
    monkeypatch.setattr(serving, "_known_operations", lambda: known)
    with pytest.raises(ValueError, match=r"'T' of .* 'MatMul'"):
        serving.check_operations(exported)


def test_warm_up_requests_can_be_answered(exported):
    """A request that a server cannot answer would make it refuse the model."""
    loaded = SavedTranslator(exported).loaded
    path = exported / "assets.extra" / "tf_serving_warmup_requests"
    asked = []
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        assert request.model_spec.name == exported.parent.name
        function = loaded.signatures[request.model_spec.signature_name]
        inputs = {
            name: tf.constant(tf.make_ndarray(value))
            for name, value in request.inputs.items()
        }
        found = function(**inputs)
        assert np.isfinite(found["score"]).all()
        asked.append((request.model_spec.signature_name, inputs["text"]))
    assert {name for name, _ in asked} == {
        "serving_default",
        "score",
        "explain",
    }
    lengths = [len(text) for _, texts in asked for text in texts.numpy()]
    assert min(lengths) == 0
    assert max(lengths) > 20


def test_inputs_of_n_best_have_defaults_for_servers(exported):
    from tensorflow.core.protobuf import saved_model_pb2

    message = saved_model_pb2.SavedModel.FromString(
        (exported / "saved_model.pb").read_bytes()
    )
    signature = message.meta_graphs[0].signature_def["n_best"]
    found = {
        name: tf.make_ndarray(value).item()
        for name, value in signature.defaults.items()
    }
    assert found == {
        "beam_size": 4,
        "alpha": pytest.approx(0.6),
        "max_length": 563,
    }
    assert set(signature.inputs) == {"text", *found}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam_size": 0}, "`beam_size` must be at least 1, at most 32"),
        ({"beam_size": 33}, "`beam_size` must be at least 1, at most 32"),
        ({"alpha": -0.5}, "`alpha` must be at least 0"),
        ({"max_length": 0}, "`max_length` must be at least 1"),
    ],
)
def test_the_graph_refuses_wrong_search_settings(exported, wrong, message):
    n_best = SavedTranslator(exported).loaded.signatures["n_best"]
    inputs = {"beam_size": 4, "alpha": 0.6, "max_length": 9} | wrong
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        n_best(
            text=tf.constant(["room 7"]),
            **{name: tf.constant(value) for name, value in inputs.items()},
        )


def test_a_refused_request_allocates_no_memory(exported):
    import resource

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    n_best = SavedTranslator(exported).loaded.signatures["n_best"]
    inputs = {"text": tf.constant(["room 7"]), "alpha": tf.constant(0.6)}
    inputs["max_length"] = tf.constant(9)
    n_best(**inputs, beam_size=tf.constant(32))
    before = peak()
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 32"):
        n_best(**inputs, beam_size=tf.constant(100_000_000))
    assert peak() < before + 300  # megabytes; a string each would be 2,400


def test_max_length_limits_a_translation(exported, run):
    n_best = SavedTranslator(exported).loaded.signatures["n_best"]
    # The limits allow the end token alone, and one piece before it.
    single = run.target_tokenizer.decode([[i] for i in range(400)])
    for most, possible in ((1, {b""}), (2, {text.encode() for text in single})):
        found = n_best(
            text=tf.constant(["room 7 is on the third floor"]),
            beam_size=tf.constant(3),
            alpha=tf.constant(0.6),
            max_length=tf.constant(most),
        )
        assert set(found["translation"].numpy()[0]) <= possible


@pytest.mark.programs
def test_the_readme_of_an_export_is_true(exported):
    """Its Python runs, and it names the signatures and files that exist."""
    page = (exported / "README.md").read_text()
    signatures = SavedTranslator(exported).loaded.signatures
    assert {*re.findall(r"^\| `(\w+)` \|", page, re.M)} == {*signatures}
    assert "layers:2|d_model:22" in page
    assert (exported / "assets.extra" / serving.BATCHING).is_file()
    assert f"assets.extra/{serving.BATCHING}" in page
    code = page.split("## Load in Python")[1].split("```python\n")[1]
    code = code.split("```")[0]
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=exported,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "translation" in result.stdout


@pytest.mark.programs
def test_saved_model_cli_gives_the_same_translations(exported, tmp_path):
    texts = [b"room 7 is on the third floor", b"", "grün 🦄".encode()]
    expected = SavedTranslator(exported).translate(tf.constant(texts))
    np.save(tmp_path / "text.npy", np.array(texts))
    program = (
        "import sys, tensorflow_text; "
        "from tensorflow.python.tools.saved_model_cli import main; "
        "sys.exit(main())"
    )
    command = [sys.executable, "-c", program]
    subprocess.run(
        [
            *command,
            *("run", "--dir", exported, "--tag_set", "serve"),
            *("--signature_def", "serving_default"),
            *("--inputs", f"text={tmp_path / 'text.npy'}"),
            *("--outdir", tmp_path),
        ],
        check=True,
        capture_output=True,
    )
    found = np.load(tmp_path / "translation.npy", allow_pickle=True)
    assert found.tolist() == expected["translation"].numpy().tolist()
    np.testing.assert_array_equal(
        np.load(tmp_path / "score.npy"), expected["score"]
    )


@pytest.mark.parametrize(
    "place", ["check_operations", "write_extras", "write_sums", "rename"]
)
def test_an_export_interrupted_anywhere_leaves_nothing(
    run, exported, tmp_path, monkeypatch, place
):
    def copy(translator, path, dtype, control):
        shutil.copytree(
            exported,
            path,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("assets.extra", "README.md", SUMS),
        )

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(saved_model, "write", copy)
    owner = next(
        x for x in (serving, saved_model, saved_model.os) if hasattr(x, place)
    )
    monkeypatch.setattr(owner, place, interrupt)
    with pytest.raises(KeyboardInterrupt):
        saved_model.export(run, tmp_path / "name" / "1")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(saved_model, "write", copy)
    # A killed process with the same process id may have left this folder.
    (tmp_path / "name" / f".1.{os.getpid()}" / "assets.extra").mkdir(
        parents=True
    )
    check_intact(saved_model.export(run, tmp_path / "name" / "1"))


@pytest.mark.slow
def test_ten_kills_leave_no_partial_export_that_a_server_would_load(
    run, tmp_path
):
    """Kills with SIGKILL during the whole export, and while it writes."""
    path = tmp_path / "name" / "1"
    command = [sys.executable, "-m", "keras_transformer", "export"]
    command += [run.folder, path]
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    duration = time.monotonic() - began
    shutil.rmtree(path)
    partial = 0
    for number in range(10):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if number % 2:
            time.sleep(duration * (0.4 + 0.07 * number))
        else:  # writing takes a small part of the time
            while process.poll() is None and not any(path.parent.iterdir()):
                time.sleep(0.001)
            time.sleep(0.04 * number)
        process.kill()
        process.wait()
        # A server looks for names that are numbers.
        visible = [p for p in path.parent.iterdir() if p.name[0] != "."]
        if visible:
            assert visible == [path]
            SavedTranslator(path).translate(tf.constant(["room 7"]))
            shutil.rmtree(path)
        hidden = list(path.parent.iterdir())
        partial += bool(hidden)
        for folder in hidden:
            shutil.rmtree(folder)
    print(f"10 kills, {partial} of them left a hidden folder")
    assert partial
