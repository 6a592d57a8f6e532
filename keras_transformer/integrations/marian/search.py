"""How a Marian model of the hub is asked to search, as our settings."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.data.sentencepiece_file import is_line_break
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.integrations.marian.vocabulary import SpecialIds
from keras_transformer.validation import shown

EARLY_STOPPING = {False: "heuristic", True: "filled", "never": "never"}
# Settings of transformers that our search does not have, and the values that
# change nothing.
NEUTRAL = {
    "begin_suppress_tokens": None,
    "diversity_penalty": 0,
    "do_sample": False,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "forced_bos_token_id": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "repetition_penalty": 1,
    "suppress_tokens": None,
}


def number(values: Mapping[str, Any], name: str, default: float) -> float:
    """Returns a number by its name, or the default if it is missing or null.

    Raises:
        ValueError: if it is no number.
    """
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"`{name}` must be a number. Received: {name}={shown(value)}"
        )
    return value


def search_settings(
    generation: Mapping[str, Any],
    pieces: Sequence[str],
    special: SpecialIds,
    longest_source: Any = None,
) -> SearchSettings:
    """Returns the settings of the search, as transformers has them.

    Settings that our search does not have are named in a warning.

    Args:
        generation: content of `generation_config.json`.
        pieces: Marian's vocabulary of the target, by its ids.
        special: ids of its special pieces.
        longest_source: `model_max_length` of the tokenizer, the end token
            included. Only more than our default is taken over, and not the
            huge number that stands for no limit.

    Raises:
        ValueError: if a setting has a value that it cannot have.
    """
    barred = _barred(generation)
    _warn(generation, barred, pieces, special)
    early_stopping = generation.get("early_stopping") or False
    if early_stopping not in (False, True, "never"):
        raise ValueError(
            "`early_stopping` must be true, false or 'never'. Received: "
            f"early_stopping={shown(early_stopping)}"
        )
    alpha = float(number(generation, "length_penalty", 1.0))
    if not alpha >= 0:
        raise ValueError(
            "`length_penalty` must be at least 0. Received: length_penalty="
            f"{alpha}. Change it in generation_config.json."
        )
    max_source_length = SearchSettings.max_source_length
    if isinstance(longest_source, int) and longest_source <= 10**6:
        max_source_length = max(max_source_length, longest_source - 1)
    beam_size = int(number(generation, "num_beams", 1))
    most = int(number(generation, "max_length", 512)) - 1  # less the start
    most = int(number(generation, "max_new_tokens", most))
    return SearchSettings(
        beam_size=beam_size,
        max_beam_size=max(beam_size, SearchSettings.max_beam_size),
        alpha=alpha,
        length_penalty="power",
        early_stopping=EARLY_STOPPING[early_stopping],
        max_source_length=max_source_length,
        extra_length=max(most, 0),
        max_length=most,
        allow_unknown=[special.unknown] not in barred,
    )


def _barred(generation):
    """Returns the sequences of ids that may not be generated."""
    barred = generation.get("bad_words_ids") or []
    if not isinstance(barred, list) or not all(
        isinstance(ids, list) and all(type(i) is int for i in ids)
        for ids in barred
    ):
        raise ValueError(
            "`bad_words_ids` must be a list of lists of ids. Received: "
            f"bad_words_ids={shown(barred)}"
        )
    return barred


def _warn(generation, barred, pieces, special):
    """Warns of settings that have no place in ours."""
    found = {
        name: generation[name]
        for name, neutral in NEUTRAL.items()
        if generation.get(name) not in (None, [], neutral)
    }
    ends = generation.get("eos_token_id")
    if ends not in (None, special.end, [special.end]):
        found["eos_token_id"] = ends
    # Padding, start and line breaks are never generated.
    never = [[i] for i in (special.unknown, special.pad, special.start)]
    never += [[i] for i, piece in enumerate(pieces) if is_line_break(piece)]
    others = [ids for ids in barred if ids not in never]
    if others:
        found["bad_words_ids"] = others[:3]
    if found:
        names = ", ".join(
            f"{name}={shown(value)}" for name, value in found.items()
        )
        warnings.warn(
            f"Our search does not have all settings of the model: {names}. "
            "Translations may differ from those of transformers.",
            stacklevel=2,
        )
