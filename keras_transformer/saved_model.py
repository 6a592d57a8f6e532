"""The SavedModel: text in, text out, for TensorFlow Serving and for Python.

    serving_default(text: string[B])
        -> {"translation": string[B], "score": float32[B]}
    n_best(text: string[B], beam_size: int32[], alpha: float32[])
        -> {"translation": string[B, K], "score": float32[B, K]}

What the signature promises, for every string: see `Translator`. To load it
needs `tensorflow` and, for the tokenizer's operations, `import
tensorflow_text`; nothing of this package.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil

import keras
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the tokenizer's operations

import keras_transformer
from keras_transformer.translator import SearchSettings, Translator

ABOUT = "keras_transformer.json"


def export(run, path, settings: SearchSettings | None = None) -> pathlib.Path:
    """Exports a run's chosen weights to `NAME/VERSION`.

    The folder is written aside and renamed: a server that watches `NAME` never
    sees half of it.

    Args:
        run: an open `Run`.
        path: the new folder; its last part is an integer, as servers want it.
        settings: of the search. Defaults to the paper's.

    Raises:
        ValueError: if the path exists or does not end in a version number.
    """
    path = pathlib.Path(path)
    if not re.fullmatch(r"[0-9]+", path.name):
        raise ValueError(
            "A SavedModel's folder ends in a version number, which servers "
            f"look for. Received: {str(path)!r}. "
            f"Try {str(path / '1')!r}."
        )
    if path.exists():
        raise ValueError(
            "A published version is not overwritten. Received: "
            f"{str(path)!r}, which exists. Choose the next number."
        )
    settings = settings or SearchSettings()
    model = run.load_model()
    translator = Translator(
        model, run.source_tokenizer, run.target_tokenizer, settings
    )
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.parent.mkdir(parents=True, exist_ok=True)
    try:
        write(translator, aside)
        about = {
            "keras_transformer": keras_transformer.__version__,
            "signature": signature(run),
            "weights": digest(model),
            "search": dataclasses.asdict(settings),
        }
        (aside / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
        os.rename(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return path


def write(translator: Translator, path):
    """Writes a translator as a SavedModel with the signatures above."""
    archive = keras.export.ExportArchive()
    archive.track(translator.model)
    text = tf.TensorSpec([None], tf.string, name="text")
    archive.add_endpoint("translate", translator.translate, [text])
    archive.add_endpoint(
        "n_best",
        translator.n_best,
        [
            text,
            tf.TensorSpec([], tf.int32, name="beam_size"),
            tf.TensorSpec([], tf.float32, name="alpha"),
        ],
    )
    archive.write_out(str(path), verbose=False)


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
        "version": keras_transformer.__version__,
    }
    return "|".join(f"{name}:{value}" for name, value in fields.items())


class SavedTranslator:
    """An exported model, loaded.

    Args:
        path: the folder `NAME/VERSION`.

    Raises:
        ValueError: if there is no SavedModel of this package.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        if not (self.path / "saved_model.pb").is_file():
            raise ValueError(
                f"No SavedModel in {str(path)!r}. Expected a folder that "
                "`keras-transformer export` wrote, such as "
                "saved_models/NAME/1."
            )
        self.loaded = tf.saved_model.load(str(path))
        if "n_best" not in self.loaded.signatures:
            raise ValueError(
                f"The SavedModel in {str(path)!r} has no signature `n_best`: "
                "it was not written by `keras-transformer export`."
            )
        self.about = json.loads((self.path / ABOUT).read_text())

    def translate(self, text) -> dict:
        """Strings `(B,)` to `translation` and `score`, as exported."""
        return self.loaded.signatures["serving_default"](text=text)

    def searched_with(self, beam_size=None, alpha=None):
        """`translate` with another beam size or length penalty."""
        search = self.about["search"]
        beam_size = search["beam_size"] if beam_size is None else beam_size
        alpha = search["alpha"] if alpha is None else alpha
        settings = SearchSettings(beam_size, alpha)  # checks them

        def translate(text):
            best = self.loaded.signatures["n_best"](
                text=text,
                beam_size=tf.constant(settings.beam_size),
                alpha=tf.constant(float(settings.alpha)),
            )
            return {name: values[:, 0] for name, values in best.items()}

        return translate
