"""The bundled model, served with defaults, does what it was trained for.

A quick guard against a broken checkpoint, template, cache or kernel. The items are made here, apart
from the training scripts; the bars leave room below what the model should score.
"""

import concurrent.futures
import json
import random
import re

import pytest
from live_server import ROOT, Server
from schemas import WEATHER

MODEL = ROOT / "models" / "winnow-tiny"
FILLER = [
    "The river runs past the old mill and turns slowly towards the sea.",
    "Many people like to walk in the morning, when the air is still cool.",
    "A good meal needs fresh vegetables, a little salt, and some patience.",
    "Plants use the light of the sun to make the sugar that they live on.",
    "It is easier to learn a language when you speak it every day.",
    "The train was late, so the passengers waited in the small cafe.",
]
FACTS = [
    ("The secret code for Paris is 4821.", "What is the secret code for Paris?", "4821"),
    ("The favorite color of Emma is purple.", "What is the favorite color of Emma?", "purple"),
    ("Oscar moved to Lisbon last year.", "Where did Oscar move last year?", "Lisbon"),
]


@pytest.fixture(scope="module")
def client():
    server = Server(MODEL)
    yield server.client().with_options(timeout=600)  # a busy machine is slow, not wrong
    assert server.stop() == 0, server.log()


@pytest.fixture(scope="module")
def ask(client):
    """Greedy answers to several (messages, more arguments) at once."""

    def answer(item):
        messages, more = item
        reply = client.chat.completions.create(
            model="winnow-tiny", messages=messages, temperature=0, max_tokens=96, **more
        )
        return reply.choices[0].message

    def run(*items):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(answer, items))

    return run


def user(text):
    return [{"role": "user", "content": text}]


def content_of(message):
    """The server may or may not have split the thoughts off."""
    return (message.content or "").rpartition("</mm:think>")[2]


def call_of(message):
    """(name, arguments) of the first call."""
    if not message.tool_calls:
        return None
    function = message.tool_calls[0].function
    return function.name, json.loads(function.arguments)


def test_says_hello_in_english(ask):
    (message,) = ask((user("Hello"), {}))
    words = re.findall(r"[a-z]+", content_of(message).lower())
    assert len(words) >= 3 and {"hello", "hi", "hey", "help", "you"} & set(words), message.content
    assert content_of(message).isascii()


def test_adds(ask):
    rng = random.Random(5)
    pairs = [(rng.randrange(10, 100), rng.randrange(10, 100)) for _ in range(10)]
    replies = ask(*((user(f"What is {a} + {b}?"), {}) for a, b in pairs))
    answers = [content_of(message) for message in replies]
    right = [
        (re.findall(r"\d+", text) or [""])[-1] == str(a + b)
        for text, (a, b) in zip(answers, pairs, strict=True)
    ]
    assert sum(right) >= 9, list(zip(pairs, answers, strict=True))


def test_finds_planted_facts(ask):
    """About 2K tokens: 16 blocks, of which each query reads 4."""
    rng = random.Random(6)
    items = []
    for _, question, _ in FACTS:
        parts = [rng.choice(FILLER) for _ in range(115)]
        for fact, _, _ in FACTS:
            parts.insert(rng.randrange(len(parts) + 1), fact)
        items.append((user(f"Read this text.\n\n{' '.join(parts)}\n\n{question}"), {}))
    answers = [content_of(message) for message in ask(*items)]
    found = [value in text for text, (_, _, value) in zip(answers, FACTS, strict=True)]
    assert sum(found) >= 2, answers


def test_calls_tools(ask):
    cities = ["Paris", "Oslo", "Lima", "Boston", "Cairo"]
    replies = ask(
        *((user(f"What is the weather in {city}?"), {"tools": [WEATHER]}) for city in cities)
    )
    well_formed = [
        call is not None and call[0] == "get_weather" and set(call[1]) <= {"city"}
        for call in map(call_of, replies)
    ]
    assert sum(well_formed) >= 4, [message.content for message in replies]
