"""The SavedModel of a language model: prompts in, texts out.

    serving_default(prompt: string[B]) -> {"text": string[B],
                                           "score": float32[B],
                                           "truncated": bool[B]}

A model that draws tokens also has an input `seed: int32[]`. To load it needs
`tensorflow` and `import tensorflow_text`; nothing of this package.
"""

import os
import pathlib
from typing import Any

import tensorflow as tf

from keras_transformer.atomic_files import folder_aside
from keras_transformer.export import tensorflow_serving as serving
from keras_transformer.export.files import write_sums
from keras_transformer.export.saved_model import checked_name
from keras_transformer.ids import START
from keras_transformer.inference.graph_tokenizer import (
    GraphTokenizer,
    as_strings,
)
from keras_transformer.language_model import LanguageModel
from keras_transformer.validation import check_argument, checked_integer


def export_language_model(
    model: LanguageModel,
    path: str | os.PathLike,
    max_prompt_tokens: int = 512,
    max_new_tokens: int = 50,
    **search: Any,
) -> pathlib.Path:
    """Exports a `LanguageModel` with a tokenizer as a SavedModel.

    Example:

    >>> from keras_transformer import LanguageModel, TransformerConfig
    >>> from keras_transformer.inference import TextTokenizer
    >>> from keras_transformer.training import open_run
    >>> tokenizer = TextTokenizer(open_run("runs/demo").target_tokenizer)
    >>> shape = {"vocab_size": tokenizer.vocab_size, "num_layers": 1}
    >>> config = TransformerConfig.preset("modern", **shape)
    >>> model = LanguageModel(config, tokenizer)
    >>> path = export_language_model(model, "saved_models/language/1")
    >>> (path / "saved_model.pb").exists()
    True

    The texts are those of `model.generate`, also those that are drawn by a
    seed, if the batch is the same.

    Args:
        model: the trained model.
        path: the new folder; its last part is an integer, as servers want it.
        max_prompt_tokens: number of tokens to which a prompt is cut.
        max_new_tokens: as in `LanguageModel.generate`.
        **search: other arguments of `LanguageModel.generate`: `beam_size` and
            `alpha`, or `temperature`, `top_k` and `top_p`.

    Returns:
        The path of the new folder.

    Raises:
        ValueError: if the model has no tokenizer, if the path exists, if an
            argument is out of range, or if learned positions do not suffice.
    """
    check_argument("model", model, LanguageModel, "Make one of a config.")
    if model.tokenizer is None:
        raise ValueError(
            "The model must have a tokenizer, which makes ids of prompts. "
            "Received: model.tokenizer=None. Pass one to `LanguageModel`."
        )
    most = checked_integer("max_prompt_tokens", max_prompt_tokens)
    search = model.checked_search(most, max_new_tokens, **search)
    path = pathlib.Path(path)
    checked_name(path)
    module = tf.Module()
    # TensorFlow does not find variables of Keras by itself.
    module.variables_of_keras = [v.value for v in model.variables]
    tokenizer = GraphTokenizer(model.tokenizer.tokenizer)

    def generate(prompt, seed=0):
        ids, truncated = tokenizer.encode_at_most(as_strings(prompt), most)
        ids = ids[:, :-1]  # without the end token
        starts = tf.fill([ids.nrows(), 1], START)
        whole = tf.concat([starts, ids.to_tensor()], axis=1)
        found, scores = model.continue_prompts(
            whole,
            tf.cast(ids.row_lengths(), tf.int32),
            tf.stack([seed, 0]),
            **search,
        )
        whole = tf.concat([whole, found], axis=1)  # padding has no text
        return {
            "text": tokenizer.decode(whole),
            "score": scores,
            "truncated": truncated,
        }

    inputs = [tf.TensorSpec([None], tf.string, name="prompt")]
    if search.get("temperature"):
        inputs.append(tf.TensorSpec([], tf.int32, name="seed"))
    signature = tf.function(generate, input_signature=inputs, autograph=False)
    with folder_aside(path) as aside:
        tf.saved_model.save(
            module, str(aside), signatures={"serving_default": signature}
        )
        serving.check_operations(aside)
        write_sums(aside)
    return path
