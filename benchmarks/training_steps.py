"""One training step of the same Transformer in five libraries.

Each `PEERS[name](shape, dtype)` gives a function without arguments that does a
whole step: forward, backward, Adam, label smoothing of 0.1 where the library
can, dropout of 0.1, on ids that do not change. It returns the loss as a number,
so that nothing is left running.
"""

import dataclasses
import functools
import itertools
import math
import os

import numpy as np

THREADS = 2


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model of table 3, or tiny, and a batch for it."""

    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    vocab_size: int
    rows: int
    length: int

    @property
    def tokens(self):
        return self.rows * self.length

    @property
    def flops(self):
        """Returns the operations of a step: three times the forward pass's."""
        attention = 4 * self.d_model**2 * 2 + 4 * self.length * self.d_model
        network = 4 * self.d_model * self.d_ff
        layers = self.num_layers * (3 * attention + 2 * network)
        projection = 2 * self.d_model * self.vocab_size
        return 3 * self.tokens * (layers + projection)

    def config(self):
        from keras_transformer import TransformerConfig

        return TransformerConfig(
            self.vocab_size,
            num_layers=self.num_layers,
            d_model=self.d_model,
            d_ff=self.d_ff,
            num_heads=self.num_heads,
        )

    def ids(self):
        """Source, target, labels: int32 `(rows, length)` without padding."""
        rng = np.random.default_rng(0)
        size = self.rows, self.length
        return [
            rng.integers(4, self.vocab_size, size).astype("int32")
            for _ in range(3)
        ]


SHAPES = {
    "tiny": Shape(4, 128, 256, 4, 10_000, 128, 20),
    "base": Shape(6, 512, 2048, 8, 32_000, 32, 32),
}


@functools.cache
def tensorflow():
    """TensorFlow with as many threads as the others have; to be called before
    it does anything."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    return tf


def keras_transformer(shape, dtype):
    """This package, as it trains."""
    if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
        tensorflow()

    from keras_transformer.data.batches import EncodedPairs, Rows, make_batch
    from keras_transformer.training import Recipe, make_model
    from keras_transformer.training.loop import make_trainer

    trainer = make_trainer()
    recipe = Recipe(dtype_policy=_policy(dtype))
    with trainer.scope():
        model = make_model(shape.config(), recipe)
    trainer.prepare(model, recipe)
    source, _, labels = shape.ids()
    pairs = EncodedPairs(Rows.of(source), Rows.of(labels))
    batch = make_batch(pairs, trainer.sharding())
    batches = trainer.batches(itertools.repeat(batch))
    stop = np.zeros(2)
    return lambda: float(trainer.train(batches, stop)["loss"]) / shape.tokens


def keras_hub(shape, dtype):
    """keras-hub's layers on the TensorFlow backend, trained by Keras."""
    tensorflow()
    import keras
    import keras_hub

    keras.config.set_dtype_policy(_policy(dtype))
    source = keras.Input((None,), dtype="int32")
    target = keras.Input((None,), dtype="int32")
    embedding = keras_hub.layers.ReversibleEmbedding(
        shape.vocab_size, shape.d_model, tie_weights=True
    )
    positions = keras_hub.layers.SinePositionEncoding()
    dropout = keras.layers.Dropout(0.1)

    def embed(ids):
        x = embedding(ids) * math.sqrt(shape.d_model)
        return dropout(x + positions(x))

    memory = embed(source)
    for _ in range(shape.num_layers):
        memory = keras_hub.layers.TransformerEncoder(
            shape.d_ff, shape.num_heads, dropout=0.1
        )(memory)
    x = embed(target)
    for _ in range(shape.num_layers):
        x = keras_hub.layers.TransformerDecoder(
            shape.d_ff, shape.num_heads, dropout=0.1
        )(x, memory)
    logits = embedding(x, reverse=True)
    return _trained_by_keras(
        keras.Model([source, target], logits), shape, label_smoothing=0.1
    )


def tutorial(shape, dtype):
    """The model of TensorFlow's tutorial: heads as wide as the model, an
    untied projection, dropout inside attention, no label smoothing."""
    tf = tensorflow()
    import keras
    from keras import layers

    keras.config.set_dtype_policy(_policy(dtype))
    width = shape.d_model

    def attend(x, memory, **kwargs):
        layer = layers.MultiHeadAttention(shape.num_heads, width, dropout=0.1)
        y = layer(query=x, value=memory, key=memory, **kwargs)
        return layers.LayerNormalization()(layers.Add()([x, y]))

    def feed_forward(x):
        y = layers.Dense(shape.d_ff, activation="relu")(x)
        y = layers.Dropout(0.1)(layers.Dense(width)(y))
        return layers.LayerNormalization()(layers.Add()([x, y]))

    def embed(ids):
        x = layers.Embedding(shape.vocab_size, width, mask_zero=True)(ids)
        angles = np.arange(2048)[:, None] / 10000 ** (
            np.arange(width // 2) / (width // 2)
        )
        waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
        waves = tf.cast(waves[: shape.length], x.dtype)
        return layers.Dropout(0.1)(x * math.sqrt(width) + waves)

    source = keras.Input((shape.length,), dtype="int32")
    target = keras.Input((shape.length,), dtype="int32")
    memory = embed(source)
    for _ in range(shape.num_layers):
        memory = feed_forward(attend(memory, memory))
    x = embed(target)
    for _ in range(shape.num_layers):
        x = attend(x, x, use_causal_mask=True)
        x = feed_forward(attend(x, memory))
    logits = layers.Dense(shape.vocab_size)(x)
    return _trained_by_keras(keras.Model([source, target], logits), shape)


def _trained_by_keras(model, shape, label_smoothing=0.0):
    import keras
    from keras import ops

    def loss(labels, logits):
        logits = ops.cast(logits, "float32")
        nll = ops.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )
        if not label_smoothing:
            return nll
        gold = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return nll + label_smoothing * (gold - ops.mean(logits, axis=-1))

    model.compile(keras.optimizers.Adam(1e-4, 0.9, 0.98, 1e-9), loss)
    source, target, labels = shape.ids()
    tf = tensorflow()
    data = tf.data.Dataset.from_tensors(((source, target), labels)).repeat()
    batches = iter(data)
    model.make_train_function()
    return lambda: float(model.train_function(batches)["loss"])


def torch_eager(shape, dtype):
    """`torch.nn.Transformer` with tied embeddings and fused Adam."""
    return _torch(shape, dtype, compiled=False)


def torch_compiled(shape, dtype):
    """The same through `torch.compile`."""
    return _torch(shape, dtype, compiled=True)


def _torch(shape, dtype, compiled):
    import torch
    from torch import nn
    from torch.nn import functional

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(THREADS)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            width = shape.d_model
            self.embedding = nn.Embedding(shape.vocab_size, width)
            nn.init.normal_(self.embedding.weight, 0, width**-0.5)
            self.transformer = nn.Transformer(
                width,
                shape.num_heads,
                shape.num_layers,
                shape.num_layers,
                shape.d_ff,
                dropout=0.1,
                batch_first=True,
            )
            positions = torch.arange(shape.length)[:, None]
            rates = 10000 ** (-torch.arange(0, width, 2) / width)
            waves = torch.stack(
                [torch.sin(positions * rates), torch.cos(positions * rates)], -1
            ).reshape(shape.length, width)
            self.register_buffer("waves", waves)
            self.dropout = nn.Dropout(0.1)

        def embed(self, ids):
            x = self.embedding(ids) * math.sqrt(shape.d_model)
            return self.dropout(x + self.waves)

        def forward(self, source, target):
            causal = torch.ones(
                shape.length, shape.length, dtype=torch.bool, device=device
            ).triu(1)
            padding = source == 0
            x = self.transformer(
                self.embed(source),
                self.embed(target),
                tgt_mask=causal,
                tgt_is_causal=True,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_key_padding_mask=target == 0,
            )
            return functional.linear(x, self.embedding.weight)

    model = Model().to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    forward = torch.compile(model) if compiled else model
    source, target, labels = (
        torch.from_numpy(ids).long().to(device) for ids in shape.ids()
    )

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(
            device, torch.bfloat16, enabled=dtype == "bfloat16"
        ):
            loss = functional.cross_entropy(
                forward(source, target).flatten(0, 1),
                labels.flatten(),
                ignore_index=0,
                label_smoothing=0.1,
            )
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def _policy(dtype):
    return {"float32": "float32", "bfloat16": "mixed_bfloat16"}[dtype]


PEERS = {
    function.__name__: function
    for function in (
        keras_transformer,
        torch_eager,
        torch_compiled,
        keras_hub,
        tutorial,
    )
}
