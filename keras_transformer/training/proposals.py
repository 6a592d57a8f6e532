"""Learns the proposals of blockwise parallel decoding, on a frozen model.

Stern et al. (2018), sections 4 and 6. The model's own translations are what
proposals are compared with, so these are what they are learned from.

Shapes: B batch, T target length, N real tokens, k block size, D d_model.
"""

import dataclasses
import sys

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import processor
from keras_transformer.config import PAD
from keras_transformer.data.batches import cut_batches, training_batches
from keras_transformer.data.encoded_pairs import EncodedPairs, Rows
from keras_transformer.inference.blockwise import Proposals
from keras_transformer.inference.translator import Translator
from keras_transformer.model import Transformer
from keras_transformer.training import checkpoints
from keras_transformer.training.chunked_loss import projection_loss
from keras_transformer.training.models import digest, load_model
from keras_transformer.training.run import Run
from keras_transformer.training.split import load_training_pairs
from keras_transformer.training.step import with_bias

PAIRS = 30_000  # of a larger corpus, this many random pairs are translated
STEPS = 3000
LEARNING_RATE = 1e-3


def learn_proposals(run: Run, block_size: int, steps: int = STEPS) -> Proposals:
    """Learns `Proposals` for the chosen weights of a run, once: they are kept
    in the run's folder.

    The model itself does not change.

    Example:

    >>> from keras_transformer.training import open_run
    >>> proposals = learn_proposals(open_run("runs/demo"), 3, steps=2)
    Translating 3 training sentences.
    ...
    >>> proposals.block_size
    3

    Args:
        run: an open `Run` with at least one checkpoint.
        block_size: k, the number of tokens of a block, at least 2.
        steps: number of updates. Defaults to 3,000.

    Raises:
        ValueError: if `block_size` is less than 2, if the run has no intact
            checkpoint, or if it is imported and has no training pairs.
    """
    if block_size < 2:
        raise ValueError(
            "A block for proposals has at least two tokens. "
            f"Received: block_size={block_size}"
        )
    model = load_model(run)
    path = run.folder / f"proposals-{block_size}.npz"
    source = {"weights": digest(model), "steps": steps}
    if path.exists():
        metadata, arrays = checkpoints.read(path)
        if source == {name: metadata.get(name) for name in source}:
            return Proposals(**arrays)
    pairs = _own_translations(run, model)
    print(f"Learning proposals for blocks of {block_size}, {steps:,} steps.")
    proposals = _learn(model, pairs, block_size, run.recipe, steps)
    checkpoints.write(path, vars(proposals), source)
    return proposals


def _own_translations(run, model):
    """Returns training pairs with the model's greedy translations."""
    # Sources are split into pieces as usual, whatever training sees.
    recipe = dataclasses.replace(run.recipe, bpe_dropout=0.0)
    pairs = load_training_pairs(dataclasses.replace(run, recipe=recipe))
    rows = np.random.default_rng(recipe.seed).permutation(len(pairs))[:PAIRS]
    pairs = pairs.read(np.sort(rows), epoch=0)
    print(f"Translating {len(pairs):,} training sentences.")
    translator = Translator(
        model,
        run.source_tokenizer,
        run.target_tokenizer,
        dataclasses.replace(run.search, beam_size=1),
    ).fixed(processor.resolve_dtype("auto"))

    @tf.function(
        input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)],
        autograph=False,
    )
    def search(source):
        ids, _ = translator.search(
            source.to_tensor(PAD), 1, 0.0, translator.max_length
        )
        return tf.RaggedTensor.from_tensor(ids[:, 0], padding=PAD)

    batches = max(1, pairs.target_tokens // recipe.tokens_per_batch)
    order, sizes = cut_batches(pairs.lengths, min(batches, len(pairs)))
    found = []
    progress = _progress(len(sizes))
    for numbers in np.split(order, np.cumsum(sizes)[:-1]):
        source = pairs.source.take(numbers)
        ids = search(
            tf.RaggedTensor.from_row_lengths(
                source.values.astype(np.int32), source.lengths
            )
        )
        found += ids.to_list()
        progress.add(1)
    target = Rows.of(found).take(np.argsort(order))
    return EncodedPairs(pairs.source, target)


def _learn(model, pairs, block_size, recipe, steps):
    """Trains two layers on a model's features; returns the `Proposals`."""
    config = model.config
    policy = processor.resolve_dtype_policy("auto")
    frozen = Transformer(config, dtype=policy)
    frozen.set_weights(model.get_weights())
    keras.utils.set_random_seed(recipe.seed)
    inner = keras.layers.Dense(config.d_ff, "relu", dtype=policy)
    outer = keras.layers.Dense(
        config.d_model * (block_size - 1),
        kernel_initializer="zeros",
        dtype=policy,
    )
    layers = keras.Sequential([inner, outer])
    layers.build((None, config.d_model))
    rate = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)
    optimizer = keras.optimizers.Adam(rate)
    optimizer.build(layers.trainable_variables)
    batches = iter(
        training_batches(pairs, recipe.tokens_per_batch, recipe.seed)
    )

    @tf.function(autograph=False)
    def step():
        batch = {name: part[0] for name, part in next(batches).items()}
        features = frozen.features(batch, training=False)  # [B, T, D]
        features, later = _real_tokens(features, batch["labels"], block_size)
        real = tf.cast(tf.not_equal(later, PAD), tf.float32)
        table = tf.convert_to_tensor(frozen.target_embedding.projection)
        with tf.GradientTape() as tape:
            shape = [-1, block_size - 1, config.d_model]
            x = features[:, None] + tf.reshape(layers(features), shape)
            x = tf.reshape(x, [1, -1, config.d_model])
            x, rows = with_bias(frozen.target_embedding, x, table)
            loss, *_ = projection_loss(
                x,
                rows,
                tf.reshape(later, [-1]),
                tf.reshape(
                    tf.math.divide_no_nan(real, tf.reduce_sum(real)), [-1]
                ),
                train_table=False,
            )
        variables = layers.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    progress = _progress(steps)
    for _ in range(steps):
        progress.add(1, [("nll", step())])
    names = "inner_kernel", "inner_bias", "outer_kernel", "outer_bias"
    return Proposals(**dict(zip(names, layers.get_weights(), strict=True)))


def _progress(count):
    """Returns a bar on a terminal, a line at the end elsewhere."""
    return keras.utils.Progbar(count, verbose=1 if sys.stdout.isatty() else 2)


def _real_tokens(features, labels, block_size):
    """Returns the features `(N, D)` of the tokens that are not padding, and
    the k - 1 labels after the own label of each, `(N, k - 1)`."""
    length = tf.shape(labels)[1]
    padded = tf.pad(labels, [[0, 0], [0, block_size]], constant_values=PAD)
    later = [padded[:, i : i + length] for i in range(1, block_size)]
    real = tf.where(tf.not_equal(labels, PAD))
    return (
        tf.gather_nd(features, real),
        tf.gather_nd(tf.stack(later, axis=-1), real),
    )
