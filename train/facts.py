# ruff: noqa: E501
"""Planted facts: statements, questions and answers, put at random places of long filler text."""

import words as W

# (statement, questions, answer); {s} is the subject, {v} the value
KINDS = [
    (
        "code",
        W.CITIES,
        None,
        "The secret code for {s} is {v}.",
        [
            "What is the secret code for {s}?",
            "Which code belongs to {s}?",
            "Tell me the secret code for {s}.",
        ],
        "The secret code for {s} is {v}.",
    ),
    (
        "locker",
        W.NAMES,
        None,
        "{s} has locker number {v}.",
        ["What is the locker number of {s}?", "Which locker does {s} have?"],
        "{s} has locker number {v}.",
    ),
    (
        "color",
        W.NAMES,
        W.COLORS,
        "The favorite color of {s} is {v}.",
        ["What is the favorite color of {s}?", "Which color does {s} like best?"],
        "The favorite color of {s} is {v}.",
    ),
    (
        "pet",
        W.NAMES,
        W.ANIMALS,
        "{s} keeps a {v} at home.",
        ["Which animal does {s} keep at home?", "What pet does {s} have?"],
        "{s} keeps a {v} at home.",
    ),
    (
        "key",
        W.PLACES,
        W.OBJECTS,
        "The key to the {s} is hidden in the {v}.",
        ["Where is the key to the {s}?", "Where is the key to the {s} hidden?"],
        "The key to the {s} is hidden in the {v}.",
    ),
    (
        "day",
        W.NAMES,
        W.DAYS,
        "The meeting with {s} is on {v}.",
        ["When is the meeting with {s}?", "On which day is the meeting with {s}?"],
        "The meeting with {s} is on {v}.",
    ),
    (
        "food",
        W.NAMES,
        W.FOODS,
        "{s} ordered {v} for lunch.",
        ["What did {s} order for lunch?", "Which food did {s} order?"],
        "{s} ordered {v} for lunch.",
    ),
    (
        "town",
        W.NAMES,
        W.CITIES,
        "{s} moved to {v} last year.",
        ["Where did {s} move last year?", "To which city did {s} move?"],
        "{s} moved to {v} last year.",
    ),
    (
        "job",
        W.NAMES,
        W.JOBS,
        "{s} works as a {v}.",
        ["What is the job of {s}?", "What does {s} work as?"],
        "{s} works as a {v}.",
    ),
    (
        "password",
        W.PLACES,
        None,
        "The password of the {s} is {v}.",
        ["What is the password of the {s}?", "Which password opens the {s}?"],
        "The password of the {s} is {v}.",
    ),
]


def plant(rng, count, used=None):
    """`count` facts with distinct (kind, subject); many share a kind, so that they distract from each other."""
    facts, used = [], set() if used is None else used
    kinds = rng.sample(KINDS, min(len(KINDS), max(2, count // 4)))
    while len(facts) < count:
        kind, subjects, values, say, ask, answer = rng.choice(kinds)
        s = rng.choice(subjects)
        if (kind, s) in used:
            kinds = KINDS  # never run out of subjects
            continue
        used.add((kind, s))
        v = rng.choice(values) if values else str(rng.randrange(1000, 10000))
        facts.append(
            {
                "say": say.format(s=s, v=v),
                "ask": rng.choice(ask).format(s=s),
                "answer": answer.format(s=s, v=v),
                "value": v,
            }
        )
    return facts


def spread(rng, facts, sentences, size):
    """Filler of about `size` tokens (as estimated by `sentences`) with the facts at random places."""
    parts, total = [], 0
    while total < size:
        text, n = sentences(rng)
        parts.append(text)
        total += n
    for f in facts:
        parts.insert(rng.randrange(len(parts) + 1), f["say"])
    out = []
    for p in parts:
        out.append(p + ("\n\n" if rng.random() < 0.06 else " "))
    return "".join(out).strip()


INTRO = [
    "Read this text.",
    "Here is a long text.",
    "Please read the following text carefully.",
    "Remember the facts in this text.",
    "Text:",
]
READY = ["I have read the text.", "OK, I have read it.", "Done. What would you like to know?"]


def thought(fact):
    return f"The text says: {fact['say']}"


def turn(rng, fact, mode):
    think = {"reasoning_content": thought(fact)} if mode == "enabled" else {}
    return [
        {"role": "user", "content": fact["ask"]},
        {"role": "assistant", "content": fact["answer"], **think},
    ]


def document(rng, sentences, size, mode, single):
    """A conversation of about `size` tokens. `single`: one text, then questions; else texts and questions mixed."""
    messages, seen, left, used = [], [], size, set()
    while True:
        part = left if single else min(left, int(size * rng.uniform(0.15, 0.6)) + 60)
        facts = plant(rng, max(3, min(40, part // rng.randrange(60, 220))), used)
        # each question costs about 40 tokens
        asks = min(len(facts) + len(seen), rng.randrange(6, 13) if single else rng.randrange(2, 6))
        text = spread(rng, facts, sentences, max(30, part - 45 * asks - 16 * len(facts)))
        seen += facts
        queue = rng.sample(seen, min(asks, len(seen)))
        intro = rng.choice(INTRO)
        first, rest = queue[0], queue[1:]
        style = rng.random()
        if style < 0.65:
            t = turn(rng, first, mode)
            t[0]["content"] = f"{intro}\n\n{text}\n\n{first['ask']}"
        elif style < 0.75:
            t = turn(rng, first, mode)
            t[0]["content"] = f"{first['ask']}\n\n{text}"
        else:
            extra = (
                {"reasoning_content": "The user gives me a text to read."}
                if mode == "enabled"
                else {}
            )
            t = [
                {"role": "user", "content": f"{intro}\n\n{text}"},
                {"role": "assistant", "content": rng.choice(READY), **extra},
            ]
            rest = queue
        messages += t
        for f in rest:
            messages += turn(rng, f, mode)
        left -= part
        if left < 150 or single:
            return messages


def question(rng, sentences, size):
    """One held-out item: a text of about `size` tokens that ends in a question. Returns (messages, fact)."""
    facts = plant(rng, max(3, min(24, size // 150)))
    text = spread(rng, facts, sentences, max(20, size - 16 * len(facts) - 130))
    fact = rng.choice(facts)
    return [{"role": "user", "content": f"{rng.choice(INTRO)}\n\n{text}\n\n{fact['ask']}"}], fact
