"""The table of public names: how to make each, and the inputs it takes.

`tests/test_conformance.py` checks every row, on any Keras backend. A layer has
two rows: one in which every argument differs from its default, and one with
the required arguments alone.
"""

import dataclasses
import functools

import keras
import numpy as np

import keras_transformer as kt

B, T, S, D, V = 2, 3, 5, 14, 31


def random(*shape):
    return (
        np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")
    )


def numpy_of(x):
    return keras.ops.convert_to_numpy(x)


def assert_close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(
        numpy_of(found), numpy_of(expected), rtol=tolerance, atol=tolerance
    )


IDS = np.array([[5, 3, 0], [4, 0, 0]], "int32")
SOURCE = np.array([[5, 6, 7, 3], [9, 3, 0, 0]], "int32")
TARGET = np.array([[2, 5, 6], [2, 7, 0]], "int32")
LABELS = np.array([[5, 6, 3], [7, 3, 0]], "int32")


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One way to make one public name.

    Args:
        arguments: of the constructor, or of the function by name.
        inputs: arrays that a layer, loss or metric is called with, or the
            function's positional arguments.
        masks: the call argument that masks each of the inputs.
        causal: call options under which no output depends on later
            positions of the first input, or `None` where there are none.
    """

    name: str
    arguments: dict = dataclasses.field(default_factory=dict)
    inputs: tuple = ()
    masks: tuple = ()
    causal: dict | None = None

    @property
    def public(self):
        return getattr(kt, self.name)

    def make(self, **overrides):
        return self.public(**{**self.arguments, **overrides})


_RESIDUAL = {
    "d_model": D,
    "num_heads": 6,
    "d_ff": 17,
    "dropout_rate": 0.2,
    "attention_dropout_rate": 0.3,
    "activation_dropout_rate": 0.4,
    "norm_first": True,
    "key_dim": 4,
    "value_dim": 5,
    "activation": "gelu",
    "use_bias": False,
    "layer_norm_epsilon": 1e-3,
    "kernel_initializer": "he_normal",
    "seed": 7,
    "sliding_window": 2,
    "num_key_value_heads": 2,
    "normalization": "rms",
    "feed_forward": "swiglu",
    "positions": "rotary",
    "qk_norm": True,
}
_PLAIN = {"d_model": D, "num_heads": 2, "d_ff": 17}
_ATTENTION = {
    "inputs": (random(B, T, D), random(B, S, D)),
    "masks": ("query_mask", "value_mask"),
    "causal": {"use_causal_mask": True},
}
_ENCODER = {
    "inputs": (random(B, T, D),),
    "masks": ("mask",),
    "causal": {"use_causal_mask": True},
}
_DECODER = {
    "inputs": (random(B, T, D), random(B, S, D)),
    "masks": ("x_mask", "memory_mask"),
    "causal": {},
}

# Every argument differs from its default.
LAYERS = [
    Row(
        "MultiHeadAttention",
        {
            "num_heads": 6,
            "key_dim": 4,
            "value_dim": 5,
            "dropout": 0.2,
            "use_bias": False,
            "output_shape": 11,
            "sliding_window": 2,
            "use_gate": True,
            "flash_attention": False,
            "kernel_initializer": "he_normal",
            "bias_initializer": "ones",
            "kernel_regularizer": "l2",
            "bias_regularizer": "l1",
            "activity_regularizer": "l2",
            "kernel_constraint": "max_norm",
            "bias_constraint": "non_neg",
            "seed": 7,
            "num_key_value_heads": 2,
            "positions": "rotary",
            "qk_norm": True,
        },
        **_ATTENTION,
    ),
    Row(
        "PositionalEmbedding",
        {
            "vocab_size": 7,
            "d_model": D,
            "positions": "learned",
            "max_length": 13,
            "dropout_rate": 0.2,
            "mask_zero": False,
            "embeddings_initializer": "uniform",
            "scale_embeddings": False,
            "tie_projection": False,
            "use_logits_bias": True,
            "seed": 7,
        },
        (IDS,),
    ),
    Row(
        "FeatureEmbedding",
        {
            "d_model": D,
            "positions": "learned",
            "max_length": 13,
            "dropout_rate": 0.2,
            "use_bias": False,
            "kernel_initializer": "he_normal",
            "seed": 7,
        },
        (random(B, T, D),),
    ),
    Row(
        "FeedForward",
        {
            "d_model": D,
            "d_ff": 17,
            "activation": "gelu",
            "dropout_rate": 0.2,
            "use_bias": False,
            "kernel_initializer": "he_normal",
            "seed": 7,
            "use_gate": True,
        },
        (random(B, T, D),),
    ),
    Row("EncoderLayer", _RESIDUAL, **_ENCODER),
    Row("DecoderLayer", _RESIDUAL, **_DECODER),
]
# Keys and values have the same width here, which the backends' own attention
# kernels require.
PLAIN_LAYERS = [
    Row("MultiHeadAttention", {"num_heads": 2, "key_dim": 7}, **_ATTENTION),
    Row("PositionalEmbedding", {"vocab_size": 7, "d_model": D}, (IDS,)),
    Row("FeatureEmbedding", {"d_model": D}, (random(B, T, D),)),
    Row("FeedForward", {"d_model": D, "d_ff": 17}, (random(B, T, D),)),
    Row("EncoderLayer", _PLAIN, **_ENCODER),
    Row("DecoderLayer", _PLAIN, **_DECODER),
]

_SHAPE = {"num_layers": 2, "d_model": 22, "num_heads": 2, "d_ff": 17}
CONFIGS = [
    Row("TransformerConfig", {"vocab_size": V, **_SHAPE}),
    Row(
        "TransformerConfig",
        {
            **_SHAPE,
            "num_layers": 1,
            "vocab_size": V,
            "source_vocab_size": 37,
            "key_dim": 3,
            "value_dim": 5,
            "dropout_rate": 0.2,
            "attention_dropout_rate": 0.3,
            "activation_dropout_rate": 0.4,
            "norm_first": True,
            "positions": "learned",
            "max_length": 11,
            "scale_embeddings": False,
            "tie_projection": False,
            "use_logits_bias": True,
            "num_encoder_layers": 2,
            "num_decoder_layers": 3,
            "activation": "gelu",
            "use_bias": False,
            "layer_norm_epsilon": 1e-3,
            "initializer_scale": 0.5,
            "sliding_window": 2,
        },
    ),
    Row(
        "TransformerConfig",
        {
            **_SHAPE,
            "vocab_size": V,
            "num_heads": 6,
            "key_dim": 4,
            "num_key_value_heads": 3,
            "normalization": "rms",
            "feed_forward": "swiglu",
            "positions": "rotary",
            "qk_norm": True,
        },
    ),
]
MODELS = [
    Row("Transformer", {"config": row.make(), "seed": 7}) for row in CONFIGS
]

# The encoder of a translator, and one that normalises first.
CLASSIFIERS = [
    Row(
        "TextClassifier",
        {
            "config": kt.TransformerConfig(V, **_SHAPE, **options),
            "num_classes": 7,
            **seed,
        },
        (SOURCE,),
    )
    for options, seed in (
        ({}, {}),
        ({"norm_first": True, "dropout_rate": 0.2}, {"seed": 7}),
    )
]

_TODAY = {
    "norm_first": True,
    "normalization": "rms",
    "feed_forward": "swiglu",
    "positions": "rotary",
    "num_heads": 6,
    "key_dim": 4,
    "num_key_value_heads": 2,
}
LANGUAGE_MODELS = [
    Row(
        "LanguageModel",
        {"config": kt.TransformerConfig(V, **{**_SHAPE, **options}), **seed},
        (IDS,),
    )
    for options, seed in (({}, {}), (_TODAY, {"seed": 7}))
]

_PREDICTED = (LABELS, 3 * random(*LABELS.shape, V))
LOSSES = [
    Row(
        "LabelSmoothedCrossEntropy",
        {"label_smoothing": 0.2, "pad_id": 6, "reduction": "sum", "name": "x"},
        _PREDICTED,
    ),
    Row("LabelSmoothedCrossEntropy", {}, _PREDICTED),
]
METRICS = [
    Row(name, arguments, _PREDICTED)
    for name, own in (
        ("Perplexity", {"label_smoothing": 0.2}),
        ("TokenAccuracy", {}),
        ("TokenLoss", {"label_smoothing": 0.2}),
    )
    for arguments in ({"name": "x", "pad_id": 6, **own}, {})
]
SCHEDULES = [
    Row(
        "TransformerSchedule",
        {"d_model": D, "warmup_steps": 7, "scale": 2.0},
        (3,),
    ),
    Row("TransformerSchedule", {"d_model": D}, (5000,)),
]
_RULES = {"min_lengths": [3, 4], "prefix": [[5, -1], [-1, 9]]}
_TERMS = {"terms": [[[5, 9]], [[4, -1]]], "avoid": [[[9, 9]]]}
_NO_REPEATS = {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3}
# The inputs are the maximum lengths. Each backend draws its own random numbers,
# so `sample` has a single token to draw from here; tests/test_sampling.py
# checks how it draws from several.
SEARCHES = [
    Row("beam_search", {"beam_size": 3, **_RULES}, ([7, 5],)),
    Row("beam_search", {"beam_size": 1, "alpha": 0.0}, ([7, 5],)),
    Row("beam_search", {"beam_size": 3, "prefix": [[], []]}, ([7, 5],)),
    Row(
        "beam_search",
        {
            "beam_size": 3,
            "length_penalty": "power",
            "early_stopping": "heuristic",
        },
        ([7, 5],),
    ),
    Row("beam_search", {"beam_size": 3, "early_stopping": "filled"}, ([7, 5],)),
    Row("beam_search", {"beam_size": 5, **_TERMS}, ([7, 5],)),
    Row("greedy_search", _RULES, ([7, 5],)),
    Row("greedy_search", {}, ([7, 5],)),
    Row("sample", {"top_k": 1, "seed": 1, **_RULES}, ([7, 5],)),
    Row("sample", {"top_p": 1e-6, "seed": 1}, ([7, 5],)),
]
WITHOUT_REPEATS = [
    Row("beam_search", {"beam_size": 3, **_NO_REPEATS}, ([7, 5],)),
    Row("greedy_search", _NO_REPEATS, ([7, 5],)),
    Row("sample", {"top_k": 1, "seed": 1, **_NO_REPEATS}, ([7, 5],)),
]
# The inputs are the proposals of each row and the maximum lengths.
BLOCKWISE = [
    Row("blockwise_search", {"block_size": 3}, ([[5, 9], [7, 7]], [7, 5])),
]
FUNCTIONS = [
    Row("causal_mask", {"offset": 2}, (3, 5)),
    Row("length_penalty", {}, (np.arange(1, 9), 0.6)),
    Row("length_penalty", {"formula": "power"}, (np.arange(1, 9), 0.6)),
    Row("padding_mask", {"pad_id": 3}, (IDS,)),
]

# Objects that have `get_config`.
OBJECTS = [
    *LAYERS,
    *PLAIN_LAYERS,
    *MODELS,
    *CLASSIFIERS,
    *LANGUAGE_MODELS,
    *LOSSES,
    *METRICS,
    *SCHEDULES,
]
ROWS = [
    *CONFIGS,
    *OBJECTS,
    *SEARCHES,
    *WITHOUT_REPEATS,
    *BLOCKWISE,
    *FUNCTIONS,
]


def with_seeded_weights(layer):
    """Sets weights that are the same on each backend; returns the layer."""
    rng = np.random.default_rng(1706)
    for weight in layer.weights:
        values = 0.3 * rng.normal(size=weight.shape)
        weight.assign(values + weight.path.endswith(("gamma", "scale")))
    return layer


def built(row, **overrides):
    """Returns a built layer with seeded weights."""
    layer = row.make(**overrides)
    layer.build(*[x.shape for x in row.inputs])
    return with_seeded_weights(layer)


def model_of(row, **overrides):
    """Returns a functional model of one layer, with seeded weights."""
    layer = row.make(**overrides)
    tensors = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in row.inputs]
    return with_seeded_weights(keras.Model(tensors, layer(*tensors)))


def compiled_on_jax(function):
    """Returns the function, compiled as a whole on JAX.

    Otherwise JAX compiles each operation alone, which takes minutes in total.
    """
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


@functools.cache
def model_with_seeded_weights(row):
    """Returns a shared model, which callers must not change."""
    return with_seeded_weights(row.make())


def model_and_step():
    """Returns a Transformer and its step function for the sentences SOURCE."""
    model = model_with_seeded_weights(MODELS[0])
    memory = model.project_memory(model.encode(SOURCE))

    @compiled_on_jax
    def step(tokens, cache, index):
        return model.decode_step(tokens, cache, index, memory, SOURCE != 0)

    return model, step


@functools.cache
def search(row):
    """Returns ids `(B, K, L)`, scores `(B, K)` and the model of a search."""
    model, step = model_and_step()
    (limits,) = row.inputs
    beams = row.arguments.get("beam_size", 1)
    cache = model.empty_cache(B * beams, max(limits))
    found = row.public(step, cache, limits, **row.arguments)
    ids, scores = map(numpy_of, found)
    return ids.reshape(B, beams, -1), scores.reshape(B, beams), model


def blockwise_search(row):
    """Returns ids `(B, L)`, scores and steps `(B,)` of a blockwise search, for
    a model that knows the last token only."""
    proposals, limits = row.inputs
    table = 3 * random(V, V)

    def verify(tokens, cache, positions):
        return keras.ops.take(table, tokens, axis=0), cache

    def propose(cache, accepted, certain):
        return keras.ops.convert_to_tensor(proposals, "int32"), cache

    return row.public(verify, propose, {}, limits, **row.arguments)


def outputs(row):
    """Returns what the row computes, from the same weights on each backend."""
    if row in MODELS:
        model = model_with_seeded_weights(row)
        found = [compiled_on_jax(model)({"source": SOURCE, "target": TARGET})]
    elif row in [*CLASSIFIERS, *LANGUAGE_MODELS]:
        model = model_with_seeded_weights(row)
        found = [compiled_on_jax(model)(*row.inputs)]
    elif row in [*SEARCHES, *WITHOUT_REPEATS]:
        found = search(row)[:2]
    elif row in BLOCKWISE:
        found = blockwise_search(row)
    elif row in FUNCTIONS:
        found = [row.public(*row.inputs, **row.arguments)]
    elif row in METRICS:
        metric = row.make()
        labels, logits = row.inputs
        metric.update_state(labels, logits)
        metric.update_state(labels[:1], logits[1:])
        found = [metric.result()]
    elif row in (*LOSSES, *SCHEDULES):
        found = [row.make()(*row.inputs)]
    else:
        found = [compiled_on_jax(built(row))(*row.inputs)]
    return [numpy_of(x) for x in found]
