"""Worker processes that write, render, tokenise and pack training rows."""

import json
import multiprocessing as mp
import os
import queue
import time

import numpy as np
import tasks
import template

IGNORED, OTHER = 0.0, 0.1  # weights of padding and of text that the model only reads


class Encoder:
    def __init__(self, tokenizer_path, template_path):
        from tokenizers import Tokenizer

        self.tok = Tokenizer.from_file(tokenizer_path)
        self.render = template.load(template_path)
        ids = self.tok.token_to_id
        self.turn, self.end, self.pad = ids("]~b]"), ids("[e~["), ids("]!p~[")
        self.opening = self.tok.encode("]~b]ai\n", add_special_tokens=False).ids

    def encode(self, messages, tools, mode):
        """ids and per-token weights: 1 for what the model must write, OTHER for the rest."""
        text = self.render(messages, tools, mode)
        ids = np.array(self.tok.encode(text, add_special_tokens=False).ids, np.int32)
        w = np.full(len(ids), OTHER, np.float32)
        ends = np.flatnonzero(ids == self.end)
        for at in np.flatnonzero(ids == self.turn):
            if ids[at : at + len(self.opening)].tolist() == self.opening:
                stop = ends[np.searchsorted(ends, at)]
                w[at + len(self.opening) : stop + 1] = 1.0
                if mode in ("enabled", "disabled"):  # given by the generation prompt
                    w[at + len(self.opening)] = OTHER
        return ids, w


def row(enc, maker, kind, length):
    """One row: ids, positions, document numbers, weights (of predicting the *next* token)."""
    ids, pos = np.full(length, enc.pad, np.int32), np.zeros(length, np.int32)
    doc, w = np.full(length, -1, np.int32), np.zeros(length, np.float32)
    at, n = 0, 0
    while True:
        if kind == "short":
            room = length - at
            for _ in range(4):
                i, wt = enc.encode(*maker.short())
                if len(i) <= min(room, 512):
                    break
            else:
                break
        else:
            low = 0.3 if maker.rng.random() < 0.3 else 0.85
            i, wt = enc.encode(*maker.long(int(length * maker.rng.uniform(low, 0.97))))
            if len(i) > length:  # cut at the end of a turn
                last = np.flatnonzero(i[:length] == enc.end)
                i, wt = i[: last[-1] + 1], wt[: last[-1] + 1]
        m = len(i)
        ids[at : at + m], pos[at : at + m], doc[at : at + m] = i, np.arange(m), n
        w[at : at + m - 1] = wt[1:]
        at, n = at + m, n + 1
        if kind != "short" or length - at < 100:
            break
    if kind != "short":
        pos[:] = np.arange(length)
    return ids, pos, doc, w


def work(seed, tokenizer_path, template_path, chats, shapes, queues):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    enc, maker = Encoder(tokenizer_path, template_path), tasks.Maker(chats, seed)
    turn = 0
    kinds = list(shapes)
    while True:
        kind = kinds[turn % len(kinds)]
        turn += 1
        if queues[kind].full():
            time.sleep(0.002)
            continue
        b, length = shapes[kind]
        part = [row(enc, maker, kind, length) for _ in range(max(1, b // 8))]
        while True:
            try:
                queues[kind].put([np.stack(x) for x in zip(*part, strict=True)], timeout=0.5)
                break
            except queue.Full:
                break  # rather make another kind than wait


class Feed:
    def __init__(self, tokenizer_path, template_path, chats_path, shapes, workers, seed=1000):
        with open(chats_path) as f:
            chats = [json.loads(x) for x in f]
        self.shapes = shapes
        ctx = mp.get_context("fork")  # share the conversations instead of copying them
        self.queues = {k: ctx.Queue(48) for k in shapes}
        self.workers = [
            ctx.Process(
                target=work,
                args=(seed + i, tokenizer_path, template_path, chats, shapes, self.queues),
                daemon=True,
            )
            for i in range(workers)
        ]
        for p in self.workers:
            p.start()

    def get(self, kind):
        b, parts, n = self.shapes[kind][0], [], 0
        while n < b:
            part = self.queues[kind].get()
            parts.append(part)
            n += len(part[0])
        return [np.concatenate(x)[:b] for x in zip(*parts, strict=True)]

    def close(self):
        for p in self.workers:
            p.terminate()
