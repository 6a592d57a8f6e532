"""Runs the search of a model of this package over a batch of sources."""

import tensorflow as tf

from keras_transformer.inference.blockwise import BlockwiseModel
from keras_transformer.inference.fast_model import InferenceModel
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.inference.shortlist import ShortlistedModel
from keras_transformer.search.beam_search import beam_search


def run_search(
    model: InferenceModel,
    source: tf.Tensor,
    limits: tf.Tensor,
    settings: SearchSettings,
    beam_size: int | tf.Tensor,
    alpha: float | tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Encodes sources and searches their translations: section 6.1.

    Args:
        model: an `InferenceModel`, or one with a shortlist or proposals.
        source: ids `(B, S)`.
        limits: int32 `(B,)`, the maximum number of tokens of each translation.
        settings: settings of the search; beam size and α are given apart.
        beam_size: K, an integer or scalar tensor.
        alpha: α of the length penalty, a number or scalar tensor.

    Returns:
        Target ids `(B, K, T)`, best first, and float32 scores `(B, K)`.
    """
    memory = model.encode(source)
    is_greedy = isinstance(beam_size, int) and beam_size == 1
    if isinstance(model, BlockwiseModel) and is_greedy:
        return model.search(memory, limits, alpha, settings.length_penalty)

    def step(tokens, cache, index):
        return model.step(tf.reshape(tokens, [-1, beam_size]), cache, index)

    ids, scores = beam_search(
        step,
        model.empty_cache(memory, beam_size),
        limits,
        beam_size,
        alpha,
        reorder=model.reorder,
        keep=model.keep,
        formula=settings.length_penalty,
        early_stopping=settings.early_stopping,
    )
    if isinstance(model, ShortlistedModel):
        ids = model.pieces(ids, memory)
    return ids, scores
