"""Checks the tokenizer, which runs in the graph, against its library."""

import io
import re

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.data.builtin.dataset import pairs_of_split
from keras_transformer.data.byte_pairs import learn_byte_pairs
from keras_transformer.data.cleaning import RULES, clean
from keras_transformer.data.tokenizer import Tokenizer, train_tokenizer
from keras_transformer.ids import END, PAD, START, UNKNOWN


@pytest.fixture(scope="module", params=RULES)
def tokenizer(request):
    pairs = list(pairs_of_split("train", 500))
    lines = [line for pair in pairs for line in pair]
    return train_tokenizer(lines, 400, request.param)


def round_trip(tokenizer, text):
    ids = tokenizer.encode(tf.constant([text]))
    return tokenizer.decode(ids.to_tensor())[0].numpy().decode()


@settings(max_examples=200, deadline=None)
@given(st.text())
@example("</s> <s> <unk> <pad>")
@example("e\u0301 is not \u00e9: a\x00b, 日本語 العربية 🦄👩‍👩‍👧")
def test_a_round_trip_changes_only_what_the_rule_cleans(tokenizer, text):
    # U+2581 is how SentencePiece writes a space.
    text = text.encode("utf-8", "ignore").decode().replace("\u2581", " ")
    text = clean(text, tokenizer.rule)
    while "  " in text:
        text = text.replace("  ", " ")
    assert round_trip(tokenizer, text) == text.strip(" ")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=5))
def test_the_graph_encodes_as_the_library_does(tokenizer, texts):
    texts = [t.encode("utf-8", "ignore").decode() for t in texts]
    library = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    found = tokenizer.encode(tf.constant(texts)).to_list()
    for ids, text in zip(found, texts, strict=True):
        text = clean(text, tokenizer.rule)
        assert ids == [*library.encode(text), END]
        assert not {PAD, START, UNKNOWN, END} & set(ids[:-1])


def test_decoding_stops_at_the_end_and_survives_any_id(tokenizer):
    word = tokenizer.encode(tf.constant(["um"])).to_list()[0][:-1]
    junk = [START, PAD, UNKNOWN, -5, 10**6]
    rows = tf.ragged.constant([word + junk + [END, *word], [END], junk])
    found = tokenizer.decode(tf.cast(rows.to_tensor(), tf.int32))
    assert found.numpy().tolist() == [b"um", b"", b""]


def test_random_ids_decode_to_valid_utf_8(tokenizer):
    ids = np.random.default_rng(1).integers(4, 400, size=(300, 11))
    for text in tokenizer.decode(tf.constant(ids, tf.int32)).numpy():
        text.decode("utf-8")


def test_setting_a_seed_does_not_destroy_the_tokenizer(tokenizer):
    """`tf.random.set_seed` frees what eager operations own."""
    encode = tf.function(tokenizer.encode)
    text = tf.constant(["fünf Uhr"])
    before = encode(text).to_list(), tokenizer.encode(text).to_list()
    tf.random.set_seed(1)
    assert (encode(text).to_list(), tokenizer.encode(text).to_list()) == before


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
    ids = tokenizer.encode(["QUERY"]).to_tensor().numpy()[0]
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
    texts += [
        "x" * 50_000,
        "ü" * 50_000,
        " " * 50_000,
        "one" + " " * 9000 + "two",
    ]
    for most in (1, 7, 13):
        found, longer = tokenizer.encode_at_most(tf.constant(texts), most)
        whole = tokenizer.encode(tf.constant(texts)).to_list()
        assert longer.numpy().tolist() == [len(ids) - 1 > most for ids in whole]
        assert found.to_list() == [[*ids[:-1][:most], ids[-1]] for ids in whole]


def test_a_piece_that_holds_a_line_break_is_barred():
    tokenizer = Tokenizer(learn_byte_pairs(["a\nb a\nb c\rd"] * 99, 269))
    barred = tokenizer.pieces(tokenizer.line_breaks)
    assert {"<0x0A>", "<0x0D>"} < set(barred)
    others = set(range(tokenizer.vocab_size)) - set(tokenizer.line_breaks)
    assert not {"\n", "\r"} & set("".join(tokenizer.pieces(others)))
