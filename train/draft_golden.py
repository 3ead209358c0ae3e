# ruff: noqa: E501
"""Outputs of the trained drafter by the float64 reference, for winnow to be compared with, in the format of
tests/golden/nano-drafter; PyTorch's are compared here.

  python draft_golden.py ../models/winnow-tiny heldout.safetensors ../tests/golden/tiny-drafter
"""

import argparse
import json
import pathlib

import draft_data
import draft_model
import drafter_reference
import numpy as np
import torch


def by_torch(folder, named, config, streams, anchor, length):
    """Hidden states [block, hidden] of one draft in float32, context unquantised."""
    text = config["text_config"]
    c = draft_model.Config(
        layers=text["num_hidden_layers"],
        ffn=text["dspark_ffn_hidden_size"],
        rank=text["dspark_markov_rank"],
        window=text["sliding_window"],
        noise=text["dspark_noise_token_id"],
        target_layers=tuple(text["dspark_target_layer_ids"]),
    )
    target = draft_data.Target(folder, "cpu", torch.float32)
    drafter = draft_model.Drafter(c, target.embed, target.head)
    draft_model.load(drafter, named)
    draft_model.quant.e4m3 = lambda x: x  # the reference keeps the context as it is
    rows = torch.zeros(1, length + 1, streams.shape[-1])
    rows[0, :length] = streams
    pos = torch.arange(length + 1)[None]
    with torch.no_grad():
        hidden = drafter(
            rows, pos, torch.ones_like(pos), torch.tensor([[length]]), torch.tensor([[anchor]])
        )
    return hidden[0, 0].double().numpy()


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("model", type=pathlib.Path)
    ap.add_argument("streams")
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument(
        "--contexts", type=int, nargs="+", default=[1, 40], help="tokens before a draft"
    )
    a = ap.parse_args()
    config = json.loads((a.model / "dspark" / "config.json").read_text())
    named = draft_data.read_folder(a.model / "dspark")
    target = draft_data.Target(a.model, "cpu", torch.float32)
    embed, head = target.embed.double().numpy(), target.head.double().numpy()
    reference = drafter_reference.Drafter(config, named, embed, head)
    text = config["text_config"]
    found = draft_data.read_safetensors(a.streams)
    starts = found["starts"].tolist()
    lengths = np.diff(starts)
    golden = drafter_reference.Golden(reference, head)
    for n, length in enumerate(a.contexts):
        first = starts[int(np.flatnonzero(lengths > length)[n])]
        own = torch.stack(
            [
                found[f"streams.{i}"][first : first + length]
                for i in text["dspark_target_layer_ids"]
            ],
            1,
        ).float()
        anchor = int(found["tokens"][first + length])
        hidden = golden.add(own.numpy(), anchor, text["dspark_block_size"])
        ours = by_torch(a.model, named, config, own.flatten(1), anchor, length)
        print(
            "context",
            length,
            "PyTorch differs by",
            np.abs(ours - hidden).max() / np.abs(hidden).max(),
        )
    a.out.mkdir(parents=True, exist_ok=True)
    golden.save(a.out / "golden.safetensors")


if __name__ == "__main__":
    main()
