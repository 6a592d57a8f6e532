"""The SavedModel: text in, text out, for TensorFlow Serving and for Python.

    serving_default(text: string[B])
        -> {"translation": string[B], "score": float32[B]}
    n_best(text: string[B], beam_size: int32[], alpha: float32[],
           max_length: int32[])
        -> {"translation": string[B, K], "score": float32[B, K]}
    score(text: string[B], translation: string[B])
        -> {"score": float32[B], "pieces": int32[B]}
    explain(text: string[B])
        -> {"translation": string[B], "score": float32[B],
            "source_pieces": string[B, S], "target_pieces": string[B, T],
            "attention": float32[B, N, H, T, S]}

All of them also give `truncated: bool[B]`, whether a text was too long and was
cut. A server has defaults for all inputs of `n_best` but `text`. What the
signature promises, for every string: see `Translator`. To load it needs
`tensorflow` and, for the tokenizer's operations, `import tensorflow_text`;
nothing of this package.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the tokenizer's operations

import keras_transformer
from keras_transformer import checkpoints, processor, serving
from keras_transformer.translator import SearchSettings, Translator

ABOUT = "keras_transformer.json"
SUMS = "SHA256SUMS"  # as `sha256sum --check` reads them


def export(
    run, path, settings: SearchSettings | None = None, dtype: str = "auto"
) -> pathlib.Path:
    """Exports a run's chosen weights to `NAME/VERSION`.

    The folder is written aside and renamed: a server that watches `NAME` never
    sees half of it.

    Args:
        run: an open `Run`.
        path: the new folder; its last part is an integer, as servers want it.
        settings: of the search. Defaults to the paper's.
        dtype: of the matrices: "float32" or "bfloat16", which is smaller, and
            faster on processors that have instructions for it. Defaults to
            "auto", see `processor.resolve_dtype`.

    Raises:
        ValueError: if the path exists or is not made as said, the dtype is
            another one, or the graph has an operation that servers do not
            know.
    """
    path = pathlib.Path(path)
    if not re.fullmatch(r"[0-9]+", path.name):
        raise ValueError(
            "A SavedModel's folder ends in a version number, which servers "
            f"look for. Received: {str(path)!r}. "
            f"Try {str(path / '1')!r}."
        )
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
    if dtype not in processor.DTYPES:
        raise ValueError(
            f"`dtype` must be one of {', '.join(processor.DTYPES)}. "
            f"Received: dtype={dtype!r}"
        )
    dtype = processor.resolve_dtype(dtype)
    settings = settings or SearchSettings()
    model = run.load_model()
    translator = Translator(
        model, run.source_tokenizer, run.target_tokenizer, settings
    )
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.parent.mkdir(parents=True, exist_ok=True)
    # Of a process that was killed and had the same number.
    shutil.rmtree(aside, ignore_errors=True)
    try:
        write(translator, aside, dtype)
        serving.check_operations(aside)
        about = {
            "keras_transformer": keras_transformer.__version__,
            "signature": signature(run),
            "weights": digest(model),
            "dtype": dtype,
            "search": dataclasses.asdict(settings),
            "max_pieces": translator.max_pieces,
            "max_length": translator.max_length,
        }
        (aside / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
        serving.write_extras(
            aside,
            name,
            path.name,
            about,
            _some_text(run.source_tokenizer),
        )
        (aside / SUMS).write_text(_sums(aside))
        os.rename(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return path


def write(translator: Translator, path, dtype: str = "float32"):
    """Writes a translator as a SavedModel with the signatures above."""
    fixed = translator.fixed(dtype)
    module = tf.Module()
    module.weights = fixed.weights
    text = tf.TensorSpec([None], tf.string, name="text")
    translation = tf.TensorSpec([None], tf.string, name="translation")
    settings = translator.settings
    defaults = {
        "beam_size": tf.constant(settings.beam_size),
        "alpha": tf.constant(float(settings.alpha)),
        "max_length": tf.constant(translator.max_length),
    }

    # The signature's defaults are those of Python.
    def n_best(
        text,
        beam_size=defaults["beam_size"],
        alpha=defaults["alpha"],
        max_length=defaults["max_length"],
    ):
        return fixed.n_best(text, beam_size, alpha, max_length)

    options = [
        tf.TensorSpec([], value.dtype, name=name)
        for name, value in defaults.items()
    ]
    signatures = {
        "serving_default": (fixed.translate, [text]),
        "n_best": (n_best, [text, *options]),
        "score": (fixed.score, [text, translation]),
        "explain": (fixed.explain, [text]),
    }
    tf.saved_model.save(
        module,
        str(path),
        signatures={
            name: tf.function(function, input_signature=inputs, autograph=False)
            for name, (function, inputs) in signatures.items()
        },
    )


def _sums(folder):
    """A line of checksum and name for each file of an export."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  "
        f"{path.relative_to(folder).as_posix()}\n"
        for path in files
    )


def check_intact(path):
    """Compares the files of an export with its checksums.

    Raises:
        ValueError: if a file is damaged or missing.
    """
    path = pathlib.Path(path)
    for line in (path / SUMS).read_text().splitlines():
        expected, name = line.split("  ", 1)
        file = path / name
        data = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(data).hexdigest() != expected:
            raise ValueError(
                f"{str(file)!r} is not what was exported: its SHA-256 is not "
                f"that of {SUMS}. Copy the export again."
            )


def digest(model) -> str:
    """SHA-256 of a model's weights: tells which training an export is of."""
    sha = hashlib.sha256()
    for weight in model.get_weights():
        sha.update(np.ascontiguousarray(weight))
    return sha.hexdigest()


def signature(run) -> str:
    """One line that says what a model is, as sacreBLEU does for scores."""
    config, recipe = run.config, run.recipe
    fields = {
        "layers": config.num_layers,
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "heads": config.num_heads,
        "norm": "pre" if config.norm_first else "post",
        "positions": config.positions,
        "tied": "yes" if config.shared_vocabulary else "target",
        "dropout": config.dropout_rate,
        "smooth": recipe.label_smoothing,
        "vocab": f"bpe-{config.vocab_size}",
        "languages": f"{recipe.source}-{recipe.target}",
        "val_bleu": _validation_bleu(run),
        "version": keras_transformer.__version__,
    }
    return "|".join(f"{name}:{value}" for name, value in fields.items())


def _validation_bleu(run):
    """Of the weights that were chosen, if any were yet."""
    if not run.weights.exists():
        return "unknown"
    return checkpoints.read(run.weights)[0]["val_bleu"]


def _some_text(tokenizer):
    """A short line and a long one, of the vocabulary's middle."""
    middle = tokenizer.vocab_size // 2
    ids = [list(range(middle, middle + count)) for count in (5, 31)]
    lines = tokenizer.decode(tf.ragged.constant(ids).to_tensor())
    return [line.decode() for line in lines.numpy()]


class SavedTranslator:
    """An exported model, loaded.

    Args:
        path: the folder `NAME/VERSION`.

    Raises:
        ValueError: if there is no SavedModel of this package, or it is
            damaged.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        if not (self.path / "saved_model.pb").is_file():
            raise ValueError(
                f"No SavedModel in {str(path)!r}. Expected a folder that "
                "`keras-transformer export` wrote, such as "
                "saved_models/NAME/1."
            )
        if (self.path / SUMS).exists():
            check_intact(self.path)
        self.loaded = tf.saved_model.load(str(path))
        if "n_best" not in self.loaded.signatures:
            raise ValueError(
                f"The SavedModel in {str(path)!r} has no signature `n_best`: "
                "it was not written by `keras-transformer export`."
            )
        self.about = json.loads((self.path / ABOUT).read_text())
        processor.check_half_precision(self.about.get("dtype", "float32"))
        if "max_length" not in self.about:
            raise ValueError(
                f"The SavedModel in {str(path)!r} was written by an earlier "
                "version, before 0.1.0 was finished. Export the run again."
            )

    def translate(self, text) -> dict:
        """Strings `(B,)` to `translation` and `score`, as exported."""
        return self.loaded.signatures["serving_default"](text=text)

    def explain(self, line) -> dict:
        """What the signature `explain` says of one string, without padding."""
        found = self.loaded.signatures["explain"](text=tf.constant([line]))
        found = {name: value.numpy()[0] for name, value in found.items()}
        source, target = (
            [piece.decode() for piece in found[side] if piece]
            for side in ("source_pieces", "target_pieces")
        )
        return {
            "translation": found["translation"].decode(),
            "score": float(found["score"]),
            "source_pieces": source,
            "target_pieces": target,
            "attention": found["attention"][:, :, : len(target)],
        }

    def searched_with(self, beam_size=None, alpha=None):
        """`translate` with another beam size or length penalty."""
        asked = {"beam_size": beam_size, "alpha": alpha}
        settings = SearchSettings(  # which checks them
            **self.about["search"]
            | {
                name: value
                for name, value in asked.items()
                if value is not None
            }
        )

        def translate(text):
            best = self.loaded.signatures["n_best"](
                text=text,
                beam_size=tf.constant(settings.beam_size),
                alpha=tf.constant(float(settings.alpha)),
                max_length=tf.constant(self.about["max_length"]),
            )
            for name in ("translation", "score"):
                best[name] = best[name][:, 0]
            return best

        return translate
