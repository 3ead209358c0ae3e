# ruff: noqa: E501
"""Write a trained drafter into the folder dspark/ of its target, in M3.1's layout.

python draft_export.py drafter.pt ../models/winnow-tiny/dspark
"""

import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("trained")
    ap.add_argument("folder", type=pathlib.Path)
    a = ap.parse_args()
    saved = torch.load(a.trained, map_location="cpu", weights_only=True)
    named = saved["tensors"]
    a.folder.mkdir(parents=True, exist_ok=True)
    file = "model-00001-of-00001.safetensors"
    save_file(named, a.folder / file, metadata={"format": "pt"})
    total = sum(t.numel() * t.element_size() for t in named.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(sorted(named), file)}
    for name, value in (("model.safetensors.index.json", index), ("config.json", saved["config"])):
        (a.folder / name).write_text(json.dumps(value, indent=2) + "\n")
    print(len(named), "tensors,", round(total / 2**20, 2), "MiB")


if __name__ == "__main__":
    main()
