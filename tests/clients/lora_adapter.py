"""Adapters (LoRA) in PEFT's format with random weights, for the small models of these tests."""

import json
from pathlib import Path

import numpy as np


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.nbytes
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def projections(model):
    """Module name, rows and columns of what an adapter of these tests changes."""
    config = json.loads((Path(model) / "config.json").read_text())
    config = config.get("text_config", config)
    hidden = config["hidden_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    expert = config["intermediate_size"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"base_model.model.model.layers.{layer}"
        yield f"{prefix}.self_attn.q_proj", heads, hidden
        yield f"{prefix}.self_attn.o_proj", hidden, heads
        if not config["moe_layer_freq"][layer]:
            continue
        for number in range(config["num_local_experts"]):
            yield f"{prefix}.block_sparse_moe.experts.{number}.w1", expert, hidden
            yield f"{prefix}.block_sparse_moe.experts.{number}.w2", hidden, expert


def write_adapter(folder, model, seed, rank=8, strength=1.0):
    """Large enough to change what the model says: B is not zero, as it is before training."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    tensors, modules = {}, set()
    for module, rows, columns in projections(model):
        a = random.standard_normal((rank, columns)) / np.sqrt(columns)
        b = random.standard_normal((rows, rank)) * strength / np.sqrt(rank)
        tensors[f"{module}.lora_A.weight"] = a.astype(np.float32)
        tensors[f"{module}.lora_B.weight"] = b.astype(np.float32)
        modules.add(module.rsplit(".", 1)[1])
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted(modules),
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
