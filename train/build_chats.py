# ruff: noqa: E501
"""Turn teacher samples (waves or packed parts) into filtered conversations: one JSON list of turns per line."""

import argparse
import collections
import glob
import json
import lzma
import os
import re
from concurrent.futures import ProcessPoolExecutor

import gguf
import numpy as np

BANNED = (
    "smollm",
    "hugging",
    "openai",
    "chatgpt",
    "language model",
    "[insert",
    "[your",
    "[name",
    "```",
    "http",
    "<|",
    "as an ai",
)
MAX_PAIRS = 3  # the teacher drifts in later turns


def repeats(text):
    """True for the loops that small models fall into."""
    words = re.findall(r"[a-z0-9']+", text.lower())
    if len(words) < 12:
        return False
    grams = collections.Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    if max(grams.values()) > 2 or len(grams) < 0.9 * (len(words) - 3):
        return True
    lines = [x.strip() for x in text.split("\n") if x.strip()]
    starts = collections.Counter(x[:25] for x in lines)
    return len(lines) > 4 and max(starts.values()) > 3


def clean(text):
    for a, b in (
        ("\u2019", "'"),
        ("\u2018", "'"),
        ("\u201c", '"'),
        ("\u201d", '"'),
        ("\u2013", "-"),
        ("\u2014", " - "),
    ):
        text = text.replace(a, b)
    return text.strip()


def usable(text, role):
    """The text, perhaps shortened to whole paragraphs, or None. Second value: was it shortened?"""
    cut = False
    if role == "assistant" and len(text) > 800:
        keep = ""
        for paragraph in text.split("\n\n"):
            if len(keep) + len(paragraph) > 700:
                break
            keep += ("\n\n" if keep else "") + paragraph
        text, cut = keep, True
        if len(text) < 80 or text[-1] not in ".!?":
            return None, cut
    if not text or len(text) > (400 if role == "user" else 800):
        return None, cut
    low = text.lower()
    if any(b in low for b in BANNED) or sum(c > "\u007f" for c in text) > 0.01 * len(text) + 1:
        return None, cut
    if role == "assistant" and text[-1] not in ".!?\"')*:":
        return None, cut
    return (None if repeats(text) else text), cut


def similar(a, b):
    x, y = set(a.lower().split()), set(b.lower().split())
    return len(x & y) > 0.6 * min(len(x), len(y))


def conversation(text):
    turns = []
    for m in re.finditer(r"<\|im_start\|>(user|assistant)\n(.*?)<\|im_end\|>", text, re.S):
        if m[1] != ("user", "assistant")[len(turns) % 2] or len(turns) == 2 * MAX_PAIRS:
            break
        body, cut = usable(clean(m[2]), m[1])
        if body is None or any(similar(body, t) for t in turns[len(turns) % 2 :: 2]):
            break
        turns.append(body)
        if cut:
            break
    return turns[: len(turns) // 2 * 2]


def read(path):
    """Rows of teacher ids."""
    if path.endswith(".npz"):
        return [r[r > 0] for r in np.load(path)["ids"]]
    with lzma.open(path) as f:
        raw = np.frombuffer(f.read(), np.uint8)
    n = len(raw) // 2
    ids = raw[:n].astype(np.uint16) | raw[n:].astype(np.uint16) << 8
    return [r[r > 0] for r in np.split(ids, np.flatnonzero(ids == 0))]


def convert(job):
    path, model = job
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tok = gguf.tokenizer(gguf.load(model, with_tensors=False)[0])
    return [
        conversation(t)
        for t in tok.decode_batch([r.tolist() for r in read(path)], skip_special_tokens=False)
    ]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gguf", required=True)
    ap.add_argument(
        "--samples", required=True, nargs="+", help="globs of waves (.npz) and packed parts (.xz)"
    )
    ap.add_argument("--out", required=True)
    ap.add_argument("--jobs", type=int, default=1)
    a = ap.parse_args()
    paths = sorted(p for s in a.samples for p in glob.glob(s))
    seen, total, pairs = set(), 0, collections.Counter()
    with open(a.out, "w") as out, ProcessPoolExecutor(a.jobs) as pool:
        for part in pool.map(convert, [(p, a.gguf) for p in paths]):
            for turns in part:
                total += 1
                key = tuple(turns[:2])
                if turns and key not in seen:
                    seen.add(key)
                    pairs[len(turns) // 2] += 1
                    print(json.dumps(turns), file=out)
    print(total, "rows,", sum(pairs.values()), "kept, by pairs:", dict(pairs))


if __name__ == "__main__":
    main()
