"""Write golden tensors for an exported model: one float forward over a fixed conversation.

Caches are not quantised here, so compare with float or bf16 caches."""

import sys

import feed
import reference
import torch
from safetensors.torch import save_file

TALK = [
    {"role": "user", "content": "Hi! My name is Anna."},
    {"role": "assistant", "content": "Nice to meet you, Anna!"},
    {"role": "user", "content": "What is 47 + 38?"},
    {"role": "assistant", "content": "47 + 38 = 85"},
    {"role": "user", "content": "The secret code for Oslo is 4821. What is the moon?"},
    {"role": "assistant", "content": "The moon is the natural satellite of the Earth."},
]
LENGTH, KEPT = 600, 12  # 600 tokens are five blocks, one more than a query may read


class Exact(reference.Reference):
    """Keeps the chosen blocks and experts, and leaves caches and queries as they are."""

    def stored(self, x):
        return x

    query = stored


def main():
    folder, path = sys.argv[1:3]
    enc = feed.Encoder(f"{folder}/tokenizer.json", f"{folder}/chat_template.jinja")
    text = enc.render(TALK * 8, None, None)
    ids = torch.tensor([enc.tok.encode(text, add_special_tokens=False).ids[:LENGTH]])
    ref, trace, pos = Exact(folder), [], torch.arange(LENGTH)[None]
    ref.start(1, LENGTH + 24)
    ref.chosen = {}
    logits = ref.logits(ref.forward(ids, pos, trace=trace))[0]
    chosen, ref.chosen = ref.chosen, None
    keep = torch.cat([torch.arange(0, LENGTH, LENGTH // KEPT), torch.tensor([LENGTH - 1])])
    out = {"input_ids": ids, "positions": keep, "logits": logits[keep]}
    for i, h in enumerate(trace):
        out[f"hidden.{i}"] = h[0, keep]
    for name, value in chosen.items():
        out[name] = torch.cat(value, 2)[0] if name.startswith("blocks") else value
    tokens, rows, row = [], [], logits[-1]
    for at in range(LENGTH, LENGTH + 24):
        rows.append(row)
        tokens.append(int(row.argmax()))
        step = ref.forward(torch.tensor([[tokens[-1]]]), torch.tensor([[at]]))
        row = ref.logits(step)[0, 0]
    out["greedy_tokens"], out["greedy_logits"] = torch.tensor(tokens), torch.stack(rows)
    out = {k: (v.int() if v.dtype == torch.int64 else v).contiguous() for k, v in out.items()}
    save_file(out, path)
    print(enc.tok.decode(tokens, skip_special_tokens=False))


if __name__ == "__main__":
    main()
