# ruff: noqa: E501
"""Prompts whose answers the drafter learns from, as request bodies for `winnow capture`.

Conversations of the kinds that the model was trained on, cut before one of the assistant's turns. Half
of the chats are put together anew (a later turn as the opening, or two conversations spliced), because
the model knows the original ones by heart.

  python draft_prompts.py --chats chats-train.jsonl --count 24000 --out train.jsonl
  python draft_prompts.py --chats heldout_chats.jsonl --count 600 --plain --seed 2 \\
      --not-in train.jsonl --out heldout.jsonl
"""

import argparse
import json
import pathlib
import random

import feed
import tasks

MODEL = pathlib.Path(__file__).parents[1] / "models" / "winnow-tiny"
TEMPERATURES = [1.0] * 13 + [0.7] * 4 + [0.0] * 3
MAX_PROMPT, MAX_ANSWER = 1600, 256


class SplicedMaker(tasks.Maker):
    """A Maker whose chats are as they were, or begin with a later turn, or change over to another."""

    def chat(self, mode, limit=8):
        kind = self.rng.random()
        if kind < 0.5:
            return super().chat(mode, limit)
        first, second = self.rng.choice(self.chats), self.rng.choice(self.chats)
        if kind < 0.75 and len(first) > 2:
            turns = first[2:]
        else:
            turns = first[:2] + second
        out = []
        for i in range(0, min(len(turns) - 1, 2 * limit), 2):
            out += tasks.plain_turn(self.rng, (turns[i], turns[i + 1]), mode)
        return out


def prompt(encoder, maker, rng):
    """Token ids up to where the assistant begins."""
    while True:
        if rng.random() < 0.02:
            messages, tools, mode = maker.long(rng.randrange(400, 1500))
        else:
            messages, tools, mode = maker.short()
        turns = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        if not turns:
            continue
        cut = messages[: rng.choice(turns)]
        text = encoder.render(cut, tools, mode, add_generation_prompt=True)
        ids = encoder.tok.encode(text, add_special_tokens=False).ids
        if len(ids) <= MAX_PROMPT:
            return ids


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--chats", required=True)
    ap.add_argument("--count", type=int, default=24000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--plain", action="store_true", help="conversations as they are, temperature 1")
    ap.add_argument("--not-in", help="an earlier file: its prompts do not occur again")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    with open(a.chats) as f:
        chats = [json.loads(line) for line in f]
    known = set()
    if a.not_in:
        with open(a.not_in) as f:
            known = {tuple(json.loads(line)["prompt"]) for line in f}
    encoder = feed.Encoder(str(MODEL / "tokenizer.json"), str(MODEL / "chat_template.jinja"))
    maker = (tasks.Maker if a.plain else SplicedMaker)(chats, a.seed)
    rng = random.Random(a.seed)
    with open(a.out, "w") as f:
        count = tokens = 0
        while count < a.count:
            ids = prompt(encoder, maker, rng)
            if tuple(ids) in known:
                continue
            body = {
                "prompt": ids,
                "temperature": 1.0 if a.plain else rng.choice(TEMPERATURES),
                "top_p": 1.0,
                "top_k": -1,
                "max_tokens": MAX_ANSWER,
                "seed": a.seed * 1_000_000 + count,
            }
            f.write(json.dumps(body, separators=(",", ":")) + "\n")
            count, tokens = count + 1, tokens + len(ids)
    print(count, "prompts,", tokens, "tokens")


if __name__ == "__main__":
    main()
