"""A grammar that generates English sentences with German translations.

The sentences are about numbers, dates, times, prices and quantities. A small
model can learn them in minutes, but has to learn word order, gender, case and
German numbers ("siebenundvierzig", "halb sechs", "1.250,50 Euro").

Words that translate each other are marked with the same superscript digit:
"half¹ past¹ five²", "halb¹ sechs²". In texts without marks they stand in the
same order or, if one text has more words, all of them translate all of the
other's.
"""

import random
import re
from collections.abc import Iterator

Pair = tuple[str, str]  # English and German
AlignedPair = tuple[str, str, frozenset[tuple[int, int]]]

DIGITS = "¹²³⁴⁵⁶⁷⁸⁹"
# In a whole sentence, where digits are too few, marks are characters that
# Unicode leaves for private use.
PRIVATE = 0xE000
MARK = re.compile(f"[{DIGITS}\ue000-\uf8ff]")

# fmt: off
MONTHS = [
    ("January", "Januar", 31), ("February", "Februar", 29),
    ("March", "März", 31), ("April", "April", 30), ("May", "Mai", 31),
    ("June", "Juni", 30), ("July", "Juli", 31), ("August", "August", 31),
    ("September", "September", 30), ("October", "Oktober", 31),
    ("November", "November", 30), ("December", "Dezember", 31),
]
WEEKDAYS = [
    ("Monday", "Montag"), ("Tuesday", "Dienstag"), ("Wednesday", "Mittwoch"),
    ("Thursday", "Donnerstag"), ("Friday", "Freitag"),
    ("Saturday", "Samstag"), ("Sunday", "Sonntag"),
]
EVENTS = [
    ("the meeting", "die Besprechung"), ("the concert", "das Konzert"),
    ("the exam", "die Prüfung"), ("the film", "der Film"),
    ("the party", "die Feier"), ("the lecture", "der Vortrag"),
    ("the course", "der Kurs"), ("the game", "das Spiel"),
    ("the wedding", "die Hochzeit"), ("the exhibition", "die Ausstellung"),
    ("the festival", "das Fest"), ("the tour", "die Führung"),
]
VERBS = [("is", "ist"), ("starts", "beginnt"), ("ends", "endet")]
# English, German, German "has", whether it is plural
PEOPLE = [
    ("I", "ich", "habe", True), ("we", "wir", "haben", True),
    ("he", "er", "hat", False), ("she", "sie", "hat", False),
    ("Anna", "Anna", "hat", False), ("Peter", "Peter", "hat", False),
    ("my sister", "meine Schwester", "hat", False),
    ("our neighbour", "unser Nachbar", "hat", False),
    ("the teacher", "die Lehrerin", "hat", False),
    ("the children", "die Kinder", "haben", True),
    ("my parents", "meine Eltern", "haben", True),
]
# English, German, gender
THINGS = [
    ("bicycle", "Fahrrad", "n"), ("car", "Auto", "n"), ("jacket", "Jacke", "f"),
    ("lamp", "Lampe", "f"), ("table", "Tisch", "m"), ("chair", "Stuhl", "m"),
    ("book", "Buch", "n"), ("watch", "Uhr", "f"), ("coat", "Mantel", "m"),
    ("bag", "Tasche", "f"), ("sofa", "Sofa", "n"), ("carpet", "Teppich", "m"),
    ("guitar", "Gitarre", "f"), ("shirt", "Hemd", "n"), ("ring", "Ring", "m"),
]
ADJECTIVES = [
    ("blue", "blau"), ("red", "rot"), ("green", "grün"), ("new", "neu"),
    ("old", "alt"), ("small", "klein"), ("beautiful", "schön"),
    ("cheap", "billig"), ("white", "weiß"), ("black", "schwarz"),
]
SOLIDS = [
    ("apples", "Äpfel"), ("potatoes", "Kartoffeln"), ("rice", "Reis"),
    ("flour", "Mehl"), ("sugar", "Zucker"), ("tomatoes", "Tomaten"),
    ("cherries", "Kirschen"), ("onions", "Zwiebeln"), ("nuts", "Nüsse"),
]
LIQUIDS = [
    ("water", "Wasser"), ("milk", "Milch"), ("coffee", "Kaffee"),
    ("apple juice", "Apfelsaft"), ("lemonade", "Limonade"), ("tea", "Tee"),
]
SOLID_UNITS = [("kilos", "Kilo"), ("bags", "Beutel"), ("packets", "Packungen")]
LIQUID_UNITS = [
    ("litres", "Liter"), ("bottles", "Flaschen"), ("glasses", "Gläser"),
    ("cups", "Tassen"),
]
CROWDS = [
    ("students", "Schüler"), ("visitors", "Besucher"),
    ("passengers", "Fahrgäste"), ("tourists", "Touristen"),
    ("children", "Kinder"), ("women", "Frauen"), ("police officers",
    "Polizisten"), ("musicians", "Musiker"),
]
PLACES = [
    ("in¹ the¹ classroom²", "im¹ Klassenzimmer²"),
    ("on¹ the¹ bus²", "im¹ Bus²"), ("at¹ the¹ station²", "am¹ Bahnhof²"),
    ("in¹ the¹ museum²", "im¹ Museum²"),
    ("in the library", "in der Bibliothek"),
    ("in¹ the¹ park²", "im¹ Park²"), ("in the square", "auf dem Platz"),
    ("on the ship", "auf dem Schiff"),
    ("in¹ front¹ of¹ the² town³ hall³", "vor¹ dem² Rathaus³"),
]
CITIES = [
    ("Berlin", "Berlin"), ("Munich", "München"), ("Cologne", "Köln"),
    ("Vienna", "Wien"), ("Zurich", "Zürich"), ("Rome", "Rom"),
    ("Paris", "Paris"), ("Prague", "Prag"), ("Warsaw", "Warschau"),
    ("Copenhagen", "Kopenhagen"), ("Hamburg", "Hamburg"), ("Milan", "Mailand"),
]
RELATIVES = [
    ("my grandmother", "meine Großmutter"), ("my uncle", "mein Onkel"),
    ("his brother", "sein Bruder"), ("her aunt", "ihre Tante"),
    ("our teacher", "unser Lehrer"), ("their daughter", "ihre Tochter"),
]
ENGLISH_ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight",
    "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen",
    "sixteen", "seventeen", "eighteen", "nineteen",
]
ENGLISH_TENS = [
    "-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy",
    "eighty", "ninety",
]
GERMAN_ONES = [
    "null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht",
    "neun", "zehn", "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn",
    "sechzehn", "siebzehn", "achtzehn", "neunzehn",
]
GERMAN_TENS = [
    "-", "-", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig",
    "achtzig", "neunzig",
]
FLOORS = [
    ("first", "ersten"), ("second", "zweiten"), ("third", "dritten"),
    ("fourth", "vierten"), ("fifth", "fünften"), ("sixth", "sechsten"),
    ("seventh", "siebten"), ("eighth", "achten"),
]
NUMBERED = [
    ("the answer is {n}", "die Antwort ist {n}"),
    ("the secret number is {n}", "die geheime Zahl ist {n}"),
    ("the¹ house² number² is³ {n}", "die¹ Hausnummer² ist³ {n}"),
]
# The German article, and the ending of the adjective after it, by gender
THE = {"m": ("der", "e"), "f": ("die", "e"), "n": ("das", "e")}
A_SUBJECT = {"m": ("ein", "er"), "f": ("eine", "e"), "n": ("ein", "es")}
AN_OBJECT = {"m": ("einen", "en"), "f": ("eine", "e"), "n": ("ein", "es")}
# fmt: on


def english_number(n: int) -> str:
    """Returns the words of 0 ≤ n < 10,000: 47 is forty-seven."""
    if n < 20:
        return ENGLISH_ONES[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return ENGLISH_TENS[tens] + (f"-{ENGLISH_ONES[ones]}" if ones else "")
    if n < 1000:
        hundreds, rest = divmod(n, 100)
        words = f"{ENGLISH_ONES[hundreds]} hundred"
        return f"{words} and {english_number(rest)}" if rest else words
    thousands, rest = divmod(n, 1000)
    words = f"{english_number(thousands)} thousand"
    if not rest:
        return words
    return words + (" and " if rest < 100 else " ") + english_number(rest)


def german_number(n: int) -> str:
    """Returns the words of 0 ≤ n < 10,000: 47 is siebenundvierzig."""
    return _german_stem(n) + ("s" if n % 100 == 1 else "")


def _german_stem(n: int) -> str:
    if n < 20:
        return GERMAN_ONES[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return (f"{GERMAN_ONES[ones]}und" if ones else "") + GERMAN_TENS[tens]
    unit, name = (100, "hundert") if n < 1000 else (1000, "tausend")
    count, rest = divmod(n, unit)
    return GERMAN_ONES[count] + name + (_german_stem(rest) if rest else "")


def english_ordinal(n: int) -> str:
    """Returns the ordinal: 1st, 2nd, 3rd, 4th, 11th, 21st …"""
    special = {1: "st", 2: "nd", 3: "rd"}
    suffix = "th" if n % 100 in (11, 12, 13) else special.get(n % 10, "th")
    return f"{n}{suffix}"


def clock(rng: random.Random) -> Pair:
    """Returns a time of day in spoken language, marked, no preposition."""
    hour = rng.randint(1, 12)
    following = hour % 12 + 1
    spoken, spoken_next = ENGLISH_ONES[hour], ENGLISH_ONES[following]
    german, german_next = german_number(hour), german_number(following)
    kind = rng.randrange(7)
    if kind == 0:
        return f"{spoken} o'clock", f"{GERMAN_ONES[hour]} Uhr"
    if kind == 1:
        return f"quarter past {spoken}", f"Viertel nach {german}"
    if kind == 2:
        return f"half¹ past¹ {spoken}²", f"halb¹ {german_next}²"
    if kind == 3:
        return f"quarter to {spoken_next}", f"Viertel vor {german_next}"
    minutes = rng.choice((5, 10, 20))
    if kind == 4:
        return (
            f"{english_number(minutes)} past {spoken}",
            f"{german_number(minutes)} nach {german}",
        )
    if kind == 5:
        return (
            f"{english_number(minutes)} to {spoken_next}",
            f"{german_number(minutes)} vor {german_next}",
        )
    hour, minute = rng.randrange(24), rng.randrange(60)
    half = "a.m." if hour < 12 else "p.m."
    return (
        f"{(hour - 1) % 12 + 1}:{minute:02}¹ {half}¹²",
        f"{hour}:{minute:02}¹ Uhr²",
    )


def date(rng: random.Random) -> Pair:
    """Returns a date, such as "3rd¹ of May²" and "3.¹ Mai²"."""
    english, german, days = rng.choice(MONTHS)
    day = rng.randint(1, days)
    return f"{english_ordinal(day)}¹ of {english}²", f"{day}.¹ {german}²"


def price(rng: random.Random) -> Pair:
    """Returns a price, such as "€1,250.50" and "1.250,50 Euro"."""
    euros = rng.choice((rng.randint(2, 99), rng.randint(100, 9999)))
    if rng.random() < 0.5:
        english = f"€{euros:,}"
        return english, f"{euros:,} Euro".replace(",", ".")
    cents = rng.randrange(100)
    german = f"{euros:,}".replace(",", ".")
    return f"€{euros:,}.{cents:02}", f"{german},{cents:02} Euro"


def count(rng: random.Random) -> Pair:
    """Returns a number of at least 2, in digits or in words."""
    n = rng.choice((rng.randint(2, 12), rng.randint(13, 999)))
    if n % 100 == 1 or rng.random() < 0.5:
        return _digits(n)
    return _words(n)


def _digits(n: int) -> Pair:
    return str(n), str(n)


def _words(n: int) -> Pair:
    return english_number(n), german_number(n)


def _described(thing, adjective, forms) -> Pair:
    """Returns a thing with an adjective: a blue car, ein blaues Auto."""
    (noun, nomen, gender), (how, wie) = thing, adjective
    article = "the" if forms is THE else "an" if how[0] in "aeiou" else "a"
    artikel, ending = forms[gender]
    return f"{article} {how} {noun}", f"{artikel} {wie}{ending} {nomen}"


# --- Rules: each returns two texts without full stop and what fills them. ---


def _event(rng):
    slots = {
        "what": rng.choice(EVENTS),
        "date": date(rng),
        "time": clock(rng),
        "starts": rng.choice(VERBS),
    }
    order = rng.randrange(3)
    if order == 0:
        english = "{what} {starts} on¹ the¹ {date} at² {time}"
        german = "{what} {starts} am¹ {date} um² {time}"
    elif order == 1:
        english = "on¹ the¹ {date}, {what} {starts} at² {time}"
        german = "am¹ {date} {starts} {what} um² {time}"
    else:
        slots["day"] = rng.choice(WEEKDAYS)
        english = "{what} {starts} on {day}, the {date}, at {time}"
        german = "{what} {starts} am {day}, dem {date}, um {time}"
    return (english, german), slots


def _cost(rng):
    thing, how, amount = rng.choice(THINGS), rng.choice(ADJECTIVES), price(rng)
    what = _described(thing, how, THE if rng.random() < 0.5 else A_SUBJECT)
    text = "{what} costs {amount}", "{what} kostet {amount}"
    return text, {"what": what, "amount": amount}


def _purchase(rng):
    who, wer, has, _ = rng.choice(PEOPLE)
    slots = {"who": (who, wer), "bought": ("bought", has)}
    thing, how = rng.choice(THINGS), rng.choice(ADJECTIVES)
    slots |= {"what": _described(thing, how, AN_OBJECT), "amount": price(rng)}
    if rng.random() < 0.5:
        english = "{who} {bought}¹ {what} for² {amount}"
        german = "{who} {bought} {what} für² {amount} gekauft¹"
    else:
        slots["day"] = rng.choice(WEEKDAYS)
        english = "on³ {day}, {who} {bought}¹ {what} for² {amount}"
        german = "am³ {day} {bought} {who} {what} für² {amount} gekauft¹"
    return (english, german), slots


def _need(rng):
    who, wer, has, plural = rng.choice(PEOPLE)
    ending = {"habe": "e", "haben": "en", "hat": "t"}[has]
    slots = {
        "who": (who, wer),
        "need": ("need" if plural else "needs", f"brauch{ending}"),
        "n": count(rng),
    }
    if rng.random() < 0.5:
        units, goods = SOLID_UNITS, SOLIDS
    else:
        units, goods = LIQUID_UNITS, LIQUIDS
    slots |= {"unit": rng.choice(units), "what": rng.choice(goods)}
    english = "{who} {need} {n} {unit} of {what}"
    german = "{who} {need} {n} {unit} {what}"
    return (english, german), slots


def _crowd(rng):
    slots = {"where": rng.choice(PLACES), "who": rng.choice(CROWDS)}
    slots["n"] = count(rng)
    if rng.random() < 0.5:
        english = "there¹ are¹ {n} {who} {where}"
        german = "{where} sind¹ {n} {who}"
    else:
        slots["day"] = rng.choice(WEEKDAYS)
        english = "on¹ {day} there² were² {n} {who} {where}"
        german = "am¹ {day} waren² {n} {who} {where}"
    return (english, german), slots


def _train(rng):
    return (
        "the¹ train² to³ {city} leaves⁴ at⁵ {time} from⁶ platform⁷ {track}",
        "der¹ Zug² nach³ {city} fährt⁴ um⁵ {time} von⁶ Gleis⁷ {track} ab⁴",
    ), {
        "city": rng.choice(CITIES),
        "time": clock(rng),
        "track": _digits(rng.randint(1, 24)),
    }


def _journey(rng):
    start, end = rng.sample(CITIES, 2)
    return (
        "the journey from {start} to {end} takes {h} hours and {min} minutes",
        "die Reise von {start} nach {end} dauert {h} Stunden und {min} Minuten",
    ), {
        "start": start,
        "end": end,
        "h": _digits(rng.randint(2, 23)),
        "min": _digits(rng.randint(2, 59)),
    }


def _birth(rng):
    return (
        "{who} was¹ born² on³ the³ {date} {year}",
        "{who} wurde¹ am³ {date} {year} geboren²",
    ), {
        "who": rng.choice([*RELATIVES, ("Anna", "Anna"), ("Peter", "Peter")]),
        "date": date(rng),
        "year": _digits(rng.randint(1900, 2020)),
    }


def _age(rng):
    who, n = rng.choice(RELATIVES), rng.randint(2, 99)
    text = "{who} is {n} years old", "{who} ist {n} Jahre alt"
    return text, {"who": who, "n": _words(n)}


def _number(rng):
    n = rng.choice((rng.randint(0, 999), rng.randint(1000, 9999)))
    return rng.choice(NUMBERED), {"n": _words(n)}


def _room(rng):
    return (
        "{what} {room} is¹ on² the² {nth} floor³",
        "{what} {room} ist¹ im² {nth} Stock³",
    ), {
        "room": _digits(rng.randint(1, 999)),
        "nth": rng.choice(FLOORS),
        "what": rng.choice((("room", "Zimmer"), ("office", "Büro"))),
    }


def _call(rng):
    return (
        "please¹ call² me³ on⁴ {day} {before} {time}",
        "bitte¹ ruf² mich³ am⁴ {day} {before} {time} an²",
    ), {
        "time": clock(rng),
        "before": rng.choice((("before", "vor"), ("after", "nach"))),
        "day": rng.choice(WEEKDAYS),
    }


RULES = (
    [_event] * 5 + [_cost] * 2 + [_purchase] * 3 + [_need] * 3 + [_crowd] * 2
) + [_train, _journey, _birth, _age, _number, _room, _call]


def sentence_pair(rng: random.Random) -> Pair:
    """Returns one English sentence and its German translation."""
    english, german = _fill(*rng.choice(RULES)(rng))
    return _finish(english), _finish(german)


def aligned_pair(rng: random.Random) -> AlignedPair:
    """Returns a pair of sentences and the links between their words.

    A link is the number of an English word and that of a German one, from 0.
    Words are what `str.split` gives, so punctuation belongs to them.
    """
    text, slots = rng.choice(RULES)(rng)
    names, parts = [*slots], [text, *slots.values()]
    text, *fillings = [_mark(pair, part) for part, pair in enumerate(parts)]
    sides = _fill(text, dict(zip(names, fillings, strict=True)))
    marks = [[set(MARK.findall(w)) for w in side.split()] for side in sides]
    links = frozenset(
        (i, j)
        for i, english in enumerate(marks[0])
        for j, german in enumerate(marks[1])
        if english & german
    )
    return _finish(sides[0]), _finish(sides[1]), links


def _fill(text: Pair, slots: dict[str, Pair]) -> Pair:
    english = {name: pair[0] for name, pair in slots.items()}
    german = {name: pair[1] for name, pair in slots.items()}
    return text[0].format_map(english), text[1].format_map(german)


def _mark(pair: Pair, part: int) -> Pair:
    """Returns one part of a sentence, with marks that no other part has."""
    first = PRIVATE + 32 * part
    if MARK.search(pair[0]):
        table = {ord(digit): first + i for i, digit in enumerate(DIGITS)}
        return pair[0].translate(table), pair[1].translate(table)
    english, german = (text.split() for text in pair)
    step = len(english) == len(german)  # in order, rather than all with all

    def marked(words):
        return " ".join(
            word if "{" in word else word + chr(first + i * step)
            for i, word in enumerate(words)
        )

    return marked(english), marked(german)


def _finish(text: str) -> str:
    text = MARK.sub("", text)
    stop = "" if text.endswith(".") else "."  # "at 5:40 p.m." ends in one
    return text[0].upper() + text[1:] + stop


def sentence_pairs(seed: int) -> Iterator[Pair]:
    """Yields pairs without end, the same for the same seed, no source twice."""
    return _distinct(sentence_pair, seed)


def aligned_pairs(seed: int) -> Iterator[AlignedPair]:
    """Yields the pairs of `sentence_pairs` with the links of their words."""
    return _distinct(aligned_pair, seed)


def _distinct(make, seed):
    rng = random.Random(seed)
    seen = set()
    while True:
        pair = make(rng)
        if pair[0] not in seen:
            seen.add(pair[0])
            yield pair
