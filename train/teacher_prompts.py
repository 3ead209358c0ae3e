# ruff: noqa: E501
"""Openings for the teacher: steered user turns that it finishes itself, and whole questions from word lists."""

import argparse
import random

import gguf
import numpy as np

SYSTEMS = [
    "You are a friendly assistant. Answer in one or two short sentences.",
    "You are a helpful assistant who answers simply and briefly.",
    "You are a kind assistant. Use simple words and short answers.",
    "You are a helpful assistant. Keep your answers short and clear.",
    "You are a helpful AI assistant.",
]
# The teacher completes these user turns by itself: cheap variety.
STARTS = """What is|What is the|What are|What is a|How do I|How can I|How does|How do|Can you explain|Can you tell me|Tell me about
Why do|Why is|Why are|What's the best way to|I want to learn|I feel|I'm feeling|I need help with|Do you know|Could you help me
Who was|Who is|Where is|When did|What does|Is it|Should I|Give me|Write a short story about|Write a poem about|Describe|Hi|Hello
Hi, I'm|Hello! I|Hey, can you|I'm planning|I have a|I like|My favorite|Which|What would|Explain|Explain how|List three
Give me some tips|I'm trying to|Help me|What happens when|Tell me a|What do you think about|I just|Today I|How are you||||||""".replace(
    "\n", "|"
).split("|")
NOUNS = """the sun|the moon|rain|snow|a rainbow|gravity|electricity|a volcano|an earthquake|the ocean|a river|a mountain|a desert|a forest|photosynthesis
bread|cheese|coffee|tea|chocolate|rice|pasta|soup|an apple|a banana|sugar|salt|honey|milk|an egg|a computer|the internet|a phone|a robot|a camera
a bicycle|a car|a train|an airplane|a boat|a rocket|a bridge|a castle|a library|a museum|a hospital|a school|a farm|a garden|a dog|a cat|a horse
a bird|a fish|a whale|a dolphin|an elephant|a lion|a tiger|a bear|a wolf|a rabbit|a frog|a snake|a spider|a bee|a butterfly|an ant|a dinosaur
music|painting|dancing|poetry|a novel|a movie|theater|football|basketball|tennis|swimming|chess|yoga|cooking|reading|writing|gardening|camping
democracy|a law|money|a bank|a job|friendship|love|happiness|courage|patience|honesty|sleep|exercise|stress|health|a vitamin|the heart|the brain
the stomach|a muscle|a bone|blood|a virus|an atom|a cell|energy|light|sound|heat|water|air|iron|gold|glass|plastic|paper|wood|cotton|time|space
a star|a planet|a galaxy|a comet|the Earth|Mars|summer|winter|spring|autumn|a clock|a calendar|a map|a compass|history|science|math|biology
chemistry|physics|a language|grammar|a poem|a joke|a birthday|a holiday|a wedding|a gift|a teacher|a doctor|a firefighter|a farmer|a chef""".replace(
    "\n", "|"
).split("|")
DEEDS = """bake bread|make tea|cook rice|boil an egg|make a sandwich|clean my room|study for a test|learn to swim|ride a bike|save money|sleep better
make new friends|write a letter|plant a tree|grow tomatoes|take care of a dog|train a puppy|feed a cat|learn a new language|play the guitar|draw a face
fix a flat tire|pack for a trip|plan a party|wash my clothes|stay healthy|lose weight|run faster|drink more water|be more patient|stop worrying
speak in public|find a job|prepare for an interview|write a story|read more books|remember names|wake up early|manage my time|relax after work
make pancakes|make a salad|cook pasta|make soup|choose a gift|apologize to a friend|help my neighbor|recycle at home|save water|use less energy
take good photos|build a shelf|paint a wall|sew a button|tie a tie|make a budget|start a garden|keep a diary|learn math|practice writing""".replace(
    "\n", "|"
).split("|")
WHOLE = [
    ("What is {n}?", 4),
    ("What is {n}?", 4),
    ("Can you explain what {n} is?", 2),
    ("Tell me about {n}.", 3),
    ("Why is {n} important?", 2),
    ("Explain {n} in simple words.", 3),
    ("How would you describe {n} to a child?", 2),
    ("Tell me one fun fact about {n}.", 2),
    ("Write one sentence about {n}.", 2),
    ("Tell me a short story about {n}.", 3),
    ("Write a short poem about {n}.", 1),
    ("How do I {d}?", 4),
    ("Can you help me {d}?", 2),
    ("Give me three tips to {d}.", 2),
    ("What do I need to {d}?", 2),
    ("I want to {d}. Where should I start?", 2),
    ("Is it hard to {d}?", 2),
    ("What is the difference between {n} and {m}?", 1),
    ("Do you like {n}?", 1),
    ("Which is better, {n} or {m}?", 1),
    ("Hi!", 1),
    ("Hello!", 1),
    ("Hi, how are you today?", 1),
    ("Good morning!", 1),
    ("Hey there, what's up?", 1),
    ("I'm bored. What can I do?", 1),
    ("I'm sad today.", 1),
    ("I had a great day!", 1),
    ("Tell me a joke.", 1),
    ("Thank you for your help!", 1),
    ("What can you do?", 1),
    ("Can you help me with something?", 1),
]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gguf", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--count", type=int, default=60000)
    a = ap.parse_args()
    meta, _ = gguf.load(a.gguf, with_tensors=False)
    tok = gguf.tokenizer(meta)
    rng = random.Random(7)
    kinds = [w for w, n in WHOLE for _ in range(n)]
    texts, roles = [], []
    for _ in range(a.count):
        head = f"<|im_start|>system\n{rng.choice(SYSTEMS)}<|im_end|>\n<|im_start|>user\n"
        if rng.random() < 0.6:
            texts.append(head + rng.choice(STARTS))
            roles.append(0)
        else:
            q = rng.choice(kinds).format(
                n=rng.choice(NOUNS), m=rng.choice(NOUNS), d=rng.choice(DEEDS)
            )
            texts.append(head + q + "<|im_end|>\n<|im_start|>assistant\n")
            roles.append(1)
    ids = [e.ids for e in tok.encode_batch(texts)]
    width = max(map(len, ids))
    table = np.zeros((len(ids), width), np.uint16)
    for i, r in enumerate(ids):
        table[i, : len(r)] = r
    turns = [tok.encode(f"\n<|im_start|>{role}\n").ids for role in ("user", "assistant")]
    wide = max(map(len, turns))
    turns = [[-1] * (wide - len(t)) + t for t in turns]  # right-aligned
    np.savez_compressed(
        a.out,
        ids=table,
        lens=np.array([len(r) for r in ids]),
        roles=np.array(roles),
        headers=np.array(turns),
    )
    print(len(ids), "prompts, width", width, turns)


if __name__ == "__main__":
    main()
