"""How a Marian model of the hub is asked to search, as our settings."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.data.sentencepiece_file import is_line_break
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.integrations.marian.vocabulary import SpecialIds
from keras_transformer.validation import shown

EARLY_STOPPING = {False: "heuristic", True: "filled", "never": "never"}
LARGEST = 10**6  # of whole numbers
MOST_NAMED = 9  # settings in a warning
# Settings of transformers that our search does not have, and the values that
# change nothing.
NEUTRAL = {
    "begin_suppress_tokens": None,
    "constraints": None,
    "diversity_penalty": 0,
    "do_sample": False,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_bos_token_id": None,
    "guidance_scale": 1,
    "max_time": None,
    "min_new_tokens": 0,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "penalty_alpha": None,
    "sequence_bias": None,
    "stop_strings": None,
    "suppress_tokens": None,
    "token_healing": False,
    "watermarking_config": None,
}
# Settings that are taken over, or that change no translation by beam search:
# those of sampling, of speed and of what is returned.
KNOWN = {
    *("bad_words_ids", "bos_token_id", "decoder_start_token_id"),
    *("early_stopping", "eos_token_id", "forced_eos_token_id"),
    *("length_penalty", "max_length", "max_new_tokens", "num_beams"),
    *("min_length", "no_repeat_ngram_size", "repetition_penalty"),
    *("pad_token_id", "renormalize_logits", "remove_invalid_values"),
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "top_h"),
    *("epsilon_cutoff", "eta_cutoff", "_from_model_config", "_commit_hash"),
    *("transformers_version", "use_cache", "cache_implementation"),
    *("cache_config", "return_legacy_cache", "low_memory", "compile_config"),
    *("disable_compile", "prefill_chunk_size", "output_attentions"),
    *("output_hidden_states", "output_scores", "output_logits"),
    *("return_dict_in_generate", "is_assistant", "num_assistant_tokens"),
    *("num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size"),
    *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind"),
}


def number(values: Mapping[str, Any], name: str, default: float) -> float:
    """Returns a number by its name, or the default if it is missing or null.

    Raises:
        ValueError: if it is no finite number.
    """
    value = values.get(name)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:
        raise ValueError(
            f"`{name}` must be a finite number. Received: {name}={shown(value)}"
        )
    return float(value)


def whole_number(
    values: Mapping[str, Any], name: str, default: int | None = None
) -> int:
    """Returns a whole number by its name.

    Args:
        values: numbers by name.
        name: the name.
        default: what stands for a missing or null one. Defaults to `None`: it
            may not be missing.

    Raises:
        ValueError: if it is missing, no whole number, or larger than `LARGEST`.
    """
    value = values.get(name)
    if value is None:
        value = default
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or abs(value) > LARGEST
    ):
        raise ValueError(
            f"`{name}` must be a whole number of at most {LARGEST:,}. "
            f"Received: {name}={shown(value)}"
        )
    return value


def search_settings(
    generation: Mapping[str, Any],
    pieces: Sequence[str],
    special: SpecialIds,
    longest_source: Any = None,
    is_whole: bool = True,
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
        is_whole: whether `generation` has settings of the search alone, and
            all that are not the defaults of transformers. Defaults to True.

    Raises:
        ValueError: if a setting has a value that it cannot have.
    """
    barred = _barred(generation)
    _warn(generation, barred, pieces, special, is_whole)
    early_stopping = generation.get("early_stopping") or False
    if early_stopping not in (False, True, "never"):
        raise ValueError(
            "`early_stopping` must be true, false or 'never'. Received: "
            f"early_stopping={shown(early_stopping)}"
        )
    alpha = number(generation, "length_penalty", 1.0)
    if not alpha >= 0:
        raise ValueError(
            "`length_penalty` must be at least 0. Received: length_penalty="
            f"{alpha}. Change it in generation_config.json."
        )
    max_source_length = SearchSettings.max_source_length
    if isinstance(longest_source, int) and longest_source <= LARGEST:
        max_source_length = max(max_source_length, longest_source - 1)
    beam_size = whole_number(generation, "num_beams", 1)
    most = whole_number(generation, "max_length", 512) - 1  # less the start
    most = whole_number(generation, "max_new_tokens", most)
    return SearchSettings(
        beam_size=beam_size,
        max_beam_size=max(beam_size, SearchSettings.max_beam_size),
        alpha=alpha,
        length_penalty="power",
        early_stopping=EARLY_STOPPING[early_stopping],
        max_source_length=max_source_length,
        extra_length=max(most, 0),
        max_length=most,
        min_length=whole_number(generation, "min_length", 0),
        no_repeat_ngram_size=whole_number(
            generation, "no_repeat_ngram_size", 0
        ),
        repetition_penalty=number(generation, "repetition_penalty", 1.0),
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


def _warn(generation, barred, pieces, special, is_whole):
    """Warns of settings that have no place in ours."""
    names = {*NEUTRAL}
    if is_whole:  # whatever is not known
        names |= generation.keys() - KNOWN
    found = {
        name: generation[name]
        for name in sorted(names)
        if generation.get(name) not in (None, [], False, NEUTRAL.get(name))
    }
    # Our search ends a translation of the maximum length, too.
    forced = None if is_whole else special.end
    forced = generation.get("forced_eos_token_id", forced)
    if forced not in (special.end, [special.end]):
        found["forced_eos_token_id"] = forced
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
        text = ", ".join(
            f"{name}={shown(found[name])}" for name in [*found][:MOST_NAMED]
        )
        if len(found) > MOST_NAMED:
            text += f", … ({len(found)} in all)"
        warnings.warn(
            f"Our search does not have all settings of the model: {text}. "
            "Translations may differ from those of transformers.",
            stacklevel=2,
        )
