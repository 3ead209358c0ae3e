# ruff: noqa: E501
"""What the drafter learns from: texts with the target's streams, as `winnow capture` writes them.

Plain readers, so that the training machine needs PyTorch and NumPy only."""

import json
import pathlib

import numpy as np
import torch

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

    def __init__(self, folder, device):
        names = {
            "embed": "language_model.model.embed_tokens.weight",
            "head": "language_model.lm_head.weight",
            "final": "language_model.model.norm.weight",
        }
        found = read_folder(folder, set(names.values()).__contains__)
        self.embed, self.head, self.final = (found[n].float().to(device) for n in names.values())
        self.layers = json.loads((pathlib.Path(folder) / "config.json").read_text())["text_config"][
            "num_hidden_layers"
        ]


class Streams:
    """All texts of some files end to end on `device`; slices of `length` tokens of them."""

    def __init__(self, paths, layers, last_layer, device, dtype, length=512):
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

        def stream(layer):
            return fit(*(f[f"streams.{layer}"] for f in found)).to(dtype)

        self.tokens = fit(*(f["tokens"] for f in found)).long()
        number = torch.repeat_interleave(torch.arange(len(count)), count)
        self.doc = fit(number + 1)  # 0: behind the end
        place = torch.arange(total) - starts[:-1][number]
        prompt = torch.cat([f["num_prompt"] for f in found])
        self.pos = fit(place)
        self.written = fit(place >= prompt[number])
        # an anchor was written by the model and is not the last token
        self.usable = self.written & (self.doc == self.doc.roll(-1))
        self.streams = {layer: stream(layer) for layer in layers}
        self.last = self.streams[last_layer] if last_layer in layers else stream(last_layer)
        # slices begin with a text, or inside a long one every half length
        begins = [starts[:-1]]
        for number, size in enumerate(count.tolist()):
            if size > length:
                begins.append(starts[number] + torch.arange(length // 2, size, length // 2))
        self.begins = torch.cat(begins).to(device)
        self.num_texts, self.num_tokens = len(count), total

    def slices(self, begins, window):
        """tokens, pos, doc, usable, streams, last stream, each [B, length, ...]."""
        at = begins[:, None] + torch.arange(self.length, device=begins.device)
        pos = self.pos[at]
        # whole contexts only: the text begins in the slice, or its window does
        inside = torch.arange(self.length, device=begins.device)
        whole = (pos <= inside) | (inside >= window)
        usable = self.usable[at] & whole
        usable[:, -1] = False  # the next token is not in the slice
        streams = torch.cat([s[at] for s in self.streams.values()], -1)
        return self.tokens[at], pos, self.doc[at], usable, streams, self.last[at]
