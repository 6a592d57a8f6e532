"""The SavedModel: text in, text out, for TensorFlow Serving and for Python.

    serving_default(text: string[B])
        -> {"translation": string[B], "score": float32[B],
            "incomplete": bool[B]}
    n_best(text: string[B], beam_size: int32[], alpha: float32[],
           max_length: int32[])
        -> {"translation": string[B, K], "score": float32[B, K],
            "incomplete": bool[B, K]}
    control(text: string[B], target_prefix: string[B], terms: string[B],
            avoid: string[B], …)
        as `n_best`, of translations that begin in a given way, that have some
        terms and avoid others, both in lines; further inputs are
        min_length: int32[], no_repeat_ngram_size: int32[] and
        repetition_penalty: float32[]. Also gives `unmet: string[B, K]`, the
        terms that a translation lacks or should not have, in lines. Only if it
        was asked for.
    score(text: string[B], translation: string[B])
        -> {"score": float32[B], "pieces": int32[B], "alignment": string[B]}
    explain(text: string[B])
        -> {"translation": string[B], "score": float32[B],
            "incomplete": bool[B],
            "source_pieces": string[B, S], "target_pieces": string[B, T],
            "log_probs": float32[B, T], "mean_log_prob": float32[B],
            "alignment": string[B],
            "attention": float32[B, N, H, T, S],
            "encoder_attention": float32[B, N, H, S, S]}

All of them also give `truncated: bool[B]`, whether a text was too long and was
cut. `incomplete` is whether a translation reached its maximum length. A server
has defaults for all inputs of `n_best` but `text`. Of a model whose vocabulary
has tags such as `>>de<<`, it has one more input, `target_language: string[]`,
such as "de"; its default is "": texts have their tags. What the signature
promises, for every string: see `Translator`. To load it needs `tensorflow` and,
for the tokenizer's operations, `import tensorflow_text`; nothing of this
package.
"""

import inspect
import json
import os
import pathlib
import re
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the tokenizer's operations

from keras_transformer import hardware
from keras_transformer.atomic_files import folder_aside
from keras_transformer.export import tensorflow_serving as serving
from keras_transformer.export.description import description
from keras_transformer.export.files import (
    METADATA,
    check_readable,
    write_sums,
)
from keras_transformer.inference.blockwise import BlockwiseDecoding
from keras_transformer.inference.int8_weights import Int8Initializer
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.inference.shortlist import Shortlist, ShortlistDecoding
from keras_transformer.inference.translator import Translator, best_of
from keras_transformer.training.draft_head import train_draft_head
from keras_transformer.training.model_card import MODEL_CARD, write_model_card
from keras_transformer.training.models import digest, load_model
from keras_transformer.training.run import Run
from keras_transformer.training.run_data import (
    load_training_pairs,
    without_bpe_dropout,
)
from keras_transformer.training.run_translators import decoding_of
from keras_transformer.validation import check_argument, checked_integer


def export(
    run: Run,
    path: str | os.PathLike,
    settings: SearchSettings | None = None,
    dtype: str = "auto",
    shortlist: int | None = None,
    draft_tokens: int | None = None,
    ensemble: Sequence[Run] = (),
    control: bool = False,
) -> pathlib.Path:
    """Exports a run's chosen weights to `NAME/VERSION`.

    The folder is written aside and renamed: a server that watches `NAME` never
    sees half of it.

    Example:

    >>> from keras_transformer.training import open_run
    >>> path = export(open_run("runs/demo"), "saved_models/demo/1")
    >>> (path / "saved_model.pb").exists()
    True

    Args:
        run: an open `Run` with at least one checkpoint.
        path: the new folder; its last part is an integer, as servers want it.
        settings: settings of the search. Defaults to the run's: the paper's, or
            those of the model that was imported or fine-tuned.
        dtype: dtype of the matrices: "float32"; "bfloat16", which is smaller,
            and faster on processors that have instructions for it; or "int8",
            which is smaller still, and multiplied in float32. Defaults to
            "auto": "bfloat16" if this machine multiplies matrices in it, else
            "float32".
        shortlist: number of likely target pieces for each source piece, to
            which the search is limited, see `Shortlist`. They are learned from
            the run's training pairs. Defaults to `None`: the search knows all
            pieces.
        draft_tokens: number of tokens that greedy search drafts and checks at
            a step, besides the one that it finds, see `blockwise_search`. A
            draft head is trained first, which can take as long as some
            thousand steps of training, see `train_draft_head`. Defaults to
            `None`: no drafts.
        ensemble: other runs of the same vocabularies. The export translates
            with the mean of all models' probabilities, see
            `EnsembleDecoding`. Defaults to none.
        control: whether the export has the signature `control`, too. Defaults
            to False, as it takes as much space as all others.

    Returns:
        The path of the new folder.

    Raises:
        ValueError: if the path exists or is not of the form `NAME/VERSION`, if
            the dtype is another one, if a run has no intact checkpoint, if a
            shortlist or a draft head is to be trained and there are no training
            pairs, if there are draft tokens and the search is not greedy, if
            two of shortlist, draft tokens and ensemble are given, or control
            with one of the first two, if the runs
            of an ensemble have other vocabularies, or if the graph has an
            operation that servers do not know.
    """
    remedy = (
        "Open the folder of a run by `open_run`, or make one of a model by "
    )
    check_argument("run", run, Run, f"{remedy}`run_of_model`.")
    if settings is not None:
        remedy = "Make them by `SearchSettings(...)`."
        check_argument("settings", settings, SearchSettings, remedy)
    for argument, value in (
        ("shortlist", shortlist),
        ("draft_tokens", draft_tokens),
    ):
        if value is not None:
            checked_integer(argument, value)
    path = pathlib.Path(path)
    name = checked_name(path)
    if dtype not in hardware.DTYPES:
        raise ValueError(
            f"`dtype` must be one of {', '.join(hardware.DTYPES)}. "
            f"Received: dtype={dtype!r}"
        )
    dtype = hardware.resolve_dtype(dtype)
    settings = settings or run.search
    if control and (shortlist is not None or draft_tokens is not None):
        raise ValueError(
            "A signature for control needs a search among all pieces, one by "
            f"one. Received: control=True, shortlist={shortlist}, "
            f"draft_tokens={draft_tokens}. Leave one of them out."
        )
    decoding = _decoding(run, settings, shortlist, draft_tokens, ensemble)
    model = load_model(run)
    translator = Translator(
        model, run.source_tokenizer, run.target_tokenizer, settings, decoding
    )
    with folder_aside(path) as aside:
        write(translator, aside, dtype, control)
        serving.check_operations(aside)
        metadata = description(
            run, model, settings, dtype, models=1 + len(ensemble)
        )
        metadata |= {
            "ensemble": [digest(x) for x in getattr(decoding, "others", ())],
            "shortlist": shortlist,
            "draft_tokens": draft_tokens,
            "control": control,
        }
        (aside / METADATA).write_text(json.dumps(metadata, indent=2) + "\n")
        serving.write_extras(
            aside,
            name,
            path.name,
            metadata,
            _some_text(run.source_tokenizer),
        )
        write_model_card(run, aside / MODEL_CARD, 1 + len(ensemble))
        write_sums(aside)
    return path


def checked_name(path: pathlib.Path) -> str:
    """Returns NAME of a new folder `NAME/VERSION`, which servers accept."""
    is_number = re.fullmatch(r"0|[1-9][0-9]*", path.name)
    if not is_number or int(path.name) >= 2**63:
        raise ValueError(
            "A SavedModel's folder ends in a version number, which servers "
            "look for, without leading zeros and less than 2⁶³. Received: "
            f"{str(path)!r}. Try {str(path / '1')!r}."
        )
    check_readable(path)
    name = path.resolve().parent.name
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ValueError(
            "A model's name, the folder of its versions, is made of letters, "
            f"digits and `_.-`, as servers want it. Received: {name!r} in "
            f"{str(path)!r}. Choose another."
        )
    if path.exists():
        raise ValueError(
            "A published version is not overwritten. Received: "
            f"{str(path)!r}, which exists. Choose the next number."
        )
    return name


def _decoding(run, settings, shortlist, draft_tokens, ensemble):
    """Returns the `Decoding` of an export, whose parts are trained if needed.

    Args:
        run, settings, shortlist, draft_tokens, ensemble: as for `export`.
    """
    if draft_tokens is not None and settings.beam_size != 1:
        raise ValueError(
            "Drafts are for greedy search. Received: draft_tokens="
            f"{draft_tokens}, beam_size={settings.beam_size}. Choose "
            "beam_size=1, or no draft tokens."
        )
    if draft_tokens is not None and settings.rules:
        raise ValueError(
            "Drafts are not checked for repetition, nor for a least length. "
            f"Received: draft_tokens={draft_tokens}, {settings.rules}. Leave "
            "one of them out."
        )
    given = {
        "draft_tokens": draft_tokens,
        "shortlist": shortlist,
        "ensemble": [str(other.folder) for other in ensemble] or None,
    }
    given = {name: x for name, x in given.items() if x is not None}
    if len(given) > 1:
        found = ", ".join(f"{name}={x}" for name, x in given.items())
        raise ValueError(
            "Drafts, shortlists and ensembles do not go together. Received: "
            f"{found}. Choose one."
        )
    if shortlist is not None:
        return ShortlistDecoding(learn_shortlist(run, shortlist))
    if draft_tokens is not None:
        return BlockwiseDecoding(train_draft_head(run, draft_tokens))
    return decoding_of(run, ensemble)


def learn_shortlist(run: Run, size: int) -> Shortlist:
    """Returns a `Shortlist` learned from a run's training pairs."""
    return Shortlist.learn(
        load_training_pairs(without_bpe_dropout(run)),
        run.source_tokenizer.vocab_size,
        run.target_tokenizer.vocab_size,
        size,
    )


def write(
    translator: Translator,
    path: str | os.PathLike,
    dtype: str = "float32",
    control: bool = False,
):
    """Writes a translator as a SavedModel with the signatures above."""
    fixed = translator.fixed(dtype)
    fixed.share_passes()
    module = tf.Module()
    module.weights = fixed.weights
    if dtype == "int8":
        module.initializer = Int8Initializer(fixed.weights)
    text = tf.TensorSpec([None], tf.string, name="text")
    translation = tf.TensorSpec([None], tf.string, name="translation")
    settings = translator.settings
    defaults = {
        "beam_size": tf.constant(settings.beam_size),
        "alpha": tf.constant(float(settings.alpha)),
        "max_length": tf.constant(translator.max_length),
    }

    if translator.source_tokenizer.tags:
        defaults["target_language"] = tf.constant("")
    n_best_function = _with_defaults(fixed.n_best, [text], defaults)

    def serving_default(text):
        """Calls `n_best`, so that the search is in the graph once for both."""
        return best_of(n_best_function(text, **defaults))

    # Greedy search has a faster graph of its own.
    is_greedy = settings.beam_size == 1
    functions = {
        "serving_default": (
            fixed.translate if is_greedy else serving_default,
            [text],
        ),
        "score": (fixed.score, [text, translation]),
        "explain": (fixed.explain, [text]),
    }
    signatures = {
        name: tf.function(function, input_signature=inputs, autograph=False)
        for name, (function, inputs) in functions.items()
    }
    signatures["n_best"] = n_best_function
    if control:
        lines = [
            tf.TensorSpec([None], tf.string, name=name)
            for name in ("target_prefix", "terms", "avoid")
        ]
        language = {"target_language"} & defaults.keys()
        penalty = float(settings.repetition_penalty)
        rules = {
            "min_length": tf.constant(settings.min_length),
            "no_repeat_ngram_size": tf.constant(settings.no_repeat_ngram_size),
            "repetition_penalty": tf.constant(penalty),
        }
        controls = {**defaults, **rules}
        for name in language:  # the last input, as for `n_best`
            controls[name] = controls.pop(name)

        def controlled(text, target_prefix, terms, avoid, *values):
            given = dict(zip(controls, values, strict=True))
            return fixed.control(
                text, target_prefix, **given, terms=terms, avoid=avoid
            )

        signatures["control"] = _with_defaults(
            controlled, [text, *lines], controls
        )
    tf.saved_model.save(module, str(path), signatures=signatures)


def _with_defaults(method, inputs, defaults):
    """Returns a TensorFlow function of a method's first arguments, in order,
    whose defaults are those of servers."""

    def function(*values):
        return method(*values)

    options = [
        tf.TensorSpec([], value.dtype, name=name)
        for name, value in defaults.items()
    ]
    # TensorFlow takes names and defaults of the inputs from here.
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                spec.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=defaults.get(spec.name, inspect.Parameter.empty),
            )
            for spec in [*inputs, *options]
        ]
    )
    return tf.function(
        function, input_signature=[*inputs, *options], autograph=False
    )


def _some_text(tokenizer):
    """Returns a short line and a long one, of the vocabulary's middle."""
    middle = tokenizer.vocab_size // 2
    ids = [list(range(middle, middle + count)) for count in (5, 31)]
    return tokenizer.decode(ids)
