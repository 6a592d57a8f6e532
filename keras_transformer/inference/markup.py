"""Finds mark-up and placeholders in a text, and the plain text between them.

`markup_places.py` puts them into the translation of that plain text.
"""

import dataclasses
import html
import re
from collections import Counter
from collections.abc import Iterator

from keras_transformer.validation import shown

MARKUPS = ("html", "markdown", "placeholders")
MAX_DEPTH = 100  # a block whose tags are nested deeper is kept as it is
MAX_CHARACTERS = 10_000  # its alignment takes memory by their square
CLOSING = ",.;:!?)]}»”’…%،؛؟。，、！？：；）」』》"
QUOTES = dict(zip("([{<«„“\"'", ")]}>»“”\"'", strict=True))

# Elements that end a sentence; all others stand inside of sentences.
BLOCKS = re.compile(
    "address|article|aside|audio|base|blockquote|body|canvas|caption|center|"
    "col|colgroup|d[dlt]|details|dialog|dir|div|fieldset|figcaption|figure|"
    "footer|form|frame|frameset|h[1-6r]|head|header|hgroup|html|iframe|legend|"
    "li|link|main|menu|meta|nav|noscript|object|ol|optgroup|option|p|param|"
    "pre|script|section|select|style|summary|table|tbody|t[dhr]|template|"
    "textarea|tfoot|thead|title|track|ul|video"
)
VOID = {"area", "br", "embed", "img", "input", "wbr"}  # and some of blocks
# Elements whose content is no language.
KEPT = {"code", "kbd", "math", "pre", "samp", "script", "style", "svg"}
IS_KEPT = re.compile(
    r"""\btranslate\s*=\s*["']?no\b|\bclass\s*=\s*["'][^"']*\bnotranslate\b""",
    re.IGNORECASE,
)
# Possessive, and no "<" outside of quotes: linear in the text's length.
ATTRIBUTES = r"(?:[^<>\"']++|\"[^\"]*\"|'[^']*')*+>"
URL_CHARACTER = r"(?!&(?:quot|lt|gt|nbsp|#\d+);)[^\s<>\"()]"
TIME = r"(?:\d\d:)?\d\d:\d\d[.,]\d{3}"
PLACEHOLDERS = [
    rf"(?:https?://|ftp://|www\.)(?:\([^\s()<>]*\)|{URL_CHARACTER})*"
    r"(?:\([^\s()<>]*\)|[^\s<>\"'().,;:!?*\]}»”…])",
    r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    r"\{\{.{0,200}?\}\}|\{%.{0,200}?%\}|[$#]\{[^{}\n]{1,200}\}",
    r"\{\s*\w+\s*,(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}",  # ICU
    r"\{[\w.\[\]'\"-]*(?:![rsa])?(?::[^{}\s]*)?\}",
    r"%%|%(?:\(\w+\))?(?:\d+\$)?[-+#0]?\d*(?:\.\d+)?l{0,2}[@sdifgxXuceEG]"
    r"(?!\w)",
    r"`{3}[^`\n]+`{3}|``[^`\n]+``|`[^`\n]+`",
    r"(?<!\w)(?:[A-Za-z]:|\\\\\w+)\\[^\s\"<>|*?]*[\w\\]",
    r"(?<![\w/<.~])(?:~|\.\.?)(?:/[\w.-]*\w)+/?",
    r"(?<![\w/<.~])(?:/[\w.-]*\w){2,}/?",
    r"(?<!\w):(?:[a-z][a-z0-9_-]*|[+-]1):(?!\w)",
    r"(?<![\w@.])@\w(?:[\w.-]*\w)?|(?<![\w&/#])#\w*[^\W\d]\w*",
    rf"{TIME} --> {TIME}|^\s*\d+\s*$",  # subtitles
    r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b",
    r"(?<!\w)\+\d(?:[ ()/.-]{0,2}\d){6,14}(?!\w)",  # telephone numbers
    "[\U0001f000-\U0001faff\u2600-\u27bf]"
    "[\U0001f000-\U0001faff\u2600-\u27bf\ufe0f\u200d]*",
]
PATTERN = rf"(?P<word>{'|'.join(PLACEHOLDERS)})|(?P<break>(?<!\\)\\[nrt])"
# Markdown, line by line. No pattern tries a character twice.
FENCE = re.compile(r"[ \t]*+(`{3,}+(?=[^`]*+$)|~{3,}+)")
RULE = re.compile(
    r"[ \t]*+(?:=++|[-*_ \t]{3,}+|(?=[^|]*+\|)[|:\- \t]++)[ \t]*+$"
)
STARTS = re.compile(r"[ \t]*+(?:(?:#{1,6}|>|[-*+]|\d{1,9}[.)])(?:[ \t]++|$))*+")
LIST = re.compile(r"[ \t>]*+(?:[-*+]|\d{1,9}[.)])[ \t]")
CELL = re.compile(r"((?<![ \t])[ \t]*+(?<!\\)\|[ \t]*+)")
EMPHASIS = r"\*\*\*|\*\*|\*|___|__|_|~~"
LINK = r"\]\((?:[^()\s]|\([^()\s]*+\))*+(?: ++\"[^\"\n]*+\")?\)"
SCANNERS = {
    "placeholders": re.compile(PATTERN),
    "markdown": re.compile(
        rf"(?P<word>{'|'.join(PLACEHOLDERS)})"
        rf"|(?P<open>(?<![\w\\])(?:{EMPHASIS})(?=[^\s*_~])"
        rf"|(?<!\\)!?\[(?=[^\[\]\n]{{0,1000}}+{LINK}))"
        rf"|(?P<close>(?<=[^\s\\])(?:{EMPHASIS})(?!\w)|{LINK})"
        r"|(?P<break>(?:\\| {2})\r?\n)"
    ),
    "html": re.compile(
        r"(?P<mark><!--(?s:.*?)(?:-->|\Z))|(?P<block><[!?][^<>]*>)"
        rf"|<(?P<slash>/?)(?P<name>[A-Za-z][^\s<>/\"']*+){ATTRIBUTES}"
        r"|(?P<entity>&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,31});)"
        rf"|{PATTERN}"
    ),
}
LINE = re.compile(r"[^\n]*\n|[^\n]+")  # no other ends, which are white space
PUNCTUATION = re.compile(r"[,;:.!?]+(?!\w)")
SPACES = " \t\r\n\f"


@dataclasses.dataclass(eq=False)
class Markup:
    """Describes mark-up between words, or an element around some.

    Args:
        kind: "word" if it is read as a word is, "break" if it separates words
            as a space does, "mark" if it is not seen, "open" for an element.
            While a text is parsed, also "close", "entity" or "block".
        start, end: its place in the source.
        name: of a tag.
        first, last: its range of the plain text.
        before, after: the characters that touch it, or "" for white space.
        tags: the opening and the closing tag of an element.
        children: the mark-up inside of an element.
    """

    kind: str
    start: int
    end: int
    name: str = ""
    first: int = 0
    last: int = 0
    before: str = ""
    after: str = ""
    tags: tuple[str, str] | None = None
    children: list["Markup"] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Block:
    """Holds a plain text to translate, and its mark-up.

    Args:
        text: the text without mark-up.
        source: the text that all places of mark-up are in.
        prefix, suffix: parts of the source that stay at the block's ends.
        children: the mark-up inside of the text.
        entities: the entities of the block by their characters; `None` where
            text needs none.
    """

    text: str
    source: str
    prefix: str = ""
    suffix: str = ""
    children: list[Markup] = dataclasses.field(default_factory=list)
    entities: dict[str, str] | None = None


def parse_markup(text: str, markup: str) -> list[str | Block]:
    """Splits a text into blocks to translate and strings to keep.

    In HTML, a block is the text between two tags that are not inside of
    sentences, such as `<p>` and `<td>`; in Markdown it is a paragraph, a
    heading, an item of a list or a cell; elsewhere it is a line. What has no
    mark-up is a single block, which is not changed.

    Args:
        text: any string.
        markup: "html", "markdown" or "placeholders".

    Raises:
        ValueError: if `markup` is another one, or if a block with mark-up has
            more than 10,000 characters.
    """
    if markup not in MARKUPS:
        raise ValueError(
            f"`markup` must be one of {', '.join(MARKUPS)}. Received: "
            f"markup={markup!r}"
        )
    is_html = markup == "html"
    parts: list[str | Block] = []
    lines = [text] if is_html else LINE.findall(text)
    is_markdown = markup == "markdown"
    for line in _paragraphs(lines) if is_markdown else lines:
        if isinstance(line, Kept):
            parts.append(str(line))
            continue
        tokens = list(_tokens(line, SCANNERS[markup]))
        if not tokens and not is_markdown:
            parts.append(Block(line, line))
            continue
        start, some = 0, []
        for token in [*tokens, Markup("block", len(line), len(line))]:
            if token.kind != "block":
                some.append(token)
                continue
            parts.append(_block(line, start, token.start, some, is_html))
            parts.append(line[token.start : token.end])
            start, some = token.end, []
    return [part for part in parts if part]


class Kept(str):
    """A part of Markdown that is no text: marks, code, blank lines."""


def _paragraphs(lines) -> Iterator[str]:
    """Yields the paragraphs, headings, items and cells of Markdown, and what is
    between them."""
    text = fence = ""
    in_list, is_after_blank = False, True
    for line in lines:
        body = line.rstrip("\r\n")
        begins = FENCE.match(body)
        is_code = bool(fence or begins)
        if fence and body.strip().startswith(fence):
            fence = "" if not body.strip().strip(fence[0]) else fence
        elif begins and not fence:
            fence = begins[1]
        if not is_code and is_after_blank and not in_list:
            is_code = body.startswith(("    ", "\t"))
        found = STARTS.match(body)
        marks = found[0] if found else ""
        has_marks = bool(marks.strip())
        is_kept = is_code or not body.strip() or RULE.match(body)
        if text and (is_kept or has_marks or body.lstrip()[:1] == "|"):
            yield text
            text = ""
        if is_kept:
            yield Kept(line)
            is_after_blank = is_code or not body.strip()
            continue
        if has_marks:
            in_list = bool(LIST.match(body))
            yield Kept(marks)
        elif is_after_blank and not body[0].isspace():
            in_list = False
        is_after_blank = False
        rest = line[len(marks) :] if has_marks else line
        if rest.lstrip()[:1] == "|":
            cells = CELL.split(rest)
            for i, cell in enumerate(cells):
                yield Kept(cell) if i % 2 else cell
        elif "#" in marks:
            yield rest
        else:
            text += rest
    yield text


def _tokens(text, scanner) -> Iterator[Markup]:
    end, is_blank = 0, True  # whether no text of the block is before
    while found := scanner.search(text, end):
        before, start, end = end, found.start(), found.end()
        kind, name = found.lastgroup, ""
        is_blank = is_blank and not text[before:start].strip()
        if kind == "name":
            kind, name, end = _tag(text, found)
        elif kind in ("open", "close"):  # of Markdown
            name = "[" if found[0][-1] in "[)" else found[0]
        elif kind == "entity" and html.unescape(found[0]) == found[0]:
            kind = "word"
        elif kind == "word":
            # Brackets and quotes around it would be empty without it.
            while start > before and end < len(text):
                if QUOTES.get(text[start - 1]) != text[end]:
                    break
                start, end = start - 1, end + 1
            if is_blank and (found := PUNCTUATION.match(text, end)):
                end = found.end()  # there is no word that this could follow
        is_blank = kind == "block" or (is_blank and kind != "entity")
        yield Markup(kind, start, end, name)


def _tag(text, found):
    """Returns the kind, the name and the end of a tag, or of an element whose
    content is kept."""
    name, end = found["name"].lower(), found.end()
    kind = "close" if found["slash"] else "open"
    if name in VOID or found[0].endswith("/>"):
        kind = {"br": "break", "wbr": "mark"}.get(name, "word")
    elif kind == "open" and (name in KEPT or IS_KEPT.search(found[0])):
        kind, depth, end = "word", 1, len(text)  # if nothing closes it
        tag = rf"<(/?){re.escape(name)}(?=[\s/>]){ATTRIBUTES}"
        for other in re.compile(tag, re.IGNORECASE).finditer(text, found.end()):
            depth += -1 if other[1] else name not in KEPT
            if not depth:
                end = other.end()
                break
    return "block" if BLOCKS.fullmatch(name) else kind, name, end


def _pair(tokens):
    """Returns the closing tag of each opening one; other tags become marks."""
    pairs: dict[Markup, Markup] = {}
    names: Counter[str] = Counter()
    stack: list[Markup] = []
    for token in tokens:
        if token.kind == "open":
            stack.append(token)
            names[token.name] += 1
        elif token.kind == "close" and not names[token.name]:
            token.kind = "mark"
        elif token.kind == "close":
            while (last := stack.pop()).name != token.name:
                names[last.name] -= 1
                last.kind = "mark"
            names[token.name] -= 1
            pairs[last] = token
    for token in stack:
        token.kind = "mark"
    return pairs


def _block(source, start, end, tokens, is_html) -> str | Block:
    """Returns a range of the source as a block, or as a string if it has
    nothing to translate."""
    pairs = _pair(tokens)
    entities = {
        source[token.start : token.end]: html.unescape(raw)
        for token in tokens
        if token.kind == "entity" and (raw := source[token.start : token.end])
    }
    text = _plain_text(source, start, end, tokens, entities)
    levels: list[list[Markup]] = [[]]
    deepest = 0
    for token in tokens:
        if token.kind == "close":
            levels.pop()
        elif token.kind != "entity":
            levels[-1].append(token)
        if token.kind == "open":
            close = pairs[token]
            token.tags = tuple(source[t.start : t.end] for t in (token, close))
            token.end, token.last = close.end, close.first
            levels.append(token.children)
            deepest = max(deepest, len(levels))
    if not any(map(str.isalpha, text)) or deepest > MAX_DEPTH:
        return source[start:end]
    children = _joined(levels[0], text)
    if children and len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"A text with mark-up must have at most {MAX_CHARACTERS:,} "
            "characters between two tags of blocks, or in a line. Received: "
            f"{len(text):,} characters from {shown(text)}. Put paragraphs into "
            "lines or elements of their own."
        )
    first, last = start, end
    for item in list(children):
        # Breaks and what is not seen stay where the block begins or ends.
        if item.kind not in ("mark", "break") or 0 < item.first < len(text):
            continue
        children.remove(item)
        if item.first:
            last = item.start
        else:
            first = item.end
    spaces = [
        t
        for t in tokens
        if entities.get(source[t.start : t.end], "x").isspace()
    ]
    ends = {token.end: token.start for token in spaces}
    starts = {token.start: token.end for token in spaces}
    while source[first].isspace() or first in starts:
        first = starts.get(first, first + 1)
    while source[last - 1].isspace() or last in ends:
        last = ends.get(last, last - 1)
    block = Block(text, source, source[start:first], source[last:end], children)
    if is_html:
        block.entities = {text: raw for raw, text in entities.items()}
    return block


def _plain_text(source, start, end, tokens, entities):
    """Returns the text between tokens, which learn their places in it."""
    out: list[str] = []
    waiting: list[Markup] = []  # since the last character

    def add(text):
        for character in text:
            character = " " if character in SPACES else character
            # The space before a placeholder goes with it: "Hello {name}!".
            goes = any(t.kind == "word" and not t.before for t in waiting)
            if goes and out[-1:] == [" "] and character in CLOSING:
                out.pop()
            for token in waiting:
                token.first = token.last = min(token.first, len(out))
                token.after = character.strip()
            waiting.clear()
            if not character.isspace() or (
                out and (out[-1], character) != (" ", " ")
            ):
                out.append(character)

    for token in tokens:
        add(source[start : token.start])
        raw, start = source[token.start : token.end], token.end
        if token.kind == "entity":
            add(entities[raw])
            continue
        token.before = out[-1].strip() if out else ""
        if token.kind == "break":
            add(" ")
        token.first = token.last = len(out)
        waiting.append(token)
    add(source[start:end])
    return "".join(out).rstrip()


def _joined(items, text) -> list[Markup]:
    """Joins mark-up that has no text inside or between."""
    joined: list[Markup] = []
    for item in items:
        item.children = _joined(item.children, text)
        if item.kind == "open" and not text[item.first : item.last].strip():
            item.kind = _kind(child.kind for child in item.children)
        last = joined[-1] if joined else item
        between = text[last.last : item.first]
        if last is item or "open" in (last.kind, item.kind) or between.strip():
            joined.append(item)
        else:
            last.kind = _kind((last.kind, item.kind))
            last.end, last.last, last.after = item.end, item.last, item.after
    return joined


def _kind(kinds):
    """Returns the kind of mark-up that is joined from several kinds."""
    return min(kinds, default="mark", key=("word", "break", "mark").index)
