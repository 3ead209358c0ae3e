# ruff: noqa: E501
"""Score an exported model on held-out tasks with the float reference, MSA + NVFP4 caches against dense + bf16."""

import argparse
import json
import re
import time

import feed
import reference
import tasks
import torch
from wire import expected, read_calls, split_answer


class Scorer:
    def __init__(self, folder, chats, device, **how):
        self.enc = feed.Encoder(f"{folder}/tokenizer.json", f"{folder}/chat_template.jinja")
        with open(chats) as f:
            self.chats = [json.loads(x) for x in f]
        self.ref = reference.Reference(folder, device, **how)

    def ask(self, items, mode, limit, batch):
        """items: (messages, tools) -> raw completions."""
        prompts = [
            self.enc.tok.encode(
                self.enc.render(m, t, mode, add_generation_prompt=True), add_special_tokens=False
            ).ids
            for m, t in items
        ]
        out = [""] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for lo in range(0, len(order), batch):
            part = order[lo : lo + batch]
            for i, ids in zip(
                part,
                self.ref.generate([prompts[i] for i in part], limit, self.enc.end),
                strict=True,
            ):
                out[i] = self.enc.tok.decode(ids, skip_special_tokens=False)
        self.lengths = [len(p) for p in prompts]
        return out

    def sums(self, count, mode, batch=256):
        items = tasks.sums(count)
        raw = self.ask(
            [([{"role": "user", "content": q}], None) for q, _ in items], mode, 70, batch
        )
        answers = [split_answer(t, mode)[1] for t in raw]
        right = [
            (re.findall(r"\d+", a) or [""])[-1] == str(s)
            for a, (_, s) in zip(answers, items, strict=True)
        ]
        return sum(right) / count, [
            (q, t) for (q, _), t, r in zip(items, raw, right, strict=True) if not r
        ][:4]

    def planted(self, count, size, mode, batch):
        items = tasks.planted(self.chats, count, size)
        raw = self.ask([(m, None) for m, _ in items], mode, 48, batch)
        right = [
            f["value"] in split_answer(t, mode)[1] for t, (_, f) in zip(raw, items, strict=True)
        ]
        return sum(right) / count, [
            (f["answer"], t) for (_, f), t, r in zip(items, raw, right, strict=True) if not r
        ][:4]

    def calls(self, count, mode, batch=256):
        items = tasks.calls(count)
        raw = self.ask([(m, t) for m, t, _ in items], mode, 120, batch)
        formed = exact = 0
        bad = []
        for text, (messages, tools, want) in zip(raw, items, strict=True):
            got = read_calls(split_answer(text, mode)[1])
            known = {
                t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tools
            }
            ok = got is not None and all(
                n in known and all(k in known[n] for k, _ in a) for n, a in got
            )
            formed += ok
            same = ok and got == [
                (c["function"]["name"], expected(c["function"]["arguments"])) for c in want
            ]
            exact += same
            if not same:
                bad.append((messages[0]["content"], text))
        return formed / count, exact / count, bad[:4]


CHATS = [
    "Hi!",
    "Who are you?",
    "What is the moon?",
    "How do I bake bread?",
    "Tell me a short story about a dog.",
    "I'm sad today.",
    "What is the capital of France?",
    "Why is the sky blue?",
    "Thank you!",
]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", required=True)
    ap.add_argument("--chats", required=True)
    ap.add_argument("--device", default="cpu")
    ap.add_argument("--count", type=int, default=200)
    ap.add_argument("--sizes", default="512,2048,8192")
    ap.add_argument("--batch-tokens", type=int, default=65536)
    ap.add_argument("--only", default="msa,dense")
    ap.add_argument("--modes", default="default,disabled,enabled")
    a = ap.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    for how in (
        h
        for h in ({"cache": "nvfp4", "attention": "msa"}, {"cache": "bf16", "attention": "dense"})
        if h["attention"] in a.only
    ):
        s, t0 = Scorer(a.model, a.chats, a.device, **how), time.time()
        print(f"== {how['attention']} attention, {how['cache']} caches", flush=True)
        for size in map(int, a.sizes.split(",")):
            score, bad = s.planted(a.count, size, "disabled", max(1, a.batch_tokens // size))
            print(
                f"planted fact {size}: {score:.4f}  (prompts {min(s.lengths)}..{max(s.lengths)} tokens) {time.time() - t0:.0f}s {bad}",
                flush=True,
            )
        modes = [None if m == "default" else m for m in a.modes.split(",") if m]
        for mode in modes:
            score, bad = s.sums(a.count, mode)
            print(f"addition, {mode or 'default'}: {score:.4f} {bad}", flush=True)
        for mode in modes:
            formed, exact, bad = s.calls(a.count, mode)
            print(
                f"tool calls, {mode or 'default'}: well-formed {formed:.4f} exact {exact:.4f} {bad}",
                flush=True,
            )
        if how["attention"] == "msa":
            for q, text in zip(
                CHATS,
                s.ask([([{"role": "user", "content": q}], None) for q in CHATS], None, 120, 16),
                strict=True,
            ):
                print(f"> {q}\n{text}", flush=True)


if __name__ == "__main__":
    main()
