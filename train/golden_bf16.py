"""How far the public model, run in bf16, is from its own fp32 golden outputs.

usage: golden_bf16.py CHECKPOINT GOLDEN [float32]

The yardstick for kernels that round activations to bf16: a device that is nearer to the golden
outputs than this has not lost anything. With float32 all distances are 0 or of rounding.
Needs torch and transformers==5.17.0, the release that the golden outputs are of.
"""

import sys

import numpy as np
import torch
import transformers.models.minimax_m3_vl.modeling_minimax_m3_vl as m3
from safetensors.numpy import load_file


def run(checkpoint, input_ids, dtype):
    """Outputs of one forward pass: "logits", and "hidden.L", "blocks.L", "router_index.L"."""
    model = m3.MiniMaxM3SparseForConditionalGeneration.from_pretrained(
        checkpoint, dtype=dtype, attn_implementation="eager"
    ).eval()
    found = {}

    def keep(name, module, choose):
        module.register_forward_hook(lambda m, i, out: found.__setitem__(name, choose(out)))

    for number, layer in enumerate(model.model.language_model.layers):
        keep(f"hidden.{number}", layer, lambda out: out[0] if isinstance(out, tuple) else out)
        for module in layer.modules():
            if isinstance(module, m3.MiniMaxM3VLIndexer):
                keep(f"blocks.{number}", module, lambda out: out[0].numpy())
            if isinstance(module, m3.MiniMaxM3VLTopKRouter):
                keep(f"router_index.{number}", module, lambda out: out[2].numpy())
    with torch.no_grad():
        found["logits"] = model(input_ids=input_ids, use_cache=False).logits
    return found


def share_different(ours, expected):
    """Of lists of choices, compared as sets."""
    ours, expected = (x.reshape(-1, x.shape[-1]) for x in (ours, expected))
    different = [set(a) != set(e) for a, e in zip(ours, expected, strict=True)]
    return f"{sum(different)} of {len(different)} differ ({np.mean(different):.3f})"


def distance(ours, expected):
    ours = ours.float().reshape(-1, ours.shape[-1]).numpy()
    error = np.sqrt(((ours - expected) ** 2).mean(-1) / (expected**2).mean(-1))
    return f"{np.median(error):.3e} median, {error.max():.3e} at most, of a row's rms"


def main():
    checkpoint, golden = sys.argv[1], load_file(sys.argv[2])
    dtype = getattr(torch, sys.argv[3] if len(sys.argv) > 3 else "bfloat16")
    found = run(checkpoint, torch.tensor(golden["input_ids"]).long(), dtype)
    positions = golden["positions"]
    for name in sorted(found, key=lambda name: (name.split(".")[-1], name)):
        if name.startswith(("blocks", "router")):
            print(f"{name:16} {share_different(found[name], golden[name])}")
        else:
            rows = found[name].reshape(-1, found[name].shape[-1])[positions]
            print(f"{name:16} {distance(rows, golden[name])}")


if __name__ == "__main__":
    main()
