"""Compares the layers with the blocks of today's models in transformers.

Both are in one process, on PyTorch; `make test-transformers` runs this file in
the environment that has transformers. Its models are tiny and random.
"""

import numpy as np
import pytest
import torch
import transformers
from conformance import assert_close, numpy_of, random
from keras import ops

from keras_transformer import EncoderLayer
from keras_transformer.layers.normalization import RMSNormalization

B, T, D, H, G, K, F = 3, 11, 24, 6, 2, 10, 17
# Arguments of their model and of our layer: one has a window, another
# normalised queries and keys.
MODELS = {
    "Llama": ({}, {}),
    "Mistral": ({"sliding_window": 4}, {"sliding_window": 4}),
    "Qwen3": ({}, {"qk_norm": True}),
}


def their_model(name, **options):
    """Returns a model with random weights, norms included."""
    config = getattr(transformers, f"{name}Config")(
        vocab_size=31,
        hidden_size=D,
        intermediate_size=F,
        num_hidden_layers=3,
        num_attention_heads=H,
        num_key_value_heads=G,
        head_dim=K,
        rms_norm_eps=1e-6,
        hidden_act="silu",
        **options,
    )
    assert config.rope_parameters["rope_theta"] == 10000
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}Model")(config).eval()
    for weight in model.parameters():
        is_norm = weight.ndim == 1
        torch.nn.init.normal_(weight, mean=float(is_norm), std=0.3)
    return model


def our_layer(theirs, **options):
    """Returns an `EncoderLayer` with the weights of one of their layers."""
    layer = EncoderLayer(
        D,
        H,
        F,
        norm_first=True,
        normalization="rms",
        feed_forward="swiglu",
        positions="rotary",
        num_key_value_heads=G,
        key_dim=K,
        use_bias=False,
        layer_norm_epsilon=1e-6,
        **options,
    )
    layer.build((None, None, D))
    attention, own = theirs.self_attn, layer.self_attention
    network = layer.feed_forward
    matrices = [
        (own.query_projection, attention.q_proj),
        (own.key_projection, attention.k_proj),
        (own.value_projection, attention.v_proj),
        (own.output_projection, attention.o_proj),
        (network.gate, theirs.mlp.gate_proj),
        (network.inner, theirs.mlp.up_proj),
        (network.outer, theirs.mlp.down_proj),
    ]
    norms = [
        (layer.self_attention_norm, theirs.input_layernorm),
        (layer.feed_forward_norm, theirs.post_attention_layernorm),
    ]
    if options.get("qk_norm"):
        norms += [
            (own.query_norm, attention.q_norm),
            (own.key_norm, attention.k_norm),
        ]
    for ours, other in matrices:
        ours.set_weights([other.weight.detach().numpy().T])
    for ours, other in norms:
        ours.set_weights([other.weight.detach().numpy()])
    assert len(layer.weights) == sum(1 for _ in theirs.parameters())
    return layer


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_those_of_transformers(name):
    """Whole, step by step with caches of both, and under padding."""
    their_options, options = MODELS[name]
    theirs = their_model(name, **their_options)
    layers = [our_layer(each, **options) for each in theirs.layers]
    norm = RMSNormalization(epsilon=1e-6)
    norm.build((None, None, D))
    norm.set_weights([theirs.norm.weight.detach().numpy()])
    x = random(B, T, D)
    real = np.arange(T) >= np.array([[0], [2], [3]])  # padded at the left
    with torch.no_grad():
        expected = theirs(inputs_embeds=torch.tensor(x)).last_hidden_state
        padded = theirs(
            inputs_embeds=torch.tensor(x), attention_mask=torch.tensor(real)
        ).last_hidden_state
        found, masked = ops.convert_to_tensor(x), ops.convert_to_tensor(x)
        for layer in layers:
            found = layer(found, use_causal_mask=True)
            masked = layer(masked, mask=real, use_causal_mask=True)
        errors = [differ(norm(found), expected)]
        errors.append(differ(norm(masked)[real], padded[real]))

        caches = [layer.empty_cache(B, T) for layer in layers]
        memory, start = transformers.DynamicCache(config=theirs.config), 0
        for end in (3, 4, 5, T):
            new = x[:, start:end]
            step = theirs(inputs_embeds=torch.tensor(new), cache=memory)
            for i, layer in enumerate(layers):
                new, caches[i] = layer(new, cache=caches[i], cache_index=start)
            errors.append(differ(norm(new), step.last_hidden_state))
            errors.append(differ(norm(new), expected[:, start:end]))
            start = end
    print(f"{name}: {max(errors):.1e}")


def differ(found, expected):
    """Checks that outputs are equal; returns their largest difference."""
    found, expected = numpy_of(found), expected.numpy()
    assert_close(found, expected, 1e-5)
    return np.abs(found - expected).max()
