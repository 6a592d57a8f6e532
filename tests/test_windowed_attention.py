"""Checks restricted self-attention, section 4, on any Keras backend."""

import functools

import keras
import numpy as np
import paper
import pytest
from conformance import (
    assert_close,
    compiled_on_jax,
    numpy_of,
    random,
    with_seeded_weights,
)
from keras import ops

import keras_transformer as kt
from keras_transformer.layers.attention import scaled_dot_product_attention
from keras_transformer.layers.windowed_attention import windowed_attention

BACKEND = keras.backend.backend()
B, T, D, H = 2, 23, 14, 2
# JAX compiles a program for every shape.
CASES = range(200) if BACKEND != "jax" else range(0, 200, 4)


def band(length, window, causal):
    """Returns the mask `(T, T)` of the window."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return (distance < window) & (distance > (-1 if causal else -window))


def gradients(function, inputs):
    """Returns the gradients of the sum of sines of the function's output.

    A query that sees a single key has none, and gets zeros.
    """
    if BACKEND == "tensorflow":
        import tensorflow as tf

        inputs = [tf.constant(x) for x in inputs]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(tf.sin(function(*inputs)))
        return tape.gradient(total, inputs, unconnected_gradients="zero")
    if BACKEND == "jax":
        import jax

        def total(*inputs):
            return ops.sum(ops.sin(function(*inputs)))

        places = tuple(range(len(inputs)))
        return jax.jit(jax.grad(total, places))(*inputs)
    import torch

    inputs = [torch.tensor(x, requires_grad=True) for x in inputs]
    total = function(*inputs).sin().sum()
    return torch.autograd.grad(
        total, inputs, allow_unused=True, materialize_grads=True
    )


# === Equal to full attention ===


def random_case(seed):
    """Returns keys, values, a window and masks of random shapes."""
    rng = np.random.default_rng(seed)
    batch, heads = rng.integers(1, 4, size=2)
    length = int(rng.choice([1, 2, 3, 5, 7, 11, 13, 29, 31]))
    window = int(rng.choice([1, 2, 3, 4, 5, 6, 8, 17]))
    shape = (batch, heads, length)
    widths = (3, 3, 5)
    inputs = [rng.normal(size=(*shape, w)).astype("float32") for w in widths]
    masks = [
        rng.random((batch, 1, length)) > 0.3,  # of keys
        rng.random((batch, length, 1)) > 0.2,  # of queries
        rng.random((batch, length, length)) > 0.3,
        rng.random((batch, heads, length, length)) > 0.3,
        rng.random((1, heads, 1, length)) > 0.3,
        rng.random((length, length)) > 0.3,
        rng.random((batch, 1, 1, 1)) > 0.3,
        None,
    ]
    count = rng.integers(0, 4)
    chosen = [masks[i] for i in rng.permutation(len(masks))[:count]]
    return inputs, window, bool(rng.integers(2)), chosen


@pytest.mark.parametrize("seed", CASES)
def test_blocks_equal_full_attention_under_the_mask_of_the_window(seed):
    inputs, window, causal, masks = random_case(seed)
    every = band(inputs[0].shape[2], window, causal)
    for mask in masks:
        if mask is not None:
            mask = mask[:, None] if mask.ndim == 3 else mask
            every = every & mask
    masks = [m if m is None else ops.convert_to_tensor(m) for m in masks]

    def blocks(*inputs):
        return windowed_attention(*inputs, window, causal, masks)

    def full(*inputs):
        mask = ops.convert_to_tensor(every)
        return scaled_dot_product_attention(*inputs, mask)[0]

    tensors = [ops.convert_to_tensor(x) for x in inputs]
    found = compiled_on_jax(blocks)(*tensors)
    assert_close(found, compiled_on_jax(full)(*tensors), 1e-6)
    if seed % 5 == 0:
        pairs = zip(
            gradients(blocks, inputs), gradients(full, inputs), strict=True
        )
        for one, other in pairs:
            assert_close(one, other, 1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_are_the_definition_of_section_4(causal):
    q, k, v = random(B, H, T, 3), random(B, H, T, 3), random(B, H, T, 5)
    mask = np.random.default_rng(1).random((B, T)) > 0.3
    found = compiled_on_jax(
        functools.partial(windowed_attention, window=4, causal=causal)
    )(*map(ops.convert_to_tensor, (q, k, v)), masks=[mask[:, None]])
    r = 2 * (4 - 1)
    expected = paper.restricted_attention(q, k, v, r, mask, causal)
    assert_close(found, expected, 1e-5)


def attention_and_input(window=None):
    """Returns a layer, the same weights for each window, and its input."""
    layer = kt.MultiHeadAttention(H, 3, 5, sliding_window=window)
    x = random(B, T, D)
    layer.build(x.shape)
    return with_seeded_weights(layer), x


def lengths_mask(*lengths):
    return np.arange(T) < np.array(lengths)[:, None]


REAL = lengths_mask(23, 13)
ROWS = np.random.default_rng(3).random((B, T)) > 0.3
PAIRS = np.random.default_rng(4).random((B, T, T)) > 0.3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_causal_mask": True},
        {"value_mask": REAL, "key_mask": REAL, "query_mask": ROWS},
        {"attention_mask": PAIRS, "value_mask": REAL, "use_causal_mask": True},
        {"attention_mask": PAIRS[:, :1].astype("int32")},
    ],
    ids=lambda options: ", ".join(options) or "no mask",
)
def test_the_layer_equals_full_attention_under_the_mask_of_the_window(options):
    layer, x = attention_and_input(window=4)
    causal = options.get("use_causal_mask", False)
    found = layer(x, x, **options)
    with_scores, scores = layer(x, x, return_attention_scores=True, **options)
    near = band(T, 4, causal)[None]
    given = options.get("attention_mask", np.ones((1, 1, 1)))
    near = near & (given != 0)
    full, _ = attention_and_input()
    expected, expected_scores = full(
        x,
        x,
        return_attention_scores=True,
        **{**options, "attention_mask": near},
    )
    assert_close(found, expected, 1e-6)
    assert_close(with_scores, expected, 1e-6)
    assert_close(scores, expected_scores, 1e-6)


def test_a_query_that_may_attend_to_nothing_gets_zeros():
    layer, x = attention_and_input(window=3)
    nothing = np.zeros((B, T), bool)
    found = layer(x, x, value_mask=nothing)
    bias = numpy_of(layer.weights[-1])
    assert_close(found, np.broadcast_to(bias, found.shape), 1e-6)


def test_lengths_may_be_unknown():
    encoder = kt.EncoderLayer(D, H, 17, sliding_window=4)
    embedding = kt.PositionalEmbedding(11, D)
    ids = keras.Input((None,), dtype="int32")
    model = with_seeded_weights(keras.Model(ids, encoder(embedding(ids))))
    for length in (1, 3, 23):
        rows = np.random.default_rng(length).integers(1, 11, (B, length))
        rows[1, length // 2 + 1 :] = 0
        found = model.predict(rows, verbose=0)
        expected = encoder(numpy_of(embedding(rows)), mask=rows != 0)
        real = rows != 0
        assert_close(found[real], numpy_of(expected)[real], 1e-5)


def test_weights_are_dropped_in_training_alone():
    x = random(1, 997, D)
    layer = kt.MultiHeadAttention(1, D, dropout=0.4, sliding_window=5, seed=1)
    layer(x, x)
    value, output = layer.value_projection, layer.output_projection
    value.kernel.assign(np.zeros((D, D)))
    value.bias.assign(np.ones(D))  # so that a head returns its weights' sum
    output.kernel.assign(np.eye(D))
    plain = numpy_of(layer(x, x))
    dropped = numpy_of(layer(x, x, training=True))
    np.testing.assert_allclose(plain, 1, atol=1e-5)
    assert abs(dropped.mean() - 1) < 0.05
    assert dropped.std() > 0.1


# === Only the window is seen ===


def test_an_output_depends_on_its_window_alone():
    encoder = kt.EncoderLayer(D, H, 17, sliding_window=4)
    decoder = kt.DecoderLayer(D, H, 17, sliding_window=4)
    x, memory = random(B, T, D), random(B, 5, D)
    encoder.build(x.shape)
    decoder.build(x.shape, memory.shape)
    for layer, options, after in (
        (encoder, {}, 3),
        (encoder, {"use_causal_mask": True}, 0),
        (decoder, {"memory": memory}, 0),
    ):
        expected = numpy_of(layer(x, **options))
        for position in (0, 7, 11, 22):
            other = x.copy()
            other[:, position] *= -1
            found = numpy_of(layer(other, **options))
            changes = np.abs(found - expected).max(axis=(0, 2))
            distance = np.arange(T) - position
            is_near = (-after <= distance) & (distance <= 3)
            assert (changes[~is_near] == 0).all()
            assert (changes[is_near] > 1e-5).all()


def test_very_long_sequences_fit_into_the_memory():
    """Full attention would need 10 GB for each of its masks and weights."""
    length = 100_003
    layer = kt.MultiHeadAttention(1, 3, sliding_window=8)
    x = random(1, length, 2)
    mask = np.arange(length)[None] < length - 5
    found = layer(
        x,
        x,
        value_mask=mask,
        attention_mask=mask[:, None],
        use_causal_mask=True,
    )
    end = slice(length - 50, length - 5)
    part = x[:, length - 57 :]
    expected = layer(part, part, use_causal_mask=True)
    assert_close(numpy_of(found)[:, end], numpy_of(expected)[:, 7:-5], 1e-5)


# === Step by step ===


@pytest.mark.parametrize(
    "ends", [range(1, T + 1), [1, 2, 7, 8, 20, 23], [11, 23]], ids=str
)
def test_steps_with_a_window_equal_the_full_pass(ends):
    layer = kt.DecoderLayer(D, H, 17, sliding_window=4)
    x, memory = random(B, T, D), random(B, 5, D)
    layer.build(x.shape, memory.shape)
    whole = numpy_of(with_seeded_weights(layer)(x, memory))
    cache, memory = layer.empty_cache(B, T), layer.project_memory(memory)
    shapes = [tuple(c.shape) for c in cache.values()]
    assert [shape[2] for shape in shapes] == [4, 4]
    start = 0
    for end in ends:
        found, cache = layer(
            x[:, start:end],
            memory_cache=memory,
            cache=cache,
            cache_index=start,
        )
        assert_close(found, whole[:, start:end], 1e-5)
        assert [tuple(c.shape) for c in cache.values()] == shapes
        start = end


def test_masks_and_weights_of_steps_are_those_of_the_full_pass():
    layer, x = attention_and_input(window=4)
    options = {
        "return_attention_scores": True,
        "use_causal_mask": True,
    }
    whole, scores = layer(x, x, attention_mask=PAIRS, **options)
    whole, scores = numpy_of(whole), numpy_of(scores)
    cache = layer.empty_cache(B, T)
    for t in range(T):
        now = x[:, t : t + 1]
        mask = PAIRS[:, t : t + 1]
        found, weights, cache = layer(
            now, now, attention_mask=mask, cache=cache, cache_index=t, **options
        )
        assert_close(found, whole[:, t : t + 1], 1e-5)
        seen = scores[:, :, t : t + 1, max(0, t - 3) : t + 1]
        assert_close(numpy_of(weights)[..., -seen.shape[-1] :], seen, 1e-5)


def test_a_short_cache_with_a_window_can_be_full():
    layer = kt.EncoderLayer(D, H, 17, sliding_window=11)
    x = random(B, 7, D)
    layer.build(x.shape)
    cache = layer.empty_cache(B, 5)
    assert cache["key"].shape[2] == 5
    _, cache = layer(x[:, :5], cache=cache, cache_index=0)
    with pytest.raises(ValueError, match="cache_index=5, 1 new positions"):
        layer(x[:, 5:6], cache=cache, cache_index=5)


# === Arguments ===


@pytest.mark.parametrize("window", [0, -2, 4.0, True, "4"])
def test_a_window_must_be_a_positive_integer(window):
    for layer in (kt.MultiHeadAttention, kt.EncoderLayer, kt.DecoderLayer):
        with pytest.raises(ValueError, match=f"sliding_window={window!r}"):
            layer(2, 2, 17, sliding_window=window)


@pytest.mark.parametrize("length", [5, T, 29])
def test_a_memory_of_any_length_is_seen_through_the_window(length):
    """As in Keras: position i sees keys i - w + 1 to i + w - 1, if any."""
    layer, x = attention_and_input(window=3)
    memory = random(B, length, D)
    full, _ = attention_and_input()
    distance = np.arange(T)[:, None] - np.arange(length)
    expected = full(x, memory, attention_mask=(np.abs(distance) < 3)[None])
    assert_close(layer(x, memory), expected, 1e-6)


def test_a_cache_without_positions_is_refused():
    layer, x = attention_and_input(window=3)
    with pytest.raises(ValueError, match="sliding_window=3"):
        layer(x, cache=layer.project(random(B, 5, D)))


@pytest.mark.parametrize("shape", [(B, T - 2), (B, T, T + 1), (B, 2, T)])
def test_a_mask_of_another_length_is_refused(shape):
    layer, x = attention_and_input(window=3)
    name = "value_mask" if len(shape) == 2 else "attention_mask"
    with pytest.raises(
        ValueError, match=rf"each of the {T} (positions|queries)"
    ):
        layer(x, x, **{name: np.ones(shape, bool)})


def test_a_mask_of_too_few_cached_positions_is_refused():
    layer, x = attention_and_input(window=3)
    cache = layer.empty_cache(B, T)
    options = {"cache": cache, "cache_index": 3}
    now = x[:, 3:4]
    layer(now, now, attention_mask=np.ones((1, 1, 1), bool), **options)
    with pytest.raises(ValueError, match="for 4 positions"):
        layer(now, now, attention_mask=np.ones((1, 1, 3), bool), **options)


if BACKEND == "tensorflow":

    def test_float64_stays_exact():
        inputs = [random(B, H, T, 3).astype("float64") for _ in range(3)]
        found = windowed_attention(*map(ops.convert_to_tensor, inputs), 4)
        mask = np.ones((B, T), bool)
        expected = paper.restricted_attention(*inputs, 6, mask)
        assert_close(found, expected, 1e-13)

    @pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
    def test_sequences_of_unknown_length_are_cut_into_blocks(policy):
        """Full attention would need 10 GB for each of its masks and weights."""
        import tensorflow as tf

        layer = kt.EncoderLayer(2, 1, 3, sliding_window=4, dtype=policy)
        call = tf.function(
            layer, input_signature=[tf.TensorSpec((1, None, 2), "float32")]
        )
        assert call(tf.zeros((1, 50_021, 2))).shape == (1, 50_021, 2)

    def all_operations(graph):
        """Yields the operations of a graph, and of those that it calls."""
        yield from graph.get_operations()
        for function in graph._functions.values():
            yield from function.graph.get_operations()

    @pytest.mark.parametrize("causal", [False, True])
    def test_no_tensor_of_a_training_step_grows_with_the_square(causal):
        import tensorflow as tf

        def largest(length):
            layer = kt.EncoderLayer(4, 2, 5, 0.1, 0.1, sliding_window=4)
            layer.build((1, length, 4))

            @tf.function
            def step(x, mask):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = layer(
                        x,
                        mask=mask,
                        attention_mask=mask[:, None],
                        use_causal_mask=causal,
                        training=True,
                    )
                weights = layer.trainable_weights
                return tape.gradient(y, [x, *[w.value for w in weights]])

            graph = step.get_concrete_function(
                tf.TensorSpec((1, length, 4)), tf.TensorSpec((1, length), bool)
            ).graph
            shapes = [
                output.shape
                for operation in all_operations(graph)
                for output in operation.outputs
                if output.shape.is_fully_defined()
            ]
            assert len(shapes) > 200
            return max(shape.num_elements() for shape in shapes)

        assert largest(1200) <= 10 * largest(120) < 1200**2 / 10
