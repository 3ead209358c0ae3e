# ruff: noqa: E501
"""What the drafter learns from: texts with the target's streams, as `winnow capture` writes them.

Plain readers, so that the training machine needs PyTorch and NumPy only."""

import json
import pathlib

import numpy as np
import torch

import model as M

DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}


def read_safetensors(path, wanted=lambda name: True):
    """Name -> tensor over a mapping of the file."""
    data = np.memmap(path, np.uint8, mode="c")
    size = int(data[:8].view(np.int64)[0])
    out = {}
    for name, entry in json.loads(data[8 : 8 + size].tobytes()).items():
        if name == "__metadata__" or not wanted(name):
            continue
        first, end = (8 + size + offset for offset in entry["data_offsets"])
        raw = torch.from_numpy(data[first:end])
        out[name] = raw.view(DTYPES[entry["dtype"]]).view(entry["shape"])
    return out


def read_folder(folder, wanted=lambda name: True):
    folder, out = pathlib.Path(folder), {}
    for path in sorted(folder.glob("*.safetensors")):
        out |= read_safetensors(path, wanted)
    return out


class Target:
    """What the drafter shares with its target, and the target's last norm."""

    def __init__(self, folder, device, dtype):
        names = {
            "embed": "language_model.model.embed_tokens.weight",
            "head": "language_model.lm_head.weight",
            "final": "language_model.model.norm.weight",
        }
        found = read_folder(folder, set(names.values()).__contains__)
        self.embed, self.head = (found[names[n]].to(device, dtype) for n in ("embed", "head"))
        self.final = found[names["final"]].float().to(device)
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        self.layers = config["text_config"]["num_hidden_layers"]

    @torch.no_grad()
    def logits(self, last):
        """Of the tokens after those whose last stream it is."""
        return M.norm(last, self.final) @ self.head.T


class Streams:
    """All texts of some files end to end on `device`; slices of `length` tokens of them.

    `chance` says how often the engine's steps begin at a token, up to a factor: those that the model
    itself was sure of are mostly drafted, and the step after begins further on."""

    def __init__(self, paths, layers, target, device, dtype, length=512):
        found = [read_safetensors(path) for path in paths]
        count = torch.cat([f["starts"].diff() for f in found])
        starts = torch.cat([torch.zeros(1, dtype=torch.long), count.cumsum(0)])
        total, self.length = int(starts[-1]), length

        def fit(*parts):
            """With room behind the last text, so that every slice is whole."""
            first = parts[0]
            shape = (total + length, *first.shape[1:])
            out = torch.zeros(shape, dtype=first.dtype, device=device)
            at = 0
            for part in parts:
                out[at : at + len(part)] = part.to(device)
                at += len(part)
            return out

        self.tokens = fit(*(f["tokens"] for f in found)).long()
        number = torch.repeat_interleave(torch.arange(len(count)), count)
        self.doc = fit(number + 1)  # 0: behind the end
        place = torch.arange(total) - starts[:-1][number]
        prompt = torch.cat([f["num_prompt"] for f in found])
        self.pos = fit(place)
        # an anchor was written by the model and is not the last token
        self.usable = fit(place >= prompt[number]) & (self.doc == self.doc.roll(-1))
        self.streams = {
            layer: fit(*(f[f"streams.{layer}"] for f in found)).to(dtype)
            for layer in sorted({*layers, target.layers - 1})
        }
        self.last = self.streams[target.layers - 1]
        self.chance = self.usable * (1.1 - self.sureness(target)).float()
        # slices begin with a text, or inside a long one every half length
        begins = [starts[:-1]]
        for number, size in enumerate(count.tolist()):
            if size > length:
                begins.append(starts[number] + torch.arange(length // 2, size, length // 2))
        self.begins = torch.cat(begins).to(device)
        self.starts, self.prompt = starts, prompt.long()
        self.num_texts, self.num_tokens = len(count), total

    def sureness(self, target, rows=16384):
        """The target's probability of each usable token, at temperature 1."""
        out = torch.zeros(len(self.tokens), device=self.tokens.device)
        for at in self.usable.nonzero()[:, 0].split(rows):
            logits = target.logits(self.last[at - 1]).float()
            out[at] = logits.log_softmax(-1).gather(-1, self.tokens[at, None])[:, 0].exp()
        return out

    def slices(self, begins, layers):
        """tokens, pos, doc, streams, last stream, each [B, length, ...]."""
        at = begins[:, None] + torch.arange(self.length, device=begins.device)
        streams = torch.cat([self.streams[layer][at] for layer in layers], -1)
        return self.tokens[at], self.pos[at], self.doc[at], streams, self.last[at]

    def pick(self, begins, window, count):
        """Places [B, count] of anchors in slices, drawn by their chance, and whether each is one."""
        inside = torch.arange(self.length, device=begins.device)
        at = begins[:, None] + inside
        # whole contexts only: the text begins in the slice, or its window does
        whole = (self.pos[at] <= inside) | (inside >= window)
        chance = self.chance[at] * whole
        chance[:, -1] = 0  # the next token is not in the slice
        # evenly spaced over the sum of the chances, from a random start: the likely ones may be
        # drawn twice
        reach = chance.cumsum(-1)
        start = torch.rand(len(begins), 1, device=at.device)
        step = torch.arange(count, device=at.device) + start
        places = torch.searchsorted(reach, step / count * reach[:, -1:]).clamp(max=self.length - 1)
        return places, chance.gather(1, places) > 0

    def every_anchor(self, block, texts, count=32):
        """(begins [R], places [R, count], whether each is one) of all anchors of the first texts."""
        begins, places = [], []
        for start, end, prompt in zip(
            self.starts[:texts].tolist(),
            self.starts[1 : texts + 1].tolist(),
            self.prompt[:texts].tolist(),
            strict=True,
        ):
            for first in range(start + prompt, end - 1, count):
                # ends behind the last block, and so holds every anchor's window
                begin = max(start, first + count + block - self.length)
                begins.append(begin)
                places.append(
                    [g - begin if g < end - 1 else -1 for g in range(first, first + count)]
                )
        device = self.tokens.device
        at = torch.tensor(places, device=device)
        return torch.tensor(begins, device=device), at.clamp(min=0), at >= 0
