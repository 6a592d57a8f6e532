"""The paper's equations in NumPy, in float64, written out line by line.

They share no code with the package, and tests compare its layers with them.
"""

import numpy as np


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def attention(q, k, v, mask=None):
    """Returns equation 1. A query whose row of `mask` is False gives zeros."""
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if mask is None:
        return softmax(scores) @ v
    mask = np.broadcast_to(mask, scores.shape)
    weights = np.zeros_like(scores)
    for row in np.ndindex(scores.shape[:-1]):
        if mask[row].any():
            weights[row][mask[row]] = softmax(scores[row][mask[row]])
    return weights @ v


def restricted_attention(q, k, v, window, real, causal=False):
    """Returns section 4, query by query: "considering only a neighborhood of
    size r in the input sequence centered around the respective output
    position". `real` `(B, T)` marks the keys that may be seen."""
    output = np.zeros((*q.shape[:-1], v.shape[-1]))
    for batch, head, i in np.ndindex(q.shape[:-1]):
        last = i if causal else i + window // 2
        seen = [
            j
            for j in range(max(0, i - window // 2), last + 1)
            if j < k.shape[2] and real[batch, j]
        ]
        if seen:
            keys, values = k[batch, head, seen], v[batch, head, seen]
            scores = keys @ q[batch, head, i] / np.sqrt(q.shape[-1])
            output[batch, head, i] = softmax(scores) @ values
    return output


def multi_head_attention(q, k, v, weights, heads, mask=None):
    """Returns section 3.2.2, head by head. `weights`: W^Q, b^Q, W^K … b^O."""
    wq, bq, wk, bk, wv, bv, wo, bo = weights
    queries, keys, values = q @ wq + bq, k @ wk + bk, v @ wv + bv
    outputs = []
    for h in range(heads):
        dk, dv = wq.shape[1] // heads, wv.shape[1] // heads
        outputs.append(
            attention(
                queries[..., h * dk : (h + 1) * dk],
                keys[..., h * dk : (h + 1) * dk],
                values[..., h * dv : (h + 1) * dv],
                mask,
            )
        )
    return np.concatenate(outputs, axis=-1) @ wo + bo


def feed_forward(x, w1, b1, w2, b2):
    """Returns equation 2."""
    return np.maximum(0, x @ w1 + b1) @ w2 + b2


def layer_norm(x, gamma, beta, epsilon):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + epsilon) + beta


def positional_encoding(length, d_model):
    """Returns the table of section 3.5, entry by entry."""
    table = np.zeros((length, d_model))
    for position in range(length):
        for j in range(d_model):
            angle = position / 10000 ** (2 * (j // 2) / d_model)
            table[position, j] = np.sin(angle) if j % 2 == 0 else np.cos(angle)
    return table


def learning_rate(step, d_model, warmup_steps):
    """Returns equation 3."""
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def smoothed_cross_entropy(label, logits, epsilon):
    """Returns the loss of section 5.4, from the full target distribution."""
    target = np.full(len(logits), epsilon / len(logits))
    target[label] += 1 - epsilon
    return -(target * np.log(softmax(logits))).sum()


def length_penalty(length, alpha, formula="gnmt"):
    """Returns the length penalty of Wu et al. (2016), equation 14, or that of
    Marian, n^α."""
    return (length if formula == "power" else (5 + length) / 6) ** alpha


# The block of today's models: the equations of later papers.


def rms_norm(x, scale, epsilon):
    """Returns equation 4 of Zhang and Sennrich (2019), with an ε as in
    `layer_norm`."""
    return scale * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)


def swiglu(x, w, v, w2, b=0, c=0, b2=0):
    """Returns equation 6 of Shazeer (2020), (Swish(xW) ⊗ xV) W_2, with a bias
    after each product."""
    gate = x @ w + b
    swish = gate / (1 + np.exp(-gate))
    return (swish * (x @ v + c)) @ w2 + b2


def rotate(x, first=0):
    """Returns equation 34 of Su et al. (2021) for heads `(…, T, K)`, pair by
    pair. Dimension i pairs with i + K / 2 instead of its neighbour."""
    rotated, pairs = np.zeros_like(x), x.shape[-1] // 2
    for t in range(x.shape[-2]):
        for i in range(pairs):
            angle = (first + t) / 10000 ** (2 * i / x.shape[-1])
            a, b = x[..., t, i], x[..., t, i + pairs]
            rotated[..., t, i] = a * np.cos(angle) - b * np.sin(angle)
            rotated[..., t, i + pairs] = a * np.sin(angle) + b * np.cos(angle)
    return rotated


def todays_attention(
    q, v, weights, heads, groups, mask=None, rotary=False, first=0
):
    """Returns section 3.2.2, head by head, as later papers have it.

    Each `heads // groups` neighbouring heads of queries share one of keys and
    values (Ainslie et al., 2023). Queries and keys are normalised if there are
    scales for it (Henry et al., 2020), then rotated with `rotary`, the first
    at position `first`.

    `weights` has (W,) or (W, b) of `query`, `key`, `value` and `output`, and
    may have (scale,) of `query_norm` and `key_norm`.
    """

    def project(x, name):
        kernel, *bias = weights[name]
        return x @ kernel + sum(bias)

    queries = project(q, "query")
    keys, values = project(v, "key"), project(v, "value")
    dk, dv = queries.shape[-1] // heads, values.shape[-1] // groups
    outputs = []
    for h in range(heads):
        g = h // (heads // groups)
        query = queries[..., h * dk : (h + 1) * dk]
        key = keys[..., g * dk : (g + 1) * dk]
        value = values[..., g * dv : (g + 1) * dv]
        if "query_norm" in weights:
            query = rms_norm(query, *weights["query_norm"], 1e-6)
            key = rms_norm(key, *weights["key_norm"], 1e-6)
        if rotary:
            query, key = rotate(query, first), rotate(key, first)
        outputs.append(attention(query, key, value, mask))
    return project(np.concatenate(outputs, axis=-1), "output")


# Parameter counts, computed from the shapes alone.


def attention_parameters(d, h, dk, dv):
    return 2 * d * h * dk + d * h * dv + h * dv * d + 2 * h * dk + h * dv + d


def encoder_layer_parameters(d, h, dk, dv, f):
    ffn = 2 * d * f + f + d
    return attention_parameters(d, h, dk, dv) + ffn + 2 * 2 * d


def decoder_layer_parameters(d, h, dk, dv, f):
    ffn = 2 * d * f + f + d
    return 2 * attention_parameters(d, h, dk, dv) + ffn + 3 * 2 * d
