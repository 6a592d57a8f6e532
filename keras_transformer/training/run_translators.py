"""Translators of one run or of several, on TensorFlow.

Shapes: B batch, K beam size, S source length, T target length.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer import hardware
from keras_transformer.inference.decoding import Decoding
from keras_transformer.inference.ensemble import EnsembleDecoding
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.inference.translator import Translator
from keras_transformer.model import Transformer
from keras_transformer.search.sampling import sample
from keras_transformer.training.models import load_model
from keras_transformer.training.run import Run
from keras_transformer.validation import check_argument


def decoding_of(
    run: Run, others: Sequence[Run], models: Sequence[Transformer] | None = None
) -> Decoding:
    """Returns how a run translates, together with others if there are any.

    Args:
        run: the first run.
        others: the others.
        models: the models of the others. Defaults to those that are loaded.

    Raises:
        ValueError: if another run has another vocabulary.
    """
    for other in others:
        check_argument("ensemble", other, Run, "Open its folder by `open_run`.")
        for side in ("source_tokenizer", "target_tokenizer"):
            if getattr(run, side).model != getattr(other, side).model:
                raise ValueError(
                    "Runs of an ensemble must have the same vocabularies. "
                    f"Received: {str(other.folder)!r}, whose {side} differs "
                    f"from that of {str(run.folder)!r}. Train them on one "
                    "prepared corpus, or with the same `initial_run`."
                )
    if not others:
        return Decoding()
    return EnsembleDecoding(models or [load_model(other) for other in others])


class SamplingTranslator(Translator):
    """Draws each translation from the model's distribution; K is 1."""

    generator: keras.random.SeedGenerator

    def search(
        self,
        source: tf.Tensor,
        beam_size: int | tf.Tensor,
        alpha: float | tf.Tensor,
        max_length: int | tf.Tensor,
        rules: dict[str, Any] | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns target ids `(B, 1, T)` and log-probabilities `(B, 1)`."""
        model = self.inference_model()

        def step(tokens, cache, index):
            return model.step(tokens[:, None], cache, index)

        ids, scores = sample(
            step,
            model.empty_cache(model.encode(source), 1),
            self._max_lengths(source, max_length),
            seed=self.generator,
            **(self.settings.rules if rules is None else rules),
        )
        return ids[:, None], scores[:, None]


def make_beams(
    runs: Sequence[Run],
    models: Sequence[Transformer],
    settings: SearchSettings,
    min_score: float | None = None,
    seed: int | None = None,
) -> Callable[[int], Callable[[Any], dict[str, Any]]]:
    """Returns a function that gives all usable translations of strings.

    Args:
        runs: a run, or those of an ensemble.
        models: their models.
        settings: of the search.
        min_score: the least mean log-probability of a word piece, or `None`.
        seed: to draw translations instead, or `None`.

    Returns:
        A function of a number, from which sampling begins anew, and which
        returns a function for `translate_lines`: of strings, to their
        translations, joined by line breaks. There is none of a blank or cut
        string, and none that reached its maximum length.
    """
    run = runs[0]
    decoding = decoding_of(run, runs[1:], models[1:])
    tokenizers = run.source_tokenizer, run.target_tokenizer
    arguments = models[0], *tokenizers, settings, decoding
    dtype = hardware.resolve_dtype("auto")
    weights = Translator(*arguments).fixed(dtype).weights
    translator, beam_size = Translator(*arguments, weights), settings.beam_size
    generator = keras.random.SeedGenerator(seed or 0)
    if seed is not None:
        translator = SamplingTranslator(*arguments, weights)
        translator.generator, beam_size = generator, 1

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
    )
    def search(text):
        found = translator.n_best(text, beam_size, settings.alpha)
        is_usable = ~found["incomplete"] & ~found["truncated"][:, None]
        is_usable &= found["translation"] != ""
        if min_score is not None:
            candidates = tf.reshape(found["translation"], [-1])
            scored = translator.score(tf.repeat(text, beam_size), candidates)
            means = scored["score"] / tf.cast(scored["pieces"], tf.float32)
            is_usable &= tf.reshape(means >= min_score, tf.shape(is_usable))
        return tf.ragged.boolean_mask(found["translation"], is_usable)

    def beams(text):
        found = search(tf.constant(text, tf.string)).to_list()
        return {"translation": [b"\n".join(beam) for beam in found]}

    def begun_at(number):
        if seed is not None:
            # Its state: the seed, and how often it was used, which is less than
            # 256 times for a part.
            generator.state.assign([seed, number << 8])
        return beams

    return begun_at
