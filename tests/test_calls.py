"""Checks calls of layers as other code makes them, on any Keras backend."""

import dataclasses
import json

import keras
import numpy as np
import paper
import pytest
from conformance import assert_close, numpy_of, random, with_seeded_weights
from keras import ops

from keras_transformer import (
    DecoderLayer,
    EncoderLayer,
    FeatureEmbedding,
    FeedForward,
    LabelSmoothedCrossEntropy,
    MultiHeadAttention,
    Perplexity,
    PositionalEmbedding,
    TokenAccuracy,
    TokenLoss,
    Transformer,
    TransformerConfig,
    beam_search,
    blockwise_search,
    causal_mask,
    greedy_search,
    sample,
)
from keras_transformer.layers.embeddings import positional_encoding

BACKEND = keras.backend.backend()
B, T, S, D, H, F = 2, 3, 5, 14, 2, 17
MASK = np.array([[True, True, False], [True, False, False]])


def test_every_input_may_be_given_by_its_name():
    x, memory = random(B, T, D), random(B, S, D)
    for layer, inputs in (
        (EncoderLayer(D, H, F), {"x": x}),
        (DecoderLayer(D, H, F), {"x": x, "memory": memory}),
        (MultiHeadAttention(H, 3), {"query": x, "value": memory}),
        (PositionalEmbedding(7, D), {"x": np.ones((B, T))}),
    ):
        expected = layer(*inputs.values())
        assert_close(layer(**inputs), expected)
        symbols = {
            name: keras.Input(value.shape[1:], name=name)
            for name, value in inputs.items()
        }
        model = keras.Model(symbols, layer(**symbols))
        assert_close(model(inputs), expected)


class Narrower(DecoderLayer):
    """Takes less than its base class."""

    def call(self, x, memory, x_mask=None, training=None):
        return super().call(x, memory, x_mask=x_mask, training=training)


def test_the_call_of_a_subclass_may_take_no_mask():
    x, memory = random(B, T, D), random(B, S, D)
    layer, plain = Narrower(D, H, F), DecoderLayer(D, H, F)
    layer(x, memory)
    plain(x, memory)
    plain.set_weights(layer.get_weights())
    found = layer(x, memory, x_mask=MASK)
    assert_close(found, plain(x, memory, x_mask=MASK))


def test_a_mask_of_pairs_may_be_a_list():
    x = random(B, T, D)
    layer = MultiHeadAttention(H, 3)
    mask = np.tri(T, dtype=bool)[None]
    found = layer(x, x, attention_mask=mask.tolist())
    assert_close(found, layer(x, x, attention_mask=mask))


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("kind", ["int64", "uint8", "tensor"])
def test_a_position_may_be_any_integer(kind, window):
    x = random(B, T, D)
    layer = EncoderLayer(D, H, F, sliding_window=window)
    embedding = PositionalEmbedding(7, D, positions="learned", max_length=T)
    ids = np.array([[5, 3, 1], [2, 4, 6]])

    def number(i):
        if kind == "tensor":
            return ops.cast(i, "uint8")
        return np.dtype(kind).type(i)

    cache = layer.empty_cache(B, T)
    steps, vectors = [], []
    for i in range(T):
        y, cache = layer(x[:, i : i + 1], cache=cache, cache_index=number(i))
        steps.append(numpy_of(y))
        vectors.append(numpy_of(embedding(ids[:, i : i + 1], number(i))))
    at_once = layer(x, use_causal_mask=True)
    assert_close(np.concatenate(steps, axis=1), at_once)
    assert_close(np.concatenate(vectors, axis=1), embedding(ids))
    np.testing.assert_array_equal(
        numpy_of(causal_mask(1, T, number(1))), [[[True, True, False]]]
    )


def positions_of(kind, numbers):
    """Returns a position of each row, as an array or as a tensor."""
    numbers = np.array(numbers)
    return ops.cast(numbers, "uint8") if kind == "tensor" else numbers


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("kind", ["array", "tensor"])
@pytest.mark.parametrize("length", [1, 2])
def test_each_row_may_have_a_position_of_its_own(length, kind, window):
    """Rows that are at different places get what each gets alone."""
    x, rows = random(B, 7, D), range(B)
    layer = EncoderLayer(D, H, F, sliding_window=window)
    ids = np.random.default_rng(1).integers(1, 7, (B, 7))
    starts = [3, 1]
    caches, expected, vectors = [], [], []
    for name in ("sinusoidal", "learned"):
        embedding = PositionalEmbedding(7, D, name, max_length=9)
        parts = [
            embedding(ids[i : i + 1, k : k + length], offset=k)
            for i, k in zip(rows, starts, strict=True)
        ]
        found = embedding(
            np.stack([ids[i, k : k + length] for i, k in enumerate(starts)]),
            offset=positions_of(kind, starts),
        )
        assert tuple(found.shape) == (B, length, D)
        vectors.append((found, ops.concatenate(parts)))
    for i, start in enumerate(starts):
        cache = layer.empty_cache(1, 9)
        for k in range(start):
            _, cache = layer(
                x[i : i + 1, k : k + 1], cache=cache, cache_index=k
            )
        caches.append(cache)
        step = x[i : i + 1, start : start + length]
        y, cache = layer(step, cache=cache, cache_index=start)
        expected.append((y, cache))
    cache = {
        name: ops.concatenate([one[name] for one in caches])
        for name in ("key", "value")
    }
    steps = np.stack([x[i, k : k + length] for i, k in enumerate(starts)])
    found, cache = layer(
        steps, cache=cache, cache_index=positions_of(kind, starts)
    )
    assert_close(found, ops.concatenate([y for y, _ in expected]))
    for name in cache:
        together = ops.concatenate([one[name] for _, one in expected])
        assert_close(cache[name], together)
    for one, other in vectors:
        assert_close(one, other)


def test_other_positions_are_refused():
    x = random(B, 1, D)
    layer, embedding = EncoderLayer(D, H, F), PositionalEmbedding(7, D)
    wrong = np.zeros((B, 1), "int32")
    with pytest.raises(ValueError, match="one for each row"):
        embedding(np.ones((B, 1)), offset=wrong)
    with pytest.raises(ValueError, match="one for each row"):
        layer(x, cache=layer.empty_cache(B, 5), cache_index=wrong)
    with pytest.raises(ValueError, match="cache_index=5"):
        layer(x, cache=layer.empty_cache(B, 5), cache_index=np.array([0, 5]))
    learned = PositionalEmbedding(7, D, "learned", max_length=5)
    with pytest.raises(ValueError, match="offset=5"):
        learned(np.ones((B, 1)), offset=np.array([0, 5]))


@pytest.mark.parametrize("norm_first", [False, True])
def test_blockwise_search_over_the_layers_equals_greedy_search(norm_first):
    config = TransformerConfig.preset(
        "tiny", vocab_size=31, num_layers=2, d_model=D, d_ff=F, num_heads=H
    )
    config = dataclasses.replace(config, norm_first=norm_first)
    model = Transformer(config)
    with_seeded_weights(model)
    source, limits, k = np.array([[5, 6, 7, 3], [9, 3, 0, 0]]), [11, 8], 3
    memory = model.project_memory(model.encode(source))

    def step(tokens, cache, positions):
        return model.decode_step(tokens, cache, positions, memory, source != 0)

    def propose(cache, accepted, certain):  # some right and some wrong
        more = [(certain + i) % 31 for i in range(1, k)]
        return ops.stack(more, axis=1), cache

    expected, _ = greedy_search(step, model.empty_cache(2, 11), limits)
    # The last block may reach beyond the maximum lengths.
    found, _, steps = blockwise_search(
        step, propose, model.empty_cache(2, 11 + k), limits, k
    )
    np.testing.assert_array_equal(numpy_of(found), numpy_of(expected))
    assert (numpy_of(steps) <= limits).all()


def test_positions_are_right_where_numbers_have_16_bits():
    """Keras then counts in int16, which ends at 32,767."""
    length = 33_000
    embedding = PositionalEmbedding(7, 4, dtype="float32")
    keras.config.set_floatx("bfloat16")
    try:
        found = numpy_of(embedding(np.ones((1, length))))[0, -1]
        mask = numpy_of(causal_mask(1, length, length - 2))[0, 0]
        layer = MultiHeadAttention(H, 3, dtype="float32")
        x = random(B, T, D)
        steps = layer(x, x, use_causal_mask=True)
    finally:
        keras.config.set_floatx("float32")
    position = np.array([length - 1])
    scaled = numpy_of(embedding.embeddings)[1] * 2.0
    expected = numpy_of(positional_encoding(position, 4))[0]
    np.testing.assert_allclose(found - scaled, expected, atol=1e-5)
    assert mask[:-1].all()
    assert not mask[-1]
    assert_close(steps, layer(x, x, use_causal_mask=True))


def test_a_batch_may_be_empty():
    layer = DecoderLayer(D, H, F)
    layer.build((None, None, D), (None, None, D))
    x, memory = np.ones((0, T, D), "float32"), np.ones((0, S, D), "float32")
    found, weights = layer(
        x,
        memory_cache=layer.project_memory(ops.convert_to_tensor(memory)),
        return_attention_scores=True,
    )
    assert tuple(found.shape) == (0, T, D)
    assert tuple(weights.shape) == (0, H, T, S)


def twos(shape, dtype=None):
    return 2 * ops.ones(shape, dtype)


def test_an_initializer_may_be_a_function():
    x = random(B, T, D)
    for layer in (
        FeedForward(D, F, kernel_initializer=twos),
        FeatureEmbedding(D, kernel_initializer=twos),
        EncoderLayer(D, H, F, kernel_initializer=twos),
        MultiHeadAttention(H, 3, kernel_initializer=twos),
    ):
        layer(x, x) if isinstance(layer, MultiHeadAttention) else layer(x)
        kernels = [w for w in layer.weights if w.path.endswith("kernel")]
        assert kernels
        for kernel in kernels:
            assert (numpy_of(kernel) == 2).all()
    embedding = PositionalEmbedding(
        7, D, tie_projection=False, embeddings_initializer=twos
    )
    embedding(np.ones((B, T)))
    assert (numpy_of(embedding.projection) == 2).all()


def test_one_axis_more_is_masked_where_layers_are_wrapped_together():
    """As the error of `PositionalEmbedding` advises."""
    ids = np.array([[[1, 2, 3], [4, 5, 6]]])
    padded = np.pad(ids, ((0, 0), (0, 0), (0, 2)))
    layers = [PositionalEmbedding(7, D), EncoderLayer(D, H, F)]
    wrapped = keras.layers.TimeDistributed(keras.Sequential(layers))
    assert_close(wrapped(padded)[:, :, :3], wrapped(ids))


if BACKEND != "jax":  # which has no float64 unless it is asked for

    def test_float64_embeddings_are_exact():
        embedding = PositionalEmbedding(7, D, dtype="float64")
        ids = np.array([[5, 3, 1]])
        found = numpy_of(embedding(ids))
        table = numpy_of(embedding.embeddings)
        positions = paper.positional_encoding(3, D)
        expected = table[ids] * D**0.5 + positions
        np.testing.assert_allclose(found, expected, atol=1e-12, rtol=0)


if BACKEND == "tensorflow":  # on PyTorch, Keras multiplies in float32

    def test_float64_products_are_exact():
        layer = MultiHeadAttention(H, 3, 5, dtype="float64")
        x, memory = random(B, T, D) / 3, random(B, S, D) / 3
        layer(x, memory)
        weights = [numpy_of(w) for w in layer.weights]
        expected = paper.multi_head_attention(x, memory, memory, weights, H)
        found = layer(x, memory)
        np.testing.assert_allclose(found, expected, atol=1e-12, rtol=0)

        embedding = PositionalEmbedding(7, D, dtype="float64")
        logits = embedding(x, reverse=True)
        table = numpy_of(embedding.embeddings)
        np.testing.assert_allclose(logits, x @ table.T, atol=1e-12, rtol=0)


if BACKEND == "jax":

    @pytest.mark.parametrize("causal", [False, True])
    def test_a_window_can_be_exported_for_any_length(causal):
        import jax

        layer = EncoderLayer(D, H, F, sliding_window=3)
        layer.build((None, None, D))

        def call(x):
            return layer(x, use_causal_mask=causal)

        shape = jax.export.symbolic_shape(f"b, t, {D}")
        exported = jax.export.export(jax.jit(call))(
            jax.ShapeDtypeStruct(shape, "float32")
        )
        for length in (1, 2, 3, 11):
            x = random(B, length, D).astype("float32")
            assert_close(exported.call(x), call(x))


# === Masks ===


def test_a_padding_mask_may_be_a_list():
    x, memory = random(B, T, D), random(B, S, D)
    memory_mask = np.array([[True] * S, [True] * 2 + [False] * (S - 2)])
    for layer, inputs, masks in (
        (EncoderLayer(D, H, F), [x], {"mask": MASK}),
        (
            DecoderLayer(D, H, F),
            [x, memory],
            {"x_mask": MASK, "memory_mask": memory_mask},
        ),
        (
            MultiHeadAttention(H, 3),
            [x, memory],
            {"query_mask": MASK, "value_mask": memory_mask},
        ),
    ):
        lists = {name: mask.tolist() for name, mask in masks.items()}
        assert_close(layer(*inputs, **lists), layer(*inputs, **masks))


@pytest.mark.parametrize("window", [None, 2])
def test_a_mask_that_is_added_to_scores_is_refused(window):
    """It would be read the wrong way round."""
    x = random(B, T, D)
    layer = EncoderLayer(D, H, F, sliding_window=window)
    mask = np.tri(T, dtype="float32")[None]
    expected = layer(x, attention_mask=mask > 0)
    assert_close(layer(x, attention_mask=mask), expected)
    added = np.where(mask > 0, 0, -1e9).astype("float32")
    for wrong in (added, np.where(mask > 0, 0, -np.inf), 2 * mask):
        with pytest.raises(ValueError, match="pass `mask == 0`"):
            layer(x, attention_mask=wrong)
    with pytest.raises(ValueError, match="pass `mask == 0`"):
        layer(x, mask=np.full((B, T), -1e9, "float32"))


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"query_mask": (B, T + 1)}, "each of the 3 positions.*query_mask"),
        ({"value_mask": (B, T)}, "each of the 5 positions.*value_mask"),
        ({"key_mask": (B, S - 1)}, "each of the 5 positions.*key_mask"),
        ({"attention_mask": (B, T, T)}, "3 queries and 5 keys"),
        ({"attention_mask": (B, S, S)}, "3 queries and 5 keys"),
        ({"attention_mask": (B, 1, T + 1, 1)}, "3 queries and 5 keys"),
    ],
)
def test_masks_of_another_length_are_refused(masks, message):
    ones = {name: np.ones(shape, bool) for name, shape in masks.items()}
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(H, 3)(random(B, T, D), random(B, S, D), **ones)


# === Losses ===


@pytest.mark.parametrize("thing", [LabelSmoothedCrossEntropy, TokenLoss])
def test_another_class_may_be_impossible(thing):
    logits = np.array([[[0.5, -np.inf, 1.5, 0.0]]], "float32")
    labels = np.array([[2]])
    loss = thing(label_smoothing=0.0, pad_id=-1)
    expected = np.log(np.exp([0.5, 1.5, 0.0]).sum()) - 1.5
    if isinstance(loss, keras.metrics.Metric):
        loss.update_state(labels, logits)
        found = loss.result()
    else:
        found = loss(labels, logits)
    np.testing.assert_allclose(numpy_of(found), expected, rtol=1e-5)
    metric = Perplexity(pad_id=-1)
    metric.update_state(labels, logits)
    found = numpy_of(metric.result())
    np.testing.assert_allclose(found, np.exp(expected), rtol=1e-5)


@pytest.mark.parametrize("floatx", ["bfloat16", "float16"])
def test_labels_are_exact_in_half_precision(floatx):
    labels = np.array([[777, 4093]])
    logits = np.zeros((1, 2, 5000), "float32")
    logits[0, [0, 1], [777, 4093]] = 30
    keras.config.set_floatx(floatx)
    try:
        loss = LabelSmoothedCrossEntropy(0.0)(labels, logits)
        metric = TokenAccuracy()
        metric.update_state(labels, logits)
        accuracy = ops.cast(metric.result(), "float32")
    finally:
        keras.config.set_floatx("float32")
    assert float(numpy_of(loss)) < 1e-3
    assert float(numpy_of(accuracy)) == 1


# === Configs ===


def test_neighbouring_seeds_draw_different_numbers():
    """Where a stack of layers has the seeds 0, 1, 2, …"""
    drops = []
    for seed in range(5):
        layer = DecoderLayer(D, H, F, seed=seed)
        parts = (
            layer.self_attention.weight_dropout,
            layer.self_attention_dropout,
            layer.cross_attention.weight_dropout,
            layer.cross_attention_dropout,
            layer.feed_forward.dropout,
            layer.feed_forward_dropout,
        )
        drops += [part.seed for part in parts]
        again = DecoderLayer(D, H, F, seed=seed)
        assert again.feed_forward_dropout.seed == drops[-1]
    assert len({*drops}) == len(drops)


class Wider(EncoderLayer):
    """Returns twice the width, and says so."""

    def call(self, x, **options):
        y = super().call(x, **options)
        return ops.concatenate([y, y], axis=-1)

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], 2 * self.d_model)


class Pooled(DecoderLayer):
    """Returns one vector for each row, and says nothing."""

    def call(self, x, memory, **options):
        return ops.mean(super().call(x, memory, **options), axis=1)


class Both(MultiHeadAttention):
    """Returns the output twice, and says nothing."""

    def call(self, query, value=None, key=None, **options):
        y = super().call(query, value, key, **options)
        return ops.concatenate([y, y], axis=1)


@pytest.mark.parametrize("layer_class", [Wider, Pooled, Both])
def test_a_subclass_may_return_another_shape(layer_class):
    x, memory = random(B, T, D), random(B, S, D)
    is_attention = layer_class is Both
    layer = layer_class(H, 3) if is_attention else layer_class(D, H, F)
    inputs = [x] if layer_class is Wider else [x, memory]
    symbols = [keras.Input(i.shape[1:]) for i in inputs]
    output = layer(*symbols)
    found = keras.Model(symbols, output)(inputs)
    assert tuple(output.shape[1:]) == tuple(found.shape[1:])


@pytest.mark.parametrize(
    "path",
    [
        "self_attention",
        "feed_forward/inner",
        "self_attention/output_projection",
        "feed_forward_norm",
    ],
)
def test_what_is_frozen_stays_so_in_a_file(path, tmp_path):
    def part_of(layer):
        for name in path.split("/"):
            layer = getattr(layer, name)
        return layer

    x = keras.Input((None, D))
    layer = EncoderLayer(D, H, F)
    model = keras.Model(x, layer(x))
    part_of(layer).trainable = False
    model.save(tmp_path / "layer.keras")
    loaded = keras.saving.load_model(tmp_path / "layer.keras")
    assert not part_of(loaded.layers[-1]).trainable
    found = len(loaded.trainable_weights)
    assert 0 < found == len(model.trainable_weights) < len(model.weights)

    config = TransformerConfig.preset("tiny", vocab_size=31, num_layers=2)
    transformer = Transformer(config)
    part_of(transformer.encoder_layers[1]).trainable = False
    transformer.decoder_layers[0].trainable = False
    transformer.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not part_of(loaded.encoder_layers[1]).trainable
    assert part_of(loaded.encoder_layers[0]).trainable
    assert not loaded.decoder_layers[0].trainable
    found = len(loaded.trainable_weights)
    assert found == len(transformer.trainable_weights)


def test_sizes_may_be_integers_of_numpy():
    two, three, wide = np.int64(2), np.uint8(3), np.int32(D)
    x = random(B, T, D)
    for layer in (
        MultiHeadAttention(two, three, output_shape=wide),
        EncoderLayer(wide, two, np.int16(F), sliding_window=np.int64(2)),
        DecoderLayer(wide, two, np.int16(F), key_dim=three),
        FeedForward(wide, np.int16(F)),
        PositionalEmbedding(np.int64(7), wide, "learned", np.int64(9)),
        FeatureEmbedding(wide),
    ):
        json.dumps(layer.get_config())
        if not isinstance(layer, PositionalEmbedding):
            takes_two = isinstance(layer, MultiHeadAttention | DecoderLayer)
            layer(x, x) if takes_two else layer(x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiHeadAttention(2.0, 3), "num_heads=2.0"),
        (lambda: MultiHeadAttention(2, 0), "key_dim=0"),
        (lambda: EncoderLayer(D, H, 1.5), "d_ff=1.5"),
        (lambda: FeedForward(D, "4"), "d_ff='4'"),
        (lambda: PositionalEmbedding(0, D), "vocab_size=0"),
        (lambda: FeatureEmbedding(-1), "d_model=-1"),
    ],
)
def test_sizes_are_positive_integers(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# === Searches ===


def test_a_search_may_build_the_layers():
    """And another one runs them again."""

    def search_of(layers):
        embedding, layer, output = layers

        def step(tokens, cache, index):
            x = embedding(tokens[:, None], offset=index)
            x, cache = layer(x, cache=cache, cache_index=index)
            return output(x)[:, 0], cache

        cache = layer.empty_cache(2, 5)
        return numpy_of(greedy_search(step, cache, [5, 3])[0])

    layers = (
        PositionalEmbedding(7, D),
        EncoderLayer(D, H, F),
        keras.layers.Dense(7),
    )
    first = search_of(layers)
    np.testing.assert_array_equal(search_of(layers), first)
    x = layers[0](np.array([[2, 4]]))
    assert np.isfinite(numpy_of(layers[2](layers[1](x)))).all()


def test_logits_of_another_rank_are_refused():
    def step(tokens, cache, index):
        return ops.zeros((2, 1, 7)), cache

    for search, options in (
        (greedy_search, {}),
        (sample, {}),
        (beam_search, {"beam_size": 1}),
    ):
        with pytest.raises(
            ValueError, match=r"\(rows, vocabulary\).*\[:, -1\]"
        ):
            search(step, {}, [4, 4], **options)
        with pytest.raises(ValueError, match=r"cache=None.*\{\}"):
            search(step, None, [4, 4], **options)
    with pytest.raises(ValueError, match=r"top_k=3\.0"):
        sample(step, {}, [4, 4], top_k=3.0)


def test_logits_that_are_no_numbers_are_refused():
    """They gave an empty sequence."""

    def step(tokens, cache, index):
        rows = ops.shape(tokens)[0]
        return ops.full((rows, 7), float("nan")), cache

    for search, options in (
        (greedy_search, {}),
        (sample, {"seed": 1}),
        (beam_search, {"beam_size": 3}),
        (beam_search, {"beam_size": 1}),
    ):
        with pytest.raises(ValueError, match="NaN from the step function"):
            search(step, {}, [4, 4], **options)


def test_a_layer_with_lora_is_not_taken_over():
    layer = keras.layers.MultiHeadAttention(H, 3)
    x = random(B, T, D)
    layer(x, x)
    layer._query_dense.enable_lora(2)
    with pytest.raises(ValueError, match="with LoRA"):
        MultiHeadAttention.from_keras(layer)
