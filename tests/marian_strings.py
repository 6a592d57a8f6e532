"""Draws strings on which tokenizers may differ.

Part of `marian_reference.py`, which says how to run it.
"""

import random

RANGES = {
    "ASCII": (0x20, 0x7E),
    "Latin": (0xA0, 0x24F),
    "Greek": (0x370, 0x3FF),
    "Cyrillic": (0x400, 0x4FF),
    "Hebrew": (0x5D0, 0x5EA),
    "Arabic": (0x600, 0x6FF),
    "Devanagari": (0x900, 0x97F),
    "Thai": (0xE01, 0xE5B),
    "Hangul": (0xAC00, 0xD7A3),
    "jamo": (0x1100, 0x11FF),
    "kana": (0x3040, 0x30FF),
    "Han": (0x4E00, 0x9FFF),
    "full width": (0xFF01, 0xFFEE),
    "ligatures": (0xFB00, 0xFB06),
    "symbols": (0x2000, 0x2BFF),
    "enclosed": (0x3200, 0x33FF),
    "mathematical": (0x1D400, 0x1D7FF),
    "emoji": (0x1F300, 0x1FAFF),
    "any": (0x20, 0x10FFFF),
}
MARKS = "\u0301\u0308\u0327\u0300\u0323\u0338\u20dd\ufe0f"
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u202e\u2028\u2029"
SPACES = " \t\n\r\v\f\u00a0\u1680\u2003\u2009\u202f\u205f\u3000\u0085"
CONTROLS = "".join(map(chr, [*range(1, 32), 0x7F, *range(0x80, 0xA0)]))
EMOJI = ["👍", "👍🏽", "👩\u200d👩\u200d👧", "🇩🇪", "❤️", "1️⃣", "🙂"]
SPECIAL = ["</s>", "<pad>", "<unk>", "<s>", "</S>", "<pad", "< pad>"]
TAGS = [
    ">>fra<<",
    ">>deu<<",
    ">>sr_Latn<<",
    ">>unknown<<",
    ">><<",
    ">>>>fra<<<<",
    ">>>fra<<<",
    ">> fra <<",
    ">>fra",
    "fra<<",
    ">>fra>>",
    "<<fra>>",
    "≫fra≪",
    "＞＞fra＜＜",
    ">>deu<<>>fra<<",
    ">>two words<<",
    "▁>>fra<<",
]
MISCELLANY = ["▁", "▁▁", "_", "ﬁ", "½", "Ⅷ", "…", "„“", "’", "€", "ß", "ẞ"]


def character(rng, name=None):
    """Returns a character of a script; never half of a surrogate pair."""
    low, high = RANGES[name or rng.choice(list(RANGES))]
    while True:
        code = rng.randint(low, high)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def chunk(rng, words, one_sided):
    """Returns a part of a string."""
    kind = rng.randrange(16)
    if kind <= 4:
        return " ".join(rng.choices(words, k=rng.randint(1, 6)))
    if kind == 5:
        return rng.choice(words).upper()
    if kind == 6:
        letters = list(rng.choice(words))
        rng.shuffle(letters)
        return "".join(letters)
    if kind == 7:
        name = rng.choice(list(RANGES))
        return "".join(character(rng, name) for _ in range(rng.randint(1, 8)))
    if kind == 8:  # several marks on the letters of a word
        return "".join(
            letter + "".join(rng.choices(MARKS, k=rng.randint(0, 2)))
            for letter in rng.choice(words)
        )
    if kind == 9:
        return rng.choice(INVISIBLE).join(rng.choices(words, k=2))
    if kind == 10:
        return "".join(rng.choices(SPACES, k=rng.randint(1, 4)))
    if kind == 11:
        return "".join(rng.choices(CONTROLS, k=rng.randint(1, 3)))
    if kind == 12:
        return rng.choice(EMOJI)
    if kind == 13:
        return rng.choice(SPECIAL + TAGS + MISCELLANY)
    if kind == 14 and one_sided:
        return "".join(rng.choices(one_sided, k=rng.randint(1, 3)))
    word = rng.choice(words)  # full width
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in word)


def fixed_strings(words, one_sided):
    """Returns the strings of which every list has all."""
    some = " ".join(words[:5])
    strings = ["", " ", "  ", "\n", "\t", "▁", f" {some}", f"{some}  "]
    strings += [f"{words[0]}  {words[1]}   {words[2]}"]
    strings += [f"{words[0]}\t{words[1]}\n{words[2]}\r\n{words[3]}"]
    for tag in TAGS:
        strings += [tag, f"{tag} {some}", f"{tag}{some}", f"{some} {tag} x"]
        strings += [f" {tag} {some}", f"{words[0]}</s>{tag} {some}"]
    for token in SPECIAL:
        strings += [token, f"{some}{token}{some}", f"{some} {token} {some}"]
        strings += [token * 2, f"{token} {token}", f" {token} "]
    for text in [*one_sided[:30], *MISCELLANY, *EMOJI]:
        strings += [text, text * 2, f"{words[0]} {text}", f"{words[0]}{text}"]
    strings += ["中" * 50, "中文 字符", "中x文", "x" * 200]
    return strings


def draw_strings(count, seed, words, one_sided):
    """Returns distinct strings.

    Args:
        count: how many.
        seed: of the random choices.
        words: known words.
        one_sided: characters that only one of two SentencePiece models knows.
    """
    rng = random.Random(seed)
    fixed = list(dict.fromkeys(fixed_strings(words, one_sided)))
    if len(fixed) > count // 2:  # half a short list is random
        fixed = ["", *rng.sample(fixed[1:], count // 2)]
    strings = dict.fromkeys(fixed)
    while len(strings) < count:
        length = rng.choice((1, 2, 3, 4, 6, 10))
        if rng.randrange(200) == 0:
            length = 400
        parts = [chunk(rng, words, one_sided) for _ in range(length)]
        text = rng.choice(("", " ", " ", "  ")).join(parts)
        if rng.randrange(8) == 0:
            text = rng.choice(TAGS) + rng.choice(("", " ")) + text
        if rng.randrange(8) == 0:
            text = rng.choice((" ", "  ", "\t", "\n")) + text
        if rng.randrange(8) == 0:
            text += rng.choice((" ", "   ", "\n"))
        strings[text[:3000]] = None
    assert all(text.encode() is not None for text in strings)
    return list(strings)
