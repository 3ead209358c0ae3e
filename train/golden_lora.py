"""Adapters as PEFT writes them, and the public model's outputs with each: tests/golden/nano-lora.

usage: golden_lora.py CHECKPOINT GOLDEN OUT

CHECKPOINT and GOLDEN are nano-text's folder and golden.safetensors, whose prompt is run. OUT gets
  attention/          q, k, v, o and the indexer's projections; ranks and alphas by pattern; BF16
  experts/            stacked experts (target_parameters), dense MLP, shared expert; rslora; F16
  experts-published/  the same one by one under the checkpoint's names: w1, w2, w3 of each expert,
                      gate_proj and up_proj for the fused gate_up_proj; no outputs of its own
A and B are random; the logits after the prompt move by a fifth of their size. Needs torch,
transformers==5.17.0 and peft==0.21.2.
"""

import json
import pathlib
import sys

import golden_bf16
import torch
import transformers.models.minimax_m3_vl.modeling_minimax_m3_vl as m3
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

EVERY, GREEDY = 25, 8  # positions that are kept, tokens of the continuation

ATTENTION = dict(
    r=4,
    lora_alpha=8,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
    exclude_modules=r".*vision.*",
    rank_pattern={"o_proj": 6, r"layers\.[12]\.self_attn\.q_proj": 3},
    alpha_pattern={"v_proj": 2, r"indexer\.k_proj": 4},
)
EXPERTS = dict(
    r=2,
    lora_alpha=3,
    use_rslora=True,
    target_modules=["mlp.gate_up_proj", "mlp.down_proj"]
    + ["shared_experts.gate_up_proj", "shared_experts.down_proj"],
    target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
)


def adapted(checkpoint, options, dtype, seed):
    """The public model with one random adapter, whose weights `dtype` holds exactly."""
    base = m3.MiniMaxM3SparseForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    model = get_peft_model(base, LoraConfig(**options)).eval()
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            std = weight.shape[1] ** -0.5 if "lora_A" in name else 0.02
            weight.data = torch.normal(0.0, std, weight.shape).to(dtype).float()
    return model


def outputs(model, golden):
    """What golden.safetensors keeps of the prompt and its greedy continuation."""
    ids, found = golden["input_ids"].long(), {}

    def keep(name, module, choose):
        def hook(module, inputs, out):
            found.setdefault(name, choose(out))  # of the prompt, not of the steps after it

        module.register_forward_hook(hook)

    for number, layer in enumerate(model.base_model.model.model.language_model.layers):
        keep(f"hidden.{number}", layer, lambda out: (out[0] if isinstance(out, tuple) else out)[0])
        for module in layer.modules():
            if isinstance(module, m3.MiniMaxM3VLIndexer):
                keep(f"blocks.{number}", module, lambda out: out[0])
            if isinstance(module, m3.MiniMaxM3VLTopKRouter):
                keep(f"router_index.{number}", module, lambda out: out[2])
                keep(f"router_weight.{number}", module, lambda out: out[1])
    with torch.no_grad():
        out = model(input_ids=ids, use_cache=True)
        positions = torch.arange(EVERY - 1, ids.shape[1], EVERY)
        found = {k: v[positions] if k.startswith("hidden") else v for k, v in found.items()}
        found |= {"input_ids": ids, "positions": positions, "logits": out.logits[0, positions]}
        tokens, rows = [], []
        while len(tokens) < GREEDY:
            rows.append(out.logits[0, -1])
            tokens.append(rows[-1].argmax())
            out = model(input_ids=tokens[-1][None, None], past_key_values=out.past_key_values)
    found |= {"greedy_tokens": torch.stack(tokens), "greedy_logits": torch.stack(rows)}
    return {
        k: v.to(torch.int32 if v.dtype == torch.int64 else v.dtype).contiguous().clone()
        for k, v in found.items()
    }


def save_adapter(model, folder, dtype):
    """As PEFT saves it, in `dtype`, and without this machine's paths."""
    model.save_pretrained(folder)
    path = folder / "adapter_model.safetensors"
    save_file({k: v.to(dtype) for k, v in load_file(path).items()}, path, {"format": "pt"})
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "nano-text"
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (folder / "README.md").unlink(missing_ok=True)


def published_names(source, folder, num_experts):
    """The adapter in `source` with every fused or stacked pair split, under the published names."""
    split = {}

    def put(module, a, b):
        split[f"{module}.lora_A.weight"] = a.contiguous().clone()
        split[f"{module}.lora_B.weight"] = b.contiguous().clone()

    tensors = load_file(source / "adapter_model.safetensors")
    for name, a in tensors.items():
        if not name.endswith(".lora_A.weight"):
            continue
        module = name.removesuffix(".lora_A.weight")
        b = tensors[f"{module}.lora_B.weight"]
        new = module.replace("model.language_model.layers", "language_model.model.layers")
        new = new.replace(".mlp.", ".block_sparse_moe.").replace(".base_layer", "")
        if new.endswith(".experts"):
            # A: the expert slowest; B: the expert fastest.
            a = a.reshape(num_experts, -1, a.shape[1])
            b = b.reshape(b.shape[0], -1, num_experts)
            for e in range(num_experts):
                if module.endswith(".base_layer"):
                    gate, up = b[:, :, e].chunk(2)
                    put(f"{new}.{e}.w1", a[e], gate)
                    put(f"{new}.{e}.w3", a[e], up)
                else:
                    put(f"{new}.{e}.w2", a[e], b[:, :, e])
        elif new.endswith("gate_up_proj"):
            gate, up = b.chunk(2)
            put(new.replace("gate_up_proj", "gate_proj"), a, gate)
            put(new.replace("gate_up_proj", "up_proj"), a, up)
        else:
            put(new, a, b)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(split, folder / "adapter_model.safetensors", {"format": "pt"})
    config = json.loads((source / "adapter_config.json").read_text())
    config |= {"target_modules": r".*\.(w1|w2|w3|gate_proj|up_proj|down_proj)"}
    config |= {"target_parameters": None, "auto_mapping": None}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def main():
    checkpoint, golden, out = sys.argv[1], load_file(sys.argv[2]), pathlib.Path(sys.argv[3])
    for number, (name, options, dtype) in enumerate(
        [("attention", ATTENTION, torch.bfloat16), ("experts", EXPERTS, torch.float16)]
    ):
        model = adapted(checkpoint, dict(options), dtype, seed=41 + number)
        save_adapter(model, out / name, dtype)
        found = outputs(model, golden)
        save_file(found, out / name / "golden.safetensors")
        base = golden["greedy_logits"][0]
        distance = golden_bf16.distance(found["greedy_logits"][:1], base.numpy())
        print(f"{name}: logits after the prompt move by {distance}")
    experts = model.base_model.model.config.text_config.num_local_experts
    published_names(out / "experts", out / "experts-published", experts)


if __name__ == "__main__":
    main()
