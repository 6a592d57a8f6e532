"""Checks that documents are split into sentences and lose nothing."""

import io
import re
import sys
import types

import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.cli import main as command
from keras_transformer.export import saved_translator
from keras_transformer.inference import sentences, split_sentences

SPACES = " \t\n\r\v\f\x1c\x85\xa0\u1680\u2003\u2028\u2029\u202f\u3000"
SIGNS = (
    ".!?…。！？:;,-–*>#\"'“”„«»()[]019aIßéZм漢字مשﬁ🙂\0\ufeff\u200d\u0301\ud800"
)
PIECES = [*SPACES, *SIGNS, "z. B.", "e.g.", "Dr.", "3.14", "\r\n", "Word "]
TEXTS = st.lists(st.sampled_from(PIECES)).map("".join) | st.text(
    st.characters(exclude_categories=())
)
LANGUAGES = st.sampled_from(["en", "de", "ar", "ja", "de-AT", "xx", "", "🙂"])


@pytest.fixture
def short_limits(monkeypatch):
    """Lets short texts pass the limits of length, too."""
    monkeypatch.setattr(sentences, "MAX_CHARACTERS", 13)
    monkeypatch.setattr(sentences, "WINDOW", 29)


def check_is_exact(text, language):
    split = split_sentences(text, language)
    assert len(split.separators) == len(split.sentences) + 1
    pairs = zip([*split.sentences, ""], split.separators, strict=True)
    assert "".join(separator + s for s, separator in pairs) == text
    assert split.joined(split.sentences) == text
    for sentence in split.sentences:
        assert sentence
        assert sentence == sentence.strip()
        assert len(sentence) <= sentences.MAX_CHARACTERS


@settings(deadline=None, max_examples=300)
@given(TEXTS, LANGUAGES)
# Version 1.0.32 of sentencex panics here.
@example("r字g[字B{(é.… D\u2029.«g", "en")
def test_no_text_loses_a_character(text, language):
    check_is_exact(text, language)


@settings(deadline=None, max_examples=300)
@given(text=TEXTS, language=LANGUAGES)
@example(text="漢。" * 40, language="zh")
@example(text="1. " * 40, language="de")
@pytest.mark.usefixtures("short_limits")
def test_no_long_text_loses_a_character(text, language):
    check_is_exact(text, language)


ONE_SENTENCE = {
    "en": [
        "Dr. Smith met Mrs. Jones at St. Mary's.",
        "Bring fruit, e.g. apples, i.e. something sweet.",
        "Pi is 3.14 and the price is $1,249.50.",
        "I live in the U.S. now.",
        "J. R. R. Tolkien wrote it.",
        "Visit https://example.com/a.html?x=1.",
        'He said, "I am here. Where are you?"',
        "1. The first item.",
    ],
    "de": [
        "Dr. Müller und Prof. Dr. Weber kamen.",
        "Das ist z. B. gut, d. h. besser.",
        "Am 3. Oktober ist frei.",
        "Im 19. Jahrhundert und im 2. Weltkrieg war es so.",
        "Siehe Nr. 7, S. 12 ff. im Buch.",
        "König Ludwig XIV. regierte lange.",
        "Obst, Gemüse usw. sind gesund.",
        "„Komm herein.“",
        "Mehr steht auf www.beispiel.de.",
        "2. Zweiter Punkt.",
    ],
}


@pytest.mark.parametrize(
    ("language", "sentence"),
    [(k, s) for k, v in ONE_SENTENCE.items() for s in v],
)
def test_a_point_inside_a_sentence_does_not_end_it(language, sentence):
    after = {"en": "It rained.", "de": "Danach regnete es."}[language]
    found = split_sentences(f"{sentence}  {after}", language)
    assert found.sentences == [sentence, after]
    assert found.separators == ["", "  ", ""]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Is it true?! Yes. Good!", ["Is it true?!", "Yes.", "Good!"]),
        ("a wrapped\nline", ["a wrapped", "line"]),
        ("One.\r\n\r\n\r\nTwo. ", ["One.", "Two."]),
        ("\ufeffOne.\u2028Two.", ["One.", "Two."]),
        ("- one\n* two\n\n## Three\n> four", ["one", "two", "Three", "four"]),
        ("* * *\n---\n…\n🙂\n", []),
        ("It is -5 degrees.", ["It is -5 degrees."]),
        (" \n\t", []),
        ("", []),
    ],
)
def test_lines_end_sentences_and_marks_are_kept(text, expected):
    assert split_sentences(text, "en").sentences == expected


def test_other_forms_of_a_language_have_its_rules():
    text = "Am 3. Oktober ist frei."
    for language in ("de", "DE", "de-AT", "de_DE", "deu", "ger"):
        assert split_sentences(text, language).sentences == [text]
    text = "Kl. 5 kom hr. Hansen. Det er f.eks. godt."
    assert split_sentences(text, "dan") == split_sentences(text, "da")


def test_long_sentences_are_cut_behind_a_clause_or_a_word():
    words = "these are words " * 45 + "and this ends a clause, " + "more " * 90
    first, second = split_sentences(words, "en").sentences
    assert first.endswith("a clause,")
    assert second.startswith("more")
    pieces = split_sentences("word " * 1000, "en").sentences
    assert all(600 < len(piece) <= 1000 for piece in pieces)
    assert set(" ".join(pieces).split()) == {"word"}
    assert list(map(len, split_sentences("x" * 2001, "en").sentences)) == [
        1000,
        1000,
        1,
    ]


def test_a_line_longer_than_the_window_is_split_as_its_parts():
    found = split_sentences("Dr. Smith is in. " * 2000, "en")
    assert found.sentences == ["Dr. Smith is in."] * 2000


@pytest.mark.parametrize("changed", ["another text", "One", ""])
def test_a_splitter_that_changes_text_is_not_followed(monkeypatch, changed):
    monkeypatch.setattr(
        sentences, "load_splitter", lambda: lambda *_: [changed]
    )
    assert split_sentences("One. Two.\nThree.", "en").sentences == [
        "One. Two.",
        "Three.",
    ]


@pytest.mark.parametrize(
    ("name", "is_survived"),
    [("PanicException", True), ("KeyboardInterrupt", False)],
)
def test_a_panic_of_the_splitter_leaves_the_line_whole(
    monkeypatch, name, is_survived
):
    error = type(name, (BaseException,), {})

    def segment(language, text):
        raise error

    monkeypatch.setattr(sentences, "load_splitter", lambda: segment)
    if is_survived:
        assert split_sentences("One. Two.\n", "en").sentences == ["One. Two."]
    else:
        with pytest.raises(error):
            split_sentences("One. Two.\n", "en")


def test_chinese_becomes_a_script_with_spaces():
    split = split_sentences("你好。我很好。\n", "zh")
    assert split.joined(["Hello.", "I am fine."]) == "Hello. I am fine.\n"
    assert split.joined(["こんにちは。", "元気です。"]) == (
        "こんにちは。元気です。\n"
    )
    # Marks at the end may be as narrow as in other scripts.
    split = split_sentences("他说：“你好。”我走了。", "zh")
    assert split.joined(["He said, “Hello.”", "I left."]) == (
        "He said, “Hello.” I left."
    )
    split = split_sentences("他买了iPhone 15。我走了。", "zh")
    assert split.joined(["He bought it.", "I left."]) == "He bought it. I left."
    for text in ("你好!再见!", "そうですか?はい!行きます。"):
        split = split_sentences(text, "zh")
        assert split.joined(split.sentences) == text
        english = ["Yes!"] * len(split.sentences)
        assert split.joined(english) == " ".join(english)


def test_each_sentence_needs_a_translation():
    with pytest.raises(ValueError, match="1 translations of 2 sentences"):
        split_sentences("One. Two.", "en").joined(["Eins."])


class UpperCase:
    """Translates to capitals; cuts strings of more than 40 bytes."""

    tags = ()

    def __init__(self, path):
        self.metadata = {
            "dtype": "float32",
            "source": path,
            "tags": self.tags,
        }

    def translate(self, text):
        return {
            "translation": tf.strings.upper(text, "utf-8"),
            "truncated": tf.strings.length(text) > 40,
        }


@pytest.fixture
def translate(monkeypatch, capsysbinary):
    """Returns a function that runs the command on bytes."""
    monkeypatch.setattr(saved_translator, "SavedTranslator", UpperCase)

    def run(data, *arguments):
        stdin = types.SimpleNamespace(buffer=io.BytesIO(data))
        monkeypatch.setattr(sys, "stdin", stdin)
        status = command.main(["translate", *arguments])
        return status, *capsysbinary.readouterr()

    return run


DOCUMENT = (
    "\ufeff  Dr. Smith is in.  He reads.\r\n\r\n\n- eins\n\n---\n  two\t\nend. "
).encode()


def test_a_tag_at_the_beginning_holds_for_the_document(translate, monkeypatch):
    monkeypatch.setattr("keras_transformer.cli.document.LINES_AT_A_TIME", 1)
    text = b">>deu<< One. Two.\n>>fra<< Three.\nFour.\n"
    # In a model without tags, it is a quotation.
    status, output, _ = translate(text, "en", "--document")
    assert (status, output) == (0, text.upper())
    monkeypatch.setattr(UpperCase, "tags", ["deu", "fra", "bt"])
    status, output, _ = translate(text, "en", "--document")
    assert status == 0
    assert output == (
        b">>DEU<< ONE. >>DEU<< TWO.\n>>FRA<< THREE.\n>>DEU<< FOUR.\n"
    )
    text = b">>deu<< >>bt<< One. Two.\n"
    status, output, _ = translate(text, "en", "--document")
    assert output == b">>DEU<< >>BT<< ONE. >>DEU<< >>BT<< TWO.\n"


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n", b" ", b"\r\n"])
def test_the_command_keeps_everything_between_sentences(translate, end):
    status, output, _ = translate(DOCUMENT + end, "en", "--document")
    assert status == 0
    assert output == DOCUMENT.upper() + end


def test_documents_of_any_length_are_translated_in_parts(
    translate, monkeypatch
):
    monkeypatch.setattr("keras_transformer.cli.document.LINES_AT_A_TIME", 3)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    text = b"One. Two.\n\nThree.\n" * 3
    status, output, errors = translate(text, "en", "--document")
    assert (status, output) == (0, text.upper())
    assert re.findall(rb"\r(\d) sentences", errors) == [b"3", b"6", b"9", b"9"]
    assert errors.endswith(b" sentences\n")


def test_the_language_is_the_models_or_the_one_given(translate, monkeypatch):
    languages = []
    monkeypatch.setattr(
        "keras_transformer.cli.document.split_sentences",
        lambda text, language: (
            languages.append(language) or split_sentences(text, language)
        ),
    )
    assert translate(b"x", "de", "--document")[:2] == (0, b"X")
    assert translate(b"x", "de", "--document", "--language=en")[0] == 0
    assert languages == ["de", "en"]


def test_sentences_that_were_too_long_are_counted(translate):
    long = b"Some sentence that the model does not read to its end. "
    status, _, errors = translate(long * 2, "en", "--document")
    assert status == 0
    assert re.search(rb"warning: sentences .* too long .*: 2\n", errors)
    assert translate(b"Short.", "en", "--document")[2] == b""


def test_bytes_that_are_not_utf8_are_replaced(translate):
    status, output, _ = translate(b"a\xff b.\n\xfe\n", "en", "--document")
    assert status == 0
    assert output.decode() == "A\ufffd B.\n\ufffd\n"
