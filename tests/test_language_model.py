"""Checks the language model: its search, its files and its export.

Shapes: B batch, T length, V vocabulary.
"""

import itertools
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance import with_seeded_weights
from keras import ops

from keras_transformer import (
    EncoderLayer,
    LabelSmoothedCrossEntropy,
    LanguageModel,
    PositionalEmbedding,
    TransformerConfig,
    length_penalty,
)
from keras_transformer.data import train_tokenizer
from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.export import export_language_model
from keras_transformer.ids import END, START
from keras_transformer.inference import TextTokenizer

V = 41
SHAPE = {"num_layers": 2, "d_model": 22, "num_heads": 2, "d_ff": 17}
TODAY = {
    "norm_first": True,
    "normalization": "rms",
    "feed_forward": "swiglu",
    "positions": "rotary",
    "num_heads": 6,
    "num_key_value_heads": 2,
    "key_dim": 4,
    "qk_norm": True,
}
CONFIGS = [
    {},
    TODAY,
    {"sliding_window": 3, "positions": "rotary", "key_dim": 6},
    {"positions": "learned", "max_length": 41, "tie_projection": False},
]


def language_model(vocab_size=V, tokenizer=None, **options):
    config = TransformerConfig(vocab_size, **{**SHAPE, **options})
    return with_seeded_weights(LanguageModel(config, tokenizer, seed=1))


def log_probs(model, ids):
    """Returns those of the token after the start token and ids, `(V,)`."""
    logits = model(np.array([[START, *ids]]))[0, -1]
    return np.asarray(ops.log_softmax(logits))


def prompts_of(*lengths):
    rng = np.random.default_rng(3)
    return [rng.integers(4, V, size=n).tolist() for n in lengths]


def test_it_is_a_stack_of_causal_encoder_layers():
    model = language_model()
    embedding = PositionalEmbedding(V, 22)
    layers = [EncoderLayer(22, 2, 17) for _ in range(2)]
    ids = np.array([[2, 5, 9, 7], [2, 6, 0, 0]])
    x = embedding(ids)
    for layer in layers:
        x = layer(x, use_causal_mask=True)
    for part, other in zip(
        [embedding, *layers],
        [model.embedding, *model.decoder_layers],
        strict=True,
    ):
        part.set_weights(other.get_weights())
    x = embedding(ids)
    for layer in layers:
        x = layer(x, use_causal_mask=True)
    expected = embedding(x, reverse=True)
    real = ids != 0
    np.testing.assert_allclose(
        np.asarray(model(ids))[real], np.asarray(expected)[real], atol=1e-5
    )


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("lengths", [(20, 33, 17), (5, 0, 3)])
def test_greedy_search_takes_the_most_probable_tokens(config, lengths):
    model = language_model(**config)
    prompts = prompts_of(*lengths)
    found = model.generate(prompts, max_new_tokens=7)
    for prompt, text in zip(prompts, found, strict=True):
        assert text[: len(prompt)] == prompt
        assert len(text) <= len(prompt) + 7
        for i in range(len(prompt), len(text)):
            scores = log_probs(model, text[:i])
            assert scores[text[i]] > scores[END:].max() - 1e-4
        if len(text) < len(prompt) + 7:
            scores = log_probs(model, text)
            assert scores[END] > scores[END:].max() - 1e-4


def test_a_wide_beam_finds_the_best_of_all_texts():
    model = language_model(7)
    (found,) = model.generate([[5, 4]], 3, beam_size=64, alpha=0.7)

    def score(new):
        texts = [[5, 4, *new[:i]] for i in range(len(new) + 1)]
        gained = [
            log_probs(model, text)[token]
            for text, token in zip(texts, [*new, END], strict=True)
        ]
        return sum(gained) / float(length_penalty(len(new) + 1, 0.7))

    every = itertools.chain(
        *(itertools.product(range(4, 7), repeat=n) for n in range(4))
    )
    best = max(score(list(new)) for new in every)
    assert score(found[2:]) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_prompt_is_continued_alike_beside_others(config):
    model = language_model(**config)
    prompts = prompts_of(20, 0, 3, 31)
    for beam_size in (1, 3):
        found = model.generate(prompts, 7, beam_size)
        alone = [model.generate([p], 7, beam_size)[0] for p in prompts]
        assert found == alone


def test_it_compiles_anew_for_other_variables():
    model = language_model()
    prompts = prompts_of(5, 3)
    before = model.generate(prompts, 9)
    model.decoder_layers[0].feed_forward.outer.enable_lora(2)
    rng = np.random.default_rng(1)
    for weight in model.decoder_layers[0].feed_forward.outer.trainable_weights:
        weight.assign(rng.normal(size=weight.shape))
    after = model.generate(prompts, 9)
    assert after != before
    for text in after:
        scores = log_probs(model, text[:-1])
        assert scores[text[-1]] > scores[END:].max() - 1e-4


@pytest.mark.parametrize("policy", ["float64", "mixed_bfloat16"])
def test_it_generates_in_other_precisions(policy):
    config = TransformerConfig(V, **{**SHAPE, **TODAY})
    model = LanguageModel(config, dtype=policy, seed=1)
    found = model.generate(prompts_of(5, 20), np.int64(3), np.int64(2))
    assert [len(text) <= n + 3 for text, n in zip(found, (5, 20), strict=True)]


def test_drawn_tokens_follow_the_seed_and_the_temperature():
    model = language_model()
    prompts = prompts_of(3, 5)
    greedy = model.generate(prompts, 7)
    cold = model.generate(prompts, 7, temperature=1e-6, seed=1)
    assert cold == greedy
    one, same, other = (
        model.generate(prompts * 9, 7, temperature=2.0, seed=seed)
        for seed in (1, 1, 2)
    )
    assert one == same != other
    assert one[0] != one[2], "each row draws its own"
    narrow = model.generate(prompts * 9, 7, temperature=2.0, top_k=1)
    assert narrow == greedy * 9


def test_it_learns_texts_by_heart_and_goes_on_to_know_them():
    """`generate` sees the weights of now, though it compiled before."""
    texts = [[5, 9, 7, 4], [6, 5, 5, 8, 11], [7]]
    model = LanguageModel(
        TransformerConfig(V, **{**SHAPE, **TODAY, "dropout_rate": 0.0}), seed=1
    )
    prompts = [text[:1] for text in texts]
    assert model.generate(prompts, 9) != texts
    inputs, targets = model.inputs_and_targets(texts)
    np.testing.assert_array_equal(inputs[2], [START, 7, 0, 0, 0, 0])
    np.testing.assert_array_equal(targets[2], [7, END, 0, 0, 0, 0])
    model.compile(
        keras.optimizers.Adam(0.02),
        LabelSmoothedCrossEntropy(label_smoothing=0.0),
    )
    model.fit(inputs, targets, epochs=90, verbose=0)
    assert model.generate(prompts, 9) == texts


def test_grouped_queries_make_the_cache_smaller():
    caches = [
        language_model(
            num_heads=6, key_dim=4, num_key_value_heads=groups
        ).empty_cache(3, 50)
        for groups in (None, 2, 1)
    ]
    bytes_ = [
        sum(np.asarray(x).nbytes for layer in cache for x in layer.values())
        for cache in caches
    ]
    assert bytes_ == [2 * 2 * 3 * 50 * 4 * 4 * groups for groups in (6, 2, 1)]


@pytest.fixture(scope="module")
def tokenizer():
    lines = [line for pair in pairs_of_split("train", 200) for line in pair]
    return TextTokenizer(train_tokenizer(lines, 347), max_length=60)


TEXTS = ["the clock", "", "🦄 e\u0301", "The meeting begins at " + "nine " * 9]
READ = """
import json
import keras, keras_transformer

model = keras.models.load_model("model.keras")
texts = json.load(open("texts.json"))
json.dump(model.generate(texts, 9), open("found.json", "w"))
"""


def test_texts_may_be_arrays_of_ids_with_special_ones():
    model = language_model()
    rows = [[START, 5, 7, END], np.array([5, 7, 0]), (5, 7)]
    first, *others = model.generate(rows, 5)
    assert others == [first, first]
    for row in rows:
        for found, expected in zip(
            model.inputs_and_targets([row]),
            ([[START, 5, 7]], [[5, 7, END]]),
            strict=True,
        ):
            np.testing.assert_array_equal(found, expected)


def test_strings_are_texts_whole_or_cut_to_learn_from(tokenizer):
    model = language_model(347, tokenizer)
    with pytest.raises(ValueError, match=r"Give `\[text\]`"):
        model.generate("the clock")
    long = "the clock " * 40
    (found,) = model.generate([long], 3)
    assert found.startswith(long.strip())
    _, targets = model.inputs_and_targets([long])
    assert targets.shape == (1, tokenizer.max_length)
    assert END not in targets, "it does not end where it was cut"
    ids = tokenizer(["the clock"])
    assert model.generate(ids, 3) == [
        row[:-1] if END in row else row for row in model.generate([ids[0]], 3)
    ]


@pytest.mark.programs
def test_a_file_and_an_export_continue_texts_alike(tokenizer, tmp_path):
    import json

    model = language_model(347, tokenizer, **TODAY)
    expected = model.generate(TEXTS, 9)
    assert all(
        text.startswith(tokenizer.decode(tokenizer([prompt]))[0])
        for prompt, text in zip(TEXTS, expected, strict=True)
    )
    model.save(tmp_path / "model.keras")
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    subprocess.run(
        [sys.executable, "-c", READ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert json.loads((tmp_path / "found.json").read_text()) == expected

    path = export_language_model(model, tmp_path / "model/1", 60, 9)
    served = tf.saved_model.load(path).signatures["serving_default"]
    found = served(prompt=tf.constant(TEXTS))
    assert [text.decode() for text in found["text"].numpy()] == expected
    assert not found["truncated"].numpy().any()
    assert served(prompt=tf.constant([], tf.string))["text"].shape == (0,)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], str(path))
        prompt = session.graph.get_tensor_by_name("serving_default_prompt:0")
        outputs = session.graph.get_tensor_by_name("StatefulPartitionedCall:1")
        again = session.run(outputs, {prompt: TEXTS})
        assert [text.decode() for text in again] == expected


@pytest.mark.programs
def test_an_export_draws_by_its_seed(tokenizer, tmp_path):
    model = language_model(347, tokenizer)
    path = export_language_model(
        model, tmp_path / "model/1", 5, 9, temperature=0.9, top_p=0.9
    )
    with pytest.raises(TypeError, match="beams"):
        export_language_model(model, tmp_path / "model/2", beams=3)
    served = tf.saved_model.load(path).signatures["serving_default"]
    one, same, other = (
        served(prompt=tf.constant(TEXTS), seed=tf.constant(seed))
        for seed in (1, 1, 2)
    )
    assert (one["text"] == same["text"]).numpy().all()
    assert (one["text"] != other["text"]).numpy().any()
    lengths = [len(row) for row in tokenizer.tokenizer.encode(TEXTS)]
    expected = [length > 5 + 1 for length in lengths]  # and the end token
    assert one["truncated"].numpy().tolist() == expected
    drawn = {"temperature": 0.9, "top_p": 0.9, "seed": 1}
    ids = [row[:-1][:5] for row in tokenizer.tokenizer.encode(TEXTS)]
    expected = model.generate(ids, 9, **drawn)
    assert tokenizer.decode(expected) == [
        text.decode() for text in one["text"].numpy()
    ]


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda m: m.generate([[5]], 0), "max_new_tokens=0"),
        (lambda m: m.generate([[5]], beam_size=0), "beam_size=0"),
        (lambda m: m.generate([[5]], temperature=-1), "temperature=-1"),
        (
            lambda m: m.generate([[5]], beam_size=2, temperature=1.0),
            "temperature=1.0, beam_size=2",
        ),
        (lambda m: m.generate([[5]], top_k=3), "top_k=3.*temperature=0"),
        (
            lambda m: language_model(**CONFIGS[3]).generate([[5] * 30], 11),
            "max_length=41.*30.*max_new_tokens=11",
        ),
        (lambda m: language_model(source_vocab_size=9), "source_vocab_size=9"),
        (lambda m: m.generate(["text"]), r"rows of ids.*'text'"),
        (lambda m: m.generate("text"), r"rows of ids.*'text'"),
        (lambda m: m.generate([5, 7]), "row of ids.*Received: 5"),
        (lambda m: m.generate([[5, END, 7]]), r"\[5, 3, 7\]"),
        (lambda m: m.generate([[5, 0, 7, 0]]), r"padding.*\[5, 0, 7, 0\]"),
        (lambda m: m.generate([[5, V]]), "vocab_size=41"),
        (lambda m: language_model(tokenizer=m), "TextTokenizer.*LanguageModel"),
        (lambda m: export_language_model(m, "a/1"), "model.tokenizer=None"),
    ],
)
def test_errors_name_what_was_received(use, expected):
    with pytest.raises(ValueError, match=expected):
        use(language_model())
