"""LoRA: fine-tuning by products of low rank (Hu et al., 2021).

Each matrix W of attention and feed-forward network becomes W + A · B, where
only A `(D_in, rank)` and B `(rank, D_out)` are trained. B begins with zeros, so
that a run begins with the translations of its initial run. A checkpoint has
these factors alone; W and all other weights are in the run's `initial/`.
"""

import pathlib
from collections.abc import Callable

import keras
import numpy as np

from keras_transformer.model import Transformer
from keras_transformer.training import checkpoints
from keras_transformer.training.checkpoints import matched
from keras_transformer.training.run import Run

A, B = "/lora_kernel_a", "/lora_kernel_b"


def enable(model: Transformer, rank: int, seed: int):
    """Gives every projection its two factors, and freezes all other weights.

    Args:
        model: a `Transformer`, which is not compiled.
        rank: number of columns of A and of rows of B.
        seed: every A is drawn by a seed of its own, which depends on this one.
    """
    for variable in model.weights:
        variable.trainable = False
    projections = list(_projections(model))
    seeds = np.random.default_rng(seed).integers(2**31, size=len(projections))
    for projection, own in zip(projections, seeds.tolist(), strict=True):
        draw = keras.initializers.HeUniform(own)
        projection.enable_lora(rank, a_initializer=draw)


def restore_base(run: Run, model: Transformer):
    """Puts the weights that a run begins with under a model's factors.

    Raises:
        ValueError: if they are damaged, or belong to another model.
    """
    factors = checkpoints.state_of(model)["weights"]
    base = {
        name: variable
        for name, variable in checkpoints.weights_of(model).items()
        if name not in factors
    }
    for variable, value in matched("weights", base, _base(run)):
        variable.assign(value)


def weights_reader(
    run: Run, model: Transformer
) -> Callable[[pathlib.Path], dict[str, np.ndarray]]:
    """Returns the function that reads the weights of a run's checkpoint, as
    `checkpoints.assign` takes them: with LoRA, each W is W + A · B.

    Args:
        run: of the checkpoints.
        model: without LoRA, whose names the weights get.

    Raises:
        ValueError: if the weights that the run began with are damaged.
    """
    if not run.recipe.lora_rank:
        return lambda path: checkpoints.read_weights(path, model)
    base = _base(run)
    return lambda path: merged(base, checkpoints.read(path)[1])


def merged(
    base: dict[str, np.ndarray], arrays: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns weights with the products of a checkpoint's factors added.

    Args:
        base: all weights, by the names of `checkpoints.read`.
        arrays: of a checkpoint, with the factors.

    Raises:
        ValueError: if the factors belong to other weights.
    """
    products = {
        f"{layer}/kernel": arrays[layer + A] @ arrays[layer + B]
        for layer in (n.removesuffix(A) for n in arrays if n.endswith(A))
    }
    if not products or products.keys() - base.keys():
        raise ValueError(
            "The checkpoint belongs to another model: it must have LoRA "
            f"factors for the initial run's weights. Received: {len(products)} "
            "pairs of factors. Load it into the model that wrote it."
        )
    return {
        name: value + products[name] if name in products else value
        for name, value in base.items()
    }


def _base(run):
    """Returns the weights that a run begins with, as arrays by name."""
    _, arrays = checkpoints.newest_intact(run.initial, checkpoints.read)
    return {n: x for n, x in arrays.items() if n.startswith("weights/")}


def _projections(model):
    """Yields the dense layers of all encoder and decoder layers."""
    for layer in (*model.encoder_layers, *model.decoder_layers):
        attentions = [layer.self_attention]
        if layer in model.decoder_layers:
            attentions.append(layer.cross_attention)
        for attention in attentions:
            yield attention.query_projection
            yield attention.key_projection
            yield attention.value_projection
            yield attention.output_projection
        if layer.feed_forward.use_gate:
            yield layer.feed_forward.gate
        yield layer.feed_forward.inner
        yield layer.feed_forward.outer
