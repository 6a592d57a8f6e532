"""A grammar that generates English sentences with German translations.

The sentences are about numbers, dates, times, prices and quantities. A small
model can learn them in minutes, but has to learn word order, gender, case and
German numbers ("siebenundvierzig", "halb sechs", "1.250,50 Euro").
"""

import random
from collections.abc import Iterator

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
    ("in the classroom", "im Klassenzimmer"), ("on the bus", "im Bus"),
    ("at the station", "am Bahnhof"), ("in the museum", "im Museum"),
    ("in the library", "in der Bibliothek"), ("in the park", "im Park"),
    ("in the square", "auf dem Platz"), ("on the ship", "auf dem Schiff"),
    ("in front of the town hall", "vor dem Rathaus"),
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


def clock(rng: random.Random) -> tuple[str, str]:
    """Returns a time of day in spoken language, without preposition."""
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
        return f"half past {spoken}", f"halb {german_next}"
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
        f"{(hour - 1) % 12 + 1}:{minute:02} {half}",
        f"{hour}:{minute:02} Uhr",
    )


def date(rng: random.Random) -> tuple[str, str]:
    """Returns a date, such as "the 3rd of May" and "3. Mai"."""
    english, german, days = rng.choice(MONTHS)
    day = rng.randint(1, days)
    return f"the {english_ordinal(day)} of {english}", f"{day}. {german}"


def price(rng: random.Random) -> tuple[str, str]:
    """Returns a price, such as "€1,250.50" and "1.250,50 Euro"."""
    euros = rng.choice((rng.randint(2, 99), rng.randint(100, 9999)))
    if rng.random() < 0.5:
        english = f"€{euros:,}"
        return english, f"{euros:,} Euro".replace(",", ".")
    cents = rng.randrange(100)
    german = f"{euros:,}".replace(",", ".")
    return f"€{euros:,}.{cents:02}", f"{german},{cents:02} Euro"


def count(rng: random.Random) -> tuple[str, str]:
    """Returns a number of at least 2, in digits or in words."""
    n = rng.choice((rng.randint(2, 12), rng.randint(13, 999)))
    if n % 100 == 1 or rng.random() < 0.5:
        return str(n), str(n)
    return english_number(n), german_number(n)


# --- Sentences: each returns English and German without the full stop. ---


def _event(rng):
    (what, was), (when, wann) = rng.choice(EVENTS), date(rng)
    time, zeit = clock(rng)
    verb, verb_de = rng.choice(
        (("is", "ist"), ("starts", "beginnt"), ("ends", "endet"))
    )
    order = rng.randrange(3)
    if order == 0:
        return (
            f"{what} {verb} on {when} at {time}",
            f"{was} {verb_de} am {wann} um {zeit}",
        )
    if order == 1:
        return (
            f"on {when}, {what} {verb} at {time}",
            f"am {wann} {verb_de} {was} um {zeit}",
        )
    day, tag = rng.choice(WEEKDAYS)
    return (
        f"{what} {verb} on {day}, {when}, at {time}",
        f"{was} {verb_de} am {tag}, dem {wann}, um {zeit}",
    )


def _cost(rng):
    (thing, ding, gender), (how, wie) = (
        rng.choice(THINGS),
        rng.choice(ADJECTIVES),
    )
    amount, betrag = price(rng)
    if rng.random() < 0.5:
        article = {"m": "der", "f": "die", "n": "das"}[gender]
        return (
            f"the {how} {thing} costs {amount}",
            f"{article} {wie}e {ding} kostet {betrag}",
        )
    article, ending = {
        "m": ("ein", "er"),
        "f": ("eine", "e"),
        "n": ("ein", "es"),
    }[gender]
    a = "an" if how[0] in "aeiou" else "a"
    return (
        f"{a} {how} {thing} costs {amount}",
        f"{article} {wie}{ending} {ding} kostet {betrag}",
    )


def _purchase(rng):
    who, wer, has, _ = rng.choice(PEOPLE)
    (thing, ding, gender), (how, wie) = (
        rng.choice(THINGS),
        rng.choice(ADJECTIVES),
    )
    amount, betrag = price(rng)
    article, ending = {
        "m": ("einen", "en"),
        "f": ("eine", "e"),
        "n": ("ein", "es"),
    }[gender]
    a = "an" if how[0] in "aeiou" else "a"
    if rng.random() < 0.5:
        return (
            f"{who} bought {a} {how} {thing} for {amount}",
            f"{wer} {has} {article} {wie}{ending} {ding} für {betrag} gekauft",
        )
    day, tag = rng.choice(WEEKDAYS)
    return (
        f"on {day}, {who} bought {a} {how} {thing} for {amount}",
        f"am {tag} {has} {wer} {article} {wie}{ending} {ding} für {betrag} "
        "gekauft",
    )


def _need(rng):
    who, wer, has, plural = rng.choice(PEOPLE)
    n, zahl = count(rng)
    if rng.random() < 0.5:
        (unit, einheit), (stuff, ware) = (
            rng.choice(SOLID_UNITS),
            rng.choice(SOLIDS),
        )
    else:
        (unit, einheit), (stuff, ware) = (
            rng.choice(LIQUID_UNITS),
            rng.choice(LIQUIDS),
        )
    need = "need" if plural else "needs"
    ending = {"habe": "e", "haben": "en", "hat": "t"}[has]
    return (
        f"{who} {need} {n} {unit} of {stuff}",
        f"{wer} brauch{ending} {zahl} {einheit} {ware}",
    )


def _crowd(rng):
    (where, wo), (who, wer) = rng.choice(PLACES), rng.choice(CROWDS)
    n, zahl = count(rng)
    if rng.random() < 0.5:
        return f"there are {n} {who} {where}", f"{wo} sind {zahl} {wer}"
    day, tag = rng.choice(WEEKDAYS)
    return (
        f"on {day} there were {n} {who} {where}",
        f"am {tag} waren {zahl} {wer} {wo}",
    )


def _train(rng):
    city, stadt = rng.choice(CITIES)
    time, zeit = clock(rng)
    platform = rng.randint(1, 24)
    return (
        f"the train to {city} leaves at {time} from platform {platform}",
        f"der Zug nach {stadt} fährt um {zeit} von Gleis {platform} ab",
    )


def _journey(rng):
    (start, von), (end, nach) = rng.sample(CITIES, 2)
    hours, minutes = rng.randint(2, 23), rng.randint(2, 59)
    return (
        f"the journey from {start} to {end} takes {hours} hours and "
        f"{minutes} minutes",
        f"die Reise von {von} nach {nach} dauert {hours} Stunden und "
        f"{minutes} Minuten",
    )


def _birth(rng):
    who, wer = rng.choice([*RELATIVES, ("Anna", "Anna"), ("Peter", "Peter")])
    when, wann = date(rng)
    year = rng.randint(1900, 2020)
    return (
        f"{who} was born on {when} {year}",
        f"{wer} wurde am {wann} {year} geboren",
    )


def _age(rng):
    who, wer = rng.choice(RELATIVES)
    n = rng.randint(2, 99)
    return (
        f"{who} is {english_number(n)} years old",
        f"{wer} ist {german_number(n)} Jahre alt",
    )


def _number(rng):
    n = rng.choice((rng.randint(0, 999), rng.randint(1000, 9999)))
    what, was = rng.choice(
        (
            ("the answer is", "die Antwort ist"),
            ("the secret number is", "die geheime Zahl ist"),
            ("the house number is", "die Hausnummer ist"),
        )
    )
    return f"{what} {english_number(n)}", f"{was} {german_number(n)}"


def _room(rng):
    room = rng.randint(1, 999)
    floor, stock = rng.choice(FLOORS)
    what, was = rng.choice((("room", "Zimmer"), ("office", "Büro")))
    return (
        f"{what} {room} is on the {floor} floor",
        f"{was} {room} ist im {stock} Stock",
    )


def _call(rng):
    time, zeit = clock(rng)
    when, wann = rng.choice((("before", "vor"), ("after", "nach")))
    day, tag = rng.choice(WEEKDAYS)
    return (
        f"please call me on {day} {when} {time}",
        f"bitte ruf mich am {tag} {wann} {zeit} an",
    )


RULES = (
    [_event] * 5 + [_cost] * 2 + [_purchase] * 3 + [_need] * 3 + [_crowd] * 2
) + [_train, _journey, _birth, _age, _number, _room, _call]


def sentence_pair(rng: random.Random) -> tuple[str, str]:
    """Returns one English sentence and its German translation."""
    english, german = rng.choice(RULES)(rng)
    return _finish(english), _finish(german)


def _finish(text: str) -> str:
    stop = "" if text.endswith(".") else "."  # "at 5:40 p.m." ends in one
    return text[0].upper() + text[1:] + stop


def sentence_pairs(seed: int) -> Iterator[tuple[str, str]]:
    """Yields pairs without end, the same for the same seed, no source twice."""
    rng = random.Random(seed)
    seen = set()
    while True:
        pair = sentence_pair(rng)
        if pair[0] not in seen:
            seen.add(pair[0])
            yield pair
