"""Translation of text: tokenizers, model and search in one graph.

Shapes: B batch, K beam size, S source length, T target length.
"""

from typing import Any

import tensorflow as tf

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import END, PAD
from keras_transformer.inference.alignment import align, word_numbers
from keras_transformer.inference.capitals import as_sentence, is_in_capitals
from keras_transformer.inference.decoding import Decoding
from keras_transformer.inference.graph_checks import checked_in_graph
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.inference.graph_tokenizer import (
    GraphTokenizer,
    as_strings,
    for_language,
)
from keras_transformer.inference.graph_weights import inference_weights
from keras_transformer.inference.int8_weights import variables
from keras_transformer.inference.punctuation import (
    normalize_punctuation,
    replace_punctuation,
)
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.inference.terms import TextTerms, prefix_pieces
from keras_transformer.model import Transformer


class Translator:
    """Translates strings with a trained `Transformer`.

    There is one output for each input. A string in which a reader sees nothing,
    of white space or invisible characters, gives an empty string and score 0
    without a search. A source of more than `max_source_length` word pieces is
    cut, and `truncated` is True. Text in capitals is translated as a sentence,
    and its translation is in capitals. The output is always valid UTF-8.

    Example:

    >>> from keras_transformer.training import load_model, open_run
    >>> run = open_run("runs/demo")
    >>> tokenizers = run.source_tokenizer, run.target_tokenizer
    >>> translator = Translator(load_model(run), *tokenizers)
    >>> best = translator.translate(["Good morning.", ""])
    >>> print(best["translation"].numpy())
    [b'Guten Morgen.' b'']

    Args:
        model: a `Transformer`.
        source_tokenizer, target_tokenizer: a `Tokenizer` each, the same one for
            a shared vocabulary.
        settings: settings of the search. Defaults to `SearchSettings()`.
        decoding: how to search: a `ShortlistDecoding`, `BlockwiseDecoding` or
            `EnsembleDecoding`. Defaults to `Decoding()`, beam search among all
            target pieces.
        weights: weights to use instead of those of the model and the decoding.

    Raises:
        ValueError: if the vocabularies of a tokenizer and of the model differ
            in size.
    """

    def __init__(
        self,
        model: Transformer,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        settings: SearchSettings | None = None,
        decoding: Decoding | None = None,
        weights: dict[str, Any] | None = None,
    ):
        config = model.config
        sizes = config.source_vocab_size or config.vocab_size, config.vocab_size
        tokenizers = source_tokenizer, target_tokenizer
        for side, size, tokenizer in zip(
            ("source", "target"), sizes, tokenizers, strict=True
        ):
            if tokenizer.vocab_size != size:
                raise ValueError(
                    f"The {side} vocabulary must be the one that the model was "
                    f"trained with. Received: {tokenizer.vocab_size} word "
                    f"pieces for a model of {size}."
                )
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self._source_pieces = GraphTokenizer(source_tokenizer)
        self._target_pieces = GraphTokenizer(target_tokenizer)
        self.settings = settings or SearchSettings()
        self.decoding = decoding or Decoding()
        self.weights = weights
        self._shared_model: InferenceModel | None = None

    def fixed(self, dtype: str = "float32") -> "Translator":
        """Returns a translator whose weights are variables of its own.

        Args:
            dtype: dtype of the matrices. Defaults to "float32". In "int8" they
                are stored only, see `Int8Matrix`.
        """
        weights = self._weights("float32" if dtype == "int8" else dtype)
        return Translator(
            self.model,
            self.source_tokenizer,
            self.target_tokenizer,
            self.settings,
            self.decoding,
            variables(weights, in_int8=dtype == "int8"),
        )

    def share_passes(self):
        """Makes functions of the passes of the model, for graphs of several
        methods: they have each function once."""
        model = self._shared_model = self.inference_model()
        for name in ("encode", "read", "search"):
            function = tf.function(getattr(model, name), autograph=False)
            setattr(model, name, function)

    def compiled(self) -> tf.types.experimental.PolymorphicFunction:
        """Returns `translate` as one traced TensorFlow function."""
        return tf.function(
            self.translate,
            input_signature=[tf.TensorSpec([None], tf.string, name="text")],
            autograph=False,
        )

    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the best translation of each string.

        Args:
            text: strings `(B,)`; B may be 0.

        Returns:
            A dictionary of `translation`, strings `(B,)`; `score`, float32
            `(B,)`, the log-probability of the translation divided by its
            length penalty; `truncated`, bool `(B,)`, whether the source was too
            long; and `incomplete`, bool `(B,)`, whether the translation
            reached its maximum length, so that its end may be missing.
        """
        settings = self.settings
        return best_of(self.n_best(text, settings.beam_size, settings.alpha))

    def n_best(
        self,
        text: tf.Tensor,
        beam_size: int | tf.Tensor,
        alpha: float | tf.Tensor,
        max_length: int | tf.Tensor | None = None,
        target_language: str | tf.Tensor = "",
    ) -> dict[str, tf.Tensor]:
        """Returns all K hypotheses of each string, best first.

        Args:
            text: strings `(B,)`; B may be 0.
            beam_size: K, an integer or scalar tensor.
            alpha: α of the length penalty, a number or scalar tensor.
            max_length: maximum number of pieces of a translation, end token
                included, an integer or scalar tensor. Defaults to that of the
                settings, whose `extra_length` always holds.
            target_language: name of a tag of the vocabulary, a string or scalar
                tensor. Defaults to "": the text has its tags, if any.

        Returns:
            A dictionary of `translation`, strings `(B, K)`; `score`, float32
            `(B, K)`; `truncated`, bool `(B,)`; and `incomplete`, bool `(B, K)`.
            Where the search has found fewer than K hypotheses, the others are
            "" with score -inf.

        Raises:
            ValueError: if an argument is out of range. If it is a tensor, the
                graph raises a `tf.errors.InvalidArgumentError`.
        """
        return self._search_text(
            text, beam_size, alpha, max_length, target_language
        )

    def control(
        self,
        text: tf.Tensor,
        target_prefix: tf.Tensor,
        beam_size: int | tf.Tensor,
        alpha: float | tf.Tensor,
        max_length: int | tf.Tensor | None = None,
        min_length: int | tf.Tensor = 0,
        no_repeat_ngram_size: int | tf.Tensor = 0,
        repetition_penalty: float | tf.Tensor = 1.0,
        target_language: str | tf.Tensor = "",
        terms: tf.Tensor | None = None,
        avoid: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Returns hypotheses that are as they are asked to be.

        Args:
            text, beam_size, alpha, max_length, target_language: as for
                `n_best`.
            target_prefix: strings `(B,)`, the beginning of each translation,
                or "". It is cut before a piece that no translation may have,
                such as an unknown one, and if it is longer than a translation
                may be. A blank text has a blank translation nevertheless, and
                that of a text in capitals is in capitals, beginning and all.
            min_length: minimum number of pieces of a translation, end token
                included, an integer or scalar tensor. A smaller maximum takes
                precedence.
            no_repeat_ngram_size: n: no n pieces in a row occur twice; 0 for no
                limit. An integer or scalar tensor.
            repetition_penalty: factor on the log-probabilities of pieces that
                the translation has already, positive; 1 for none. A number or
                scalar tensor. Both are those of transformers' `generate`; with
                a beam size of 1 in a tensor the penalty is that of beam search,
                on log-probabilities.
            terms: strings `(B,)`, the words that each translation must have:
                several are lines. Defaults to none.
            avoid: strings `(B,)`, the words that no translation may have, nor
                words that begin with their pieces. Defaults to none.

        Returns:
            As `n_best` does. With terms or words to avoid also `unmet`, strings
            `(B, K)`, those that were not met, in lines, see `TextTerms`.

        Raises:
            ValueError: as `n_best` does, and if the decoding is a shortlist's.
        """
        most = tf.int32.max
        limits = [
            ("min_length", min_length, tf.int32, 0, most),
            ("no_repeat_ngram_size", no_repeat_ngram_size, tf.int32, 0, most),
            ("repetition_penalty", repetition_penalty, tf.float32, 1e-6, 1e6),
        ]
        min_length, *repetition = checked_in_graph(limits)
        target_prefix = as_strings(target_prefix)
        tf.debugging.assert_equal(
            tf.size(text),
            tf.size(target_prefix),
            "`text` and `target_prefix` must have the same number of strings.",
        )
        suppressed_ids = self.target_tokenizer.suppressed_ids(
            self.settings.allow_unknown
        )
        pieces = self._target_pieces, suppressed_ids
        text_terms = None
        if terms is not None or avoid is not None:
            text_terms = TextTerms(*pieces, terms, avoid, tf.size(text))

        def rules(is_full, capitals):
            most = self.max_length - 1
            chosen = prefix_pieces(
                *pieces, target_prefix, is_full, capitals, most
            )
            return {
                "prefix": chosen,
                "min_lengths": tf.fill(tf.shape(chosen)[:1], min_length),
                "no_repeat_ngram_size": repetition[0],
                "repetition_penalty": repetition[1],
                **(text_terms.rules(is_full) if text_terms else {}),
            }

        arguments = text, beam_size, alpha, max_length, target_language
        return self._search_text(*arguments, rules, text_terms)

    def _search_text(
        self,
        text,
        beam_size,
        alpha,
        max_length,
        target_language,
        rules=None,
        text_terms=None,
    ):
        """Returns the hypotheses of `n_best` or `control`.

        Args:
            text, beam_size, alpha, max_length, target_language: as for
                `n_best`.
            rules: function of two booleans `(B,)`, which texts are searched
                and which were in capitals, that returns the rules of
                `InferenceModel.search`. Defaults to those of the settings.
            text_terms: the `TextTerms` of the rules. Defaults to none.
        """
        if max_length is None:
            max_length = self.max_length
        most = self.settings.max_beam_size
        beam_size, alpha, max_length = checked_in_graph(
            [
                ("beam_size", beam_size, tf.int32, 1, most),
                ("alpha", alpha, tf.float32, 0.0, float("inf")),
                ("max_length", max_length, tf.int32, 1, tf.int32.max),
            ]
        )
        known = self.source_tokenizer.tag_names
        text = for_language(as_strings(text), target_language, known)
        text, capitals = self._recased(text)
        pieces, truncated = self._source(text)
        is_full = ~self._is_blank(text, pieces)
        rows = tf.where(is_full)  # [n, 1]
        pieces = _at_least_one_row(tf.ragged.boolean_mask(pieces, is_full))
        source = pieces.to_tensor(PAD)
        ids, scores = self.search(
            source,
            beam_size,
            alpha,
            max_length,
            None if rules is None else rules(is_full, capitals),
        )
        incomplete = self._is_incomplete(source, ids, max_length)

        count = tf.shape(rows)[0]
        length = tf.shape(ids)[2]
        hypotheses = self._target_pieces.decode(
            tf.reshape(ids[:count], [-1, length])
        )
        shape = tf.stack([tf.shape(text)[0], beam_size])
        hypotheses = tf.reshape(hypotheses, [count, beam_size])
        translation = tf.tensor_scatter_nd_update(
            tf.fill(shape, ""), rows, hypotheses
        )
        unmet = {}
        if text_terms is not None:
            all_ids = tf.fill([*tf.unstack(shape), length], PAD)
            all_ids = tf.tensor_scatter_nd_update(all_ids, rows, ids[:count])
            unmet["unmet"] = text_terms.unmet(all_ids, translation)
        return {
            **unmet,
            "translation": _in_capitals(translation, capitals[:, None]),
            "score": tf.tensor_scatter_nd_update(
                tf.zeros(shape), rows, scores[:count]
            ),
            "truncated": truncated & is_full,
            "incomplete": tf.tensor_scatter_nd_update(
                tf.fill(shape, False), rows, incomplete[:count]
            ),
        }

    def score(
        self, text: tf.Tensor, translation: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns the log-probabilities of given translations.

        Args:
            text, translation: strings `(B,)`.

        Returns:
            A dictionary of `score`, float32 `(B,)`, the log-probability of the
            translation; `pieces`, int32 `(B,)`, the number of its word pieces,
            end token included; `alignment`, strings `(B,)`, see `align`; and
            `truncated`, bool `(B,)`, whether the text or the translation was
            too long. Of a text in capitals, both are read as sentences.

        Raises:
            tf.errors.InvalidArgumentError: if there are not as many
                translations as texts.
        """
        text, capitals = self._recased(as_strings(text))
        source, truncated = self._source(text)
        translation = as_strings(translation)
        tf.debugging.assert_equal(
            tf.size(text),
            tf.size(translation),
            "`text` and `translation` must have the same number of strings.",
        )
        if self.settings.recase_capitals:
            sentence = as_sentence(translation)
            translation = tf.where(capitals, sentence, translation)
        target, is_target_cut = self._target_pieces.encode_at_most(
            translation, self.max_length - 1
        )
        model = self.inference_model()
        source_ids, target_ids = (
            _at_least_one_row(pieces).to_tensor(PAD)
            for pieces in (source, target)
        )
        log_probs, attention = model.read(target_ids, model.encode(source_ids))
        count = tf.shape(text)[0]
        return {
            "score": tf.reduce_sum(log_probs, axis=1)[:count],
            "pieces": tf.cast(target.row_lengths(), tf.int32),
            "alignment": self._align(attention, source_ids, target_ids)[:count],
            "truncated": truncated | is_target_cut,
        }

    def explain(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the best translations and their attention.

        Args:
            text: strings `(B,)`.

        Returns:
            A dictionary of `translation`, `score`, `truncated` and
            `incomplete` as returned by `translate`; `source_pieces` `(B, S)`
            and `target_pieces` `(B, T)`, strings that are empty at padding;
            `log_probs`, float32 `(B, T)`, the log-probability of each target
            piece, 0 at padding, and `mean_log_prob`, float32 `(B,)`, their
            mean; `alignment`, strings `(B,)`, see `align`;
            and `attention`, float32 `(B, N, H, T, S)`, for each of N layers
            and H heads the weights of each target piece on the source pieces,
            which add up to 1; and `encoder_attention`, float32
            `(B, N, H, S, S)`, the same for the N layers of the encoder, whose
            queries are the source pieces. Its rows and columns of padding are
            0. For a blank string the pieces are empty and all weights 0.
        """
        text, capitals = self._recased(as_strings(text))
        source, truncated = self._source(text)
        blank = self._is_blank(text, source)
        source = _at_least_one_row(source).to_tensor(PAD)
        beam_size: int | tf.Tensor = self.settings.beam_size
        alpha: float | tf.Tensor = float(self.settings.alpha)
        if beam_size > 1:  # tensors, for the graph that `n_best` has
            beam_size, alpha = tf.constant(beam_size), tf.constant(alpha)
        ids, scores = self.search(source, beam_size, alpha, self.max_length)
        score = tf.where(blank, 0.0, scores[: tf.size(blank), 0])
        incomplete = self._is_incomplete(source, ids, self.max_length)
        found = self._with_attention(source, ids[:, 0], blank)
        return {
            **found,
            "translation": _in_capitals(found["translation"], capitals),
            "score": score,
            "truncated": truncated & ~blank,
            "incomplete": incomplete[: tf.size(blank), 0] & ~blank,
        }

    def search(
        self,
        source: tf.Tensor,
        beam_size: int | tf.Tensor,
        alpha: float | tf.Tensor,
        max_length: int | tf.Tensor,
        rules: dict[str, Any] | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns target ids `(B, K, T)` and scores `(B, K)` for source ids
        `(B, S)`; the other arguments are those of `n_best`, and of
        `InferenceModel.search`."""
        model = self.inference_model()
        return model.search(
            model.encode(source),
            self._max_lengths(source, max_length),
            self.settings,
            beam_size,
            alpha,
            rules,
        )

    def _max_lengths(self, source, max_length):
        """Returns the maximum length of each translation, `(B,)`."""
        lengths = tf.math.count_nonzero(source, axis=1, dtype=tf.int32)
        max_lengths = lengths + self.settings.extra_length
        max_lengths = tf.minimum(max_lengths, max_length)
        if self._positions is not None:
            max_lengths = tf.minimum(max_lengths, self._positions)
        return max_lengths

    def _is_incomplete(self, source, ids, max_length):
        """Returns which hypotheses `(B, K)` reached their maximum length, at
        which the search allows the end token alone."""
        lengths = tf.math.count_nonzero(ids, axis=2, dtype=tf.int32)
        return lengths >= self._max_lengths(source, max_length)[:, None]

    def inference_model(self) -> InferenceModel:
        """Returns the model that searches, on the weights."""
        if self._shared_model is not None:
            return self._shared_model
        weights = self.weights or self._weights()
        return self.decoding.make_model(self.model.config, weights)

    @property
    def max_pieces(self) -> int:
        """Returns the maximum number of pieces of a source, its end apart."""
        return self.settings.longest(self._positions)[0] - 1

    @property
    def max_length(self) -> int:
        """Returns the maximum length of a translation, end token included."""
        return self.settings.longest(self._positions)[1]

    @property
    def _positions(self):
        """Returns the number of learned positions, or `None`."""
        config = self.model.config
        return config.max_length if config.positions == "learned" else None

    def _weights(self, dtype="float32"):
        allow_unknown = self.settings.allow_unknown
        suppressed_ids = self.target_tokenizer.suppressed_ids(allow_unknown)
        arguments = self.model, dtype, suppressed_ids
        return inference_weights(*arguments) | self.decoding.own_weights(
            *arguments
        )

    def _with_attention(self, source, target, blank):
        """Returns translations with their pieces and attention.

        Args:
            source, target: ids `(B, S)` and `(B, T)`, padded with 0.
            blank: booleans `(n,)`, True for texts without words. `source` may
                have more rows, which are left out.

        Returns:
            The outputs of `explain` but `score`, `truncated` and `incomplete`.
        """
        count = tf.size(blank)
        lengths = tf.math.count_nonzero(target[:count], axis=1, dtype=tf.int32)
        longest = tf.reduce_max(tf.where(blank, 1, lengths))
        target = target[:, : tf.maximum(longest, 1)]
        model = self.inference_model()
        memory = model.encode(source, with_attention=True)
        encoder_attention = memory.pop("encoder_attention")
        log_probs, attention = model.read(target, memory)
        log_probs = tf.where(blank[:, None], 0.0, log_probs[:count])
        alignment = self._align(attention, source, target)[:count]

        is_padding = tf.equal(source[:count], PAD) | blank[:, None]

        def stacked(attention, is_hidden):
            weights = tf.stack(attention, axis=1)[:count]  # [n, N, H, ·, S]
            return tf.where(is_hidden[:, None, None, :, None], 0.0, weights)

        def names(tokenizer):
            names = tokenizer.pieces(range(tokenizer.vocab_size))
            names[PAD] = ""
            return tf.constant(names)

        def pieces(names, ids):
            found = tf.gather(names, ids[:count])
            return tf.where(blank[:, None], "", found)

        target_names = names(self.target_tokenizer)
        source_names = target_names
        if not self.target_tokenizer.has_pieces_of(self.source_tokenizer):
            source_names = names(self.source_tokenizer)

        translation = self._target_pieces.decode(target)[:count]
        return {
            "translation": tf.where(blank, "", translation),
            "source_pieces": pieces(source_names, source),
            "target_pieces": pieces(target_names, target),
            "log_probs": log_probs,
            "mean_log_prob": tf.reduce_sum(log_probs, axis=1)
            / tf.cast(tf.maximum(lengths, 1), tf.float32),
            "alignment": tf.where(blank, "", alignment),
            "attention": stacked(attention, blank[:, None]),
            "encoder_attention": stacked(encoder_attention, is_padding),
        }

    def _align(self, attention, source, target):
        """Returns the alignment of ids `(B, S)` and `(B, T)`, see `align`."""
        return align(
            attention,
            word_numbers(source, self.source_tokenizer),
            word_numbers(target, self.target_tokenizer),
        )

    def _recased(self, text):
        """Returns strings, those in capitals as sentences, and which these
        are."""
        if not self.settings.recase_capitals:
            return text, tf.zeros_like(text, tf.bool)
        tokenizer, tags, rest = self.source_tokenizer, None, text
        if tokenizer.tags and tokenizer.rule:  # Marian's have no rule
            tags, rest = self._source_pieces.split_tags(text)
        capitals = is_in_capitals(rest)
        sentence = as_sentence(rest)
        if tags is not None:
            sentence = tf.strings.join([tags, sentence])
        return tf.where(capitals, sentence, text), capitals

    def _source(self, text):
        if self.settings.replace_punctuation:
            text = replace_punctuation(text)
        if language := self.settings.normalize_punctuation:
            text = normalize_punctuation(text, language)
        return self._source_pieces.encode_at_most(text, self.max_pieces)

    def _is_blank(self, text, pieces):
        """Returns which texts have no word piece but the end token."""
        is_blank = self._source_pieces.is_blank(text)
        return is_blank | (pieces.row_lengths() <= 1)


def best_of(found: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the first hypothesis of each source, from `n_best`."""
    several = {"translation", "score", "incomplete", "unmet"} & found.keys()
    first = {name: found[name][:, 0] for name in several}
    return {**found, **first}


def _in_capitals(translation, capitals):
    """Returns strings, some of them in capitals."""
    upper = tf.strings.upper(translation, "utf-8")
    return tf.where(capitals, upper, translation)


def _at_least_one_row(pieces):
    """Adds a placeholder row to an empty batch."""
    missing = tf.cast(tf.equal(pieces.nrows(), 0), tf.int32)
    return tf.concat([pieces, tf.fill([missing, 1], END)], axis=0)
