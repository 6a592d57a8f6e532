"""Functional models that a `TransformerConfig` describes, and the arguments
that it gives to their layers."""

import importlib
import itertools
from collections.abc import Iterator
from typing import Any

import keras

from keras_transformer.config import LAYER_FIELDS, TransformerConfig
from keras_transformer.layers.arguments import frozen_parts, mixed_seed
from keras_transformer.layers.normalization import NORMALIZATIONS
from keras_transformer.validation import check_argument, shown

# Fields of a config that describe a source beside a target.
OF_TRANSLATION = (
    "source_vocab_size",
    "source_features",
    "num_encoder_layers",
    "num_decoder_layers",
)


def is_rotary(config: TransformerConfig) -> bool:
    """Returns whether self-attention, not the embedding, has the positions."""
    return config.positions == "rotary"


def position_arguments(
    config: TransformerConfig, dtype: Any = None
) -> dict[str, Any]:
    """Returns the arguments of a layer that embeds, positions included."""
    return {
        "d_model": config.d_model,
        # Rotary ones are in the layers, see `layer_arguments`.
        "positions": None if is_rotary(config) else config.positions,
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
        "positions": config.positions if is_rotary(config) else None,
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
    """A functional model of a `TransformerConfig`.

    `from_config(model.get_config())` copies it without its weights; what
    `keras.models.clone_model` returns has none of its methods.

    The constructor of a subclass calls `_begin` before it makes its layers.

    Attributes:
        config: the `TransformerConfig`.
        seed: seed of the dropout, or `None`.
    """

    config: TransformerConfig
    seed: int | None

    def _begin(
        self, config: TransformerConfig, seed: int | None
    ) -> Iterator[int | None]:
        """Keeps the arguments, and returns a seed for each of the layers."""
        remedy = "Make one by `TransformerConfig(...)`."
        check_argument("config", config, TransformerConfig, remedy)
        self.config = config
        self.seed = seed
        return (mixed_seed(seed, site) for site in itertools.count())

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
        norm = NORMALIZATIONS[self.config.normalization]
        return norm(epsilon=epsilon, dtype=dtype, name=name)

    # === Config ===

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


class TextModel(ConfiguredModel):
    """A `ConfiguredModel` of one stack of layers, with a tokenizer or without.

    Attributes:
        tokenizer: layer that makes ids of strings, or `None`.
    """

    tokenizer: Any

    def _begin(
        self,
        config: TransformerConfig,
        seed: int | None,
        tokenizer: keras.layers.Layer | None = None,
    ) -> Iterator[int | None]:
        seeds = super()._begin(config, seed)
        for name in OF_TRANSLATION:
            if (value := getattr(config, name)) is not None:
                raise ValueError(
                    "The config must have one vocabulary, `vocab_size`, and "
                    "one number of layers, `num_layers`. Received: "
                    f"{name}={value}. Leave it out."
                )
        if tokenizer is not None:
            _check_tokenizer(tokenizer, config)
        self.tokenizer = tokenizer
        return seeds

    def get_config(self) -> dict:
        tokenizer = self.tokenizer
        if tokenizer is not None:
            tokenizer = keras.saving.serialize_keras_object(tokenizer)
        return {**super().get_config(), "tokenizer": tokenizer}

    @classmethod
    def from_config(
        cls, config: dict, custom_objects: dict | None = None
    ) -> "ConfiguredModel":
        tokenizer = config["tokenizer"]
        if tokenizer is not None:
            # Importing a class registers it. Nothing here imports that of the
            # tokenizer before, since models of ids need Keras alone.
            module = str(tokenizer.get("module"))
            if module.startswith("keras_transformer."):
                importlib.import_module(module)
            tokenizer = keras.saving.deserialize_keras_object(tokenizer)
        return super().from_config(config | {"tokenizer": tokenizer})


def _check_tokenizer(tokenizer, config):
    found = [getattr(tokenizer, n, None) for n in ("vocab_size", "max_length")]
    if not isinstance(tokenizer, keras.layers.Layer) or None in found:
        raise ValueError(
            "`tokenizer` must be an `inference.TextTokenizer`. Received: "
            f"tokenizer={shown(tokenizer)}. Make one by `TextTokenizer(...)`."
        )
    is_learned = config.positions == "learned"
    if found[0] != config.vocab_size or (
        is_learned and found[1] > config.max_length
    ):
        raise ValueError(
            "The tokenizer must have the config's `vocab_size`, and with "
            "learned positions at most its `max_length`. Received: "
            f"vocab_size={config.vocab_size} and {found[0]} pieces, "
            f"max_length={config.max_length} and {found[1]}."
        )
