"""Asks the same of servers that draft and of one that does not: every answer must be the same, bit
for bit, in tokens and log-probabilities. Greedy by default; with --temperature, seeded requests
under coupled verification.

usage: compare_drafting.py MODEL [--drafter FOLDER] [--prompts FILE.jsonl] [--num-prompts 1000]
           [--max-tokens 64] [--temperature 0] [--winnow PATH] [--serve-flags "FLAGS"]

A line of FILE is a JSON list of a chat's turns, the user's first; each of the user's turns, with
all before it, is a prompt. Without --prompts they are words drawn from a seed.
"""

import argparse
import concurrent.futures
import json
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request

FIXED = {"method": "dspark", "kv_cache_dtype": "fp8"}
ADAPTIVE = {**FIXED, "enable_adaptive_verification": True}
WORDS = "a the of river stone bread seven winter walks under green light who writes it is".split()


class Server:
    def __init__(self, winnow, model, flags, config):
        words = [winnow, "serve", model, "--port", "0", *flags]
        if config is not None:
            words += ["--speculative-config", json.dumps(config)]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.url = None
        self.is_up = threading.Event()
        threading.Thread(target=self.read, daemon=True).start()
        self.is_up.wait(600)
        if self.url is None:
            sys.exit("the server did not start:\n" + "".join(self.lines))

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.match(r"(?:Open|Serving on) (\S+)", line)
            if found:
                self.url = found[1]
                self.is_up.set()
        self.is_up.set()

    def ask(self, body):
        request = urllib.request.Request(
            self.url + "/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=3600) as reply:
            choice = json.load(reply)["choices"][0]
        entries = (choice["logprobs"] or {}).get("content") or []
        tokens = [(e["token"], e["bytes"], repr(e["logprob"])) for e in entries]
        return (choice["finish_reason"], json.dumps(choice["message"], sort_keys=True), tokens)

    def drafts(self):
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as reply:
            text = reply.read().decode()
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        found = [re.search(rf"^vllm:spec_decode_{n}_total\S* (\S+)$", text, re.M) for n in names]
        return [int(float(f[1])) if f else 0 for f in found]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def read_prompts(path, count):
    prompts = []
    if path is None:
        chance = random.Random(5)
        for _ in range(count):
            text = " ".join(chance.choices(WORDS, k=chance.randint(1, 60)))
            prompts.append([{"role": "user", "content": text}])
        return prompts
    with open(path, encoding="utf-8") as file:
        for line in file:
            turns = json.loads(line)
            messages = [
                {"role": ("user", "assistant")[i % 2], "content": turn}
                for i, turn in enumerate(turns)
            ]
            prompts += [messages[: i + 1] for i in range(0, len(messages), 2)]
    if len(prompts) < count:
        sys.exit(f"{path} holds {len(prompts)} prompts, {count} were asked for")
    return random.Random(5).sample(prompts, count)


def answers(server, prompts, options):
    def ask(numbered):
        number, messages = numbered
        body = {
            "messages": messages,
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "seed": number,
            "logprobs": True,
            "top_logprobs": 2,
        }
        return server.ask(body)

    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        return list(pool.map(ask, enumerate(prompts)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--winnow", default="build/release/bin/winnow")
    parser.add_argument("--drafter")
    parser.add_argument("--prompts")
    parser.add_argument("--num-prompts", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--serve-flags", default="", help="for winnow serve, as in a shell")
    options = parser.parse_args()
    prompts = read_prompts(options.prompts, options.num_prompts)
    failed = False
    expected = None
    for name, config in (("off", None), ("fixed", FIXED), ("adaptive", ADAPTIVE)):
        if config is not None:
            config = dict(config)
            if options.drafter:
                config["model"] = options.drafter
            if options.temperature > 0:
                config["rejection_sample_method"] = "coupled"
                config["draft_sample_method"] = "probabilistic"
        server = Server(options.winnow, options.model, shlex.split(options.serve_flags), config)
        try:
            actual = answers(server, prompts, options)
            num_blocks, num_drafted, num_accepted = server.drafts()
        finally:
            server.stop()
        if expected is None:
            expected = actual
        different = [i for i, (a, b) in enumerate(zip(expected, actual, strict=True)) if a != b]
        num_tokens = sum(len(tokens) for _, _, tokens in actual)
        length = 1 + num_accepted / num_blocks if num_blocks else 1.0
        print(
            f"{name:9} {len(prompts)} prompts, {num_tokens} tokens, {num_drafted} drafted, "
            f"{num_accepted} accepted, {length:.2f} tokens a block: {len(different)} differ"
        )
        if different:
            failed = True
            print(f"  first: prompt {different[0]}: {prompts[different[0]]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
