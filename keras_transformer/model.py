"""The Transformer: figure 1 of the paper as a functional Keras model.

Shapes: B batch, T target length, S source length, D d_model, V vocabulary,
F features of a source vector.
"""

import itertools
from typing import Any

import keras
from keras import KerasTensor, ops

from keras_transformer.config import LAYER_FIELDS, TransformerConfig
from keras_transformer.ids import PAD
from keras_transformer.layers import (
    DecoderLayer,
    EncoderLayer,
    FeatureEmbedding,
    PositionalEmbedding,
    padding_mask,
)
from keras_transformer.layers.arguments import (
    Cache,
    frozen_parts,
    mixed_seed,
)
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.validation import check_argument


def position_arguments(
    config: TransformerConfig, dtype: Any = None
) -> dict[str, Any]:
    """Returns the arguments of a layer that embeds, positions included."""
    return {
        "d_model": config.d_model,
        "positions": config.positions,
        "max_length": config.max_length,
        "dropout_rate": config.dropout_rate,
        "dtype": dtype,
    }


def embedding_arguments(
    config: TransformerConfig, dtype: Any = None
) -> dict[str, Any]:
    """Returns the arguments of a `PositionalEmbedding` of ids."""
    return {
        **position_arguments(config, dtype),
        "scale_embeddings": config.scale_embeddings,
        "mask_zero": False,  # masks are explicit
    }


def layer_arguments(
    config: TransformerConfig, dtype: Any = None
) -> dict[str, Any]:
    """Returns the arguments of an `EncoderLayer` or a `DecoderLayer`."""
    return {
        **{name: getattr(config, name) for name in LAYER_FIELDS},
        # Not an instance: each layer is to draw a seed of its own.
        "kernel_initializer": {
            "class_name": "VarianceScaling",
            "config": {
                "scale": config.initializer_scale,
                "mode": "fan_avg",
                "distribution": "uniform",
            },
        },
        "dtype": dtype,
    }


class ConfiguredModel(keras.Model):
    """A functional model that a `TransformerConfig` describes.

    A subclass sets its layers as attributes before it calls the constructor.
    """

    config: TransformerConfig
    seed: int | None

    def __setattr__(self, name: str, value: Any) -> None:
        # PyTorch accepts no layer as an attribute before Keras' constructor has
        # run. Keras need not track these: the functional model has its layers.
        if "_layers" in vars(self):
            super().__setattr__(name, value)
        else:
            object.__setattr__(self, name, value)

    def _final_norm(self, name, dtype):
        """Returns the layer at the end of a stack, `None` in post-norm."""
        if not self.config.norm_first:
            return None
        epsilon = self.config.layer_norm_epsilon
        return LayerNormalization(epsilon=epsilon, dtype=dtype, name=name)

    def get_config(self) -> dict:
        # A functional model's own config would not fit our constructor.
        return {
            "config": self.config.to_dict(),
            "seed": self.seed,
            "name": self.name,
            "trainable": self.trainable,
            "frozen": self._frozen_layers(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }

    def _frozen_layers(self):
        """Returns the names of layers that are frozen, and the paths of such
        parts."""
        found = []
        for layer in self.layers:
            if not layer.trainable:
                found.append(layer.name)
            else:
                parts = frozen_parts(layer)
                found += [f"{layer.name}/{path}" for path in parts]
        return found

    @classmethod
    def from_config(
        cls, config: dict, custom_objects: dict | None = None
    ) -> "ConfiguredModel":
        config = dict(config)
        dtype = config.pop("dtype", None)
        if isinstance(dtype, dict):
            dtype = keras.dtype_policies.deserialize(dtype)
        shape = TransformerConfig.from_dict(config.pop("config"))
        frozen = config.pop("frozen", ())
        model = cls(shape, dtype=dtype, **config)
        for path in frozen:
            name, _, part = path.partition("/")
            layer = model.get_layer(name)
            if part:
                layer.freeze_part(part)
            else:
                layer.trainable = False
        return model


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(ConfiguredModel):
    """Builds the encoder and the decoder of figure 1, over one or two
    vocabularies.

    Example:

    >>> import numpy as np
    >>> config = TransformerConfig.preset("tiny", vocab_size=100)
    >>> model = Transformer(config)
    >>> ids = {"source": np.array([[5, 7, 3]]), "target": np.array([[2, 9]])}
    >>> tuple(model(ids).shape)
    (1, 2, 100)

    It is a functional model with named parts: `source_embedding`,
    `encoder_layers`, `target_embedding`, `decoder_layers`. With a shared
    vocabulary (the default) both embeddings and the projection to logits are
    one layer, section 3.4; with two, the target's embedding is the projection.
    Masks are made from the ids and handed to every layer by name.

    With `config.source_features` the source is vectors instead of ids, such as
    frames of speech or patches of an image, and has a mask of its own.

    Args:
        config: a `TransformerConfig`.
        seed: seed of the dropout; each layer derives its own.

    Call arguments:
        inputs: a dictionary of integer ids, padded with 0: `source` `(B, S)`
            and `target` `(B, T)`, the target shifted right (it begins with
            the start token). With `source_features`, `source` is `(B, S, F)`,
            and `source_mask`, boolean `(B, S)`, is True at real vectors.

    Returns:
        logits `(B, T, V)`, float32 in every policy but float64.
    """

    def __init__(
        self, config: TransformerConfig, seed: int | None = None, **kwargs: Any
    ):
        remedy = "Make one by `TransformerConfig(...)`."
        check_argument("config", config, TransformerConfig, remedy)

        # === Layers ===
        self.config = config
        self.seed = seed
        dtype = kwargs.pop("dtype", None)
        seeds = (mixed_seed(seed, site) for site in itertools.count())
        embedding = embedding_arguments(config, dtype)
        layer = layer_arguments(config, dtype)
        shared = config.shared_vocabulary
        self.target_embedding = PositionalEmbedding(
            config.vocab_size,
            seed=next(seeds),
            name="embedding" if shared else "target_embedding",
            tie_projection=config.tie_projection,
            use_logits_bias=config.use_logits_bias,
            **embedding,
        )
        self.source_embedding = self.target_embedding
        if config.source_vocab_size is not None:
            self.source_embedding = PositionalEmbedding(
                config.source_vocab_size,
                seed=next(seeds),
                name="source_embedding",
                **embedding,
            )
        elif config.source_features is not None:
            self.source_embedding = FeatureEmbedding(
                use_bias=config.use_bias,
                seed=next(seeds),
                name="source_embedding",
                **position_arguments(config, dtype),
            )
        self.encoder_layers = [
            EncoderLayer(name=f"encoder_{i}", seed=next(seeds), **layer)
            for i in range(config.encoder_depth)
        ]
        self.encoder_norm = self._final_norm("encoder_norm", dtype)
        self.decoder_layers = [
            DecoderLayer(name=f"decoder_{i}", seed=next(seeds), **layer)
            for i in range(config.decoder_depth)
        ]
        self.decoder_norm = self._final_norm("decoder_norm", dtype)

        # === Functional model ===
        inputs = {
            "source": keras.Input((None,), dtype="int32", name="source"),
            "target": keras.Input((None,), dtype="int32", name="target"),
        }
        if config.source_features is not None:
            inputs["source"] = keras.Input(
                (None, config.source_features), name="source"
            )
            inputs["source_mask"] = keras.Input(
                (None,), dtype="bool", name="source_mask"
            )
        x = self.decoder_output(inputs, training=None)
        logits = self.target_embedding(x, reverse=True)  # [B, T, V]
        super().__init__(inputs=inputs, outputs=logits, **kwargs)
        if dtype is not None:
            self.dtype_policy = dtype

    def encode(
        self,
        source: KerasTensor,
        training: bool | None = False,
        source_mask: KerasTensor | None = None,
    ) -> KerasTensor:
        """Returns the memory `(B, S, D)` of source ids `(B, S)`.

        Vectors `(B, S, F)` come with their mask `(B, S)`; without one, all of
        them are real.
        """
        if source_mask is None and self.config.source_features is None:
            source_mask = padding_mask(source, PAD)
        x = self.source_embedding(source, training=training)
        for layer in self.encoder_layers:
            x = layer(x, mask=source_mask, training=training)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def decoder_output(
        self, inputs: dict[str, KerasTensor], training: bool | None = False
    ) -> KerasTensor:
        """Returns the decoder's output before it is projected to the logits,
        `(B, T, D)`, for `inputs` as in a call of the model."""
        source, target = inputs["source"], inputs["target"]
        source_mask = inputs.get("source_mask")
        if source_mask is None:
            source_mask = padding_mask(source, PAD)  # [B, S]
        memory = self.encode(source, training, source_mask)
        target_mask = padding_mask(target, PAD)  # [B, T]
        x = self.target_embedding(target, training=training)
        for layer in self.decoder_layers:
            x = layer(
                x,
                memory,
                x_mask=target_mask,
                memory_mask=source_mask,
                training=training,
            )
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def project_memory(self, memory: KerasTensor) -> list[Cache]:
        """Returns each decoder layer's keys and values of the memory, for all
        steps."""
        return [layer.project_memory(memory) for layer in self.decoder_layers]

    def empty_cache(
        self, batch_size: int | KerasTensor, length: int | KerasTensor
    ) -> list[Cache]:
        """Returns caches for the target's keys and values in every decoder
        layer."""
        return [
            layer.empty_cache(batch_size, length)
            for layer in self.decoder_layers
        ]

    def decode_step(
        self,
        tokens: KerasTensor,
        cache: list[Cache],
        index: int | KerasTensor,
        memory_cache: list[Cache],
        memory_mask: KerasTensor,
    ) -> tuple[KerasTensor, list[Cache]]:
        """Runs one step of the decoder.

        Args:
            tokens: ids `(B·n,)` at position `index`: n beams to a sentence. Or
                `(B·n, T)`, those from there on.
            cache: see `empty_cache`, for B·n rows.
            index: the position, a scalar, or `(B·n,)` for rows that differ.
            memory_cache: see `project_memory`, for B rows.
            memory_mask: boolean `(B, S)`, True at real source tokens.

        Returns:
            float32 logits `(B·n, V)` of the next token, or `(B·n, T, V)`, and
            the new cache.
        """
        is_single = len(tokens.shape) == 1
        ids = tokens[:, None] if is_single else tokens
        x = self.target_embedding(ids, offset=index, training=False)
        new_cache = []
        for layer, own, memory in zip(
            self.decoder_layers, cache, memory_cache, strict=True
        ):
            x, own = layer(
                x,
                memory_mask=memory_mask,
                cache=own,
                cache_index=index,
                memory_cache=memory,
                training=False,
            )
            new_cache.append(own)
        if self.decoder_norm is not None:
            x = self.decoder_norm(x)
        logits = self.target_embedding(x, reverse=True)  # [B·n, T, V]
        return ops.squeeze(logits, 1) if is_single else logits, new_cache
