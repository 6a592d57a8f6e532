"""The shape of a Transformer: table 3 of the paper as a frozen dataclass."""

import dataclasses
from typing import Any

from keras_transformer.ids import END
from keras_transformer.validation import (
    check_at_least,
    check_choice,
    check_field,
    check_types,
    option_field,
)

# Fields of a config that are arguments of the layers of encoder and decoder.
LAYER_FIELDS = (
    "d_model",
    "num_heads",
    "d_ff",
    "dropout_rate",
    "attention_dropout_rate",
    "activation_dropout_rate",
    "norm_first",
    "key_dim",
    "value_dim",
    "activation",
    "use_bias",
    "layer_norm_epsilon",
    "sliding_window",
    "num_key_value_heads",
    "normalization",
    "feed_forward",
    "qk_norm",
)

POSITIONS = ("sinusoidal", "sinusoidal_halves", "learned", "rotary", None)
NORMALIZATIONS = ("layer", "rms")
FEED_FORWARDS = ("ffn", "swiglu")


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256},
    "base": {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048},
    "big": {
        "num_layers": 6,
        "d_model": 1024,
        "num_heads": 16,
        "d_ff": 4096,
        "dropout_rate": 0.3,
    },
    # "tiny" with a modern block; as a translator it has as many weights.
    "modern": {
        "num_layers": 4,
        "d_model": 128,
        "num_heads": 4,
        "num_key_value_heads": 2,
        "d_ff": 240,
        "norm_first": True,
        "normalization": "rms",
        "feed_forward": "swiglu",
        "positions": "rotary",
        "use_bias": False,
    },
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Describes a model: the shapes of its weights and its forward pass.

    `keras-transformer train --help` explains the fields that are options of the
    command. The others, such as `activation`, are set in Python:
    `start_run("runs/NAME", "base", recipe, activation="gelu")`.

    Example:

    >>> config = TransformerConfig.preset("base", vocab_size=37000)
    >>> config.num_layers, config.d_model, config.num_heads
    (6, 512, 8)

    Raises:
        ValueError: if a value is out of range, or a preset or field unknown.
    """

    vocab_size: int  # of the target, and of the source when shared
    source_vocab_size: int | None = None  # None: one shared vocabulary, §3.4
    # Number of features of each source vector, where the source is not ids.
    source_features: int | None = None
    num_layers: int = option_field(
        6, "number of layers in the encoder and in the decoder"
    )
    num_encoder_layers: int | None = option_field(
        None, "number of layers in the encoder alone"
    )
    num_decoder_layers: int | None = option_field(
        None, "number of layers in the decoder alone"
    )
    d_model: int = option_field(512, "width of the model")
    num_heads: int = option_field(8, "number of attention heads")
    d_ff: int = option_field(2048, "inner width of the feed-forward network")
    key_dim: int | None = option_field(
        None,
        "width of a head's queries and keys (default: d_model / num_heads)",
    )
    value_dim: int | None = option_field(
        None, "width of a head's values (default: that of its keys)"
    )
    dropout_rate: float = option_field(
        0.1, "dropout of sub-layer outputs and embeddings, section 5.4"
    )
    attention_dropout_rate: float = option_field(
        0.0, "dropout of attention weights; not in the paper"
    )
    activation_dropout_rate: float = option_field(
        0.0, "dropout inside the feed-forward network; not in the paper"
    )
    norm_first: bool = option_field(
        False, "normalise before each sub-layer (pre-norm), not after it"
    )
    sliding_window: int | None = option_field(
        None,
        "self-attention sees this many positions, a position itself and those "
        "next to it on each side, instead of all; section 4",
    )
    num_key_value_heads: int | None = option_field(
        None,
        "number of heads of keys and values, which attention heads share, "
        "instead of one for each; not in the paper",
    )
    normalization: str = option_field(
        "layer",
        "layer normalisation, or rms, by the root mean square alone; not in "
        "the paper",
        choices=NORMALIZATIONS,
    )
    feed_forward: str = option_field(
        "ffn",
        "feed-forward network of section 3.3, or swiglu, which is gated and "
        "has its own activation; not in the paper",
        choices=FEED_FORWARDS,
    )
    qk_norm: bool = option_field(
        False, "normalise queries and keys; not in the paper"
    )
    positions: str | None = option_field(
        "sinusoidal",
        "sinusoidal, section 3.5; sinusoidal_halves, first all sines, then all "
        "cosines; learned, row E of table 3; or rotary, inside self-attention, "
        "not in the paper",
        choices=POSITIONS[:-1],  # in Python also None
    )
    max_length: int | None = None  # number of learned positions
    scale_embeddings: bool = True  # times √d_model, section 3.4
    tie_projection: bool = True  # to the target's embeddings, section 3.4
    use_logits_bias: bool = False  # as in Marian
    activation: str = "relu"
    use_bias: bool = True
    layer_norm_epsilon: float = 1e-6
    initializer_scale: float = option_field(
        1.0,
        "factor on the variance of initial matrices; 1 is Glorot's, 0.5 suits "
        "post-norm with high learning rates",
    )

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(
            self,
            vocab_size=END + 1,
            source_vocab_size=END + 1,
            source_features=1,
            num_layers=1,
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=1,
            num_heads=1,
            d_ff=1,
            key_dim=1,
            value_dim=1,
            max_length=1,
            sliding_window=1,
            num_key_value_heads=1,
        )
        if None not in (self.source_vocab_size, self.source_features):
            raise ValueError(
                "The source is ids or vectors, not both. Received: "
                f"source_vocab_size={self.source_vocab_size}, "
                f"source_features={self.source_features}. Leave one out."
            )
        for field in dataclasses.fields(self):
            if field.name.endswith("dropout_rate"):
                rate = getattr(self, field.name)
                check_field(self, field.name, 0 <= rate < 1, "in [0, 1)")
        for name in ("layer_norm_epsilon", "initializer_scale"):
            check_field(self, name, getattr(self, name) > 0, "positive")
        check_choice("positions", self.positions, POSITIONS)
        check_choice("normalization", self.normalization, NORMALIZATIONS)
        check_choice("feed_forward", self.feed_forward, FEED_FORWARDS)
        if self.positions == "learned" and self.max_length is None:
            raise ValueError(
                "Learned positions need `max_length`, the number of positions "
                "to learn. Received: max_length=None"
            )
        groups = self.num_key_value_heads or self.num_heads
        check_field(
            self,
            "num_key_value_heads",
            self.num_heads % groups == 0,
            f"a divisor of num_heads={self.num_heads}",
        )
        if self.key_dim is None and self.d_model % self.num_heads:
            raise ValueError(
                "`d_model` must be divisible by `num_heads`. Received: "
                f"d_model={self.d_model}, num_heads={self.num_heads}. "
                "Choose another number of heads, or set `key_dim`."
            )
        key_dim = self.key_dim or self.d_model // self.num_heads
        if self.positions == "rotary" and key_dim % 2:
            raise ValueError(
                "Rotary positions rotate pairs of dimensions: `key_dim`, by "
                "default d_model / num_heads, must be even. Received: "
                f"key_dim={key_dim}. Set another `key_dim`."
            )

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> "TransformerConfig":
        """Returns a configuration of the literature.

        Args:
            name: "base" or "big", columns of table 3; "tiny", a small model
                for data sets of about 29,000 sentence pairs; or "modern", of
                the same size with rotary positions, root mean square
                normalisation, a gated feed-forward network and grouped queries.
            overrides: fields to set to other values.

        Raises:
            ValueError: for an unknown preset or field, or a value out of
                range.
        """
        if name not in PRESETS:
            raise ValueError(
                f"Unknown preset. Expected one of {', '.join(PRESETS)}. "
                f"Received: preset={name!r}"
            )
        return cls.from_dict({**PRESETS[name], **overrides})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TransformerConfig":
        """Returns the configuration of a dictionary made by `to_dict`.

        Raises:
            ValueError: for an unknown key.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(
                f"Unknown fields of a Transformer: {', '.join(unknown)}. "
                f"Expected some of {', '.join(sorted(known))}."
            )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a dictionary."""
        return dataclasses.asdict(self)

    @property
    def encoder_depth(self) -> int:
        """Returns the number of layers in the encoder."""
        return self.num_encoder_layers or self.num_layers

    @property
    def decoder_depth(self) -> int:
        """Returns the number of layers in the decoder."""
        return self.num_decoder_layers or self.num_layers

    @property
    def shared_vocabulary(self) -> bool:
        """Returns whether source and target share one vocabulary."""
        return self.source_vocab_size is None and self.source_features is None
