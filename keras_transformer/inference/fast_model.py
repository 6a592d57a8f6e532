"""The forward pass of a trained model in plain TensorFlow, made for speed.

The same function as `Transformer`, for translating. The beams of a sentence are
one row: their caches are never reordered, each beam attends to its own
ancestors among all that were written.

Shapes: B batch, K beam size, S source length, T steps so far, H heads, D
d_model, V vocabulary.
"""

import keras
import tensorflow as tf

from keras_transformer.config import PAD, START
from keras_transformer.layers import positional_encoding

FAR = -1e9  # added to scores that do not count
ONE_THREAD = 2**18  # multiplications, for which one thread is enough


class InferenceModel:
    """Encoder and decoder on `inference_weights`.

    Args:
        config: a `TransformerConfig`.
        weights: from `inference_weights`, or variables of the same structure.
    """

    def __init__(self, config, weights):
        self.config = config
        self.weights = weights
        self.key_dim = config.key_dim or config.d_model // config.num_heads
        self.value_dim = config.value_dim or self.key_dim

    def encode(self, source) -> dict:
        """What the decoder needs of source ids `(B, S)`: each of its layers'
        keys and values `(B, H, S, ·)`, and which of them count."""
        batch = tf.shape(source)[0]
        attention_bias = tf.where(tf.equal(source, PAD), FAR, 0.0)[
            :, None, None, :
        ]
        places = tf.range(tf.shape(source)[1])
        table = self.weights.get("source", self.weights["target"])
        x = self._embedded(source, table, places)  # [B·S, D]
        for layer in self.weights["encoder"]:

            def attend(h, layer=layer):
                queries, keys, values = self._project(
                    h, layer["self"], batch, 1
                )
                return self._attend(queries, keys, values, attention_bias)[0]

            x = self._sublayer(x, layer, "self_norm", "self_output", attend)
            x = self._feed_forward(x, layer)
        if self.config.norm_first:
            x = self._norm(x, self.weights["encoder_norm"])
        return {
            "heads": [
                self._project(x, layer["memory"], batch, 0)
                for layer in self.weights["decoder"]
            ],
            "attention_bias": attention_bias,
        }

    def empty_cache(self, memory, beams) -> dict:
        """The cache before the first step, with the memory. It grows."""
        batch = tf.shape(memory["attention_bias"])[0]
        # No static shape: a loop wants it to be the same in all rounds.
        nothing = batch - batch
        heads = self.config.num_heads

        def none(width):
            shape = tf.stack([batch, heads, nothing, width])
            empty = tf.zeros(shape, self._dtype())
            return tf.ensure_shape(empty, [None, heads, None, width])

        return {
            "heads": [
                (none(self.key_dim), none(self.value_dim))
                for _ in self.weights["decoder"]
            ],
            # Which of the K each beam's ancestor was at each step.
            "ancestors": tf.zeros(tf.stack([batch, beams, nothing]), tf.int32),
            "memory": memory,
        }

    def step(self, tokens, cache, index):
        """One step of the decoder.

        Args:
            tokens: ids `(B, K)` at position `index`.
            cache: from `empty_cache`, or the step before.
            index: scalar, the position.

        Returns:
            float32 logits `(B·K, V)` of the next tokens, and the new cache.
        """
        batch, beams = tf.unstack(tf.shape(tokens))
        x = self._embedded(tokens, self.weights["target"], index[None])
        own = tf.broadcast_to(tf.range(beams)[:, None], [batch, beams, 1])
        ancestors = tf.concat([cache["ancestors"], own], axis=2)
        attention_bias = tf.one_hot(ancestors, beams, 0.0, FAR)
        attention_bias = tf.reshape(
            attention_bias, [batch, 1, beams, -1]
        )  # [B, 1, K, (T + 1)·K]
        x, heads, _ = self._decode(
            x, cache["memory"], attention_bias, cache["heads"]
        )
        logits = tf.cast(linear(x, self.weights["projection"]), tf.float32)
        return logits, {**cache, "heads": heads, "ancestors": ancestors}

    def read(self, target, memory):
        """The decoder over a target that is known.

        Args:
            target: ids `(B, T)`, each row with its end token, padded with 0.
            memory: from `encode`.

        Returns:
            float32 log-probabilities of the ids `(B, T)`, 0 at padding, and
            the attention of each layer to the memory, `(B, H, T, S)`.
        """
        batch, length = tf.unstack(tf.shape(target))
        before = tf.concat([tf.fill([batch, 1], START), target[:, :-1]], axis=1)
        places = tf.range(length)
        x = self._embedded(before, self.weights["target"], places)
        attention_bias = tf.where(places[:, None] < places, FAR, 0.0)[
            None, None
        ]
        x, _, attention = self._decode(x, memory, attention_bias)
        # Without the bias: here no id is barred.
        kernel = self.weights["projection"]["kernel"]
        logits = _product(x, kernel)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.reshape(target, [-1]), tf.cast(logits, tf.float32)
        )
        real = tf.cast(tf.not_equal(target, PAD), tf.float32)
        return -tf.reshape(loss, [batch, length]) * real, attention

    @staticmethod
    def reorder(cache, beams):
        """The cache when beams `(B, K)` go on: only ancestors change."""
        ancestors = tf.gather(cache["ancestors"], beams, batch_dims=1)
        return {**cache, "ancestors": ancestors}

    @staticmethod
    def keep(cache, sentences):
        """The cache of these sentences `(n,)` alone."""
        return tf.nest.map_structure(lambda x: tf.gather(x, sentences), cache)

    def _embedded(self, ids, embedding, positions):
        """Ids `(B, n)` at these positions: `(B·n, D)`."""
        x = tf.gather(embedding["table"], ids)
        if self.config.positions == "learned":
            x += tf.gather(embedding["positions"], positions)
        elif self.config.positions == "sinusoidal":
            x += positional_encoding(positions, self.config.d_model)
        return tf.reshape(x, [-1, self.config.d_model])

    def _decode(self, x, memory, attention_bias, cache=None):
        """The decoder's layers on n rows of a sentence, `(B·n, D)`.

        Args:
            attention_bias: `(B, 1, n, T)`, added to the scores of
                self-attention.
            cache: keys and values of what came before, by layer.

        Returns:
            `(B·n, D)`, keys and values now, and the attention to the memory.
        """
        batch = tf.shape(memory["attention_bias"])[0]
        heads, attention = [], []
        for i, layer in enumerate(self.weights["decoder"]):

            def attend(h, i=i, layer=layer):
                queries, *new = self._project(h, layer["self"], batch, 1)
                if cache is not None:
                    new = [
                        tf.concat(pair, axis=2)
                        for pair in zip(cache[i], new, strict=True)
                    ]
                heads.append(tuple(new))
                return self._attend(queries, *new, attention_bias)[0]

            def attend_to_memory(h, i=i, layer=layer):
                queries = self._split_heads(
                    linear(h, layer["query"]), batch, self.key_dim
                )
                x, weights = self._attend(
                    queries, *memory["heads"][i], memory["attention_bias"]
                )
                attention.append(weights)
                return x

            x = self._sublayer(x, layer, "self_norm", "self_output", attend)
            x = self._sublayer(
                x, layer, "cross_norm", "cross_output", attend_to_memory
            )
            x = self._feed_forward(x, layer)
        if self.config.norm_first:
            x = self._norm(x, self.weights["decoder_norm"])
        return x, heads, attention

    def _dtype(self):
        return self.weights["projection"]["kernel"].dtype

    def _project(self, x, weights, batch, queries):
        """Queries (as many groups as told), keys and values, by head."""
        widths = [self.key_dim] * (queries + 1) + [self.value_dim]
        x = linear(x, weights)
        if self.key_dim == self.value_dim:  # all heads at once
            x = self._split_heads(x, batch, self.key_dim)
            return tuple(tf.split(x, len(widths), axis=1))
        sizes = [self.config.num_heads * width for width in widths]
        parts = tf.split(x, sizes, axis=1)
        return tuple(
            self._split_heads(part, batch, width)
            for part, width in zip(parts, widths, strict=True)
        )

    def _split_heads(self, x, batch, width):
        """`(B·n, G·K)`, of G heads, to `(B, G, n, K)`."""
        x = tf.reshape(x, [batch, -1, x.shape[-1] // width, width])
        return _swap_axes(x)

    def _attend(self, queries, keys, values, attention_bias):
        """Equation 1: heads side by side, `(B·n, H·K)`, and the weights.

        Args:
            queries: `(B, H, n, K)`; keys, values `(B, H, T, K)`.
            attention_bias: float32, added to the scores `(B, H, n, T)`.
        """
        arguments = queries, keys, values, attention_bias
        # In 64 bits, since there may be 2³¹ multiplications and more.
        multiplications = (
            tf.size(queries, tf.int64) * tf.shape(keys, tf.int64)[2]
        )
        x, weights = tf.cond(
            multiplications <= ONE_THREAD,
            lambda: _attend_small(*arguments),
            lambda: _attend_large(*arguments),
        )
        x = _swap_axes(x)
        width = self.config.num_heads * self.value_dim
        return tf.reshape(x, [-1, width]), weights

    def _sublayer(self, x, layer, norm, output, function):
        return self._residual(
            x, layer[norm], lambda h: linear(function(h), layer[output])
        )

    def _feed_forward(self, x, layer):
        activation = keras.activations.get(self.config.activation)
        return self._residual(
            x,
            layer["feed_forward_norm"],
            lambda h: linear(
                activation(linear(h, layer["inner"])), layer["outer"]
            ),
        )

    def _residual(self, x, norm, function):
        if self.config.norm_first:
            return x + tf.cast(function(self._norm(x, norm)), tf.float32)
        return self._norm(x + tf.cast(function(x), tf.float32), norm)

    def _norm(self, x, norm):
        mean = tf.reduce_mean(x, axis=-1, keepdims=True)
        x = x - mean
        variance = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
        scale = tf.math.rsqrt(variance + self.config.layer_norm_epsilon)
        return x * scale * norm["gamma"] + norm["beta"]


def linear(x, weights):
    """Rows `(n, D_in)` through a layer of `inference_weights`: `(n, D_out)`."""
    x = _product(x, weights["kernel"])
    return tf.nn.bias_add(x, weights["bias"]) if "bias" in weights else x


def _product(x, kernel):
    return tf.matmul(tf.cast(x, kernel.dtype), kernel)


def _swap_axes(x):
    """Swaps axes 1 and 2. It does so on integers, because oneDNN hands the
    transposition of floats to another thread: ten times the cost for a few."""
    kind = tf.int32 if x.dtype == tf.float32 else tf.int16
    return tf.bitcast(tf.transpose(tf.bitcast(x, kind), [0, 2, 1, 3]), x.dtype)


def _attend_small(queries, keys, values, attention_bias):
    """Computes attention by TensorFlow's own kernels, in one thread. Where
    oneDNN is on, its kernels take several times as long for so few numbers;
    it leaves `BatchMatMulV3` alone."""
    scores = tf.raw_ops.BatchMatMulV3(
        x=queries, y=keys, adj_y=True, Tout=keys.dtype
    )
    scores = tf.cast(scores, tf.float32) + attention_bias
    weights = tf.exp(scores - tf.reduce_max(scores, axis=-1, keepdims=True))
    weights /= tf.reduce_sum(weights, axis=-1, keepdims=True)
    x = tf.raw_ops.BatchMatMulV3(
        x=tf.cast(weights, values.dtype), y=values, Tout=values.dtype
    )
    return x, weights


def _attend_large(queries, keys, values, attention_bias):
    """Computes attention by the kernels that TensorFlow chooses."""
    scores = tf.matmul(queries, keys, transpose_b=True)
    weights = tf.nn.softmax(tf.cast(scores, tf.float32) + attention_bias)
    return tf.matmul(tf.cast(weights, values.dtype), values), weights
