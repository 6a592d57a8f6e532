"""Checks that mark-up and placeholders come through a translation."""

import collections
import contextlib
import html.parser
import io
import random
import re
import sys
import time
import types

import numpy as np
import pytest

from keras_transformer.cli import main as command
from keras_transformer.inference.markup import MARKUPS, Block, parse_markup
from keras_transformer.inference.markup_places import (
    Alignment,
    alignment_of,
    joined,
    restore,
    translate_markup,
)

WORDS = re.compile(r"[^\W_]+|[^\w\s]|_")


def word_by_word(text, order="same", random=random):
    """Translates into capitals; each word attends to its own, and the order
    of words may be another."""
    places = [found.span() for found in WORDS.finditer(text)]
    words = [text[a:b] for a, b in places]
    slots = [i for i, word in enumerate(words) if word.isalnum()]
    mixed = slots[::-1] if order == "reversed" else list(slots)
    if order == "random":
        random.shuffle(mixed)
    sources = list(range(len(words)))
    for slot, source in zip(slots, mixed, strict=True):
        sources[slot] = source
    translation, starts, end = "", [], 0
    for (a, b), source in zip(places, sources, strict=True):
        translation += text[end:a]
        starts.append(len(translation))
        translation += words[source].upper()
        end = b
    weights = np.zeros((len(words), len(words)))
    weights[range(len(words)), sources] = 0.9
    if order == "random":
        weights = np.random.default_rng(random.randrange(9**9)).random(
            weights.shape
        )
    translation += text[end:]
    return Alignment(translation, [a for a, _ in places], starts, weights)


def translated(source, markup="html", order="same", random=random):
    (text,) = translate_markup(
        [source],
        markup,
        lambda texts: [
            word_by_word(x, order, random).translation for x in texts
        ],
        lambda texts: [word_by_word(x, order, random) for x in texts],
    )
    return text


HTML = [  # source, translation, and the same with the words reversed
    ("<b>one</b> two", "<b>ONE</b> TWO", "TWO <b>ONE</b>"),
    ("one <i>two</i>.", "ONE <i>TWO</i>.", "<i>TWO</i> ONE."),
    ("<b><i>x</i> y</b>", "<b><i>X</i> Y</b>", "<b>Y <i>X</i></b>"),
    ("<b>x</b> <i>y</i>", "<b>X</b> <i>Y</i>", "<i>Y</i> <b>X</b>"),
    # One word, which cannot be in both elements.
    ("<b>x</b><i>y</i>", "<b>XY</b><i></i>", "<b>XY</b><i></i>"),
    ("a<br/>b c", "A<br/>B C", "C<br/>B A"),
    ("<br/>a b<br/>", "<br/>A B<br/>", "<br/>B A<br/>"),
    ('<a title="a > b">x</a> y', '<a title="a > b">X</a> Y', None),
    ("a &amp; b", "A &amp; B", "B &amp; A"),
    ("a&nbsp;b", "A&nbsp;B", "B&nbsp;A"),
    ("it&#8217;s", "IT&#8217;S", "S&#8217;IT"),
    ("&nbsp;a &lt;b&gt;&nbsp;", "&nbsp;A &lt;B&gt;&nbsp;", None),
    ("a <!-- c <b> --> b", "A <!-- c <b> --> B", "<!-- c <b> -->B A"),
    (
        '<span translate="no">Name <b>x</b></span> is here',
        '<span translate="no">Name <b>x</b></span> IS HERE',
        'HERE <span translate="no">Name <b>x</b></span> IS',
    ),
    ("un<b>believ</b>able x", "<b>UNBELIEVABLE</b> X", "X <b>UNBELIEVABLE</b>"),
    ("<b>x y", "<b>X Y", "<b>Y X"),
    ("<b><i>x</b> y", "<b><i>X</b> Y", "Y <b><i>X</b>"),
    ("a<b> b</b>", "A <b>B</b>", "<b>B</b> A"),
    (
        "<u translate=no>a <u>b</u> c</u> d",
        "<u translate=no>a <u>b</u> c</u> D",
        None,
    ),
    ("x</b> y", "X</b> Y", "</b>Y X"),
    ("a < b and c > d", "A < B AND C > D", "D < C AND B > A"),
    ("AT&T", "AT&T", "T&AT"),
    ("a <code>b <i></code> c", "A <code>b <i></code> C", None),
    ("<script>a('<p>');</script>x", "<script>a('<p>');</script>X", None),
    (
        "<p>A <b>b</b>.</p>\n<td\n> c </td>",
        "<p>A <b>B</b>.</p>\n<td\n> C </td>",
        None,
    ),
    ("<pre> a\n b</pre><!doctype x>c", "<pre> a\n b</pre><!doctype x>C", None),
    ("<p>a\n  b <i>c</i></p>", "<p>A B <i>C</i></p>", "<p><i>C</i> B A</p>"),
    ("see <a href=x><img></a>!", "SEE <a href=x><img></a>!", None),
    ("<b>a </b>b", "<b>A</b> B", "B <b>A</b>"),
    # Arabic is written from right to left, which strings do not know.
    ("<b>نعم</b> لا", "<b>نعم</b> لا", "لا <b>نعم</b>"),
    ("see https://a.b/?x=1&amp;y=2.", "SEE https://a.b/?x=1&amp;y=2.", None),
]
PLACEHOLDERS = [
    ("Hello {name}!", "HELLO {name}!", None),
    ("Hello {name}, hi", "HELLO {name}, HI", None),
    ("{name}, hi you", "{name}, HI YOU", "YOU {name}, HI"),
    ("{0} of {1}", "{0} OF {1}", "{0} OF {1}"),
    ("{0} of it is {1:>5}", "{0} OF IT IS {1:>5}", None),
    ("%s is %1$d of %(count)s.", "%s IS %1$d OF %(count)s.", None),
    ("a ${var} b", "A ${var} B", "${var} B A"),
    ("a {{ jinja }} b", "A {{ jinja }} B", None),
    (
        "has {n, plural, one {# file} other {# files}} now",
        "HAS {n, plural, one {# file} other {# files}} NOW",
        None,
    ),
    (
        "see https://a.example/x?y=1&z=2.",
        "SEE https://a.example/x?y=1&z=2.",
        None,
    ),
    ("see (https://a.b/c_(d)) x", "SEE (https://a.b/c_(d)) X", None),
    ("ask name@example.org now", "ASK name@example.org NOW", None),
    (r"open C:\Users\x.", r"OPEN C:\Users\x.", None),
    ("open /etc/hosts and/or x", "OPEN /etc/hosts AND/OR X", None),
    ("run `code()` now", "RUN `code()` NOW", None),
    ("yes :smile: and 🙂", "YES :smile: AND 🙂", None),
    ("thank @user for #tag", "THANK @user FOR #tag", None),
    ("00:00:01,000 --> 00:00:04,000", "00:00:01,000 --> 00:00:04,000", None),
    ("17", "17", None),
    (r"one\ntwo", r"ONE\nTWO", None),
    ("10\u00a0% now", "10\u00a0% NOW", None),
    ("call +49 30 123456 now", "CALL +49 30 123456 NOW", None),
    (
        "pay DE89 3704 0044 0532 0130 00 now",
        "PAY DE89 3704 0044 0532 0130 00 NOW",
        None,
    ),
    ("on 2024-05-01 and 1. May", "ON 2024-05-01 AND 1. MAY", None),
    ("ask ({0}) or “{1}”", "ASK ({0}) OR “{1}”", None),
    ("Hello {name} !", "HELLO {name} !", None),
    ("a{0}b c", "AB{0} C", None),
    ("{n}px wide", "{n}PX WIDE", "WIDE {n}PX"),
    ("{0}: {1}", "{0}: {1}", "{0}: {1}"),
    ("a < b and 5% so", "A < B AND 5% SO", None),
    ("<b>x</b>", "<B>X</B>", None),
]


MARKDOWN = [
    ("**x** y", "**X** Y", "Y **X**"),
    ("***x*** y __z__", "***X*** Y __Z__", "__Z__ Y ***X***"),
    ("**a *b* c** d", "**A *B* C** D", "D **C *B* A**"),
    (
        'see [my text](https://a.b/c_(d) "t") now',
        'SEE [MY TEXT](https://a.b/c_(d) "t") NOW',
        'NOW [TEXT MY](https://a.b/c_(d) "t") SEE',
    ),
    ("![a b](x.png) c", "![A B](x.png) C", "C ![B A](x.png)"),
    ("# a *b*\n\nc\nd `e` f", "# A *B*\n\nC D `e` F", None),
    ("- a\n- **b** c\n  1. d e\n", "- A\n- **B** C\n  1. D E\n", None),
    ("> a b\n> c\n", "> A B\n> C\n", "> B A\n> C\n"),
    ("a\n\n```py\n*b*\n\n```\nc", "A\n\n```py\n*b*\n\n```\nC", None),
    (
        "| a | b c |\n|---|:--|\n| d | e |",
        "| A | B C |\n|---|:--|\n| D | E |",
        None,
    ),
    ("a * b and 2*3*4 c_d_e", "A * B AND 2*3*4 C_D_E", None),
    ("---\na\n---\n", "---\nA\n---\n", None),
    ("a  \nb", "A  \nB", None),
    ("**a b", "**A B", "**B A"),
    ("a b.  \n\nc d.", "A B.  \n\nC D.", "B A.  \n\nD C."),
    ("2024\n\na b", "2024\n\nA B", "2024\n\nB A"),
    ("a b\r\n\r\nc\r\n", "A B\r\n\r\nC\r\n", "B A\r\n\r\nC\r\n"),
    ("# a\r\nb c", "# A\r\nB C", "# A\r\nC B"),
    ("```a b``` is *c*\n\nd", "```a b``` IS *C*\n\nD", None),
    (
        "1. a\n\n    ~~~\n    b  c\n    ~~~\n\n   d e",
        "1. A\n\n    ~~~\n    b  c\n    ~~~\n\n   D E",
        None,
    ),
    ("a\n\n    b  *c*\n\n    d\n\ne", "A\n\n    b  *c*\n\n    d\n\nE", None),
    ("a b\n====\nc\n***\nd", "A B\n====\nC\n***\nD", "B A\n====\nC\n***\nD"),
    ("|a b|*c*|\n|-|-|\n", "|A B|*C*|\n|-|-|\n", "|B A|*C*|\n|-|-|\n"),
    (r"a | b and \\| c", r"A | B AND \\| C", None),
    ("- a\n  b\n\n  c d\n- e", "- A B\n\n  C D\n- E", "- B A\n\n  D C\n- E"),
    ("a\nb c\n", "A B C\n", "C B A\n"),
]


@pytest.mark.parametrize(
    ("markup", "source", "same", "turned"),
    [("html", *case) for case in HTML]
    + [("markdown", *case) for case in MARKDOWN]
    + [("placeholders", *case) for case in PLACEHOLDERS],
)
def test_mark_up_comes_through(markup, source, same, turned):
    assert translated(source, markup) == same
    if turned is not None:
        assert translated(source, markup, "reversed") == turned


class Nesting(html.parser.HTMLParser):
    """Reads the elements, and in which other each one is."""

    def __init__(self, text):
        super().__init__(convert_charrefs=False)
        self.stack, self.inside, self.text = ["top"], {}, ""
        self.feed(text)
        self.close()
        assert self.stack == ["top"], text

    def handle_starttag(self, tag, attrs):
        name = f"{tag}{dict(attrs)}"
        assert name not in self.inside
        self.inside[name] = self.stack[-1]
        if tag not in ("br", "img"):
            self.stack.append(name)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in ("br", "img"):
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop().startswith(f"{tag}{{")


MARKS = ["{n#}", "%(n#)s", "https://a.b/#", "`c #`", ":e#:", "${v#}", "@u#"]
MARKS += ["{n#, plural, other {x}}", "m#@a.org", "<!-- # -->", "{{ # }}"]
MARKS += [
    "<br id=#>",
    "<img id=#>",
    "<b translate=no id=#>N <i id=#y>x</i></b>",
]
BLOCKS = ["<p>one</p>\n", "\t<td a='>'> {n} two </td>", "<li>a <b>c</b> d"]
BLOCKS += ["<hr/>&nbsp;\n", " a<br>b ", "<script>x</script>", " <!-- c --> "]
BLOCKS += [" e &amp; f ", "<i translate=no>x</i> y ", "<pre> z\n</pre>"]
HOSTILE = ["<", "<a", "<a ", '<a "', "<!--", "<!", "<b>", "</b>", "&", "{{"]
HOSTILE += ["{a,", "{a,{", "{%", "${", "<b translate=no>", "<code>", "www.("]
HOSTILE += ["a@", "a.@", "/a", "\\a", ":a", "#", "`", "+1", "A", "AB12", "%"]
HOSTILE += [" ", "1", "🙂", "(", "<!--<b>", "{0}", "a {0} "]
HOSTILE += ["|", " |", "| ", "[", "[](", "[a](", "*", "* ", "**a ", "\\\n"]
HOSTILE += ["\n", " \n", "\r\n", "1. ", "> ", "```", "~~~\n", "a\n"]


class Document:
    """Makes a random document; all mark-up in it is different."""

    def __init__(self, draw):
        self.draw, self.count, self.marks = draw, 0, []
        self.source = ""
        for _ in range(draw.randint(1, 4)):
            name = draw.choice(["p", "h1", "li", "td", "div"])
            self.add(self.mark(f"<{name} id=#>"))
            self.source += draw.choice(["", " ", "\n\t"])
            self.inline(0)
            self.source += draw.choice(["", "\n"])
            self.add(f"</{name}>")
            if draw.random() < 0.2:
                self.add(self.mark("<script id=#>a < '<p>'</script>\n"))

    def mark(self, text):
        self.count += 1
        self.marks.append(text.replace("#", f"{self.count}x"))
        return self.marks[-1]

    def add(self, text):
        self.source += text

    def inline(self, depth):
        draw = self.draw
        for i in range(draw.randint(1, 6)):
            if i:
                self.add(draw.choice([" ", " ", " ", "", ", ", "\n  "]))
            kind = draw.random()
            if kind < 0.5 or depth > 3:
                self.add(draw.choice(["one", "two", "a < b", "three four"]))
            elif kind < 0.75:
                name = draw.choice(["b", "i", "a", "span"])
                self.add(self.mark(f'<{name} id="#>">'))
                if draw.random() < 0.9:
                    self.inline(depth + 1)
                self.add(f"</{name}>")
            else:
                # Names and addresses begin behind white space.
                self.source = re.sub(r"\w\Z", r"\g<0> ", self.source)
                self.add(self.mark(draw.choice(MARKS)))
                if self.source[-1].isalnum() or self.source[-1] == ":":
                    self.source += " "


@pytest.mark.parametrize("order", ["same", "reversed", "random"])
def test_all_mark_up_is_there_once_and_nested_as_before(order):
    for seed in range(2000):
        draw = random.Random(seed)
        made = Document(draw)
        found = translated(made.source, "html", order, draw)
        for mark in made.marks:
            assert found.count(mark) == 1, (seed, mark, made.source, found)
        assert Nesting(found).inside == Nesting(made.source).inside, seed
        # All else is the translation of what is left without mark-up.
        rest = [made.source, found]
        for mark in sorted(made.marks, key=len, reverse=True):
            rest = [text.replace(mark, " ") for text in rest]
        rest = [re.sub("</[a-z0-9]+>", " ", text) for text in rest]
        letters = [
            collections.Counter(re.findall(r"[^\s&;]", text)) for text in rest
        ]
        upper = collections.Counter(re.findall(r"[^\s&;]", rest[0].upper()))
        assert letters[1] == upper, (seed, made.source, found)


@pytest.mark.parametrize("order", ["same", "reversed", "random"])
def test_marks_of_markdown_are_there_once(order):
    starts = ["# ", "- ", "* ", "1. ", "> ", "  - ", "", ""]
    for seed in range(2000):
        draw = random.Random(seed)
        lines, marks, begun = [], [], []
        for i in range(draw.randint(1, 5)):
            words = []
            for j in range(draw.randint(1, 6)):
                kind = draw.choice(["*", "**", "~~", "[", "`", "", "", ""])
                mark = f"{i}x{j}"
                if kind == "[":
                    words.append(f"[two three](u/{mark})")
                    marks.append(f"](u/{mark})")
                elif kind == "`":
                    words.append(f"`*{mark}`")
                    marks.append(words[-1])
                else:
                    words.append(f"{kind}one two{kind}")
            begun.append(draw.choice(starts))
            lines.append(begun[-1] + "a " + " ".join(words))
        source = "\n\n".join(lines)
        found = translated(source, "markdown", order, draw)
        for mark in marks:
            assert found.count(mark) == 1, (seed, mark, source, found)
        for kind in ("*", "~~", "[", "`"):
            assert found.count(kind) == source.count(kind), (seed, source)
        # Each part is where it was, with the mark at its start.
        parts = found.split("\n\n")
        for start, part in zip(begun, parts, strict=True):
            assert part.startswith(start), (seed, source, found)


def test_the_order_of_blocks_and_their_white_space_is_kept():
    """A translation that changes nothing brings back the source."""
    for seed in range(2000):
        draw = random.Random(seed)
        source = "".join(draw.choice(BLOCKS) for _ in range(7))
        source = source.replace("  ", " ")  # as white space in HTML
        parts = parse_markup(source, "html")
        blocks = [part for part in parts if isinstance(part, Block)]
        assert all(part == part.strip() for part in (b.text for b in blocks))
        same = translated(source).upper()
        assert same == source.upper(), seed


def test_a_range_is_the_smallest_that_holds_its_words():
    def put(source, target, rows, weight=1):
        (block,) = parse_markup(source, "html")
        starts = [found.start() for found in re.finditer(r"\S+", block.text)]
        places = [found.start() for found in re.finditer(r"\S+", target)]
        weights = weight * np.eye(len(starts))[rows]
        return restore(block, Alignment(target, starts, places, weights))

    # Between two words of the element there is one that is not of it.
    assert put("<b>a b</b> c", "A C B", [0, 2, 1]) == "<b>A C B</b>"
    # Nor can it be of another element: then the larger part is taken.
    mixed = "<b>a b</b> <i>c</i>"
    assert put(mixed, "A A C B", [0, 0, 2, 1]) == "<b>A A</b> <i>C</i> B"
    assert put(mixed, "A C B B", [0, 2, 1, 1]) == "A <i>C</i> <b>B B</b>"
    # Words that nothing attends to.
    assert put("<b>a</b> b", "B B", [1, 1]) == "<b></b>B B"
    assert put("a <b>b</b> {0}", "A", [0]) == "A<b></b> {0}"
    assert put("a <b>b</b> {0}", "", []) == "<b></b>{0}"
    # A placeholder stays in its element, even if its neighbour leaves it.
    assert put("<b>{0} a</b> b", "B A", [1, 0]) == "B <b>{0} A</b>"

    # Weak attention does not move what begins or ends a text.
    assert put("<b>{0} a b</b>", "B A", [1, 0]) == "<b>B {0} A</b>"
    assert put("<b>{0} a b</b>", "B A", [1, 0], 0.3) == "<b>{0} B A</b>"
    assert put("<b>a b {0}</b>", "B A", [1, 0]) == "<b>B {0} A</b>"
    assert put("<b>a b {0}</b>", "B A", [1, 0], 0.3) == "<b>B A {0}</b>"


def test_an_element_that_is_no_word_s_first_choice_gets_one():
    (block,) = parse_markup("<b>a</b> b", "html")
    weights = np.array([[0.4, 0.6], [0.1, 0.9]])
    whole = restore(block, Alignment("X Y", [0, 2], [0, 2], weights))
    assert whole == "<b>X</b> Y"


def test_punctuation_follows_a_placeholder():
    (block,) = parse_markup("<b>a {0} b c</b>", "html")
    rows = np.array([[1, 0, 0], [0, 0, 0], [0, 0, 1]])
    whole = restore(block, Alignment("A, C", [0, 2, 4], [0, 1, 3], rows))
    assert whole == "<b>A {0}, C</b>"


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        ("Hello <b>{name}</b>!", "Hello!"),
        ("Hello {name} !", "Hello !"),
        ("ask ({0}) or “{1}” now", "ask or now"),
        ("a<br>b &lt;<!-- c -->d", "a b <d"),
        ("{0}, <i>x</i>\n\t y", "x y"),
    ],
)
def test_the_model_reads_text(source, plain):
    (block,) = parse_markup(source, "html")
    assert block.text == plain


def test_a_translation_may_have_what_means_mark_up():
    (block,) = parse_markup("x <b>y</b>", "html")
    text = "1 < 2 <b> & &lt; &amp AT&T <!-"
    whole = restore(block, Alignment(text, [0, 2], [0], np.eye(1, 2)))
    assert html.unescape(re.sub("</?b>", "", whole)) == text
    assert "1 < 2 &lt;b> & &amp;lt; &amp;amp AT&T &lt;!-" in whole


def aligned(text, translation, source, target, weight):
    """Returns the alignment of pieces, padded as in a batch."""
    pieces = [
        [piece.encode() for piece in f"{side} </s>".split()]
        for side in (source, target)
    ]
    attention = np.full(
        (2, 3, len(pieces[1]) + 1, len(pieces[0]) + 1), weight, "float32"
    )
    return alignment_of(
        text, translation.encode(), *([*x, b""] for x in pieces), attention
    )


def test_pieces_become_words_with_places():
    source, target = "▁the ▁ro om ▁7 ▁is ▁free .", "▁Zimmer ▁7 ▁ist ▁fr ei ."
    one = aligned(
        "THE ROOM  7 is free.", "Zimmer 7 ist frei.", source, target, 0.1
    )
    assert list(one.source) == [0, 4, 10, 12, 15, 19]
    assert list(one.target) == [0, 7, 9, 13, 17]
    assert one.weights.shape == (5, 6)
    # Long words do not attract: "room" has two pieces, "7" has one.
    np.testing.assert_allclose(one.weights, 1 / 6, rtol=1e-6)
    one = aligned("Room 7", "Zimmer 7", ">>deu<< ▁room ▁7", target, 0.1)
    assert list(one.source) == [0, 5]
    # Chinese has no spaces, and a model may see other characters than the text.
    one = aligned("Ünsehn x", "你好吗", "▁unseen ▁x", "▁你 好 吗", 0.1)
    assert list(one.source) == [0, 7]
    assert list(one.target) == [0, 1, 2]
    nothing = alignment_of("", b"", [b""], [b""], np.zeros((1, 1, 1, 1)))
    assert nothing.weights.shape == (0, 0)


def test_sentences_are_aligned_apart():
    text = "- a b.  a c."
    parts = [word_by_word("a b."), word_by_word("a c.")]
    whole = joined(text, ["a b.", "a c."], "- A B.  A C.", parts)
    assert list(whole.source) == list(whole.target) == [2, 4, 5, 8, 10, 11]
    np.testing.assert_array_equal(whole.weights, 0.9 * np.eye(6))


def test_what_is_too_large_is_kept_or_refused():
    deep = "<b>" * 200 + "x" + "</b>" * 200
    assert translated(deep) == deep
    with pytest.raises(ValueError, match=r"10,000 .* Received: 20,001 char"):
        parse_markup("word " * 4000 + "<b>x</b>", "html")
    (block,) = parse_markup("word " * 4000, "html")
    assert not block.children
    with pytest.raises(ValueError, match=r"html, .* Received: markup='xml'"):
        parse_markup("", "xml")


@pytest.mark.parametrize("part", HOSTILE)
def test_the_time_to_parse_grows_with_the_length(part):
    start = time.process_time()
    for markup in MARKUPS:
        for text in (part * 20_000, "a" + part * 20_000 + "\n"):
            with contextlib.suppress(ValueError):  # it is too long
                parse_markup(text, markup)
    assert time.process_time() - start < 5


@pytest.mark.parametrize("options", [[], ["--document"]])
def test_the_command_keeps_mark_up(exported, capsys, monkeypatch, options):
    """Mark-up is whole, whatever a model of a few steps says."""
    source = "<p>room <b>7</b> is {free}.\nThe <i>next</i>.</p>\nroom 7\n"
    data = io.BytesIO(source.encode())
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=data))
    arguments = ["translate", str(exported), "--markup=html", *options]
    assert command.main(arguments) == 0
    out = capsys.readouterr().out
    for mark in ("<p>", "</p>", "<b>", "</b>", "<i>", "</i>", "{free}"):
        assert out.count(mark) == 1
    assert out.index("<b>") < out.index("</b>")
    assert out.count("\n") == (2 if options else 3)
    plain = out.split("\n")[-2]
    data = io.BytesIO(b"room 7\n")
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=data))
    assert command.main(["translate", str(exported)]) == 0
    assert capsys.readouterr().out == plain + "\n"


def test_the_search_is_the_export_s(capsys):
    arguments = ["MODEL", "--markup=html", "--beam-size=2"]
    assert command.main(["translate", *arguments]) == 1
    assert re.search("`--markup` .* --beam-size", capsys.readouterr().err)
