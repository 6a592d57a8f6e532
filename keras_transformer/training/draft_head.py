"""Trains the draft head of blockwise parallel decoding, on a frozen model.

Stern et al. (2018), sections 4 and 6. Drafts are compared with the model's own
translations, so these are what the draft head is trained on.

Shapes: B batch, T target length, N draft tokens, R real draft tokens of a
batch, D d_model.
"""

import contextlib
import dataclasses
import itertools

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import hardware
from keras_transformer.data.batches import (
    EncodedPairs,
    Rows,
    cut_batches,
    prefetched,
    training_batches,
)
from keras_transformer.ids import PAD
from keras_transformer.inference.draft_head import DraftHead
from keras_transformer.inference.translator import Translator
from keras_transformer.model import Transformer
from keras_transformer.training import checkpoints
from keras_transformer.training.models import digest, load_model
from keras_transformer.training.progress import verbosity
from keras_transformer.training.projection_loss import token_losses, with_bias
from keras_transformer.training.run import Run
from keras_transformer.training.run_data import (
    load_training_pairs,
    without_bpe_dropout,
)
from keras_transformer.training.tensorflow_trainer import signature_of_batch
from keras_transformer.validation import checked_integer

PAIRS = 30_000  # of a larger corpus, this many random pairs are translated
STEPS = 3000
LEARNING_RATE = 1e-3
LIKELY = 0.98  # of the tokens of the model's translations


def train_draft_head(
    run: Run, draft_tokens: int, steps: int = STEPS
) -> DraftHead:
    """Trains a `DraftHead` for the chosen weights of a run, once: its weights
    are kept in the run's folder.

    The model itself does not change. Only likely pieces will be drafted: the
    fewest that make up 98 % of the model's translations of the training text.

    Example:

    >>> from keras_transformer.training import open_run
    >>> head = train_draft_head(open_run("runs/demo"), 3, steps=2)
    Translating 3 training sentences.
    ...
    >>> head.draft_tokens
    3

    Args:
        run: an open `Run` with at least one checkpoint.
        draft_tokens: N, the number of tokens to draft at a step, at least 1.
        steps: number of updates. Defaults to 3,000.

    Raises:
        ValueError: if `draft_tokens` or `steps` is less than 1, if the run has
            no intact checkpoint, or if it is imported and has no training
            pairs.
    """
    steps = checked_integer("steps", steps)
    draft_tokens = checked_integer("draft_tokens", draft_tokens)
    model = load_model(run)
    layer = DraftHead.for_model(
        model.config,
        draft_tokens,
        name="draft_head",  # part of the names of its weights
        dtype=hardware.resolve_dtype_policy("auto"),
        seed=run.recipe.seed,
    )
    names = [variable.path for variable in layer.weights]
    path = run.folder / f"draft-head-{draft_tokens}.npz"
    source = {"weights": digest(model), "steps": steps}
    arrays = _kept(path, source)
    layer.likely_pieces = arrays.pop("likely_pieces", None)
    if sorted(arrays) == sorted(names):
        layer.set_weights([arrays[name] for name in names])
        return layer
    pairs = _own_translations(run, model)
    print(f"Training a head of {draft_tokens} draft tokens, {steps:,} steps.")
    _train(layer, model, pairs, run.recipe, steps)
    layer.likely_pieces = _likely_pieces(pairs.target.values)
    arrays = dict(zip(names, layer.get_weights(), strict=True))
    arrays["likely_pieces"] = layer.likely_pieces
    checkpoints.write(path, arrays, source)
    return layer


def _kept(path, source):
    """Returns the arrays of a file, none if it is of another source."""
    try:
        metadata, arrays = checkpoints.read(path)
    except (FileNotFoundError, checkpoints.DamagedCheckpointError):
        return {}
    is_same = source == {name: metadata.get(name) for name in source}
    return arrays if is_same else {}


def _own_translations(run, model):
    """Returns training pairs with the model's greedy translations."""
    pairs = load_training_pairs(without_bpe_dropout(run))
    random = np.random.default_rng(run.recipe.seed)
    rows = np.sort(random.permutation(len(pairs))[:PAIRS])
    pairs = pairs.read(rows, epoch=0)
    print(f"Translating {len(pairs):,} training sentences.")
    translator = Translator(
        model,
        run.source_tokenizer,
        run.target_tokenizer,
        dataclasses.replace(run.search, beam_size=1),
    ).fixed(hardware.resolve_dtype("auto"))

    @tf.function(
        input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)],
        autograph=False,
    )
    def search(source):
        ids, _ = translator.search(
            source.to_tensor(PAD), 1, 0.0, translator.max_length
        )
        return tf.RaggedTensor.from_tensor(ids[:, 0], padding=PAD)

    batches = max(1, pairs.target_tokens // _tokens_per_batch(run.recipe))
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


def _likely_pieces(tokens):
    """Returns the ids of the fewest pieces that make up most of the tokens."""
    counts = np.bincount(tokens)
    order = np.argsort(-counts, kind="stable")
    total = np.cumsum(counts[order])
    number = 1 + np.searchsorted(total, LIKELY * total[-1])
    return np.sort(order[:number]).astype("int32")


def _train(layer, model, pairs, recipe, steps):
    """Trains a layer on what a model computes."""
    embedding = model.target_embedding
    table = tf.convert_to_tensor(embedding.projection)
    bias = None
    if embedding.use_logits_bias:
        bias = tf.convert_to_tensor(embedding.logits_bias)
    read = _reader(model, layer.dtype_policy)
    rate = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)
    optimizer = keras.optimizers.Adam(rate)
    optimizer.build(layer.trainable_variables)
    batches = training_batches(pairs, _tokens_per_batch(recipe), recipe.seed)

    @tf.function(input_signature=[signature_of_batch()], autograph=False)
    def step(batch):
        batch = {name: parts[0] for name, parts in batch.items()}
        memory, features, next_tokens = read(batch)
        later = _later(batch["labels"], layer.draft_tokens)
        real = tf.where(tf.not_equal(later, PAD))[:, 0]  # [R]
        count = tf.cast(tf.size(real), tf.float32)
        with tf.GradientTape() as tape:
            x = layer(
                features,
                next_tokens,
                memory,
                tf.not_equal(batch["source"], PAD),
                training=True,
            )
            x = tf.gather(tf.reshape(x, [-1, x.shape[-1]]), real)
        found = token_losses(
            *with_bias(x, table, bias),
            tf.gather(later, real),
            tf.fill(tf.shape(real), 1 / count),
            gradients=True,
            train_table=False,
        )
        d_x = tf.cast(found["d_features"][:, : x.shape[-1]], x.dtype)
        variables = layer.trainable_variables
        gradients = tape.gradient(x, variables, output_gradients=d_x)
        optimizer.apply(gradients, variables)
        return tf.reduce_mean(found["loss"])

    progress = _progress(steps)
    with contextlib.closing(prefetched(batches)) as made:
        for batch in itertools.islice(made, steps):
            of_replica = {name: x[0] for name, x in batch.items()}
            progress.add(1, [("nll", step(of_replica))])


def _tokens_per_batch(recipe):
    """Returns how many tokens fit into the memory at once."""
    return -(-recipe.tokens_per_batch // recipe.gradient_accumulation_steps)


def _reader(model, dtype):
    """Returns a function of a batch: the memory `(B, S, D)`, the decoder's
    output and the embeddings of the labels, both `(B, T, D)`."""
    frozen = Transformer(model.config, dtype=dtype)
    frozen.set_weights(model.get_weights())
    encoder = frozen.encoder_norm or frozen.encoder_layers[-1]
    decoder = frozen.decoder_norm or frozen.decoder_layers[-1]
    read = keras.Model(frozen.inputs, [encoder.output, decoder.output])
    embedding = model.target_embedding
    scale = model.config.d_model**0.5 if model.config.scale_embeddings else 1.0

    def function(batch):
        memory, features = read([batch["source"], batch["target"]])
        next_tokens = tf.gather(embedding.embeddings, batch["labels"]) * scale
        return memory, features, next_tokens

    return function


def _progress(count):
    """Returns a bar on a terminal, or a line at the end elsewhere."""
    return keras.utils.Progbar(count, verbose=verbosity())


def _later(labels, count):
    """Returns the N labels after each of the labels `(B, T)`, in one row
    `(B·T·N,)`."""
    length = tf.shape(labels)[1]
    padded = tf.pad(labels, [[0, 0], [0, count]], constant_values=PAD)
    later = [padded[:, i : i + length] for i in range(1, count + 1)]
    return tf.reshape(tf.stack(later, axis=-1), [-1])
