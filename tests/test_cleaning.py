"""Checks what the rules of cleaning do, against Unicode as Python has it."""

import sys
import unicodedata

import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from look_alikes import INSIDE, look_alikes
from test_tokenizer import decode, encode

from keras_transformer.data import cleaning
from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.data.cleaning import RULES, clean, is_blank
from keras_transformer.data.options import Preparation
from keras_transformer.data.sentencepiece_file import with_rule
from keras_transformer.data.tokenizer import Tokenizer, train_tokenizer
from keras_transformer.data.vocabulary import learn_vocabularies
from keras_transformer.inference import GraphTokenizer

# The classes of the table in the documentation, written out.
REMOVED = "\u00ad\u034f\u061c\u115f\u180e\u200b\u200e\u200f\ufeff\ufffc" + (
    "".join(map(chr, [*range(0x202A, 0x202F), *range(0x2060, 0x2065)]))
    + "".join(map(chr, [*range(0x2066, 0x206A), *range(0xE0020, 0xE0080)]))
    + "".join(map(chr, [*range(0x09), *range(0x0E, 0x20)]))
    + "".join(map(chr, [*range(0x7F, 0x85), *range(0x86, 0xA0)]))
)
LINE_ENDS = "\n\x0b\x0c\r\x85\u2028\u2029"
SPACES = "\t \u00a0\u1680\u2003\u2009\u200a\u202f\u205f\u3000"
KEPT = "\u200c\u200d"
COMPATIBLE = {"ﬁ": "fi", "½": "1⁄2", "²": "2", "％": "%", "Ａ": "A", "…": "..."}
LETTERS = st.characters(categories=("L", "N", "P", "S"))


@pytest.fixture(scope="module", params=RULES)
def tokenizer(request):
    lines = [line for pair in pairs_of_split("train", 300) for line in pair]
    return train_tokenizer(lines, 350, request.param)


def model_text(tokenizer, texts):
    """Returns what pieces the model alone writes for texts."""
    library = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    return library.decode(library.encode(texts))


def text_of(tokenizer, texts):
    return decode(tokenizer, encode(tokenizer, texts))


def blank_in_graph(tokenizer, texts):
    return GraphTokenizer(tokenizer).is_blank(tf.constant(texts)).numpy()


@pytest.mark.parametrize("rule", RULES)
def test_each_class_of_characters_becomes_what_the_table_says(rule):
    for character in REMOVED:
        assert clean(f"a{character}b", rule) == "ab", hex(ord(character))
    for character in LINE_ENDS:
        assert clean(f"a{character}b", rule) == "a b", hex(ord(character))
    for character in SPACES:
        expected = " " if rule == "source" else character
        assert clean(f"a{character}b", rule) == f"a{expected}b"
    for character in KEPT:
        assert clean(f"a{character}b", rule) == f"a{character}b"
    for character, plain in COMPATIBLE.items():
        expected = plain if rule == "source" else character
        assert clean(f"a{character}b", rule) == f"a{expected}b"


@pytest.mark.parametrize("rule", RULES)
def test_all_other_characters_become_their_normal_form(rule):
    """Against the tables of Python, for each character of Unicode."""
    special = {chr(c) for c in cleaning._code_points(cleaning.INVISIBLE)}
    special |= {*REMOVED, *LINE_ENDS, *SPACES, *cleaning.HYPHENS}
    # Three deprecated marks are replaced by others, which do not compose then.
    special |= {"\u0340", "\u0341", "\u0344"}
    characters = [
        chr(code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) not in ("Cs", "Cn", "Zs")
        and chr(code) not in special
    ]
    assert len(characters) > 200_000
    form = {"source": "NFKC", "target": "NFC"}[rule]
    normalizer = cleaning.normalizer_of(rule)
    found = normalizer.normalize([f"a{c}b" for c in characters])
    expected = [unicodedata.normalize(form, f"a{c}b") for c in characters]
    wrong = [
        (hex(ord(c)), is_, should)
        for c, is_, should in zip(characters, found, expected, strict=True)
        # A mark beside a space, of which the rule makes one of two.
        if is_.split() != should.split()
    ]
    assert not wrong


def test_variation_selectors_stay_after_emoji_alone():
    for kept in ("\u2600\ufe0f", "1\ufe0f\u20e3", "\u270f\ufe0f!"):
        assert clean(kept, "source") == kept
    for text in ("a\ufe0fb", "1\ufe0f", "\u00fc\ufe00", "\u845b\U000e0100"):
        assert clean(text, "target") == text[0] + text[2:]


@pytest.mark.parametrize(
    "sentence", ["Room 17 is free.", "Größe 3 für den Gürtel!", "Zoë, oui?"]
)
def test_what_looks_the_same_has_the_same_ids(tokenizer, sentence):
    texts = look_alikes(sentence)
    assert len(texts) > 40
    if tokenizer.rule == "target":
        texts = {n: t for n, t in texts.items() if n in (*INSIDE, "decomposed")}
    (ids,) = encode(tokenizer, [sentence])
    found = encode(tokenizer, list(texts.values()))
    found = dict(zip(texts, found, strict=True))
    assert found == dict.fromkeys(texts, ids)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(LETTERS, min_size=1), min_size=1, max_size=5))
def test_composed_and_decomposed_text_has_the_same_ids(tokenizer, texts):
    texts = [unicodedata.normalize("NFC", text) for text in texts]
    decomposed = [unicodedata.normalize("NFD", text) for text in texts]
    assert encode(tokenizer, decomposed) == encode(tokenizer, texts)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=5))
def test_what_is_encoded_is_cleaned_alike(tokenizer, texts):
    cleaned = [clean(text, tokenizer.rule) for text in texts]
    assert encode(tokenizer, cleaned) == encode(tokenizer, texts)
    assert [clean(text, tokenizer.rule) for text in cleaned] == cleaned or any(
        unicodedata.combining(c) for text in texts for c in text
    )


def test_other_programs_that_read_the_vocabulary_clean_alike(tokenizer):
    text = "so\u00adft\u00a0 e\u0301 ﬁ\u200b½\u2028end"
    expected = {"source": "soft é fi1⁄2 end", "target": "soft\u00a0 é ﬁ½ end"}
    assert model_text(tokenizer, [text]) == [expected[tokenizer.rule]]
    assert text_of(tokenizer, [text]) == [expected[tokenizer.rule]]


def test_a_mark_composes_across_what_is_removed(tokenizer):
    assert text_of(tokenizer, ["e\u00ad\u0301\0"]) == ["é"]


def test_invisible_characters_neither_fill_nor_cut_a_text(tokenizer):
    text = "room" + 5000 * "\u200b" + " 7" + 5000 * "\u2060\n " + "ok"
    graph = GraphTokenizer(tokenizer)
    found, longer = graph.encode_at_most(tf.constant([text]), 30)
    assert found.to_list() == encode(tokenizer, ["room 7 ok"])
    assert not longer.numpy().any()


@pytest.mark.parametrize(
    "text", ["", " ", "\u00a0", "\u3000", "\u200b", "\ufeff", "\0", "\ufe0f"]
)
def test_what_a_reader_does_not_see_is_blank(tokenizer, text):
    assert is_blank(text)
    assert is_blank(text * 3)
    assert blank_in_graph(tokenizer, [text, text * 3]).all()
    unruled = Tokenizer(without_rule(tokenizer.model))
    assert blank_in_graph(unruled, [text]).all()


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_both_definitions_of_blank_are_one(tokenizer, text):
    assert blank_in_graph(tokenizer, [text]).tolist() == [is_blank(text)]


@pytest.mark.parametrize("text", ["a", "\u0301", "\ufffd", "☀\ufe0f", "."])
def test_what_a_reader_sees_is_not_blank(tokenizer, text):
    assert not is_blank(text)
    assert not blank_in_graph(tokenizer, [text]).any()


def without_rule(model):
    from keras_transformer.data import sentencepiece_file

    proto = sentencepiece_file.parse(model)
    proto.ClearField("normalizer_spec")
    return proto.SerializeToString()


def test_an_older_vocabulary_keeps_what_it_does():
    lines = [line for pair in pairs_of_split("train", 300) for line in pair]
    old = Tokenizer(without_rule(train_tokenizer(lines, 350).model))
    assert old.rule is None
    text = "a\u00adb\u00a0½e\u0301"
    assert text_of(old, [text]) == [text]


@pytest.mark.parametrize("is_shared", [True, False])
def test_each_side_of_a_corpus_has_its_rule(is_shared):
    pairs = list(pairs_of_split("train", 300))
    pairs += [("½\u00a0price", "½\u00a0Preis")] * 50
    preparation = Preparation(vocab_size=350, shared_vocabulary=is_shared)
    source, target = learn_vocabularies(pairs, preparation)
    assert (source.rule, target.rule) == ("source", "target")
    assert source.has_pieces_of(target) == is_shared
    assert text_of(source, [pairs[-1][0]]) == ["1⁄2 price"]
    assert text_of(target, [pairs[-1][1]]) == ["½\u00a0Preis"]


def test_rules_are_exchanged_without_a_trace(tokenizer):
    for rule in RULES:
        other = tokenizer.with_rule(rule)
        assert other.rule == rule
        assert other.model == with_rule(without_rule(other.model), rule)
        assert other.with_rule(tokenizer.rule).model == tokenizer.model
    with pytest.raises(ValueError, match=r"one of source, target.*'nfkc'"):
        tokenizer.with_rule("nfkc")
    with pytest.raises(ValueError, match=r"one of source, target.*None"):
        train_tokenizer(["some text"], 300, rule=None)
