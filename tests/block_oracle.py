"""The layers with the options of today's models, in NumPy by `paper`.

`tests/test_block_options.py` compares the layers with it, and
`python tests/block_table.py` prints how far they are from it.
"""

import numpy as np
import paper
from conformance import (
    compiled_on_jax,
    numpy_of,
    random,
    with_seeded_weights,
)
from keras import ops

from keras_transformer import DecoderLayer, EncoderLayer

B, T, S, D, F = 3, 11, 7, 13, 17
H, K = 6, 10  # a multiple of the heads of keys and values; an even width
EPSILON = 1e-2  # large enough that a wrong one is noticed

OPTIONS = {
    "none": {},
    "grouped queries": {"num_key_value_heads": 2},
    "rms": {"normalization": "rms"},
    "swiglu": {"feed_forward": "swiglu"},
    "rotary": {"positions": "rotary"},
    "qk_norm": {"qk_norm": True},
}
OPTIONS["all"] = {k: v for each in OPTIONS.values() for k, v in each.items()}

X, MEMORY = random(B, T, D), random(B, S, D)
X_MASK = np.arange(T) < np.array([[11], [5], [8]])
MEMORY_MASK = np.arange(S) < np.array([[3], [7], [6]])


def seeded_layer(is_decoder=False, **options):
    """Returns a built layer with random weights."""
    shape = {"key_dim": K, "layer_norm_epsilon": EPSILON}
    layer = DecoderLayer if is_decoder else EncoderLayer
    layer = layer(D, H, F, **(shape | options))
    layer.build(*[X.shape, MEMORY.shape][: 1 + is_decoder])
    return with_seeded_weights(layer)


def arrays(layer):
    return [
        numpy_of(ops.convert_to_tensor(w)).astype("float64")
        for w in layer.weights
    ]


def self_mask(mask, causal=False, window=None):
    """Returns the mask `(B, T, T)`: padding attends to nothing."""
    own = mask[:, None] & mask[:, :, None]
    length = mask.shape[1]
    for i in range(length):
        for j in range(length):
            if (causal and j > i) or (window and abs(i - j) >= window):
                own[:, i, j] = False
    return own


def oracle(layer, options, own, x=X, memory=MEMORY, memory_mask=None):
    """Returns the output of a layer.

    Args:
        layer: whose weights are taken.
        options: the arguments that it was made with.
        own: from `self_mask`.
        x, memory, memory_mask: as in a call; only a decoder reads the memory.
    """
    x, memory = x.astype("float64"), memory.astype("float64")
    is_rms = options.get("normalization") == "rms"
    groups = options.get("num_key_value_heads") or H
    is_rotary = options.get("positions") == "rotary"

    def norm(sub, x):
        formula = paper.rms_norm if is_rms else paper.layer_norm
        return formula(x, *arrays(sub), EPSILON)

    def attend(sub, x, value, mask, is_rotary):
        parts = [sub.query_projection, sub.key_projection]
        parts += [sub.value_projection, sub.output_projection]
        if options.get("qk_norm"):
            parts += [sub.query_norm, sub.key_norm]
        weights = {part.name: arrays(part) for part in parts}
        return paper.todays_attention(
            x, value, weights, H, groups, mask, is_rotary
        )

    def feed_forward(x):
        sub = layer.feed_forward
        parts = [arrays(sub.inner), arrays(sub.outer)]
        if options.get("feed_forward") == "swiglu":
            kernels, biases = zip(
                *(
                    (kernel, sum(bias))
                    for kernel, *bias in [arrays(sub.gate), *parts]
                ),
                strict=True,
            )
            return paper.swiglu(x, *kernels, *biases)
        (w1, *b1), (w2, *b2) = parts
        return paper.feed_forward(x, w1, sum(b1), w2, sum(b2))

    steps = [
        (
            layer.self_attention_norm,
            lambda x: attend(layer.self_attention, x, x, own, is_rotary),
        )
    ]
    if hasattr(layer, "cross_attention"):
        seen = None if memory_mask is None else memory_mask[:, None]
        steps.append(
            (
                layer.cross_attention_norm,
                lambda x: attend(layer.cross_attention, x, memory, seen, False),
            )
        )
    steps.append((layer.feed_forward_norm, feed_forward))
    for sub, sublayer in steps:
        if options.get("norm_first"):
            x = x + sublayer(norm(sub, x))
        else:
            x = norm(sub, x + sublayer(x))
    return x


def step_of(layer):
    """Returns the function that calls a layer with a cache."""

    def step(x, cache, index, **call):
        return layer(x, cache=cache, cache_index=index, **call)

    return compiled_on_jax(step)


def stepwise(layer, x, ends, memory=None, length=None, **call):
    """Returns the outputs of calls with a cache, which end at `ends`.

    Args:
        memory: of a decoder layer.
        length: of the cache. Defaults to that of `x`.
        call: further arguments of the calls. An `attention_mask` `(B, T, T)`
            is that of the whole pass.
    """
    if memory is not None:
        call["memory_cache"] = layer.project_memory(memory)
    cache = layer.empty_cache(len(x), length or x.shape[1])
    mask, start, outputs = call.pop("attention_mask", None), 0, []
    step = step_of(layer)
    for end in ends:
        if mask is not None:
            call["attention_mask"] = mask[:, start:end]
        found, cache = step(x[:, start:end], cache, start, **call)
        outputs.append(numpy_of(ops.cast(found, "float32")))
        start = end
    return np.concatenate(outputs, axis=1)
