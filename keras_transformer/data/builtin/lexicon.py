"""The words of the built-in corpus in English and German, with inflection."""

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
