"""The recipe of a training run: section 5 of the paper, and departures."""

import dataclasses
import math
import os

from keras_transformer.data.options import CorpusSettings
from keras_transformer.hardware import DTYPE_POLICIES
from keras_transformer.inference.evaluation import BLEU_TOKENIZERS
from keras_transformer.validation import (
    check_at_least,
    check_field,
    option_field,
    shown,
)


@dataclasses.dataclass(frozen=True)
class Recipe(CorpusSettings):
    """Describes how a run is trained: everything but the shape of the model.

    Example:

    >>> recipe = Recipe(corpus="corpus", source="en", target="de", steps=20_000)
    >>> recipe.warmup_steps, recipe.label_smoothing  # defaults
    (4000, 0.1)

    The help of each field is what `keras-transformer train --help` prints. With
    `initial_run`, and no teacher, the defaults of the learning rate are those
    of fine-tuning: low, and soon reached.

    Raises:
        ValueError: if a value is out of range.
    """

    corpus: str = option_field(
        "builtin",
        "builtin, tfds:NAME, a folder with files SPLIT.LANGUAGE, SPLIT.tsv or "
        "SPLIT.parquet, or a folder made by prepare",
    )
    initial_run: str | None = option_field(
        None,
        "run to fine-tune: take its vocabulary and its weights; with fewer "
        "layers, those of the first ones; with more, the others are new",
        metavar="RUN",
    )
    lora_rank: int | None = option_field(
        None,
        "fine-tune by LoRA: for each matrix of attention and feed-forward "
        "network train a product of two matrices of rank N that is added to "
        "it, and nothing else; needs an initial run",
        metavar="N",
    )
    tokens_per_batch: int = option_field(
        4096, "target tokens of a batch; section 5.1 has 25,000"
    )
    warmup_steps: int = option_field(
        None,
        "steps of warm-up, section 5.3 (default: 4000; to fine-tune, 50)",
    )
    learning_rate_scale: float = option_field(
        None,
        "factor on the learning rate of equation 3 (default: 1.0; to fine-"
        "tune, 0.1, and by LoRA 0.5)",
    )
    label_smoothing: float = option_field(
        0.1, "label smoothing, section 5.4", metavar="EPSILON"
    )
    teacher_weight: float = option_field(
        0.0,
        "learn the distributions that teachers predict, with this weight, and "
        "the labels with the rest (word-level distillation, Kim and Rush, "
        "2016); each step also runs their models forward",
        metavar="W",
    )
    teachers: tuple[str, ...] = option_field(
        (),
        "runs whose mean distribution is learned, with --teacher-weight "
        "(default: the initial run)",
        metavar="RUN",
    )
    bpe_dropout: float = option_field(
        0.0,
        "probability of leaving out a merge, so that each epoch has other word "
        "pieces; for languages that write spaces",
        metavar="P",
    )
    global_clipnorm: float | None = option_field(
        None, "clip the norm of the gradient", metavar="NORM"
    )
    gradient_accumulation_steps: int = option_field(
        1, "parts of a batch, computed one after the other to save memory"
    )
    dtype_policy: str = option_field(
        "auto",
        "dtype to compute in; weights stay float32; auto is mixed_bfloat16 "
        "where the processor or GPU multiplies in bfloat16, else float32",
        choices=DTYPE_POLICIES,
    )
    bleu_tokenizer: str = option_field(
        "13a",
        f"sacreBLEU's tokenizer for validation: {', '.join(BLEU_TOKENIZERS)}; "
        "none is for tokenised text",
        metavar="NAME",
    )
    steps: int = option_field(100_000, "updates of the weights")
    validate_every: int = option_field(
        1000, "steps between validations; each saves a checkpoint"
    )
    save_every_minutes: float | None = option_field(
        None,
        "also save a checkpoint every MINUTES, which the next one replaces",
        metavar="MINUTES",
    )
    patience: int | None = option_field(
        None,
        "stop after N validations without a better BLEU; those before the "
        "first above 0 do not count",
    )
    keep_checkpoints: int = option_field(
        5,
        "number of newest checkpoints to keep, and never fewer than to "
        "average; the best one is kept besides",
    )
    average_checkpoints: int = option_field(
        5,
        "number of newest checkpoints in the average that is a candidate for "
        "the final weights, section 6.1",
    )

    def __post_init__(self):
        for name in ("corpus", "initial_run", "data_dir"):
            value = getattr(self, name)
            if isinstance(value, os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
        if not isinstance(self.corpus, str):
            raise ValueError(
                "The corpus of a recipe is a name or a path, as a string. "
                f"Received: a {type(self.corpus).__name__}. Prepare rows of "
                "Python first, by `prepare(rows, folder)`."
            )
        for name, value in self._rates().items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()
        check_field(
            self, "label_smoothing", 0 <= self.label_smoothing < 1, "in [0, 1)"
        )
        check_field(self, "bpe_dropout", 0 <= self.bpe_dropout < 1, "in [0, 1)")
        check_field(
            self,
            "learning_rate_scale",
            0 < self.learning_rate_scale < math.inf,
            "positive and finite",
        )
        check_field(
            self,
            "dtype_policy",
            self.dtype_policy in DTYPE_POLICIES,
            f"one of {', '.join(DTYPE_POLICIES)}",
        )
        check_field(
            self,
            "bleu_tokenizer",
            self.bleu_tokenizer in BLEU_TOKENIZERS,
            f"one of {', '.join(BLEU_TOKENIZERS)}",
        )
        check_field(
            self, "teacher_weight", 0 <= self.teacher_weight <= 1, "in [0, 1]"
        )
        if self.teachers and not self.teacher_weight:
            raise ValueError(
                "Teachers need a weight. Received: teachers="
                f"{shown(self.teachers)}, teacher_weight=0. Give both, such as "
                "a weight of 0.5, or none."
            )
        names = (
            ["lora_rank"] if self.teachers else ["lora_rank", "teacher_weight"]
        )
        for name in names:
            value = getattr(self, name)
            if value and self.initial_run is None:
                raise ValueError(
                    f"With `{name}` a run needs the weights of another one. "
                    f"Received: {name}={value}, initial_run=None. Name that "
                    f"run as `initial_run`, or leave out `{name}`."
                )
        for name in ("global_clipnorm", "patience", "save_every_minutes"):
            value = getattr(self, name)
            holds = value is None or 0 < value < math.inf
            check_field(self, name, holds, "positive and finite")
        check_at_least(
            self,
            lora_rank=1,
            tokens_per_batch=1,
            warmup_steps=1,
            steps=1,
            validate_every=1,
            gradient_accumulation_steps=1,
            keep_checkpoints=1,
            average_checkpoints=1,
        )

    def _rates(self):
        """Returns the defaults of the learning rate."""
        if self.initial_run is None or self.teacher_weight:
            return {"warmup_steps": 4000, "learning_rate_scale": 1.0}
        scale = 0.5 if self.lora_rank else 0.1
        return {"warmup_steps": 50, "learning_rate_scale": scale}
