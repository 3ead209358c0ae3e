# ruff: noqa: E501
"""Word lists of the scripted tasks."""


def _w(s):
    return s.split()


NAMES = _w("""Anna Ben Clara David Emma Felix Grace Henry Iris Jack Karen Leo Maria Noah Olivia Paul Quinn Rosa Sam Tina Uma Victor Wendy Xavier
Yara Zoe Alice Bob Carol Dan Eve Frank Gina Hugo Ivan Julia Kevin Laura Mike Nina Oscar Penny Ravi Sara Tom Vera Will Amir Bella Chen Dora
Ethan Fiona George Hana Isaac Jane Kai Lily Max Nora Owen Priya Ruth Simon Tara Lucas Maya Adam Ella Jonas Lena Omar Ruby Theo""")
CITIES = _w("""Paris London Rome Berlin Madrid Tokyo Oslo Vienna Lisbon Dublin Athens Prague Warsaw Cairo Lima Boston Chicago Denver Seattle Austin
Toronto Sydney Mumbai Delhi Seoul Beijing Moscow Geneva Zurich Milan Naples Munich Hamburg Lyon Porto Krakow Nairobi Dakar Havana Bogota
Quito Santiago Miami Dallas Houston Phoenix Portland Montreal Osaka Kyoto Bangkok Hanoi Jakarta Manila Perth Auckland Helsinki Stockholm""")
COLORS = _w(
    "red blue green yellow purple orange pink brown black white gray silver golden violet turquoise crimson"
)
ANIMALS = _w("""dog cat horse rabbit parrot turtle hamster goat sheep duck goose fox wolf bear tiger lion monkey camel donkey owl eagle falcon dolphin
whale shark lizard snake frog spider beetle penguin otter badger beaver squirrel mouse""")
OBJECTS = _w("""lamp chair table sofa carpet mirror clock vase basket bottle bucket box drawer shelf pillow blanket candle kettle teapot plate bowl
hammer ladder rope umbrella suitcase backpack helmet violin guitar drum piano camera radio notebook envelope wallet ring necklace bicycle""")
PLACES = _w("""garden kitchen cellar attic garage library museum harbor station bakery school hospital church tower castle bridge market theater park
farm barn workshop office hotel airport factory lighthouse stadium chapel mill""")
FOODS = _w("""pizza pasta soup salad rice bread cheese curry sushi tacos pancakes waffles chocolate strawberries cherries mangoes grapes
noodles dumplings steak salmon potatoes carrots beans mushrooms apples pears lemons honey cookies""")
DAYS = _w("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _w("January February March April May June July August September October November December")
JOBS = _w("""teacher doctor nurse pilot baker farmer painter writer singer lawyer engineer carpenter plumber gardener chef librarian
dentist sailor tailor butcher photographer dancer actor scientist""")
TOPICS = [
    "dinner",
    "a walk",
    "the report",
    "homework",
    "a meeting",
    "the budget",
    "a party",
    "shopping",
    "the garden",
    "a holiday",
    "the car",
    "exercise",
    "a phone call",
    "the project",
    "laundry",
    "a birthday",
    "reading",
    "music practice",
    "the dentist",
    "rent",
]
LANGUAGES = _w(
    "French Spanish German Italian Portuguese Japanese Chinese Korean Arabic Hindi Dutch Swedish Polish Turkish Greek"
)
UNITS = ["celsius", "fahrenheit"]
VERBS = _w("""get set find make create delete update check search list send open close start stop read write add remove book order play
move copy lock unlock show hide print scan load save fetch lookup compute convert count track rate share""")
THINGS = _w("""note task file event alarm timer song movie ticket room table order user account message email photo document report item
product device light door window heater fan robot sensor package address route map recipe game book page list group team invoice""")
ADJECTIVES = _w(
    "friendly kind cheerful calm polite clever patient helpful quiet careful honest gentle"
)
