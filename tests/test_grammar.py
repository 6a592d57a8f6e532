"""Checks the English and German of the built-in corpus."""

import itertools
import random
import unicodedata

import pytest

from keras_transformer.data.builtin import grammar
from keras_transformer.data.builtin.phrases import (
    SIZES,
    aligned_pairs_of_split,
    pairs_of_split,
    split_of,
)

NUMBERS = [
    (0, "zero", "null"),
    (1, "one", "eins"),
    (12, "twelve", "zwölf"),
    (17, "seventeen", "siebzehn"),
    (21, "twenty-one", "einundzwanzig"),
    (30, "thirty", "dreißig"),
    (66, "sixty-six", "sechsundsechzig"),
    (101, "one hundred and one", "einhunderteins"),
    (217, "two hundred and seventeen", "zweihundertsiebzehn"),
    (1001, "one thousand and one", "eintausendeins"),
    (
        9876,
        "nine thousand eight hundred and seventy-six",
        "neuntausendachthundertsechsundsiebzig",
    ),
]


@pytest.mark.parametrize(("n", "english", "german"), NUMBERS)
def test_numbers_are_written_in_words(n, english, german):
    assert grammar.english_number(n) == english
    assert grammar.german_number(n) == german


def test_every_number_has_its_own_word():
    assert len({grammar.english_number(n) for n in range(10_000)}) == 10_000
    assert len({grammar.german_number(n) for n in range(10_000)}) == 10_000


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (11, "11th"),
        (12, "12th"),
        (13, "13th"),
        (21, "21st"),
        (23, "23rd"),
    ],
)
def test_ordinals_have_their_endings(n, text):
    assert grammar.english_ordinal(n) == text


# The German of each time, whatever the words around it.
TIMES = {
    "one o'clock": "ein Uhr",
    "quarter past one": "Viertel nach eins",
    "half past twelve": "halb eins",
    "half past five": "halb sechs",
    "quarter to one": "Viertel vor eins",
    "twenty to three": "zwanzig vor drei",
    "ten past four": "zehn nach vier",
    "12:05 a.m.": "0:05 Uhr",
    "12:30 p.m.": "12:30 Uhr",
    "5:40 p.m.": "17:40 Uhr",
}


def without_marks(text):
    return "".join(c for c in text if c not in "¹²³⁴⁵⁶⁷⁸⁹")


def test_clock_times_are_translated():
    rng = random.Random(1)
    times = (grammar.clock(rng) for _ in range(60_000))
    said = dict(map(without_marks, time) for time in times)
    assert {time: said[time] for time in TIMES} == TIMES


def test_prices_are_translated():
    rng = random.Random(1)
    said = dict(grammar.price(rng) for _ in range(200_000))
    assert said["€47"] == "47 Euro"
    assert said["€1,250"] == "1.250 Euro"
    for english, german in itertools.islice(said.items(), 1000):
        swapped = english[1:].translate(str.maketrans(",.", ".,"))
        assert german == f"{swapped} Euro"


def test_gender_and_case_agree():
    """Der Tisch, die Lampe, das Buch; the object of "bought" is accusative."""
    german = [pair[1] for pair in pairs_of_split("train", 20_000)]
    endings = {
        "Ein .er Tisch kostet": "Ein roter Tisch kostet",
        "Eine .e Lampe kostet": "Eine rote Lampe kostet",
        "Ein .es Buch kostet": "Ein rotes Buch kostet",
        "einen .en Tisch": "einen roten Tisch",
        "eine .e Lampe": "eine rote Lampe",
        "ein .es Buch": "ein rotes Buch",
    }
    for example in endings.values():
        assert any(example in line for line in german), example
    for wrong in ("einen rote ", "ein roter Buch", "Die rote Tisch"):
        assert not any(wrong in line for line in german), wrong


def test_the_same_seed_gives_the_same_pairs():
    first, second, other = (
        list(itertools.islice(grammar.sentence_pairs(seed), 50))
        for seed in (5, 5, 6)
    )
    assert first == second != other


def test_no_source_is_in_two_splits_or_twice_in_one():
    sources = {
        split: [p[0] for p in pairs_of_split(split, min(size, 20_000))]
        for split, size in SIZES.items()
    }
    for split, lines in sources.items():
        assert len(set(lines)) == len(lines)
        assert {split_of(line) for line in lines} == {split}


def test_there_are_millions_of_sentences():
    """Estimates their number from how few of many draws coincide."""
    rng = random.Random(3)
    draws = [grammar.sentence_pair(rng)[0] for _ in range(50_000)]
    long = [d for d in draws if "bought" in d or "costs" in d or " at " in d]
    coincidences = len(long) - len(set(long))
    assert len(long) ** 2 / 2 / max(1, coincidences) > 2_000_000


def test_one_source_has_one_translation():
    rng = random.Random(3)
    seen = {}
    for _ in range(50_000):
        english, german = grammar.sentence_pair(rng)
        assert seen.setdefault(english, german) == german


# Sentences of each kind with the words that translate each other, by the order
# of the English words. A word without a partner is left out.
ALIGNED = {
    "The concert starts on the 12th of February at 4:12 a.m.": (
        "The=Das concert=Konzert starts=beginnt on=am the=am 12th=12. "
        "February=Februar at=um 4:12=4:12 a.m.=4:12 a.m.=Uhr."
    ),
    "On the 19th of May, the concert starts at half past six.": (
        "On=Am the=Am 19th=19. May,=Mai the=das concert=Konzert "
        "starts=beginnt at=um half=halb past=halb six.=sieben."
    ),
    "The film is on Friday, the 2nd of August, at quarter to eleven.": (
        "The=Der film=Film is=ist on=am Friday,=Freitag, the=dem 2nd=2. "
        "August,=August, at=um quarter=Viertel to=vor eleven.=elf."
    ),
    "The green coat costs €170.54.": (
        "The=Der green=grüne coat=Mantel costs=kostet €170.54.=170,54 "
        "€170.54.=Euro."
    ),
    "A green car costs €2,963.": (
        "A=Ein green=grünes car=Auto costs=kostet €2,963.=2.963 €2,963.=Euro."
    ),
    "Our neighbour bought a white jacket for €9,063.24.": (
        "Our=Unser neighbour=Nachbar bought=hat bought=gekauft. a=eine "
        "white=weiße jacket=Jacke for=für €9,063.24.=9.063,24 €9,063.24.=Euro"
    ),
    "On Thursday, I bought an old carpet for €27.14.": (
        "On=Am Thursday,=Donnerstag I=ich bought=habe bought=gekauft. "
        "an=einen old=alten carpet=Teppich for=für €27.14.=27,14 €27.14.=Euro"
    ),
    "He needs 489 glasses of apple juice.": (
        "He=Er needs=braucht 489=489 glasses=Gläser apple=Apfelsaft. "
        "juice.=Apfelsaft."
    ),
    "She needs one hundred and thirty-one kilos of potatoes.": (
        "She=Sie needs=braucht one=einhunderteinunddreißig "
        "hundred=einhunderteinunddreißig and=einhunderteinunddreißig "
        "thirty-one=einhunderteinunddreißig kilos=Kilo potatoes.=Kartoffeln."
    ),
    "There are 381 police officers in front of the town hall.": (
        "There=sind are=sind 381=381 police=Polizisten. officers=Polizisten. "
        "in=Vor front=Vor of=Vor the=dem town=Rathaus hall.=Rathaus"
    ),
    "On Sunday there were seventy-four children on the bus.": (
        "On=Am Sunday=Sonntag there=waren were=waren "
        "seventy-four=vierundsiebzig children=Kinder on=im the=im bus.=Bus."
    ),
    "On Saturday there were ten women in the library.": (
        "On=Am Saturday=Samstag there=waren were=waren ten=zehn women=Frauen "
        "in=in the=der library.=Bibliothek."
    ),
    "The train to Prague leaves at 3:30 p.m. from platform 23.": (
        "The=Der train=Zug to=nach Prague=Prag leaves=fährt leaves=ab. at=um "
        "3:30=15:30 p.m.=15:30 p.m.=Uhr from=von platform=Gleis 23.=23"
    ),
    "The journey from Rome to Prague takes 22 hours and 45 minutes.": (
        "The=Die journey=Reise from=von Rome=Rom to=nach Prague=Prag "
        "takes=dauert 22=22 hours=Stunden and=und 45=45 minutes.=Minuten."
    ),
    "My uncle was born on the 3rd of January 1914.": (
        "My=Mein uncle=Onkel was=wurde born=geboren. on=am the=am 3rd=3. "
        "January=Januar 1914.=1914"
    ),
    "Her aunt is thirty-one years old.": (
        "Her=Ihre aunt=Tante is=ist thirty-one=einunddreißig years=Jahre "
        "old.=alt."
    ),
    "The secret number is eight thousand and ninety.": (
        "The=Die secret=geheime number=Zahl is=ist eight=achttausendneunzig. "
        "thousand=achttausendneunzig. and=achttausendneunzig. "
        "ninety.=achttausendneunzig."
    ),
    "The house number is one hundred and seventy-two.": (
        "The=Die house=Hausnummer number=Hausnummer is=ist "
        "one=einhundertzweiundsiebzig. hundred=einhundertzweiundsiebzig. "
        "and=einhundertzweiundsiebzig. seventy-two.=einhundertzweiundsiebzig."
    ),
    "Room 753 is on the second floor.": (
        "Room=Zimmer 753=753 is=ist on=im the=im second=zweiten floor.=Stock."
    ),
    "Please call me on Thursday after five o'clock.": (
        "Please=Bitte call=ruf call=an. me=mich on=am Thursday=Donnerstag "
        "after=nach five=fünf o'clock.=Uhr"
    ),
}


def test_words_are_linked_with_their_translations():
    found = {}
    for english, german, links in aligned_pairs_of_split("train", 400):
        words, others = english.split(), german.split()
        found[english] = " ".join(
            f"{words[i]}={others[j]}" for i, j in sorted(links)
        )
    assert {english: found.get(english) for english in ALIGNED} == ALIGNED


def test_alignment_leaves_the_sentences_as_they_are():
    for seed in range(2_000):
        pair = grammar.sentence_pair(random.Random(seed))
        assert grammar.aligned_pair(random.Random(seed))[:2] == pair
    for split in SIZES:
        pairs = [p[:2] for p in aligned_pairs_of_split(split, 50)]
        assert pairs == list(pairs_of_split(split, 50))


def test_only_of_may_have_no_translation():
    for english, german, links in aligned_pairs_of_split("train", 2_000):
        words, others = english.split(), german.split()
        assert {j for _, j in links} == set(range(len(others))), german
        linked = {i for i, _ in links}
        assert linked <= set(range(len(words))), english
        unlinked = [w for i, w in enumerate(words) if i not in linked]
        assert unlinked in ([], ["of"]), english


def test_no_mark_is_left_in_a_sentence():
    rng = random.Random(2)
    for _ in range(2_000):
        texts = grammar.sentence_pair(rng) + grammar.aligned_pair(rng)[:2]
        kinds = {unicodedata.category(c) for text in texts for c in text}
        # Superscripts are "other numbers"; "Co" is the private use.
        assert not kinds & {"No", "Co"}, texts
        assert "{" not in "".join(texts), texts
