"""The recipe of a training run: section 5 of the paper, and departures."""

import dataclasses

from keras_transformer.processor import DTYPE_POLICIES

BLEU_TOKENIZERS = ("13a", "none", "intl", "char", "zh")  # of sacreBLEU


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What is learned from, and how: all but the shape of the model.

    Raises:
        ValueError: if a value cannot be.
    """

    corpus: str = "builtin"  # see `keras_transformer.data.corpus`
    source: str = "en"
    target: str = "de"
    train_split: str = "train"
    validation_split: str = "validation"
    test_split: str | None = None  # scored at the end of training
    data_dir: str | None = None  # of TensorFlow Datasets
    vocab_size: int = 8000  # word pieces; §5.1 has 37,000 for WMT14
    shared_vocabulary: bool = True  # §3.4 and §5.1
    initial_run: str | None = None  # whose vocabulary and weights to begin with
    max_length: int = 256  # longer pairs are left out; in word pieces
    tokens_per_batch: int = 4096  # a side; §5.1 has 25,000
    warmup_steps: int = 4000  # §5.3
    learning_rate_scale: float = 1.0  # on equation 3; not in the paper
    label_smoothing: float = 0.1  # §5.4
    r_drop: float = 0.0  # α of R-Drop; not in the paper
    bpe_dropout: float = 0.0  # of merges, in training; not in the paper
    global_clipnorm: float | None = None  # of the gradient; not in the paper
    gradient_accumulation_steps: int = 1  # parts of a batch, for less memory
    dtype_policy: str = "auto"  # see `processor.resolve_dtype_policy`
    bleu_tokenizer: str = "13a"  # sacreBLEU's; "none" for text in tokens
    steps: int = 100_000  # updates; §5.2, of base
    validate_every: int = 1000  # steps; a checkpoint is saved then, too
    save_every_minutes: float | None = None  # between validations, too
    patience: int | None = None  # validations without a better BLEU
    keep_checkpoints: int = 5
    average_checkpoints: int = 5  # §6.1; the last ones, at the end
    seed: int = 1

    def __post_init__(self):
        self._check(
            "label_smoothing", 0 <= self.label_smoothing < 1, "in [0, 1)"
        )
        self._check("r_drop", self.r_drop >= 0, "at least 0")
        self._check("bpe_dropout", 0 <= self.bpe_dropout < 1, "in [0, 1)")
        self._check(
            "learning_rate_scale", self.learning_rate_scale > 0, "positive"
        )
        self._check("seed", 0 <= self.seed < 2**32, "in [0, 2³²)")
        self._check(
            "dtype_policy",
            self.dtype_policy in DTYPE_POLICIES,
            f"one of {', '.join(DTYPE_POLICIES)}",
        )
        self._check(
            "bleu_tokenizer",
            self.bleu_tokenizer in BLEU_TOKENIZERS,
            f"one of {', '.join(BLEU_TOKENIZERS)}",
        )
        for name in ("global_clipnorm", "patience", "save_every_minutes"):
            value = getattr(self, name)
            self._check(name, value is None or value > 0, "positive")
        for name in (
            "vocab_size",
            "max_length",
            "tokens_per_batch",
            "warmup_steps",
            "steps",
            "validate_every",
            "gradient_accumulation_steps",
            "keep_checkpoints",
            "average_checkpoints",
        ):
            self._check(name, getattr(self, name) >= 1, "at least 1")

    def _check(self, name, holds, expected):
        if not holds:
            raise ValueError(
                f"`{name}` must be {expected}. "
                f"Received: {name}={getattr(self, name)}"
            )
