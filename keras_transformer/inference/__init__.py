"""Inference: translates text with a trained model."""

from typing import TYPE_CHECKING

from keras_transformer.lazy_names import lazy_names

if TYPE_CHECKING:
    from keras_transformer.inference.attention_plot import (
        plot_attention as plot_attention,
    )
    from keras_transformer.inference.evaluation import score as score
    from keras_transformer.inference.proposal_layer import (
        ProposalLayer as ProposalLayer,
    )
    from keras_transformer.inference.search_settings import (
        SearchSettings as SearchSettings,
    )
    from keras_transformer.inference.sentences import SplitText as SplitText
    from keras_transformer.inference.sentences import (
        split_sentences as split_sentences,
    )
    from keras_transformer.inference.shortlist import Shortlist as Shortlist
    from keras_transformer.inference.text_lines import (
        translate_lines as translate_lines,
    )
    from keras_transformer.inference.translator import Translator as Translator

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ProposalLayer": "proposal_layer",
        "SearchSettings": "search_settings",
        "Shortlist": "shortlist",
        "SplitText": "sentences",
        "Translator": "translator",
        "plot_attention": "attention_plot",
        "score": "evaluation",
        "split_sentences": "sentences",
        "translate_lines": "text_lines",
    },
)
