"""Checks exports that store their matrices in int8."""

import gc

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the tokenizer's operations

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.export import saved_model
from keras_transformer.export import tensorflow_serving as serving
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.inference.int8_weights import Int8Matrix, variables
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.inference.translator import Translator

pytestmark = [pytest.mark.usefixtures("optimized_graphs"), pytest.mark.programs]

TEXTS = ["room 7 is on the third floor", "", "one two three"]
TRANSLATIONS = ["Zimmer 7 ist im dritten Stock", "eins", "eins zwei drei"]
SHORT = SearchSettings(beam_size=2, extra_length=2)


def size(path):
    return sum(f.stat().st_size for f in path.glob("variables/*"))


@pytest.fixture(scope="module")
def translators(run):
    """Returns two translators with models of one shape, mostly matrices."""
    config = TransformerConfig(
        vocab_size=run.config.vocab_size,
        num_layers=1,
        d_model=134,
        num_heads=2,
        d_ff=211,
        dropout_rate=0.0,
    )
    tokenizers = run.source_tokenizer, run.target_tokenizer
    return [
        Translator(Transformer(config), *tokenizers, SHORT) for _ in range(2)
    ]


@pytest.fixture(scope="module")
def folders(translators, tmp_path_factory):
    """Returns their exports in int8, and the first one's in float32."""
    folder = tmp_path_factory.mktemp("int8")
    paths = [folder / name for name in ("first", "second", "float32")]
    for path, translator in zip(paths, translators, strict=False):
        saved_model.write(translator, path, "int8")
    saved_model.write(translators[0], paths[2])
    return paths


def scores(signatures):
    """Returns the scores of given translations."""
    found = signatures["score"](
        text=tf.constant(TEXTS), translation=tf.constant(TRANSLATIONS)
    )
    return found["score"].numpy()


def session_scores(session, meta):
    """Returns the same, from a v1 session as servers have it."""
    signature = meta.signature_def["score"]
    values = {"text": TEXTS, "translation": TRANSLATIONS}
    return session.run(
        signature.outputs["score"].name,
        {signature.inputs[name].name: values[name] for name in values},
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_a_matrix_is_off_by_half_a_scale_at_most(axis):
    exact = np.random.default_rng(1).normal(size=(5, 7)).astype("float32")
    exact[2] = exact[:, 3] = 0
    matrix = Int8Matrix(tf.constant(exact), axis)
    assert matrix.values.dtype == tf.int8
    assert matrix.scales.shape == ((1, 7), (5, 1))[axis]
    found = tf.convert_to_tensor(matrix).numpy()
    bound = np.abs(exact).max(axis=axis, keepdims=True) / 127 / 2
    assert (np.abs(found - exact) <= bound + 1e-7).all()
    # The greatest numbers are exact, so that quantizing twice changes nothing.
    again = tf.convert_to_tensor(Int8Matrix(tf.constant(found), axis))
    np.testing.assert_allclose(again, found, rtol=1e-6)


@pytest.mark.parametrize("more", [0, 3])
def test_a_tied_table_is_stored_once(more):
    """As the embedding, whose transpose is computed when it is loaded."""
    table = np.random.default_rng(2).normal(size=(11, 5)).astype("float32")
    kernel = np.pad(table.T / 3, [(0, 0), (0, more)])
    weights = {
        "target": {"table": tf.constant(table)},
        "projection": {"kernel": tf.constant(kernel)},
    }
    stored = variables(weights, in_int8=True)
    tied = tf.convert_to_tensor(stored["projection"]["kernel"]).numpy()
    assert "values" not in vars(stored["projection"]["kernel"])
    bound = np.abs(kernel).max(axis=0, keepdims=True) / 127 / 2
    assert (np.abs(tied - kernel) <= bound + 1e-7).all()
    # Another matrix is not taken for the same.
    weights["projection"]["kernel"] = tf.constant(kernel[::-1])
    other = variables(weights, in_int8=True)["projection"]["kernel"]
    assert other.values.shape == kernel.shape


@pytest.fixture(scope="module")
def signatures(folders):
    """Returns the signatures of all exports, and of the first one again."""
    paths = [*folders, folders[0]]
    loaded = [tf.saved_model.load(path).signatures for path in paths]
    gc.collect()  # Only the signatures are left.
    return loaded


def test_an_int8_export_is_small_and_scores_alike(folders, signatures):
    small, _, large = folders
    assert size(small) < 0.3 * size(large)
    found, expected = scores(signatures[0]), scores(signatures[2])
    np.testing.assert_allclose(found, expected, rtol=0.02)
    assert np.abs(found - expected).max() > 0


def test_exports_side_by_side_do_not_share_matrices(signatures, translators):
    """Neither loaded ones nor those of the process that exported."""
    tf.random.set_seed(3)
    signatures = list(signatures)
    found = [scores(each) for each in signatures]
    assert np.abs(found[0] - found[1]).min() > 0.01
    np.testing.assert_array_equal(found[0], found[3])
    del signatures[3]
    gc.collect()
    np.testing.assert_array_equal(scores(signatures[0]), found[0])
    for translator, expected in zip(translators, found, strict=False):
        exact = translator.fixed("int8").score(
            tf.constant(TEXTS), tf.constant(TRANSLATIONS)
        )
        np.testing.assert_allclose(exact["score"], expected, rtol=1e-5)


def test_sessions_side_by_side_score_the_same(folders, signatures):
    v1 = tf.compat.v1
    sessions = []
    for path in folders[:2]:
        session = v1.Session(graph=tf.Graph())
        with session.graph.as_default():
            meta = v1.saved_model.load(session, ["serve"], str(path))
        sessions.append((session, meta))
    for (session, meta), loaded in zip(sessions, signatures, strict=False):
        for _ in range(2):
            found = session_scores(session, meta)
            np.testing.assert_array_equal(found, scores(loaded))
        session.close()


def test_an_exported_run_says_that_it_is_int8(run, tmp_path):
    path = saved_model.export(run, tmp_path / "1", SHORT, "int8")
    serving.check_operations(path)
    assert "beam search (int8," in (path / "README.md").read_text()
    loaded = SavedTranslator(path)
    assert loaded.metadata["dtype"] == "int8"
    found = loaded.translate(tf.constant(TEXTS))
    explained = loaded.explain(TEXTS[0])
    assert explained["translation"].encode() == found["translation"][0]
