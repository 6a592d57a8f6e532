"""Checks the tokenizer, in Python and in graphs, against its library."""

import io
import re

import marian_checks
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from fuzz import TINY
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.data.batches import Rows
from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.data.byte_pairs import learn_byte_pairs
from keras_transformer.data.cleaning import RULES, clean
from keras_transformer.data.sentencepiece_file import with_rule
from keras_transformer.data.tokenizer import Tokenizer, train_tokenizer
from keras_transformer.ids import END, PAD, START, UNKNOWN
from keras_transformer.inference import GraphTokenizer
from keras_transformer.inference.lines import encoded

# Characters are lone surrogates, too, and bytes need not be UTF-8.
ANY_STRING = st.text(st.characters()) | st.binary()
PARTS = [b">>fra<<", b">>deu<<", b">>x<<", b">>", b"<<", b" ", b"\xc2\xa0"]
TAGGED = st.tuples(
    st.lists(st.sampled_from(PARTS), min_size=1).map(b"".join), st.binary()
).map(b"".join)


@pytest.fixture(scope="module", params=RULES)
def tokenizer(request):
    pairs = list(pairs_of_split("train", 500))
    lines = [line for pair in pairs for line in pair]
    return train_tokenizer(lines, 400, request.param)


@pytest.fixture(scope="module")
def tagged():
    """An imported tokenizer, which cuts more pieces than it knows."""
    return marian_checks.source_tokenizer_of(TINY)


@pytest.fixture(scope="module")
def learned():
    lines = [line for pair in pairs_of_split("train", 99) for line in pair]
    model = learn_byte_pairs(lines, 400, [">>fra<<", ">>deu<<"])
    return Tokenizer(with_rule(model, "source"))


def encode(tokenizer, texts):
    """Returns the ids of strings, which are the same in a graph."""
    ids = tokenizer.encode(texts)
    text = tf.constant([encoded(text) for text in texts], tf.string)
    assert GraphTokenizer(tokenizer).encode(text).to_list() == ids
    return ids


def decode(tokenizer, rows):
    """Returns the texts of rows of ids, which are the same in a graph."""
    texts = tokenizer.decode(rows)
    found = GraphTokenizer(tokenizer).decode(Rows.of(rows).padded()).numpy()
    assert [text.decode() for text in found] == texts
    return texts


@settings(max_examples=200, deadline=None)
@given(st.text())
@example("</s> <s> <unk> <pad>")
@example("e\u0301 is not \u00e9: a\x00b, 日本語 العربية 🦄👩‍👩‍👧")
def test_a_round_trip_changes_only_what_the_rule_cleans(tokenizer, text):
    # U+2581 is how SentencePiece writes a space.
    text = clean(text.replace("\u2581", " "), tokenizer.rule)
    while "  " in text:
        text = text.replace("  ", " ")
    ids = encode(tokenizer, [text])
    assert decode(tokenizer, ids) == [text.strip(" ")]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=5))
def test_text_is_encoded_as_the_library_does_it(tokenizer, texts):
    library = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    found = encode(tokenizer, texts)
    for ids, text in zip(found, texts, strict=True):
        text = clean(text, tokenizer.rule)
        assert ids == [*library.encode(text), END]
        assert not {PAD, START, UNKNOWN, END} & set(ids[:-1])


@settings(max_examples=60, deadline=None)
@given(st.lists(ANY_STRING | TAGGED))
@example(
    [">>fra<< Room >>7<<", b">>fra<<\xff\n", b">>\xc3<<\xe2\x82\0a", "\ud800"]
)
def test_any_strings_are_encoded_alike_in_python_and_in_graphs(
    tokenizer, tagged, learned, texts
):
    for each in (tokenizer, tagged, learned):
        ids = encode(each, texts)
        assert all(0 < i < each.vocab_size for row in ids for i in row)
        decode(each, ids)


def test_a_string_may_begin_with_the_tag_of_a_language(tagged):
    texts = ["Room", ">>fra<<Room", b">>fra<<Room\xff", ">>xx<<Room"]
    plain, french, broken, unknown = encode(tagged, texts)
    assert french == [tagged.tags[">>fra<<"], *plain]
    assert broken[: len(plain)] == french[:-1]
    assert unknown == [UNKNOWN, *plain]


def test_decoding_stops_at_the_end_and_survives_any_id(tokenizer, tagged):
    ((*word, _),) = encode(tokenizer, ["um"])
    junk = [START, PAD, UNKNOWN, -5, 10**6]
    rows = [word + junk + [END, *word], [END], junk]
    assert decode(tokenizer, rows) == ["um", "", ""]
    random = np.random.default_rng(1).integers(4, 410, size=(300, 11))
    assert all(all(decode(each, random)) for each in (tokenizer, tagged))


def test_text_and_ids_are_of_several_strings(tokenizer):
    (ids,) = tokenizer.encode(iter(["Room 7"]))
    assert tokenizer.decode(iter([ids])) == ["Room 7"]
    for text in ("Room", b"Room", [["Room"]], [7]):
        with pytest.raises(ValueError, match=r"Give `\[text\]`"):
            tokenizer.encode(text)
    for row in (ids, np.array(ids, "uint16")):
        with pytest.raises(ValueError, match=r"Give `\[ids\]`"):
            tokenizer.decode(row)


def test_setting_a_seed_does_not_destroy_the_graph_tokenizer(tokenizer):
    """`tf.random.set_seed` frees what eager operations own."""
    eager = GraphTokenizer(tokenizer).encode
    traced = tf.function(eager)
    text = tf.constant(["fünf Uhr"])
    before = traced(text).to_list(), eager(text).to_list()
    tf.random.set_seed(1)
    assert (traced(text).to_list(), eager(text).to_list()) == before


def test_training_is_deterministic():
    lines = [pair[1] for pair in pairs_of_split("train", 300)]
    assert (
        train_tokenizer(lines, 350).model == train_tokenizer(lines, 350).model
    )


def test_other_special_ids_are_refused():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["some words to learn from"] * 9),
        model_writer=model,
        vocab_size=30,
        model_type="bpe",
        minloglevel=2,
    )
    with pytest.raises(ValueError, match="'pad': -1"):
        Tokenizer(model.getvalue())


@pytest.mark.parametrize("junk", [b"", b"no model", b"\x00" * 100])
def test_bytes_that_are_no_model_are_refused(junk):
    with pytest.raises(ValueError, match=r"SentencePiece|special ids"):
        Tokenizer(junk)


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_vocabulary_that_cannot_be_learned_is_an_error(size):
    """The number that the error names is the limit."""
    text = ["too little text for so many pieces"]
    with pytest.raises(ValueError, match=f"vocab_size={size}, ") as error:
        train_tokenizer(text, size)
    limit = int(re.search(r"Choose at (?:most|least) (\d+)", f"{error}")[1])
    beyond = limit + (1 if size > limit else -1)
    assert train_tokenizer(text, limit).vocab_size == limit
    with pytest.raises(ValueError, match=f"vocab_size={beyond}, "):
        train_tokenizer(text, beyond)


def test_long_lines_teach_the_vocabulary():
    """SentencePiece leaves out lines of over 4,192 bytes, unless it is told."""
    long = " ".join(["QUERY"] * 900)
    tokenizer = train_tokenizer([long, "some words"] * 3, 275)
    (ids,) = tokenizer.encode(["QUERY"])
    assert not any(p.startswith("<0x") for p in tokenizer.pieces(ids))


def test_pieces_that_a_user_has_defined_take_no_bpe_dropout():
    options = {
        "model_type": "bpe",
        "vocab_size": 290,
        "byte_fallback": True,
        "minloglevel": 2,
        **{f"{name}_id": i for i, name in enumerate(("pad", "unk", "bos"))},
        "eos_id": 3,
    }
    for symbols, allows in (([], True), (["<2de>"], False)):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["one two three four"] * 9),
            model_writer=model,
            user_defined_symbols=symbols,
            **options,
        )
        tokenizer = Tokenizer(model.getvalue())
        assert tokenizer.allows_bpe_dropout == allows


def test_encoding_at_most_n_pieces_equals_cutting_all_pieces_at_n():
    """Cutting off bytes first leaves the same pieces as cutting off pieces."""
    tokenizer = train_tokenizer(["one two three, four."] * 9, 290)
    word = "three "
    texts = ["", "one two", word * 7, word * 400, " " * 9000 + word * 400]
    texts += [character * 50_000 for character in "xü "]
    texts.append("one" + " " * 9000 + "two")
    graph, whole = GraphTokenizer(tokenizer), encode(tokenizer, texts)
    for most in (1, 7, 13):
        found, longer = graph.encode_at_most(tf.constant(texts), most)
        assert longer.numpy().tolist() == [len(ids) - 1 > most for ids in whole]
        assert found.to_list() == [[*ids[:-1][:most], ids[-1]] for ids in whole]


def test_a_piece_that_holds_a_line_break_is_barred():
    tokenizer = Tokenizer(learn_byte_pairs(["a\nb a\nb c\rd"] * 99, 269))
    barred = tokenizer.pieces(tokenizer.line_breaks)
    assert {"<0x0A>", "<0x0D>"} < set(barred)
    others = set(range(tokenizer.vocab_size)) - set(tokenizer.line_breaks)
    assert not {"\n", "\r"} & set("".join(tokenizer.pieces(others)))
