# ruff: noqa: E501
"""Train drafters of winnow-tiny on texts that winnow-tiny wrote (spec/speculative.md 9).

  python draft_train.py --model ../models/winnow-tiny --streams train.safetensors \\
      --heldout heldout.safetensors --seconds 140 --out folder

Several are trained side by side, each on its own order of the texts, with --runs: a JSON list (or @FILE of
one) of objects with a name and what differs, {"name": "causal-2", "causal": true, "seed": 2}. On a GPU a
step is recorded once and replayed, on a stream of each run's own."""

import argparse
import contextlib
import json
import math
import os
import pathlib
import time
from collections import namedtuple

import draft_data
import draft_loss
import draft_measure
import draft_model
import optim
import torch
import torch.nn.functional as F

Rows = namedtuple("Rows", "logits target label valid confidence")


class Run:
    """A drafter in training."""

    def __init__(
        self, target, data, a, backend, name="drafter", seed=1, length_share=None, **choices
    ):
        torch.manual_seed(seed)
        self.largest_length_share = a.length_share if length_share is None else length_share
        self.name, self.target, self.data, self.a, self.backend = name, target, data, a, backend
        self.config = draft_model.Config(**choices)
        self.layers = self.config.target_layers
        device = data.begins.device
        self.drafter = draft_model.Drafter(self.config, target.embed, target.head).to(device)
        matrices, small = [], []
        for key, p in self.drafter.named_parameters():
            (matrices if p.ndim == 2 and key not in ("w1", "w2") else small).append(p)
        self.muon, self.adam = optim.Muon(matrices, decay=0.0), optim.Adam(small)
        self.begins = data.begins[: a.batch].clone()
        self.rate, self.length_share = torch.zeros(2, device=device).unbind()
        self.sums = torch.zeros(
            3, self.config.block, device=device
        )  # overlap, valid, cross-entropy
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None
        self.graph = None
        self.order, self.at, self.steps = None, 0, 0

    def rows(self, data, begins, at, good, layers=None):
        """Logits of blocks that begin at places `at` of slices, and what they ought to be."""
        c = self.config
        tokens, pos, doc, streams, last = data.slices(begins, layers or self.layers)
        slot = torch.arange(c.block, device=at.device)
        seen = (at[..., None] + slot).clamp(max=data.length - 1)  # the token before each slot's
        following = (seen + 1).clamp(max=data.length - 1).flatten(1)
        same = doc.gather(1, following).view_as(seen) == doc.gather(1, at)[..., None]
        valid = good[..., None] & same & (at[..., None] + slot + 1 < data.length)
        flat = seen.flatten(1)
        hidden = self.drafter(streams, pos, doc, at, tokens.gather(1, at))
        rows = self.drafter.token_rows(tokens.gather(1, flat).view_as(seen))
        z = self.drafter.logits(hidden, rows).flatten(0, 2)
        after = last.gather(1, flat[..., None].expand(-1, -1, c.hidden)).view_as(hidden)
        t = self.target.logits(after).flatten(0, 2)
        label = tokens.gather(1, following).flatten()
        return Rows(z, t, label, valid, self.drafter.confidences(hidden, rows).flatten())

    def learn(self):
        """One step on the slices at `begins`."""
        at, good = self.data.pick(self.begins, self.config.window, self.a.anchors)
        out = self.rows(self.data, self.begins, at, good)
        valid = out.valid.flatten(0, 1)
        loss, overlap, ce, weights = draft_loss.Distance.apply(
            out.logits, out.target, out.label, valid, self.length_share, self.backend
        )
        guess = F.binary_cross_entropy_with_logits(
            out.confidence, overlap.clamp(0, 1), reduction="none"
        )
        loss = loss + (guess * weights).sum()
        parameters = list(self.drafter.parameters())
        for p in parameters:
            p.grad = None
        loss.backward()
        optim.clip(parameters, 1.0)
        self.adam.step(self.rate * self.a.lr)
        self.muon.step(self.rate * self.a.muon)
        for row, value in enumerate((overlap, torch.ones_like(overlap), ce)):
            self.sums[row] += (value.view(valid.shape) * valid).sum(0)

    def place(self):
        """Where its work is queued."""
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def record(self):
        """The step as a graph; what was learnt while trying stays."""
        with self.place():
            for _ in range(3):
                self.learn()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self.learn()
        self.graph = graph

    def advance(self, share):
        count, batch = len(self.data.begins), self.a.batch
        with self.place():
            if self.order is None or self.at + batch > count:
                self.order = torch.randperm(count, device=self.begins.device)
                self.at = 0
            chosen = self.order[self.at : self.at + batch]
            torch.index_select(self.data.begins, 0, chosen, out=self.begins)
            self.rate.fill_(learning_rate(share))
            self.length_share.fill_(length_share(share, self.largest_length_share))
            if self.graph:
                self.graph.replay()
            else:
                self.learn()
        self.at += batch
        self.steps += 1

    def means(self):
        """Overlap by slot and cross-entropy of the first, since the last call."""
        overlap, valid, ce = self.sums.tolist()
        self.sums.zero_()
        count = [max(v, 1.0) for v in valid]
        return {
            "ce": round(ce[0] / count[0], 3),
            "overlap": [round(o / v, 3) for o, v in zip(overlap, count, strict=True)],
        }


def learning_rate(share):
    """Relative: warm-up over 4 %, then half a cosine down to zero."""
    if share < 0.04:
        return share / 0.04
    return 0.5 * (1 + math.cos(math.pi * (share - 0.04) / 0.96))


def length_share(share, largest):
    """The expected length comes in once drafts have some meaning."""
    return largest * min(1.0, max(0.0, (share - 0.1) / 0.3))


def synchronise(a):
    if a.device == "cuda":
        torch.cuda.synchronize()


def train(runs, a, report):
    begin = time.time()
    if a.device == "cuda" and not a.eager:
        for run in runs:
            try:
                run.record()
            except Exception as problem:  # a library that cannot be recorded: slower, not wrong
                print("recording failed:", run.name, problem, flush=True)
                torch.cuda.synchronize()
                break
        report(recorded=sum(run.graph is not None for run in runs), of=len(runs))
    recorded, step, share = time.time(), 0, 0.0
    seconds = max(a.until - recorded, 1.0) if a.until else a.seconds
    while share < 1:
        for run in runs:
            run.advance(share)
        step += 1
        if step % 8 == 0:
            synchronise(a)  # so that the clock says what has been done
        share = step / a.steps if a.steps else (time.time() - recorded) / seconds
        if step % a.log == 0 or share >= 1:
            synchronise(a)
            passed = round(time.time() - begin, 1)
            for run in runs:
                report(run=run.name, step=step, seconds=passed, **run.means())
    synchronise(a)
    return step, time.time() - begin


def parse_arguments():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--streams", required=True, nargs="+")
    ap.add_argument("--heldout", required=True)
    ap.add_argument("--out", type=pathlib.Path, help="folder of NAME.pt and log.jsonl")
    ap.add_argument("--runs", default="[{}]", help="JSON or @FILE")
    ap.add_argument("--seconds", type=float, default=60)
    ap.add_argument("--steps", type=int, default=0, help="instead of seconds")
    ap.add_argument("--until", type=float, help="Unix time of the end, instead of seconds")
    ap.add_argument("--wait-for", help="file whose appearance starts the training")
    ap.add_argument("--batch", type=int, default=32, help="slices of a step")
    ap.add_argument("--anchors", type=int, default=64, help="of a slice")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--muon", type=float, default=0.02)
    ap.add_argument(
        "--length-share", type=float, default=0.8, help="of the loss, by expected length"
    )
    ap.add_argument("--log", type=int, default=100)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--eager", action="store_true", help="steps are not recorded")
    ap.add_argument("--texts", type=int, default=1000, help="held-out ones to measure on")
    return ap.parse_args()


def main():
    a = parse_arguments()
    dtype = torch.bfloat16 if a.device == "cuda" else torch.float32
    if a.out:
        a.out.mkdir(parents=True, exist_ok=True)
    log = open(a.out / "log.jsonl", "w") if a.out else None

    def report(**values):
        line = json.dumps(values, default=str)
        print(line, flush=True)
        if log:
            print(line, file=log, flush=True)

    begin = time.time()
    backend = draft_loss.choose_backend(a.device)
    target = draft_data.Target(a.model, a.device, dtype)
    while a.wait_for and not os.path.exists(a.wait_for):
        time.sleep(0.1)
    choices = json.loads(pathlib.Path(a.runs[1:]).read_text() if a.runs[0] == "@" else a.runs)
    layers = {
        layer
        for choice in choices
        for layer in choice.get("target_layers", draft_model.Config.target_layers)
    }
    shifted = {layer - 1 for choice in choices for layer in shift_of(choice)}
    data = draft_data.Streams(a.streams, layers, target, a.device, dtype)
    heldout = draft_data.Streams([a.heldout], layers | shifted, target, a.device, dtype)
    early = [choice.pop("also_early", False) for choice in choices]
    runs = [Run(target, data, a, backend, **choice) for choice in choices]
    report(
        parameters=sum(p.numel() for p in runs[0].drafter.parameters()),
        texts=data.num_texts,
        tokens=data.num_tokens,
        anchors=int(data.usable.sum()),
        load_seconds=round(time.time() - begin, 1),
        settings=vars(a),
        runs=choices,
    )
    steps, seconds = train(runs, a, report)
    for run, also_early in zip(runs, early, strict=True):
        run.graph = None
        named = draft_model.tensors(run.drafter)
        if a.out:
            saved = {"tensors": named, "config": draft_model.config_json(run.config)}
            torch.save(saved, a.out / f"{run.name}.pt")
        draft_model.load(run.drafter, named)  # what is exported is what is measured
        result = draft_measure.evaluate(run, heldout, a.texts)
        report(run=run.name, steps=steps, seconds=round(seconds, 1), result=result)
        if also_early:
            layers = tuple(layer - 1 for layer in run.layers)
            result = draft_measure.evaluate(run, heldout, a.texts, layers)
            report(run=run.name, read_from=layers, result=result)


def shift_of(choice):
    """Layers whose streams a run is also measured on one layer early."""
    if not choice.get("also_early"):
        return ()
    return choice.get("target_layers", draft_model.Config.target_layers)


if __name__ == "__main__":
    main()
