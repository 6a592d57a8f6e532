"""How well a model translates a split of its run: section 6.1."""

from collections.abc import Callable

from keras_transformer.data.corpus import SentencePairs
from keras_transformer.inference import evaluation
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.inference.text_lines import translate_lines
from keras_transformer.inference.translator import Translator
from keras_transformer.model import Transformer
from keras_transformer.training.run import Run


def make_scorer(
    run: Run,
    model: Transformer,
    pairs: SentencePairs,
    settings: SearchSettings,
    progress: Callable[[int], None] | None = None,
) -> Callable[[], dict]:
    """Returns a function that translates and scores pairs by the weights that
    the model has when it is called.

    Args:
        run: whose vocabularies and sacreBLEU tokenizer are used.
        model: the model.
        pairs: sentences and their references.
        settings: of the search.
        progress: called with the number of sentences done; it may raise.

    Returns:
        A function without arguments; see `evaluation.score` for what it
        returns.
    """
    translate = Translator(
        model, run.source_tokenizer, run.target_tokenizer, settings
    ).compiled()

    def score():
        return evaluation.score(
            translate_lines(translate, pairs.source, progress=progress),
            pairs.target,
            run.recipe.bleu_tokenizer,
        )

    return score
