"""Schemas that tests hold answers and calls to, and what fits them."""

import json

# The tool that winnow-tiny was taught, in the form of /v1/chat/completions.
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "object",
    "properties": {
        "zone": {"type": "string", "maxLength": 16},
        "style": {"enum": ["12h", "24h"]},
    },
    "required": ["zone", "style"],
    "additionalProperties": False,
}


def check_clock(arguments):
    assert set(arguments) == {"zone", "style"}
    assert len(arguments["zone"]) <= 16 and arguments["style"] in ("12h", "24h")


def name_and_age(age="integer"):
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": age}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }


def check_name_and_age(text):
    answer = json.loads(text)
    assert set(answer) == {"name", "age"} and isinstance(answer["age"], int)
    assert len(answer["name"]) <= 9
