"""Checks, by public names alone, that faults of an earlier commit are gone.

Each fails at commit f0b0749, before the faults were mended, and passes now, by

    python -m pytest --noconftest -c /dev/null tests/fault_checks.py

with the Python of a checkout's environment, in that checkout. Each names the
test that guards against the fault in `make test` or `make test-programs`.

B: layers composed with others; C: the command; D: training.
"""

import errno
import inspect
import json
import os
import pathlib
import re
import select
import signal
import stat
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer
from keras_transformer import (
    DecoderLayer,
    EncoderLayer,
    MultiHeadAttention,
    PositionalEmbedding,
    Transformer,
    TransformerConfig,
)
from keras_transformer.checks import assert_no_leak

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
PACKAGE = pathlib.Path(keras_transformer.__file__).parent
B, T, S, D, H, F = 2, 3, 5, 14, 2, 17
MASK = np.array([[True, True, False], [True, False, False]])
IDS = np.array([[5, 3, 2, 4, 1], [4, 6, 0, 0, 0], [1, 2, 3, 0, 0]])


def random(*shape):
    return np.random.default_rng(1).normal(size=shape).astype("float32")


def scaled_embeddings():
    return keras.layers.Embedding(7, D)(keras.Input((None,), dtype="int32")) * 3


GUARDS = []


def guarded_by(file, name):
    """Names the test that guards against a fault."""
    GUARDS.append((f"test_{file}.py", f"def test_{name}("))
    return lambda check: check


def test_every_guard_is_there():
    folder = pathlib.Path(__file__).parent
    for file, definition in GUARDS:
        assert definition in (folder / file).read_text(encoding="utf-8")


# B. Layers composed with others


@guarded_by("composition", "scaled_embeddings_can_be_inputs_and_memories")
def test_b1_an_encoder_takes_scaled_embeddings():
    assert EncoderLayer(D, H, F)(scaled_embeddings()).shape == (None, None, D)


@guarded_by("composition", "scaled_embeddings_can_be_inputs_and_memories")
def test_b1_attention_takes_scaled_embeddings():
    x = scaled_embeddings()
    assert MultiHeadAttention(H, 3)(x, x).shape == (None, None, D)


@guarded_by("composition", "scaled_embeddings_can_be_inputs_and_memories")
def test_b1_a_decoder_takes_a_scaled_memory():
    x = DecoderLayer(D, H, F)(keras.Input((None, D)), scaled_embeddings())
    assert x.shape == (None, None, D)


@guarded_by("composition", "time_distributed_applies_a_layer_to_each_step")
def test_b1_layers_can_be_time_distributed():
    layer = keras.layers.TimeDistributed(EncoderLayer(D, H, F))
    assert layer(keras.Input((7, T, D))).shape == (None, 7, T, D)


@guarded_by("composition", "large_ids_may_come_as_floats_in_mixed_precision")
def test_b2_float_ids_are_not_rounded():
    layer = PositionalEmbedding(1000, 4, dtype="mixed_bfloat16")
    found = layer(np.array([[999.0, 1.0]], "float32"))
    np.testing.assert_array_equal(found, layer(np.array([[999, 1]])))


@guarded_by("composition", "fused_attention_takes_a_mask_for_each_head")
def test_b3_a_mask_may_differ_between_heads_on_jax():
    program = """if True:
        import numpy as np, keras_transformer
        x = np.random.default_rng(1).normal(size=(2, 3, 14)).astype("float32")
        mask = np.random.default_rng(2).random((2, 7, 3, 3)) > 0.3
        mask[..., 0] = True
        layer = keras_transformer.MultiHeadAttention(7, 2)
        assert layer(x, x, attention_mask=mask).shape == (2, 3, 14)
    """
    found = python(program, KERAS_BACKEND="jax")
    assert found.returncode == 0, found.stderr


@guarded_by("config", "errors_name_what_was_received")
def test_b4_unknown_positions_are_refused():
    with pytest.raises(ValueError, match="sinus"):
        TransformerConfig(vocab_size=11, positions="sinus")


@guarded_by("inference", "a_known_target_is_scored_in_one_pass")
def test_b4_without_positions_the_fast_model_adds_none():
    try:
        from keras_transformer.inference.fast_model import InferenceModel
        from keras_transformer.inference.fast_weights import inference_weights
    except ImportError:
        from keras_transformer.inference_weights import inference_weights

        from keras_transformer.inference import InferenceModel
    shape = {"num_layers": 1, "d_model": D, "num_heads": H, "d_ff": F}
    config = TransformerConfig(11, positions=None, **shape)
    model = Transformer(config, seed=1)
    source = np.array([[5, 9, 7, 3]], "int32")
    before = np.array([[2, 5, 9, 7]], "int32")
    logits = model({"source": source, "target": before})
    expected = np.take_along_axis(
        keras.ops.log_softmax(logits).numpy(), source[..., None], axis=2
    )[..., 0]
    fast = InferenceModel(config, inference_weights(model))
    found, _ = fast.read(source, fast.encode(source))
    np.testing.assert_allclose(found, expected, atol=2e-5)


@guarded_by("composition", "a_cache_that_is_too_short_is_an_error")
def test_b5_a_cache_that_is_too_short_is_an_error():
    layer = EncoderLayer(D, H, F)
    layer(random(B, T, D))
    with pytest.raises(ValueError, match="7"):
        layer(random(B, T, D), cache=layer.empty_cache(B, 7), cache_index=5)


@guarded_by("composition", "a_padding_mask_of_rank_3_is_refused")
def test_b5_a_padding_mask_of_rank_3_is_refused():
    with pytest.raises(ValueError, match="mask"):
        EncoderLayer(D, H, F)(random(B, H, D), mask=np.ones((B, H, H), bool))


@guarded_by("composition", "beams_may_have_a_query_mask")
def test_b5_beams_may_have_a_query_mask():
    layer, memory, x = (
        MultiHeadAttention(H, 3),
        random(B, S, D),
        random(6, T, D),
    )
    layer(x[:B], memory)
    embedding = keras.layers.Embedding(7, D, mask_zero=True)
    x = embedding(np.array([[1, 2, 0]] * 6))  # has an implicit mask
    found = layer(x, cache=layer.project(memory))
    expected = layer(x, np.repeat(memory, 3, axis=0))
    np.testing.assert_allclose(found[:, :2], expected[:, :2], atol=1e-5)


@guarded_by("calls", "float64_products_are_exact")
def test_b5_float64_is_computed_in_float64():
    layer = MultiHeadAttention(1, D, dtype="float64")
    x = np.random.default_rng(1).normal(size=(T, D))
    layer(x[None], x[None])
    weights = [np.squeeze(weight.numpy()) for weight in layer.weights]
    q, k, v = (x @ weights[i] + weights[i + 1] for i in (0, 2, 4))
    scores = np.exp(q @ k.T / np.sqrt(D))
    heads = scores / scores.sum(axis=1, keepdims=True) @ v  # equation 1
    expected = heads @ weights[6] + weights[7]
    found = layer(x[None], x[None])[0]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@guarded_by("multi_head_attention", "unsupported_options_of_keras_are_refused")
def test_b6_the_documentation_names_what_is_missing():
    for name in ("attention_axes", "sliding_window", "use_gate"):
        assert name in inspect.getdoc(MultiHeadAttention)


@guarded_by(
    "multi_head_attention", "from_keras_copies_the_layer_and_its_weights"
)
def test_b6_defaults_of_a_config_of_keras_are_accepted():
    config = keras.layers.MultiHeadAttention(H, 3).get_config()
    assert MultiHeadAttention.from_config(config).num_heads == H


@guarded_by(
    "multi_head_attention", "arguments_have_the_names_and_order_of_keras"
)
def test_b6_arguments_have_the_order_of_keras():
    ours, theirs = (
        list(inspect.signature(layer.__init__).parameters)
        for layer in (MultiHeadAttention, keras.layers.MultiHeadAttention)
    )
    assert ours == theirs


@guarded_by(
    "multi_head_attention", "from_keras_copies_the_layer_and_its_weights"
)
def test_b6_weights_of_keras_can_be_taken():
    theirs, x = keras.layers.MultiHeadAttention(H, 3), random(B, T, D)
    expected = theirs(x, x)
    found = MultiHeadAttention.from_keras(theirs)(x, x)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@guarded_by(
    "composition", "an_explicit_mask_becomes_the_implicit_mask_of_the_output"
)
@pytest.mark.parametrize("name", ["x_mask", "second place"])
def test_b6_an_explicit_mask_stays_on_the_output(name):
    layer, x = EncoderLayer(D, H, F), random(B, T, D)
    y = (
        layer(x, x_mask=MASK)
        if name == "x_mask"
        else layer(x, tf.constant(MASK))
    )
    np.testing.assert_array_equal(y._keras_mask, MASK)


@guarded_by("composition", "attention_without_a_value_is_an_error")
def test_b6_a_missing_value_is_named():
    with pytest.raises(ValueError, match="For self-attention"):
        MultiHeadAttention(H, 3)(random(B, T, D))


@guarded_by("checks", "a_leak_is_found_where_all_ids_are_equal")
def test_b7_a_leak_is_found_where_all_ids_are_equal():

    def looks_at_the_next(ids):
        after = np.pad(ids, ((0, 0), (0, 1)))[:, 1:]
        return ((ids + after) * (ids != 0))[..., None]

    with pytest.raises(AssertionError, match="at position"):
        assert_no_leak(looks_at_the_next, np.full((1, 4), 5), causal=True)


@guarded_by("checks", "names_of_inputs_are_checked")
def test_b7_causal_must_name_one_of_several_inputs():
    both = {"source": IDS, "target": IDS}
    with pytest.raises(ValueError, match="causal"):
        assert_no_leak(lambda ids: ids["target"][..., None], both, causal=True)


@guarded_by("checks", "outputs_without_a_feature_axis_are_checked")
def test_b7_outputs_may_have_no_feature_axis():
    assert_no_leak(lambda ids: np.asarray(ids) * 2.0, IDS)


@guarded_by("dropout", "each_replica_draws_its_own_mask")
def test_b8_each_replica_drops_its_own():
    from keras_transformer.layers.dropout import Dropout

    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        layer = Dropout(0.5, seed=3)
        layer(tf.ones(7), training=True)  # which makes its variables
    run = tf.function(lambda: layer(tf.ones(997), training=True))
    one, other = strategy.experimental_local_results(strategy.run(run))
    assert not np.array_equal(one, other)


# C. The command


def python(program, *arguments, stdin=b"", **environment):
    """Runs a program; `KEY=value` are set in its environment."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    )


# The command, after a program of the test.
COMMAND = """
import runpy, sys
sys.argv[0] = "keras-transformer"
runpy.run_module("keras_transformer", run_name="__main__")
"""
# A model that translates nothing: its work is not what is checked.
ECHO = """
from keras_transformer.saved_model import SavedTranslator
SavedTranslator.translate = lambda self, text: {"translation": text}
"""


def command(*arguments, before="", **options):
    return python(before + COMMAND, *arguments, **options)


SMALL = ("--num-layers=1", "--d-model=22", "--num-heads=2", "--d-ff=31")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    try:
        from keras_transformer.data.builtin.dataset import pairs_of_split
    except ImportError:
        from keras_transformer.data.builtin import pairs_of_split

    folder = tmp_path_factory.mktemp("corpus")
    for split, size in {"train": 700, "validation": 70, "test": 70}.items():
        pairs = list(pairs_of_split(split, size))
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def training(corpus):
    """The options of a training that takes a second."""
    return (
        *(
            "train",
            f"--corpus={corpus}",
            "--vocab-size=400",
            "--warmup-steps=20",
        ),
        *("--tokens-per-batch=300", "--validate-every=4", "--seed=3", *SMALL),
    )


@pytest.fixture(scope="module")
def trained(training, tmp_path_factory):
    """A run of eight steps."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    found = command(*training, "--steps=8", f"--out={folder}")
    assert found.returncode == 0, found.stderr
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run, to be changed."""
    subprocess.run(["cp", "-r", trained, tmp_path / "run"], check=True)
    return tmp_path / "run"


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved_models") / "small" / "1"
    found = command("export", trained, path, "--dtype=float32")
    assert found.returncode == 0, found.stderr
    return path


@pytest.fixture
def loaded(exported):
    from keras_transformer.saved_model import SavedTranslator

    return SavedTranslator(exported)


@guarded_by("standard_streams", "output_is_utf8_in_any_locale")
def test_c_output_is_utf_8_in_any_locale(exported):
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    text = "größe\n".encode()
    found = command("translate", exported, before=ECHO, stdin=text, **locale)
    assert found.stdout == text, found.stderr


@guarded_by("command", "a_closed_pipe_ends_translate_quietly")
def test_c_a_closed_pipe_is_a_normal_end(exported, tmp_path):
    (tmp_path / "lines").write_text("a long line of words \n" * 4000)
    found = subprocess.run(
        '"$PYTHON" -c "$PROGRAM" translate "$MODEL" < "$LINES" | head -1',
        shell=True,
        capture_output=True,
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHON": sys.executable,
            "PROGRAM": ECHO + COMMAND,
            "MODEL": str(exported),
            "LINES": str(tmp_path / "lines"),
        },
    )
    assert b"Broken pipe" not in found.stderr
    assert found.stdout == b"a long line of words \n"


@guarded_by("standard_streams", "a_closed_standard_input_is_an_error")
def test_c_a_closed_standard_input_is_an_error_of_one_line(exported):
    found = subprocess.run(
        f"{sys.executable} -m keras_transformer translate {exported} <&-",
        shell=True,
        capture_output=True,
    )
    assert b"Traceback" not in found.stderr
    assert found.returncode == 1


@guarded_by("standard_streams", "a_slow_pipe_is_answered_line_by_line")
def test_c_a_pipe_that_stays_open_is_answered(exported):
    process = subprocess.Popen(
        [sys.executable, "-c", ECHO + COMMAND, "translate", exported],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdin.write(b"a line\n")
    process.stdin.flush()
    ready, _, _ = select.select([process.stdout], [], [], 60)
    process.kill()
    process.communicate()
    assert ready


@guarded_by(
    "standard_streams", "line_ends_and_a_first_byte_order_mark_are_removed"
)
def test_c_a_byte_order_mark_is_not_translated(exported):
    text = b"\xef\xbb\xbfa dog\n"
    found = command("translate", exported, before=ECHO, stdin=text)
    assert found.stdout == b"a dog\n"


@guarded_by("command", "options_that_do_not_apply_are_refused")
@pytest.mark.parametrize(
    "arguments",
    [
        ("translate", "MODEL", "--explain=x.png", "--beam-size=-3"),
        ("export", "RUN", "OUT/1", "--quantization=int8"),
        ("export", "RUN", "OUT", "--format=ctranslate2", "--alpha=1"),
        ("export", "RUN", "OUT", "--format=ctranslate2", "--dtype=bfloat16"),
    ],
    ids=str,
)
def test_c_options_that_do_not_apply_are_refused(
    arguments, trained, exported, tmp_path
):
    places = {"MODEL": exported, "RUN": trained, "OUT": tmp_path / "new"}
    for name, place in places.items():
        arguments = [a.replace(name, str(place)) for a in arguments]
    found = command(*arguments, stdin=b"room 7\n")
    assert found.returncode in (1, 2)
    assert arguments[-1].split("=")[0].encode() in found.stderr
    assert not (tmp_path / "new").exists()


@guarded_by("command", "a_result_that_cannot_be_stored_is_printed")
def test_c_a_result_that_cannot_be_stored_is_no_failure(exported, corpus):
    in_the_way = exported / "evaluations.jsonl"
    in_the_way.mkdir()
    files = [f"--source={corpus}/test.en", f"--reference={corpus}/test.de"]
    found = command("evaluate", exported, *files)
    in_the_way.rmdir()
    assert b'"bleu"' in found.stdout
    assert found.returncode == 0, found.stderr


@guarded_by("saved_model", "an_explanation_belongs_to_its_translation")
def test_c_a_blank_text_has_an_empty_explanation(loaded):
    assert loaded.explain("  ")["source_pieces"] == []


@guarded_by("saved_model", "a_long_translation_is_scored_to_its_end")
def test_c_a_score_reads_whole_translations(loaded, trained):
    from keras_transformer.run import open_run

    tokenizer, text = open_run(trained).target_tokenizer, "7"
    while (pieces := int(tokenizer.encode([text]).row_lengths()[0])) < 540:
        text += " 7"
    found = loaded.loaded.signatures["score"](
        text=tf.constant(["7"]), translation=tf.constant([text])
    )
    assert int(found["pieces"][0]) == pieces


@guarded_by("tokenizer", "a_piece_that_holds_a_line_break_is_barred")
def test_c_a_translation_is_one_line():
    from keras_transformer.data.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(["a\nb a\nb c\rd"] * 99, 269)
    others = set(range(tokenizer.vocab_size)) - set(tokenizer.line_breaks)
    assert not {"\n", "\r"} & set("".join(tokenizer.pieces(others)))


@guarded_by(
    "tokenizer", "encoding_at_most_n_pieces_equals_cutting_all_pieces_at_n"
)
def test_c_a_long_text_takes_no_memory(exported):
    program = """if True:
        import resource, sys
        import tensorflow as tf
        from keras_transformer.saved_model import SavedTranslator
        model = SavedTranslator(sys.argv[1])
        def peak(text):
            model.translate(tf.constant([text]))
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        before = peak("room 7")
        print(peak("room 7 " * 600_000) - before, "MB")
    """
    found = python(program, exported)
    assert int(found.stdout.split()[0]) < 250, found.stdout


AFTER_HELP = """if True:
    import os, runpy, sys
    sys.argv = ["keras-transformer", "--help"]
    try:
        runpy.run_module("keras_transformer", run_name="__main__")
    except SystemExit:
        pass
"""


@guarded_by("command", "help_imports_no_backend_and_a_native_abort_is_reported")
def test_c_a_native_abort_is_reported():
    found = python(AFTER_HELP + "    os.abort()")
    assert found.returncode == -signal.SIGABRT
    assert found.stderr != b""


@guarded_by("command", "help_imports_no_backend_and_a_native_abort_is_reported")
def test_c_help_imports_no_backend():
    found = python(AFTER_HELP + '    sys.exit("keras" in sys.modules)')
    assert found.returncode == 0


@guarded_by("serving", "no_operation_on_the_list_needs_python_or_files")
def test_c_the_list_of_operations_has_none_with_files():
    (path,) = PACKAGE.rglob("serving_ops.txt")
    assert not {"AdjustHue", "ImmutableConst"} & set(path.read_text().split())


# D. Training


def logged(run):
    return [json.loads(x) for x in (run / "log.jsonl").read_text().splitlines()]


def saved(run):
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


@guarded_by("command", "wrong_options_print_one_line_and_leave_no_files")
def test_d_an_unknown_tokenizer_of_bleu_is_refused_at_once(training, tmp_path):
    out = tmp_path / "run"
    found = command(
        *training, "--steps=4", f"--out={out}", "--bleu-tokenizer=x"
    )
    assert found.returncode in (1, 2)
    assert not out.exists()


FAILING_BLEU = """
import sacrebleu
def corpus_score(*_, **__):
    raise RuntimeError("the validation fails")
sacrebleu.metrics.BLEU.corpus_score = corpus_score
"""


@guarded_by("training", "an_interrupted_validation_is_repeated_on_resume")
def test_d_a_checkpoint_is_saved_before_validation(training, tmp_path):
    out = tmp_path / "run"
    command(*training, "--steps=4", f"--out={out}", before=FAILING_BLEU)
    assert saved(out) == ["step-00000004.npz"]


@guarded_by("training", "checkpoints_between_validations_do_not_change_a_run")
def test_d_checkpoints_can_be_saved_every_few_minutes():
    assert b"minutes" in command("train", "--help").stdout


SIGNAL_IN_VALIDATION = """
import os, signal
from keras_transformer.training_loop import Loop
evaluate = Loop.evaluate
def interrupted(self, batches):
    os.kill(os.getpid(), signal.SIGTERM)
    return evaluate(self, batches)
Loop.evaluate = interrupted
"""


@guarded_by("training", "an_interrupted_validation_is_repeated_on_resume")
def test_d_a_signal_ends_a_validation(training, tmp_path):
    before = SIGNAL_IN_VALIDATION + FAILING_BLEU  # if BLEU is still computed
    found = command(
        *training, "--steps=4", f"--out={tmp_path / 'run'}", before=before
    )
    assert found.returncode == 128 + signal.SIGTERM, found.stderr


class Signal(keras.callbacks.Callback):
    """Sends a signal before the last step of the first epoch."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def start(corpus, folder, **options):
    from keras_transformer.recipe import Recipe
    from keras_transformer.run import start_run

    recipe = Recipe(
        corpus=str(corpus),
        **{
            "vocab_size": 400,
            "tokens_per_batch": 300,
            "warmup_steps": 20,
            "validate_every": 4,
            **options,
        },
    )
    shape = {"num_layers": 1, "d_model": 22, "num_heads": 2, "d_ff": 31}
    return start_run(folder, "tiny", recipe, **shape)


@guarded_by("training", "an_interrupted_validation_is_repeated_on_resume")
def test_d_a_signal_at_the_last_step_loses_no_validation(corpus, tmp_path):
    from keras_transformer.training import TrainingInterrupted, train

    run = start(corpus, tmp_path / "run")
    options = {"strategy": tf.distribute.get_strategy(), "verbose": 0}
    with pytest.raises(TrainingInterrupted):
        train(run, 8, callbacks=[Signal()], **options)
    train(run, 8, **options)
    assert [line["step"] for line in logged(run.folder)] == [4, 8]


@guarded_by("examples", "paper_recipes_trains_and_refuses_other_settings")
def test_d_paper_recipes_refuses_other_settings(trained):
    program = PACKAGE.parent / "examples" / "paper_recipes.py"
    found = subprocess.run(
        [sys.executable, program, "base-de", trained, "--parts=3"],
        capture_output=True,
    )
    assert found.returncode != 0


@guarded_by("checkpoints", "an_unknown_format_is_refused")
def test_d_an_unknown_format_of_a_checkpoint_is_refused(run):
    path = run / "checkpoints" / saved(run)[-1]
    with np.load(path) as archive:
        arrays = dict(archive)
    for name, value in arrays.items():
        if value.dtype.kind == "U":
            text = re.sub(r'"format": \d+', '"format": 999', str(value))
            arrays[name] = np.array(text)
    np.savez(path, **arrays)
    found = command("average", run, "--last=1")
    assert found.returncode == 1
    assert b"999" in found.stderr


@guarded_by("checkpoints", "arrays_are_matched_by_name")
def test_d_arrays_of_a_checkpoint_are_named(trained):
    with np.load(trained / "checkpoints" / saved(trained)[-1]) as archive:
        assert any("query" in name for name in archive.files)


KILLED_IN_A_SAVE = """
import os, signal
import numpy as np
complete = np.savez
def savez(file, **arrays):
    if "step-" not in str(file.name):
        return complete(file, **arrays)
    file.write(b"half of it")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
np.savez = savez
"""


@guarded_by("training", "only_one_process_at_a_time_trains_a_run")
def test_d_what_a_kill_left_half_written_is_removed(training, tmp_path):
    options = (*training, "--steps=4", f"--out={tmp_path / 'run'}")
    found = command(*options, before=KILLED_IN_A_SAVE)
    assert found.returncode == -signal.SIGKILL, found.stderr
    assert os.listdir(tmp_path / "run/checkpoints")
    assert command(*options, "--resume").returncode == 0
    assert not list((tmp_path / "run/checkpoints").glob(".*"))


@guarded_by("training_loop", "a_nan_loss_ends_training")
def test_d_a_loss_that_is_not_finite_ends_training(training, tmp_path):
    out = tmp_path / "run"
    found = command(
        *training, "--steps=8", f"--out={out}", "--learning-rate-scale=1e36"
    )
    assert found.returncode == 1, found.stdout
    assert b"finite" in found.stderr


@guarded_by("command", "training_on_another_backend_is_refused_at_once")
def test_d_training_on_another_backend_is_refused(training, tmp_path):
    out = tmp_path / "run"
    found = command(*training, "--steps=4", f"--out={out}", KERAS_BACKEND="jax")
    assert found.returncode == 1
    assert b"Traceback" not in found.stderr
    assert not out.exists()


@guarded_by("atomic_files", "a_new_run_is_flushed_with_its_vocabularies")
def test_d_a_new_run_and_its_folder_are_flushed(corpus, tmp_path, monkeypatch):
    flushed, fsync = [], os.fsync

    def record(file):
        flushed.append(os.fstat(file).st_mode)
        fsync(file)

    monkeypatch.setattr(os, "fsync", record)
    start(corpus, tmp_path / "run")
    assert any(stat.S_ISREG(mode) for mode in flushed)
    assert any(stat.S_ISDIR(mode) for mode in flushed)


@guarded_by(
    "training_loop", "the_logged_learning_rate_is_that_of_the_last_step"
)
def test_d_the_logged_learning_rate_is_that_of_the_last_step(trained):
    for line in logged(trained):
        expected = 22**-0.5 * line["step"] * 20**-1.5  # equation 3, warming up
        np.testing.assert_allclose(line["learning_rate"], expected, rtol=1e-5)


@guarded_by("training", "a_failing_plot_is_a_warning")
def test_d_a_failing_plot_does_not_fail_a_run(training, tmp_path):
    before = """
import matplotlib.figure
def savefig(*_, **__):
    raise RuntimeError("no picture")
matplotlib.figure.Figure.savefig = savefig
"""
    found = command(
        *training, "--steps=4", f"--out={tmp_path / 'run'}", before=before
    )
    assert found.returncode == 0, found.stderr


@guarded_by("corpus", "a_full_disk_is_no_missing_network")
def test_d_a_full_disk_is_no_missing_network(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    from keras_transformer.data.corpus import load_pairs

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", full)
    with pytest.raises(OSError, match=r"disk|space") as caught:
        load_pairs("builtin", "train", "en", "de", str(tmp_path))
    assert "Cannot download" not in str(caught.value)


@guarded_by("training", "only_one_process_at_a_time_trains_a_run")
def test_d_only_one_process_trains_a_run(training, tmp_path):
    out = tmp_path / "run"
    options = (*training, "--steps=4", f"--out={out}")
    second = f"""
import subprocess, sys
from keras_transformer.training_loop import Loop
evaluate = Loop.evaluate
def and_another(self, batches):
    found = subprocess.run(
        [sys.executable, "-c", {COMMAND!r}, *{[*map(str, options), "--resume"]}]
    )
    print("second:", found.returncode, flush=True)
    return evaluate(self, batches)
Loop.evaluate = and_another
"""
    found = command(*options, before=second)
    assert b"second: 1" in found.stdout, found.stdout + found.stderr


@guarded_by("training", "a_run_folder_has_all_its_files")
def test_d_the_record_of_a_run_names_what_computed_it(trained):
    texts = [path.read_text() for path in trained.glob("*.json*")]
    assert any(tf.__version__ in text for text in texts)
