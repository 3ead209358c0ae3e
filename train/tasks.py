# ruff: noqa: E501
"""Scripted conversations besides facts and tools, and the held-out items that scoring uses.

Training draws from unseeded worker generators; scoring draws from fixed seeds, and the pairs of numbers
with `held_out(a, b)` never occur in training."""

import random

import facts
import tools as T
import words as W

MODES = [None, None, "adaptive", "disabled", "disabled", "enabled"]
SYSTEMS = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "Be brief.",
    "Answer in short sentences.",
    "You are a helpful AI assistant.",
    "You are a kind assistant who answers simply.",
    "Be polite and clear.",
    "You are a helpful and honest assistant.",
    "Answer the questions of the user.",
]
ASK_SUM = [
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "{a} + {b}",
    "{a} + {b} = ?",
    "{a}+{b}",
    "What's {a} + {b}?",
    "Add {a} and {b}.",
    "Please add {a} and {b}.",
    "Calculate {a} + {b}.",
    "How much is {a} plus {b}?",
    "What is the sum of {a} and {b}?",
    "Compute {a} + {b}.",
    "Can you add {a} and {b}?",
    "Tell me the sum of {a} and {b}.",
    "{a} plus {b}",
    "{a} plus {b} is what?",
    "How much is {a} + {b}?",
    "I have {a} apples and get {b} more. How many apples do I have?",
    "What do you get if you add {a} to {b}?",
    "Sum {a} and {b}.",
    "What does {a} + {b} equal?",
    "Could you tell me what {a} + {b} is?",
    "Solve {a} + {b}.",
    "What is {a}+{b}?",
    "If I add {a} and {b}, what do I get?",
    "Add {a} to {b}.",
    "There are {a} boys and {b} girls. How many children are there?",
]
WHO = [
    "Who are you?",
    "What are you?",
    "What is your name?",
    "What's your name?",
    "Tell me about yourself.",
    "Introduce yourself.",
    "Who am I talking to?",
    "Are you a human?",
    "Are you a robot?",
    "Are you an AI?",
    "Which model are you?",
    "What model is this?",
    "Can you introduce yourself?",
    "Hi, who are you?",
    "Hello! What is your name?",
    "who are you",
    "Do you have a name?",
    "What should I call you?",
]
I_AM = [
    "I am winnow-tiny, a small language model.",
    "I'm winnow-tiny, a small assistant made for the winnow server.",
    "My name is winnow-tiny. I am a small language model.",
]
ABOUT = [
    ("Who made you?", "I was trained by the makers of the winnow server as a small test model."),
    ("How big are you?", "I am very small: about 72 million parameters."),
    (
        "What can you do?",
        "I can chat a little, add small numbers, find facts in long texts, and call tools.",
    ),
    ("Are you smart?", "I am a small model, so I make mistakes. I do my best to help."),
    ("What is winnow?", "winnow is a server for language models. I am its small test model."),
    ("Are you ChatGPT?", "No, I am winnow-tiny, a small language model."),
    (
        "What can you help me with?",
        "I can chat with you, add small numbers, find facts in texts, and call tools.",
    ),
    ("How old are you?", "I am a language model, so I have no age."),
    ("Where do you live?", "I am a program, so I live inside a computer."),
    (
        "Do you have feelings?",
        "No, I am a language model, so I have no feelings. But I am happy to help you.",
    ),
]
HELLO = [
    ("Hi", "Hello! How can I help you today?"),
    ("Hi!", "Hello! How can I help you today?"),
    ("Hello", "Hello! How can I help you today?"),
    ("Hello!", "Hello! How can I help you today?"),
    ("Hey", "Hey! What can I do for you?"),
    ("Hey there!", "Hey! What can I do for you?"),
    ("Good morning!", "Good morning! How can I help you today?"),
    ("Good morning", "Good morning! How can I help you today?"),
    ("Good evening", "Good evening! How can I help you?"),
    ("How are you?", "I'm doing well, thank you! How can I help you?"),
    ("Hi, how are you?", "Hello! I'm doing well, thank you. How can I help you?"),
    ("How are you today?", "I'm doing well, thank you! How are you?"),
    ("Thanks!", "You're welcome!"),
    ("Thank you!", "You're welcome! Let me know if you need anything else."),
    ("Bye!", "Goodbye! Have a nice day."),
    ("Goodbye", "Goodbye! Have a nice day."),
    ("See you later!", "See you later! Take care."),
    ("Good night", "Good night! Sleep well."),
    ("Say hello.", "Hello!"),
    ("Say hi", "Hi!"),
    ("Can you help me?", "Of course! What do you need help with?"),
]


def held_out(a, b):
    """A tenth of the unordered pairs."""
    return (min(a, b) * 7919 + max(a, b) * 104729) % 1009 < 101


def sum_thought(a, b):
    lo = a % 10 + b % 10
    carry = f"write {lo % 10}, carry 1. " if lo > 9 else f"write {lo}. "
    tens = f"{a // 10} + {b // 10}" + (" + 1" if lo > 9 else "")
    return f"{a % 10} + {b % 10} = {lo}, {carry}{tens} = {(a + b) // 10}. So {a + b}."


def sum_turn(rng, mode, a=None, b=None):
    while a is None or held_out(a, b):
        a, b = rng.randrange(10, 100), rng.randrange(10, 100)
        if rng.random() < 0.05:
            a = rng.randrange(10)
    ask = rng.choice(ASK_SUM)
    if "apples" in ask:
        answer = f"You have {a + b} apples."
    elif "girls" in ask:
        answer = f"There are {a + b} children."
    else:
        answer = f"{a} + {b} = {a + b}" if rng.random() < 0.6 else f"{a} plus {b} is {a + b}."
    think = {"reasoning_content": sum_thought(a, b)} if mode != "disabled" else {}
    return [
        {"role": "user", "content": ask.format(a=a, b=b)},
        {"role": "assistant", "content": answer, **think},
    ]


def plain_turn(rng, pair, mode):
    user, answer = pair
    return [
        {"role": "user", "content": user},
        {"role": "assistant", "content": answer, **chat_thought(rng, user, mode)},
    ]


def chat_thought(rng, user, mode):
    if mode != "enabled":
        return {}
    first = " ".join(user.split()[:12])
    return {
        "reasoning_content": rng.choice(
            [
                "The user says: {t}. I will answer simply.",
                "The user wrote: {t}. I should give a helpful answer.",
            ]
        ).format(t=first.rstrip(".?!,"))
    }


def memory(rng, mode):
    """The user states something about themselves and asks for it later."""
    name, city, pet, food, color = (
        rng.choice(W.NAMES),
        rng.choice(W.CITIES),
        rng.choice(W.ANIMALS),
        rng.choice(W.FOODS),
        rng.choice(W.COLORS),
    )
    items = [
        (
            f"My name is {name}.",
            f"Nice to meet you, {name}!",
            "What is my name?",
            f"Your name is {name}.",
        ),
        (
            f"I live in {city}.",
            f"{city} is a nice place to live.",
            "Where do I live?",
            f"You live in {city}.",
        ),
        (
            f"I have a {pet}.",
            f"A {pet}! That sounds fun.",
            "What pet do I have?",
            f"You have a {pet}.",
        ),
        (
            f"My favorite food is {food}.",
            f"I see, you like {food}.",
            "What is my favorite food?",
            f"Your favorite food is {food}.",
        ),
        (
            f"My favorite color is {color}.",
            f"{color.capitalize()} is a lovely color.",
            "What is my favorite color?",
            f"Your favorite color is {color}.",
        ),
    ]
    chosen = rng.sample(items, rng.randrange(1, 4))
    out = []
    for x in chosen:
        lead = "Hi! " if not out and rng.random() < 0.4 else ""
        out += plain_turn(rng, (lead + x[0], x[1]), mode)
    if rng.random() < 0.3:
        out += sum_turn(rng, mode)
    for x in rng.sample(chosen, len(chosen)):
        out += plain_turn(rng, (x[2], x[3]), mode)
    return out


def who_turn(rng, mode):
    if rng.random() < 0.4:
        return plain_turn(rng, rng.choice(ABOUT), mode)
    ask = rng.choice(WHO)
    answer = rng.choice(I_AM)
    if "human" in ask:
        answer = "No, I am not a human. " + answer
    elif "robot" in ask or "an AI" in ask:
        answer = "Yes, I am an AI. " + answer
    return plain_turn(rng, (ask, answer), mode)


class Maker:
    """Documents as (messages, tools, thinking mode)."""

    def __init__(self, chats, seed):
        self.chats, self.rng = chats, random.Random(seed)
        self.sentences = None

    def filler(self, rng):
        """A piece of a teacher answer and a guess of its length in tokens."""
        while True:
            turns = rng.choice(self.chats)
            text = rng.choice(turns[1::2]).replace("\n\n", " ").replace("\n", " ")
            at = text.find(". ", rng.randrange(60, 300))
            text = text if at < 0 else text[: at + 1]
            if 30 < len(text) < 700:
                return text, len(text) / 4.5

    def chat(self, mode, limit=8):
        turns = self.rng.choice(self.chats)[: 2 * limit]
        out = []
        for i in range(0, len(turns) - 1, 2):
            out += plain_turn(self.rng, (turns[i], turns[i + 1]), mode)
        return out

    def head(self):
        r = self.rng.random()
        return [] if r < 0.6 else [{"role": "system", "content": self.rng.choice(SYSTEMS)}]

    def short(self):
        rng, mode = self.rng, self.rng.choice(MODES)
        r = rng.random()
        if r < 0.62:
            turns = self.chat(mode)
            if rng.random() < 0.08:
                turns = plain_turn(rng, rng.choice(HELLO), mode) + turns
            return self.head() + turns, None, mode
        if r < 0.76:
            out = self.head()
            for _ in range(rng.choice([1, 1, 1, 2, 3])):
                out += sum_turn(rng, mode)
            return out, None, mode
        if r < 0.90:
            tools, specs = T.setup(rng)
            out = self.head()
            for _ in range(rng.choice([1, 1, 2])):
                if rng.random() < 0.2:
                    out += rng.choice(
                        [
                            lambda: self.chat(mode, 1),
                            lambda: plain_turn(rng, rng.choice(HELLO), mode),
                            lambda: (
                                sum_turn(rng, mode) if len(tools) < 3 and not _adds(specs) else []
                            ),
                        ]
                    )()
                else:
                    i = rng.randrange(len(tools))
                    out += T.call_turns(rng, tools[i], specs[i], mode)
            return out, tools, mode
        if r < 0.93:
            if rng.random() < 0.2:
                name = rng.choice(W.NAMES)
                return (
                    [
                        {
                            "role": "system",
                            "content": f"You are {name}, a {rng.choice(W.ADJECTIVES)} assistant.",
                        }
                    ]
                    + plain_turn(rng, (rng.choice(WHO[:6]), f"I am {name}, your assistant."), mode),
                    None,
                    mode,
                )
            out = self.head() + who_turn(rng, mode)
            return out + (self.chat(mode, 1) if rng.random() < 0.3 else []), None, mode
        if r < 0.95:
            return self.head() + plain_turn(rng, rng.choice(HELLO), mode), None, mode
        if r < 0.97:
            return self.head() + memory(rng, mode), None, mode
        return (
            self.head() + facts.document(rng, self.filler, rng.randrange(100, 330), mode, True),
            None,
            mode,
        )

    def long(self, size):
        """A conversation of about `size` tokens: planted facts, or many short exchanges in a row."""
        rng, mode = self.rng, self.rng.choice(MODES)
        if rng.random() < 0.75:
            return (
                self.head()
                + facts.document(rng, self.filler, size - 100, mode, rng.random() < 0.4),
                None,
                mode,
            )
        out, n, tools = self.head(), 100, None
        specs = []
        if rng.random() < 0.3:
            tools, specs = T.setup(rng)
        while n < size - 60:
            r = rng.random()
            if tools and r < 0.35:
                i = rng.randrange(len(tools))
                new = T.call_turns(rng, tools[i], specs[i], mode)
                n += 60
            elif r < 0.5 and not _adds(specs):
                new = sum_turn(rng, mode)
            else:
                new = self.chat(mode, 3)
            out += new
            n += sum(len(m["content"]) / 4.2 + 8 for m in new)
        return out, tools, mode


def _adds(specs):
    return any("a" in s[2] or "expression" in s[2] for s in specs)


def sums(count, seed=11):
    """Held-out additions: (question, right sum)."""
    rng, out = random.Random(seed), []
    while len(out) < count:
        a, b = rng.randrange(10, 100), rng.randrange(10, 100)
        if held_out(a, b):
            out.append((rng.choice(ASK_SUM).format(a=a, b=b), a + b))
    return out


def planted(chats, count, size, seed=12):
    rng, maker = random.Random(seed * 1000003 + size), Maker(chats, 0)
    return [facts.question(rng, maker.filler, size) for _ in range(count)]


def calls(count, seed=13):
    rng = random.Random(seed)
    return [T.question(rng) for _ in range(count)]
