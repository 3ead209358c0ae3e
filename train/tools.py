# ruff: noqa: E501
"""Tool-use conversations: a catalogue of tools with phrasings, and tools invented on the spot."""

import copy

import words as W

STR, INT, NUM, BOOL = "string", "integer", "number", "boolean"


def _pick(values):
    return lambda r: r.choice(values)


def _range(a, b):
    return lambda r: r.randrange(a, b)


def _time(r):
    return f"{r.randrange(1, 13)}:{r.choice(['00', '15', '30', '45'])} {r.choice(['am', 'pm'])}"


CITY, NAME, TOPIC, ANIMAL = _pick(W.CITIES), _pick(W.NAMES), _pick(W.TOPICS), _pick(W.ANIMALS)
PHRASE = lambda r: f"{r.choice(W.ADJECTIVES)} {r.choice(W.COLORS)} {r.choice(W.ANIMALS)}"  # noqa: E731
LIST = lambda r: r.sample(W.FOODS, r.randrange(2, 4))  # noqa: E731

# names, description, {parameter: (type, description, generator)}, phrasings, result, final answer
CATALOGUE = [
    (
        ["get_weather", "weather", "getWeather", "weather_lookup", "current_weather"],
        "Get the weather of a city.",
        {"city": (STR, "City name", CITY)},
        [
            "What is the weather in {city}?",
            "How is the weather in {city} today?",
            "Is it raining in {city}?",
            "Weather in {city}, please.",
            "What's the weather like in {city}?",
        ],
        lambda r, a: (
            f"{r.choice(['sunny', 'cloudy', 'rainy', 'windy', 'snowy'])}, {r.randrange(-5, 36)} degrees"
        ),
        "The weather in {city} is {result}.",
    ),
    (
        ["get_weather", "get_forecast", "forecast"],
        "Get the weather forecast.",
        {"location": (STR, "Place", CITY), "unit": (STR, "Temperature unit", _pick(W.UNITS))},
        [
            "What is the weather in {location} in {unit}?",
            "Tell me the temperature in {location} in {unit}.",
            "Give me the forecast for {location}, in {unit}.",
        ],
        lambda r, a: f"{r.randrange(-5, 36)} degrees {a['unit']}",
        "It is {result} in {location}.",
    ),
    (
        ["get_time", "current_time", "time_in"],
        "Get the local time of a city.",
        {"city": (STR, "City", CITY)},
        [
            "What time is it in {city}?",
            "Tell me the time in {city}.",
            "What's the local time in {city}?",
        ],
        lambda r, a: _time(r),
        "It is {result} in {city}.",
    ),
    (
        ["add", "add_numbers", "sum", "calculator_add"],
        "Add two numbers.",
        {
            "a": (INT, "First number", _range(100, 10000)),
            "b": (INT, "Second number", _range(100, 10000)),
        },
        ["What is {a} plus {b}?", "Add {a} and {b}.", "Calculate {a} + {b}."],
        lambda r, a: str(a["a"] + a["b"]),
        "{a} plus {b} is {result}.",
    ),
    (
        ["multiply", "multiply_numbers", "product"],
        "Multiply two numbers.",
        {"x": (INT, "First factor", _range(2, 1000)), "y": (INT, "Second factor", _range(2, 1000))},
        ["What is {x} times {y}?", "Multiply {x} by {y}.", "Calculate {x} * {y}."],
        lambda r, a: str(a["x"] * a["y"]),
        "{x} times {y} is {result}.",
    ),
    (
        ["calculate", "calculator", "evaluate"],
        "Evaluate an arithmetic expression.",
        {
            "expression": (
                STR,
                "Expression",
                lambda r: f"{r.randrange(2, 999)} {r.choice('+-*/')} {r.randrange(2, 999)}",
            )
        },
        ["Calculate {expression}.", "What is {expression}?", "Please compute {expression}."],
        lambda r, a: str(r.randrange(1, 5000)),
        "The result is {result}.",
    ),
    (
        ["send_email", "email", "mail_send"],
        "Send an email.",
        {"to": (STR, "Recipient", NAME), "subject": (STR, "Subject", TOPIC)},
        [
            "Send an email to {to} about {subject}.",
            "Write {to} an email with the subject {subject}.",
            "Email {to} about {subject}.",
        ],
        lambda r, a: "sent",
        "I sent the email to {to}.",
    ),
    (
        ["send_message", "send_text", "message"],
        "Send a text message.",
        {"recipient": (STR, "Person", NAME), "text": (STR, "Message", PHRASE)},
        [
            "Tell {recipient}: {text}",
            'Send {recipient} the message "{text}".',
            'Text {recipient} "{text}".',
        ],
        lambda r, a: "ok",
        "I sent your message to {recipient}.",
    ),
    (
        ["set_alarm", "create_alarm", "alarm"],
        "Set an alarm.",
        {"time": (STR, "Time", _time)},
        ["Wake me up at {time}.", "Set an alarm for {time}.", "I need an alarm at {time}."],
        lambda r, a: "alarm set",
        "Your alarm is set for {time}.",
    ),
    (
        ["set_timer", "start_timer", "timer"],
        "Start a timer.",
        {"minutes": (INT, "Minutes", _range(1, 120))},
        [
            "Set a timer for {minutes} minutes.",
            "Start a {minutes} minute timer.",
            "Count down {minutes} minutes.",
        ],
        lambda r, a: "started",
        "I started a timer for {minutes} minutes.",
    ),
    (
        ["create_event", "add_event", "schedule_meeting"],
        "Add an event to the calendar.",
        {
            "title": (STR, "Title", TOPIC),
            "day": (STR, "Day", _pick(W.DAYS)),
            "time": (STR, "Time", _time),
        },
        [
            "Put {title} in my calendar on {day} at {time}.",
            "Schedule {title} for {day} at {time}.",
            "Add {title} on {day}, {time}.",
        ],
        lambda r, a: "created",
        "I added {title} on {day} at {time}.",
    ),
    (
        ["add_reminder", "remind_me", "create_reminder"],
        "Create a reminder.",
        {"task": (STR, "What to remember", TOPIC), "day": (STR, "Day", _pick(W.DAYS))},
        [
            "Remind me of {task} on {day}.",
            "On {day}, remind me about {task}.",
            "Create a reminder for {task} on {day}.",
        ],
        lambda r, a: "saved",
        "I will remind you of {task} on {day}.",
    ),
    (
        ["translate", "translate_text", "translator"],
        "Translate a text.",
        {"text": (STR, "Text", PHRASE), "language": (STR, "Target language", _pick(W.LANGUAGES))},
        [
            'Translate "{text}" into {language}.',
            'How do you say "{text}" in {language}?',
            'What is "{text}" in {language}?',
        ],
        lambda r, a: "translated text",
        "In {language} it is: {result}.",
    ),
    (
        ["search_web", "web_search", "search"],
        "Search the web.",
        {"query": (STR, "Search words", PHRASE)},
        ["Search the web for {query}.", "Look up {query} online.", "Find pages about {query}."],
        lambda r, a: f"{r.randrange(2, 90)} pages found",
        "I searched for {query}: {result}.",
    ),
    (
        ["get_stock_price", "stock_price", "quote"],
        "Get the price of a share.",
        {
            "symbol": (
                STR,
                "Ticker symbol",
                lambda r: "".join(
                    r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.randrange(3, 5))
                ),
            )
        },
        [
            "What is the price of {symbol}?",
            "Get the stock price of {symbol}.",
            "How much is one share of {symbol}?",
        ],
        lambda r, a: f"{r.randrange(5, 900)}.{r.randrange(10, 100)}",
        "{symbol} costs {result}.",
    ),
    (
        ["set_light", "control_light", "switch_light"],
        "Switch a light on or off.",
        {
            "room": (STR, "Room", _pick(W.PLACES)),
            "on": (BOOL, "True to switch on", lambda r: r.random() < 0.5),
        },
        ["Turn {on!} the light in the {room}.", "Switch {on!} the {room} light."],
        lambda r, a: "done",
        "The light in the {room} is {on!}.",
    ),
    (
        ["set_temperature", "set_thermostat", "heating"],
        "Set the room temperature.",
        {
            "degrees": (NUM, "Degrees", lambda r: r.choice([18, 19, 20, 21, 22, 19.5, 20.5, 21.5])),
            "room": (STR, "Room", _pick(W.PLACES)),
        },
        [
            "Set the {room} to {degrees} degrees.",
            "Make it {degrees} degrees in the {room}.",
            "Heat the {room} to {degrees} degrees.",
        ],
        lambda r, a: "ok",
        "The {room} is set to {degrees} degrees.",
    ),
    (
        ["book_table", "reserve_table", "book_restaurant"],
        "Book a table.",
        {
            "restaurant": (
                STR,
                "Restaurant",
                lambda r: f"the {r.choice(W.COLORS)} {r.choice(W.ANIMALS)}",
            ),
            "people": (INT, "Guests", _range(2, 12)),
        },
        [
            "Book a table for {people} at {restaurant}.",
            "Reserve a table at {restaurant} for {people} people.",
            "I need a table for {people} at {restaurant}.",
        ],
        lambda r, a: "booked",
        "I booked a table for {people} at {restaurant}.",
    ),
    (
        ["find_flights", "search_flights", "flights"],
        "Find flights.",
        {
            "origin": (STR, "From", CITY),
            "destination": (STR, "To", CITY),
            "day": (STR, "Day", _pick(W.DAYS)),
        },
        [
            "Find a flight from {origin} to {destination} on {day}.",
            "I want to fly from {origin} to {destination} on {day}.",
            "Flights from {origin} to {destination} on {day}, please.",
        ],
        lambda r, a: f"{r.randrange(1, 9)} flights",
        "I found {result} from {origin} to {destination} on {day}.",
    ),
    (
        ["order_food", "order", "place_order"],
        "Order food.",
        {"items": ("array", "Dishes", LIST)},
        ["Order {items}.", "I would like {items}, please.", "Get me {items}."],
        lambda r, a: "ordered",
        "I ordered {items}.",
    ),
    (
        ["play_music", "play_song", "music"],
        "Play music.",
        {"artist": (STR, "Artist", NAME)},
        ["Play some music by {artist}.", "Play {artist}.", "I want to hear {artist}."],
        lambda r, a: "playing",
        "Now playing {artist}.",
    ),
    (
        ["get_contact", "find_contact", "lookup_phone"],
        "Look up a phone number.",
        {"name": (STR, "Person", NAME)},
        [
            "What is the phone number of {name}?",
            "Find the number of {name}.",
            "How can I call {name}?",
        ],
        lambda r, a: f"555-{r.randrange(1000, 10000)}",
        "The number of {name} is {result}.",
    ),
    (
        ["convert_currency", "currency", "exchange"],
        "Convert money.",
        {
            "amount": (INT, "Amount", _range(1, 1000)),
            "currency": (
                STR,
                "Target currency",
                _pick(["euros", "dollars", "yen", "pounds", "francs"]),
            ),
        },
        ["Convert {amount} to {currency}.", "How much is {amount} in {currency}?"],
        lambda r, a: f"{r.randrange(1, 2000)} {a['currency']}",
        "That is {result}.",
    ),
    (
        ["create_user", "register_user", "add_user"],
        "Create a user.",
        {
            "user": (
                "object",
                "The user",
                lambda r: {"name": r.choice(W.NAMES), "age": r.randrange(18, 80)},
            )
        },
        [
            "Create a user named {user.name}, {user.age} years old.",
            "Register {user.name}, age {user.age}.",
        ],
        lambda r, a: f"id {r.randrange(10, 999)}",
        "I created the user. The result is {result}.",
    ),
]


def invented(rng):
    """A tool nobody has seen: verb + thing, one to three parameters."""
    verb, thing = rng.choice(W.VERBS), rng.choice(W.THINGS)
    name = rng.choice(
        [f"{verb}_{thing}", f"{verb}_{thing}", f"{verb}{thing.capitalize()}", f"{thing}_{verb}"]
    )
    pool = {
        "name": (STR, NAME),
        "title": (STR, TOPIC),
        "color": (STR, _pick(W.COLORS)),
        "count": (INT, _range(1, 100)),
        "city": (STR, CITY),
        "id": (INT, _range(1, 10000)),
        "day": (STR, _pick(W.DAYS)),
        "query": (STR, PHRASE),
        "label": (STR, ANIMAL),
        "size": (INT, _range(1, 500)),
        "owner": (STR, NAME),
        "path": (STR, lambda r: f"/{r.choice(W.THINGS)}/{r.choice(W.ANIMALS)}.txt"),
        "code": (
            STR,
            lambda r: "".join(r.choice("abcdefghkmnprstuvwxyz23456789") for _ in range(6)),
        ),
    }
    keys = rng.sample(list(pool), rng.randrange(1, 4))
    params = {k: (pool[k][0], f"The {k} of the {thing}", pool[k][1]) for k in keys}
    parts = " and ".join(f"{k} {{{k}}}" for k in keys)
    asks = [
        f"Please {verb} the {thing} with {parts}.",
        f"{verb.capitalize()} a {thing}: {parts}.",
        f"Can you {verb} the {thing} with {parts}?",
        f"Use {name} with {parts}.",
    ]
    return (
        [name],
        f"{verb.capitalize()} a {thing}.",
        params,
        asks,
        lambda r, a: r.choice(["ok", "done", "success"]),
        f"Done: the {thing} is ready." if rng.random() < 0.5 else "Done. The result is {result}.",
    )


def declare(rng, spec):
    names, description, params, *_ = spec
    props = {}
    for key, (kind, text, _gen) in params.items():
        p = {"type": kind}
        if rng.random() < 0.7:
            p["description"] = text
        if kind == "array":
            p["items"] = {"type": "string"}
        if kind == "object":
            p["properties"] = {"name": {"type": "string"}, "age": {"type": "integer"}}
        if key == "unit":
            p["enum"] = W.UNITS
        props[key] = p
    parameters = {"type": "object", "properties": props}
    if rng.random() < 0.75:
        parameters["required"] = list(props)
    return {
        "type": "function",
        "function": {
            "name": rng.choice(names),
            "description": description,
            "parameters": parameters,
        },
    }


def say(template, args, result=None):
    text = template
    for k, v in args.items():
        if isinstance(v, dict):
            for kk, vv in v.items():
                text = text.replace(f"{{{k}.{kk}}}", str(vv))
            text = text.replace(f"{{{k}}}", ", ".join(map(str, v.values())))
        elif isinstance(v, list):
            text = text.replace(
                f"{{{k}}}", " and ".join([", ".join(v[:-1]), v[-1]]) if len(v) > 1 else v[0]
            )
        elif isinstance(v, bool):
            text = text.replace(f"{{{k}!}}", "on" if v else "off")
        else:
            text = text.replace(f"{{{k}}}", str(v))
    return text.replace("{result}", str(result))


def setup(rng):
    """(tools, specs): one to four declared tools with distinct names and purposes."""
    specs, tools, names = [], [], set()
    for _ in range(rng.choice([1, 1, 2, 2, 3, 4])):
        spec = invented(rng) if rng.random() < 0.35 else rng.choice(CATALOGUE)
        if any(s[1] == spec[1] or s[0] is spec[0] or set(s[2]) == set(spec[2]) for s in specs):
            continue
        tool = declare(rng, spec)
        if tool["function"]["name"] in names:
            continue
        names.add(tool["function"]["name"])
        specs.append(spec)
        tools.append(tool)
    return tools, specs


def call_turns(rng, tool, spec, mode, finish=True):
    """User request, call (sometimes two in parallel), results, final answer."""
    name = tool["function"]["name"]
    many = 2 if rng.random() < 0.12 else 1
    args = [{k: p[2](rng) for k, p in spec[2].items()} for _ in range(many)]
    asks = [say(rng.choice(spec[3]), a) for a in args]
    user = asks[0] if many == 1 else " ".join(asks)
    if rng.random() < 0.1:
        user = rng.choice(["Please help me. ", "Hi! ", "Hello. ", "Quick question: "]) + user
    think = {"reasoning_content": f"I should call {name}."} if mode == "enabled" else {}
    calls = [
        {"type": "function", "function": {"name": name, "arguments": copy.deepcopy(a)}}
        for a in args
    ]
    turns = [
        {"role": "user", "content": user},
        {"role": "assistant", "content": "", "tool_calls": calls, **think},
    ]
    if finish:
        results = [spec[4](rng, a) for a in args]
        think = {"reasoning_content": "I have the result."} if mode == "enabled" else {}
        turns += [{"role": "tool", "content": r} for r in results]
        turns.append(
            {
                "role": "assistant",
                "content": " ".join(say(spec[5], a, r) for a, r in zip(args, results, strict=True)),
                **think,
            }
        )
    return turns


def question(rng):
    """One held-out item: (messages, tools, expected calls)."""
    tools, specs = setup(rng)
    i = rng.randrange(len(tools))
    turns = call_turns(rng, tools[i], specs[i], "disabled", finish=False)
    return turns[:1], tools, turns[1]["tool_calls"]
