"""Writes `punctuation.json`: texts, and what sacremoses makes of them.

It was written with sacremoses 0.2.0:

    python make_punctuation.py FOLDER

Sentences come first. Random texts follow, so that every rule of sacremoses that
has any effect decides about a few of them.
"""

import collections
import json
import pathlib
import random
import re
import sys

from sacremoses import MosesPunctNormalizer

LANGUAGES = ["en", "de", "fr", "cs", "fi", "zh"]
SENTENCES = [
    "“It’s late,” she said – “too late” …",
    "He said ‘no’ — twice ; ``why'' , nobody knows .",
    "The dogs’ bowls ( all 3 ) ,the cats' ( two ) : 50 % full .",
    'They wrote "yes", "no", and "maybe"...',
    "„Das ist gut“, sagte er. „Wirklich?“",
    "Er schrieb: „Nein.“ Dann ging er. Das war „alles.“",
    "«\u00a0Oui\u00a0», dit-elle\u00a0; «\u00a0et vous\u00a0?\u00a0»",
    "Il y a 12\u00a0500\u00a0habitants\u00a0: 20\u00a0% sont partis\u00a0!",
    "Řekl: „Ano,“ a odešel. Má 1\u00a0000\u00a0000 korun.",
    "Lämpötila on 20\u00a0ºC, nº\u00a05,\u00a0leveys 30\u00a0cm.",
    "他说：“好。”（真的）",
    "他说: “好.” (真的) 3\u00a0000",
]
PARTS = [
    *"()[]<>%:;.,!?\"'`´‘’‚„“”–—…«»-/\r\n\t   aZé5٣中",
    *["\u00a0"] * 4,
    *["\u3000", "''", "´´", "a‘b", "c’d", '",', ',"', '."', '".', "5 %", ") ."],
    *["nº\u00a0", "\u00a0ºC", "\u00a0cm", "7\u00a08", "\u00a0«", "»\u00a0"],
]
MOST = 4  # texts about which a rule decides


def normalize(text, rules):
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def decisive(text, rules):
    """Returns the rules without which the result would be another."""
    result = normalize(text, rules)
    return {
        rule
        for i, rule in enumerate(rules)
        if normalize(text, rules[:i] + rules[i + 1 :]) != result
    }


libraries = {name: MosesPunctNormalizer(name) for name in LANGUAGES}
cases = [(text, name) for text in SENTENCES for name in ("en", "de")]
cases += [(text, name) for text in SENTENCES[4:9] for name in ("fr", "cs")]
cases += [(text, name) for text in SENTENCES[8:] for name in ("fi", "zh")]
draw = random.Random(7)
count: collections.Counter = collections.Counter()
for i in range(60_000):
    language = LANGUAGES[i % len(LANGUAGES)]
    text = "".join(draw.choices(PARTS, k=draw.randint(2, 12)))
    found = decisive(text, libraries[language].substitutions)
    if any(count[rule] < MOST for rule in found):
        count.update(found)
        cases.append((text, language))
rows = [
    {
        "text": text,
        "language": language,
        "expected": libraries[language].normalize(text),
    }
    for text, language in cases
]
lines = ",\n".join(map(json.dumps, rows))  # no-break spaces stay visible
path = pathlib.Path(sys.argv[1], "punctuation.json")
path.write_text(f"[\n{lines}\n]\n", "utf-8")
