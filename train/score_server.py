# ruff: noqa: E501
"""Score winnow-tiny through an OpenAI-compatible server: addition, planted facts, tool calls, chat.

With --compare, a second server (say dense attention with bf16 caches) is scored on the same items and the
differences are printed. Needs the `openai` package and heldout_chats.jsonl beside this file (filler text)."""

import argparse
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import tasks
from wire import expected, read_calls, split_answer

HERE = os.path.dirname(os.path.abspath(__file__))
CHATS = [
    "Hi!",
    "Who are you?",
    "What is the moon?",
    "How do I bake bread?",
    "Tell me a short story about a dog.",
    "I'm sad today.",
    "Thank you!",
]


class Server:
    def __init__(self, base_url, key, model, parallel):
        from openai import OpenAI

        self.client = OpenAI(base_url=base_url, api_key=key, max_retries=2, timeout=600)
        self.model = model or self.client.models.list().data[0].id
        self.parallel = parallel

    def ask(self, items, mode, limit):
        """items: (messages, tools) -> assistant messages, in order."""

        def one(item):
            messages, tools = item
            extra = {"chat_template_kwargs": {"thinking_mode": mode}} if mode else {}
            more = {"tools": tools} if tools else {}
            r = self.client.chat.completions.create(
                model=self.model,
                messages=messages,
                temperature=0,
                max_tokens=limit,
                extra_body=extra,
                **more,
            )
            return r.choices[0].message

        with ThreadPoolExecutor(self.parallel) as pool:
            return list(pool.map(one, items))


def score_sums(server, count, mode):
    items = tasks.sums(count)
    got = server.ask([([{"role": "user", "content": q}], None) for q, _ in items], mode, 96)
    right = [
        (re.findall(r"\d+", m.content or "") or [""])[-1] == str(s)
        for m, (_, s) in zip(got, items, strict=True)
    ]
    return {"right": sum(right) / count}


def score_planted(server, chats, count, size, mode):
    items = tasks.planted(chats, count, size)
    got = server.ask([(m, None) for m, _ in items], mode, 64)
    return {
        "found": sum(f["value"] in (m.content or "") for m, (_, f) in zip(got, items, strict=True))
        / count
    }


def calls_of(message, mode):
    """(name, arguments) pairs in the shape of `wire.read_calls`, and whether the server parsed them."""
    if message.tool_calls:
        pairs = []
        for call in message.tool_calls:
            try:
                args = json.loads(call.function.arguments)
            except json.JSONDecodeError:
                return None, True
            pairs.append((call.function.name, expected(args)))
        return pairs, True
    # a server without its tool parser hands the block through as text
    return read_calls(split_answer(message.content or "", mode)[1]), False


def score_calls(server, count, mode):
    items = tasks.calls(count)
    got = server.ask([(m, t) for m, t, _ in items], mode, 192)
    formed = exact = parsed = 0
    for m, (_, tools, want) in zip(got, items, strict=True):
        known = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tools}
        calls, by_server = calls_of(m, mode)
        ok = bool(calls) and all(n in known and all(k in known[n] for k, _ in a) for n, a in calls)
        formed += ok
        parsed += ok and by_server
        wanted = [(c["function"]["name"], expected(c["function"]["arguments"])) for c in want]
        exact += ok and calls == wanted
    return {
        "well-formed": formed / count,
        "exact": exact / count,
        "parsed by the server": parsed / count,
    }


def run(server, chats, a):
    """{title: {measure: value}}"""
    out = {}

    def note(title, scores):
        out[title] = scores
        print(f"{title}: " + ", ".join(f"{k} {v:.2%}" for k, v in scores.items()), flush=True)

    for mode in a.modes.split(","):
        m = None if mode == "default" else mode
        note(f"two-digit addition ({mode})", score_sums(server, a.count, m))
        note(f"tool calls ({mode})", score_calls(server, a.count, m))
    for size in map(int, a.sizes.split(",")):
        note(
            f"planted fact, {size} tokens", score_planted(server, chats, a.count, size, "disabled")
        )
    for q in CHATS if a.chat else ():
        print(
            f"> {q}\n{server.ask([([{'role': 'user', 'content': q}], None)], None, 160)[0].content}",
            flush=True,
        )
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--base-url", default="http://localhost:8000/v1")
    ap.add_argument("--compare", help="base URL of a second server, the baseline")
    ap.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "none"))
    ap.add_argument("--model", help="model name; default: the first that the server lists")
    ap.add_argument("--count", type=int, default=200, help="items per task")
    ap.add_argument(
        "--sizes", default="512,2048,8192", help="text lengths of the planted-fact task, in tokens"
    )
    ap.add_argument(
        "--modes", default="default,disabled,enabled", help="thinking modes for addition and tools"
    )
    ap.add_argument("--parallel", type=int, default=8, help="requests in flight")
    ap.add_argument("--chat", action="store_true", help="also print a few answers")
    ap.add_argument("--json", help="write all scores to this file")
    a = ap.parse_args()
    with open(os.path.join(HERE, "heldout_chats.jsonl")) as f:
        chats = [json.loads(x) for x in f]
    began, results = time.time(), {}
    for url in filter(None, (a.base_url, a.compare)):
        print(f"== {url}")
        results[url] = run(Server(url, a.api_key, a.model, a.parallel), chats, a)
    if a.compare:
        print("== first minus second, in points")
        for title, scores in results[a.base_url].items():
            print(
                f"{title}: "
                + ", ".join(
                    f"{k} {100 * (v - results[a.compare][title][k]):+.2f}"
                    for k, v in scores.items()
                )
            )
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"seconds": time.time() - began, "scores": results}, f, indent=2)


if __name__ == "__main__":
    main()
