"""A language model: the decoder of figure 1 without a memory.

Shapes: B batch, T length, P prompt length, L maximum length, D d_model, V
vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_transformer.config import TransformerConfig
from keras_transformer.configured_model import (
    TextModel,
    embedding_arguments,
    layer_arguments,
)
from keras_transformer.ids import END, PAD, START
from keras_transformer.layers import (
    EncoderLayer,
    PositionalEmbedding,
    padding_mask,
)
from keras_transformer.layers.arguments import Cache
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.sampling import greedy_search, sample
from keras_transformer.validation import checked_integer

# A prompt is padded to a multiple of so many tokens, and as many are worth to
# be read at once.
READ_AT_ONCE = 16
# A program is compiled for each value of these arguments.
COMPILED_FOR = (
    "read",
    "max_new_tokens",
    "beam_size",
    "alpha",
    "temperature",
    "top_k",
    "top_p",
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LanguageModel(TextModel):
    """Predicts each next token of a text: decoder layers without a memory.

    Example:

    >>> import numpy as np
    >>> config = TransformerConfig.preset("modern", vocab_size=100)
    >>> model = LanguageModel(config)
    >>> tuple(model(np.array([[2, 5, 7], [2, 9, 0]])).shape)
    (2, 3, 100)
    >>> [len(row) for row in model.generate([[5, 7], []], max_new_tokens=3)]
    [5, 3]

    It is a functional model with named parts: `embedding`, which also projects
    to the logits (section 3.4), and `decoder_layers`, each an `EncoderLayer`
    under a causal mask. `fit` trains it:

        model = LanguageModel(config, tokenizer=tokenizer)
        model.compile("adam", LabelSmoothedCrossEntropy(label_smoothing=0.0))
        model.fit(*model.inputs_and_targets(texts))
        model.generate(["Once upon a time"])

    Args:
        config: a `TransformerConfig` of one vocabulary and one stack of
            `num_layers` layers.
        tokenizer: layer that makes ids of strings, an
            `inference.TextTokenizer`, which a `.keras` file then contains.
            Defaults to `None`: texts are ids.
        seed: seed of the dropout; each layer derives its own.

    Call arguments:
        inputs: integer ids `(B, T)`, padded with 0. A text begins with the
            start token.

    Returns:
        logits `(B, T, V)` of the next tokens, float32 in every policy but
        float64.

    Raises:
        ValueError: if the config has a source of its own, or the tokenizer
            another number of pieces.
    """

    def __init__(
        self,
        config: TransformerConfig,
        tokenizer: keras.layers.Layer | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        seeds = self._begin(config, seed, tokenizer)
        dtype = kwargs.pop("dtype", None)

        # === Layers ===
        self.embedding = PositionalEmbedding(
            config.vocab_size,
            seed=next(seeds),
            name="embedding",
            tie_projection=config.tie_projection,
            use_logits_bias=config.use_logits_bias,
            **embedding_arguments(config, dtype),
        )
        self.decoder_layers = [
            EncoderLayer(
                name=f"decoder_{i}",
                seed=next(seeds),
                **layer_arguments(config, dtype),
            )
            for i in range(config.num_layers)
        ]
        self.decoder_norm = self._final_norm("decoder_norm", dtype)

        # === Functional model ===
        ids = keras.Input((None,), dtype="int32", name="ids")
        mask = padding_mask(ids, PAD)
        x = self.embedding(ids)
        for layer in self.decoder_layers:
            x = layer(x, mask=mask, use_causal_mask=True)
        super().__init__(inputs=ids, outputs=self._logits(x), **kwargs)
        if dtype is not None:
            self.dtype_policy = dtype

    def _logits(self, x):
        x = x if self.decoder_norm is None else self.decoder_norm(x)
        return self.embedding(x, reverse=True)  # [B, T, V]

    def inputs_and_targets(
        self, texts: Sequence[Any]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns what `fit` takes: ids `(B, T)` from the start token on, and
        those that follow them, padded with 0.

        Args:
            texts: strings, or without a tokenizer rows of ids.
        """
        rows = [[*row, END] for row in self._ids(texts)]
        targets = _padded(rows)
        starts = np.full((len(rows), 1), START)
        inputs = np.concatenate([starts, targets[:, :-1]], axis=1)
        # An end token has no next one.
        return np.where(inputs == END, PAD, inputs).astype("int32"), targets

    def _ids(self, texts):
        """Returns rows of ids without start and end tokens."""
        if self.tokenizer is not None:
            texts = ops.convert_to_numpy(self.tokenizer(list(texts)))
        rows = [[int(i) for i in row if i != PAD] for row in texts]
        return [row[:-1] if row and row[-1] == END else row for row in rows]

    def empty_cache(
        self, batch_size: int | KerasTensor, length: int | KerasTensor
    ) -> list[Cache]:
        """Returns a cache of every layer's keys and values."""
        return [
            layer.empty_cache(batch_size, length)
            for layer in self.decoder_layers
        ]

    def decode_step(
        self, tokens: KerasTensor, cache: list[Cache], index: int | KerasTensor
    ) -> tuple[KerasTensor, list[Cache]]:
        """Runs one step, or several at once.

        Args:
            tokens: ids `(B,)` at position `index`, or `(B, T)` from there on.
            cache: see `empty_cache`.
            index: the position, a scalar, or `(B,)` for rows that differ.

        Returns:
            float32 logits `(B, V)` of the next token, or `(B, T, V)`, and the
            new cache.
        """
        is_single = len(tokens.shape) == 1
        ids = tokens[:, None] if is_single else tokens
        x = self.embedding(ids, offset=index, training=False)
        new_cache = []
        for layer, own in zip(self.decoder_layers, cache, strict=True):
            x, own = layer(x, cache=own, cache_index=index, training=False)
            new_cache.append(own)
        logits = self._logits(x)
        return ops.squeeze(logits, 1) if is_single else logits, new_cache

    def generate(
        self,
        prompts: Sequence[Any],
        max_new_tokens: int = 50,
        beam_size: int = 1,
        alpha: float = 0.6,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> list[Any]:
        """Continues prompts: by greedy search, beam search or sampling.

        Args:
            prompts: strings, or without a tokenizer rows of ids. An empty one
                lets the model begin.
            max_new_tokens: number of tokens after which a text ends that has
                not yet.
            beam_size: number of hypotheses; with more than 1 it is beam search.
                Defaults to 1, greedy search.
            alpha: exponent of the length penalty of beam search.
            temperature: above 0, each token is drawn, see `sample`. Defaults to
                0, the most probable token.
            top_k, top_p: as in `sample`, with a temperature.
            seed: seed of the drawn tokens.

        Returns:
            For each prompt the whole text, or its ids without an end token.
            Padding, unknown and start tokens are never generated.

        Raises:
            ValueError: if beams are to be drawn, if an argument is out of
                range, or if learned positions do not suffice.
        """
        search: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "beam_size": beam_size,
            "alpha": alpha,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        rows = self._ids(prompts)
        if not rows:
            return []
        lengths = np.array([len(row) for row in rows], "int32")
        self.check_generation(max(lengths), **search)
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        found, _ = self._compiled(
            self._values_on_jax(),
            _padded([[START, *row] for row in rows], READ_AT_ONCE),
            lengths,
            np.array([seed, 0], "uint32"),
            read=_power_of_two(min(lengths)),
            **search,
        )
        texts = []
        for row, ids in zip(rows, ops.convert_to_numpy(found), strict=True):
            new = ids[len(row) :].tolist()
            texts.append([*row, *new[: new.index(END)]])
        return texts if self.tokenizer is None else self.tokenizer.decode(texts)

    def continue_prompts(
        self,
        ids: KerasTensor,
        lengths: KerasTensor,
        seed: KerasTensor | None = None,
        read: int = 0,
        max_new_tokens: int = 50,
        beam_size: int = 1,
        alpha: float = 0.6,
        temperature: float = 0.0,
        **choice: Any,
    ) -> tuple[KerasTensor, KerasTensor]:
        """Does what `generate` does, as operations of the backend.

        Args:
            ids: int32 `(B, 1 + P)`, prompts after the start token, padded.
            lengths: int32 `(B,)`, the length of each prompt.
            seed: two numbers, if tokens are drawn.
            read: number of tokens that are read at once, at most the smallest
                length; all others of the prompts are read one by one.
            **choice: `top_k` and `top_p`.

        Returns:
            ids `(B, L)`, prompts and new tokens with an end token, and float32
            scores `(B,)` of the tokens that were not read at once.
        """
        ids, lengths = map(ops.convert_to_tensor, (ids, lengths))
        batch, width = ops.shape(ids)
        beams = ops.repeat(ids, beam_size, axis=0)  # [B·K, 1 + P]
        layers = self.empty_cache(batch * beam_size, width + max_new_tokens)
        if read:
            _, layers = self.decode_step(beams[:, :read], layers, 0)
        has_no_text = ops.arange(self.config.vocab_size, dtype="int32") < END

        def step(tokens, cache, index):
            # The search begins with the last token that was not read.
            tokens = ops.where(ops.equal(index, 0), cache["last"], tokens)
            logits, layers = self.decode_step(
                tokens, cache["layers"], index + read
            )
            logits = ops.where(has_no_text, -np.inf, logits)
            return logits, {**cache, "layers": layers}

        positions = ops.arange(width - 1 - read, dtype="int32")
        is_prompt = positions < lengths[:, None] - read
        arguments = (
            step,
            {"layers": layers, "last": beams[:, read]},
            lengths - read + max_new_tokens + 1,
        )
        options: dict[str, Any] = {
            "prefix": ops.where(is_prompt, ids[:, 1 + read :], -1),
            "longest": width - read + max_new_tokens,
        }
        if temperature:
            drawn = {"seed": _SeedOfTensor(seed), **choice, **options}
            found, scores = sample(*arguments, temperature, **drawn)
        elif beam_size == 1:
            found, scores = greedy_search(*arguments, **options)
        else:
            found, scores = beam_search(*arguments, beam_size, alpha, **options)
            found, scores = found[:, 0], scores[:, 0]
        return ops.concatenate([ids[:, 1 : 1 + read], found], axis=1), scores

    @functools.cached_property
    def _compiled(self):
        """`continue_prompts`, as the backend compiles it."""

        def run(values, ids, lengths, seed, **static):
            state = list(zip(self.variables, values, strict=False))
            with keras.StatelessScope(state):
                return self.continue_prompts(ids, lengths, seed, **static)

        backend = keras.backend.backend()
        if backend == "tensorflow":
            import tensorflow as tf

            return tf.function(run, autograph=False, reduce_retracing=True)
        if backend == "jax":
            import jax

            return jax.jit(run, static_argnames=COMPILED_FOR)
        return run

    def _values_on_jax(self):
        """Returns the variables' values, which a program of JAX is given."""
        is_jax = keras.backend.backend() == "jax"
        return [v.value for v in self.variables] if is_jax else []

    def check_generation(
        self,
        prompt_length: int,
        max_new_tokens: int,
        beam_size: int = 1,
        temperature: float = 0.0,
        **others: Any,
    ) -> None:
        """Checks arguments of `generate`, for prompts of at most so many
        tokens.

        Raises:
            ValueError: if they do not go together, or if learned positions do
                not suffice.
        """
        checked_integer("max_new_tokens", max_new_tokens)
        checked_integer("beam_size", beam_size)
        if not temperature >= 0 or (temperature and beam_size > 1):
            raise ValueError(
                "`temperature` must be at least 0, and 0 with several beams. "
                f"Received: temperature={temperature}, beam_size={beam_size}."
            )
        for name in ("top_k", "top_p"):
            if not temperature and others.get(name) is not None:
                raise ValueError(
                    f"`{name}` needs a `temperature` above 0. Received: "
                    f"{name}={others[name]}, temperature={temperature}."
                )
        most = self.config.max_length or 0
        length = 1 + prompt_length + max_new_tokens
        if self.config.positions == "learned" and length > most:
            raise ValueError(
                "A prompt and its continuation must have learned positions. "
                f"Received: max_length={most} for the start token, a prompt of "
                f"{prompt_length}, max_new_tokens={max_new_tokens}."
            )


class _SeedOfTensor(keras.random.SeedGenerator):
    """Gives Keras a seed that is only known when the program runs."""

    def __init__(self, seed: KerasTensor):
        self._seed = seed

    def next(self, ordered: bool = True) -> KerasTensor:
        return self._seed


def _padded(rows, multiple=1):
    """Returns rows of ids as an int32 array, padded to a multiple of so many
    columns."""
    width = -(-max(map(len, rows), default=0) // multiple) * multiple
    ids = np.full((len(rows), width), PAD, "int32")
    for to, row in zip(ids, rows, strict=True):
        to[: len(row)] = row
    return ids


def _power_of_two(length):
    """Returns the largest power of two up to a length, 0 for a short one: a
    program is compiled for each."""
    return 1 << int(length).bit_length() - 1 if length >= READ_AT_ONCE else 0
