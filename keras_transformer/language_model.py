"""A language model: the decoder of figure 1 without a memory.

Shapes: B batch, T length, P prompt length, L maximum length, D d_model, V
vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops, tree

from keras_transformer.config import TransformerConfig
from keras_transformer.configured_model import (
    TextModel,
    embedding_arguments,
    layer_arguments,
)
from keras_transformer.ids import END, PAD, START, UNKNOWN
from keras_transformer.layers import (
    EncoderLayer,
    PositionalEmbedding,
    padding_mask,
)
from keras_transformer.layers.arguments import Cache
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.next_token import python_number
from keras_transformer.search.sampling import greedy_search, sample
from keras_transformer.validation import checked_integer, shown

# Arguments of `generate` for whose values a program is compiled.
SEARCH = [
    "max_new_tokens",
    "beam_size",
    "alpha",
    "temperature",
    "top_k",
    "top_p",
]
PADDED_TO = 16  # a prompt to a multiple of so many tokens: few shapes


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
    under a causal mask. `fit` trains it::

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
        """Returns what `fit` takes.

        Args:
            texts: strings, or rows of ids. A string of more than the
                tokenizer's `max_length` pieces is cut.

        Returns:
            int32 ids `(B, T)`, texts after the start token, and the ids that
            follow each of them, up to the end token. Both are padded with 0.
        """
        rows, _ = self._rows(texts)
        rows = [[START, *row, END] for row in rows]
        if self.tokenizer is not None:
            rows = [row[: self.tokenizer.max_length + 1] for row in rows]
        return _padded([x[:-1] for x in rows]), _padded([x[1:] for x in rows])

    def _rows(self, texts):
        """Returns rows of ids without start and end token, and whether the
        texts are strings."""
        if ops.is_tensor(texts):
            texts = ops.convert_to_numpy(texts)
        texts = texts if isinstance(texts, str | bytes) else list(texts)
        if not isinstance(next(iter(texts), None), str | bytes):
            return [self._without_special(row) for row in texts], False
        if self.tokenizer is None:
            raise ValueError(
                "A model without a tokenizer takes rows of ids. Received: "
                f"texts={shown(texts)}. Pass a tokenizer to `LanguageModel`."
            )
        rows = self.tokenizer.tokenizer.encode(texts)
        return [row[:-1] for row in rows], True

    def _without_special(self, row):
        size = self.config.vocab_size
        ids = np.asarray(row)
        is_row = ids.ndim == 1 and (ids.dtype.kind in "iu" or not ids.size)
        found = np.trim_zeros(ids).tolist() if is_row else []  # PAD is 0
        found = found[found[:1] == [START] :]
        found = found[: len(found) - (found[-1:] == [END])]
        if not is_row or not all(i == UNKNOWN or END < i < size for i in found):
            raise ValueError(
                "A text must be a row of ids, with a start token at most at "
                "its beginning, an end token at its end, and padding around "
                f"them. Received: {shown(row)} for vocab_size={size}."
            )
        return found

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

        TensorFlow and JAX compile a program for each value of the arguments
        other than prompts and seed, which takes a second or more.

        Args:
            prompts: strings, or rows of ids. An empty one lets the model begin.
            max_new_tokens: largest number of tokens to add. Defaults to 50.
            beam_size: number of hypotheses; with more than 1 it is beam search.
                Defaults to 1, greedy search.
            alpha: exponent of the length penalty of beam search, which counts
                the new tokens and the end token. Defaults to 0.6.
            temperature: above 0, each token is drawn, see `sample`. Defaults to
                0, the most probable token.
            top_k, top_p: as in `sample`, with a temperature.
            seed: seed of the drawn tokens. Defaults to `None`, another each
                time.

        Returns:
            For each prompt the whole text, or its ids without start and end
            token. Padding, unknown and start tokens are never generated.

        Raises:
            ValueError: if a prompt is no text, if beams are to be drawn, if an
                argument is out of range, or if learned positions do not
                suffice.
        """
        rows, are_strings = self._rows(prompts)
        if not rows:
            return []
        search = self.checked_search(
            max(map(len, rows)),
            max_new_tokens,
            beam_size,
            alpha,
            temperature,
            top_k,
            top_p,
        )
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        most = self.config.max_length if self._is_learned() else None
        found, _ = self._program()(
            _padded([[START, *row] for row in rows], PADDED_TO, most),
            np.array([len(row) for row in rows], "int32"),
            np.array([seed % 2**31, 0], "uint32"),
            **search,
        )
        texts = []
        for row, ids in zip(rows, ops.convert_to_numpy(found), strict=True):
            new = ids.tolist()
            texts.append([*row, *new[: new.index(END)]])
        return self.tokenizer.decode(texts) if are_strings else texts

    def continue_prompts(
        self,
        ids: KerasTensor,
        lengths: KerasTensor,
        seed: KerasTensor | None,
        max_new_tokens: int,
        beam_size: int,
        alpha: float,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
    ) -> tuple[KerasTensor, KerasTensor]:
        """Does what `generate` does, as operations of the backend.

        Args:
            ids: int32 `(B, 1 + P)`, prompts after the start token, padded.
            lengths: int32 `(B,)`, the length of each prompt.
            seed: two numbers, if tokens are drawn.

        Returns:
            the new ids `(B, L)` with an end token, and float32 scores `(B,)`.
        """
        ids, lengths = map(ops.convert_to_tensor, (ids, lengths))
        batch, width = ops.shape(ids)
        last = ops.take_along_axis(ids, lengths[:, None], axis=1)[:, 0]
        cache = {
            "layers": self._read_prompts(ids, lengths, width + max_new_tokens),
            "last": last,
            "position": lengths,
        }
        cache = tree.map_structure(
            lambda x: ops.repeat(x, beam_size, axis=0), cache
        )
        has_no_text = ops.arange(self.config.vocab_size, dtype="int32") < END

        def step(tokens, cache, index):
            # A text goes on from the last token of its prompt.
            tokens = ops.where(ops.equal(index, 0), cache["last"], tokens)
            logits, layers = self.decode_step(
                tokens, cache["layers"], cache["position"] + index
            )
            logits = ops.where(has_no_text, -np.inf, logits)
            return logits, {**cache, "layers": layers}

        longest = max_new_tokens + 1  # and the end token
        limits = ops.full((batch,), longest, dtype="int32")
        if temperature:
            return sample(
                step,
                cache,
                limits,
                temperature,
                top_k,
                top_p,
                _SeedOfTensor(seed),
                longest=longest,
            )
        if beam_size == 1:
            return greedy_search(step, cache, limits, longest=longest)
        found, scores = beam_search(
            step, cache, limits, beam_size, alpha, longest=longest
        )
        return found[:, 0], scores[:, 0]

    def _read_prompts(self, ids, lengths, length):
        """Returns a cache of every layer for `length` positions, which has
        those of the prompts before their last token."""
        batch, width = ops.shape(ids)
        window = self.config.sliding_window
        cache = self.empty_cache(batch, length)
        if window is None:
            # What is written at padding is overwritten before it is seen.
            return self.decode_step(ids, cache, 0)[1]
        # The cache of a window ends at the last position that was read. With
        # places for all of them, each row's own end can be taken from it.
        places = ops.shape(cache[0]["key"])[2]
        before = [[0, 0], [0, 0], [width, 0], [0, 0]]
        cache = tree.map_structure(lambda x: ops.pad(x, before), cache)
        _, cache = self.decode_step(ids, cache, 0)
        taken = lengths[:, None] + ops.arange(places, dtype="int32")  # [B, w]
        taken = taken[:, None, :, None]
        return tree.map_structure(
            lambda x: ops.take_along_axis(x, taken, axis=2), cache
        )

    def _program(self):
        """Returns `continue_prompts`, as the backend compiles it."""
        # Quantization and LoRA change the variables.
        made_for, program = vars(self).get("_made", (None, None))
        variables = list(map(id, self.variables))
        if variables != made_for:
            program = self._compiled()
            object.__setattr__(self, "_made", (variables, program))
        return program

    def _compiled(self):
        backend = keras.backend.backend()
        if backend == "tensorflow":
            import tensorflow as tf

            return tf.function(
                self.continue_prompts, autograph=False, reduce_retracing=True
            )
        if backend == "torch":
            import torch

            return torch.no_grad()(self.continue_prompts)
        if backend != "jax":
            return self.continue_prompts
        import jax

        @functools.partial(jax.jit, static_argnames=SEARCH)
        def run(values, *arguments, **search):
            state = list(zip(self.variables, values, strict=True))
            with keras.StatelessScope(state):
                return self.continue_prompts(*arguments, **search)

        return lambda *arguments, **search: run(
            [v.value for v in self.variables], *arguments, **search
        )

    def checked_search(
        self,
        prompt_length: int,
        max_new_tokens: int = 50,
        beam_size: int = 1,
        alpha: float = 0.6,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> dict[str, Any]:
        """Returns arguments of `generate` as numbers of Python, by name.

        Raises:
            ValueError: if they do not go together, or if learned positions do
                not suffice for a prompt of this length.
        """
        max_new_tokens = checked_integer("max_new_tokens", max_new_tokens)
        beam_size = checked_integer("beam_size", beam_size)
        temperature = python_number(temperature)
        if not temperature >= 0 or (temperature and beam_size > 1):
            raise ValueError(
                "`temperature` must be at least 0, and 0 with several beams. "
                f"Received: temperature={temperature}, beam_size={beam_size}."
            )
        if not temperature and (top_k, top_p) != (None, None):
            raise ValueError(
                "`top_k` and `top_p` need a `temperature` above 0. Received: "
                f"top_k={top_k}, top_p={top_p}, temperature={temperature}."
            )
        most = self.config.max_length or 0
        if self._is_learned() and 1 + prompt_length + max_new_tokens > most:
            raise ValueError(
                "A prompt and its continuation must have learned positions. "
                f"Received: max_length={most} for the start token, a prompt of "
                f"{prompt_length}, max_new_tokens={max_new_tokens}."
            )
        values = max_new_tokens, beam_size, alpha, temperature, top_k, top_p
        return dict(zip(SEARCH, map(python_number, values), strict=True))

    def _is_learned(self):
        return self.config.positions == "learned"


class _SeedOfTensor(keras.random.SeedGenerator):
    """Gives Keras a seed that is only known when the program runs."""

    def __init__(self, seed: KerasTensor):
        self._seed = seed

    def next(self, ordered: bool = True) -> KerasTensor:
        return self._seed


def _padded(rows, multiple=1, most=None):
    """Returns rows of ids as an int32 array, padded to a multiple of so many
    columns, but not to more than `most`."""
    width = -(-max(map(len, rows), default=0) // multiple) * multiple
    width = width if most is None else min(width, most)
    if not rows:
        return np.zeros((0, width), "int32")
    return keras.utils.pad_sequences(rows, width, padding="post")
