# ruff: noqa: E501
"""Write a training checkpoint in the published M3.1 layout: NVFP4 experts, MXFP8 elsewhere, shards below 15 MiB."""

import argparse
import json
import os

import quant
import torch
from safetensors.torch import save_file

import model as M

SHARD = 15 * 2**20


def tensors(cfg, state):
    """Published name -> tensor."""
    out, base = {}, "language_model.model."

    def mx(name, w):
        out[name + ".weight"], out[name + ".weight_scale_inv"] = quant.pack_mxfp8(w)

    out[base + "embed_tokens.weight"] = state["embed"].bfloat16()
    out[base + "norm.weight"] = state["final"].bfloat16()
    out["language_model.lm_head.weight"] = state["head"].bfloat16()
    for i in range(cfg.layers):
        s = {
            k.removeprefix(f"layers.{i}."): v.float()
            for k, v in state.items()
            if k.startswith(f"layers.{i}.")
        }
        p = f"{base}layers.{i}."
        out[p + "input_layernorm.weight"] = s["input_norm"].bfloat16()
        out[p + "post_attention_layernorm.weight"] = s["post_norm"].bfloat16()
        for n in ("q_norm", "k_norm", "index_q_norm", "index_k_norm"):
            out[f"{p}self_attn.{n}.weight"] = s[n].bfloat16()
        for n in ("q_proj", "k_proj", "v_proj", "o_proj", "index_q_proj", "index_k_proj"):
            mx(f"{p}self_attn.{n}", s[n])
        if i == 0:
            for n in ("gate_proj", "up_proj", "down_proj"):
                mx(f"{p}mlp.{n}", s[f"ffn.{n}"])
            continue
        m = p + "block_sparse_moe."
        out[m + "gate.weight"] = s["ffn.gate"]
        out[m + "e_score_correction_bias"] = s["ffn.bias"]
        for n in ("gate_proj", "up_proj", "down_proj"):
            mx(f"{m}shared_experts.{n}", s[f"ffn.shared.{n}"])
        shared_scale, own = (
            quant.nvfp4_global(s["ffn.w1"], s["ffn.w3"]),
            quant.nvfp4_global(s["ffn.w2"]),
        )
        for n, g in (("w1", shared_scale), ("w3", shared_scale), ("w2", own)):
            for e in range(cfg.experts):
                x = f"{m}experts.{e}.{n}.weight"
                out[x + "_packed"], out[x + "_scale"] = quant.pack_nvfp4(s[f"ffn.{n}"][e], g[e])
                out[x + "_global_scale"] = g[e].reshape(1).clone()
    return {k: v.contiguous().cpu() for k, v in out.items()}


def config(cfg):
    """config.json in the published spelling (numbers ours)."""
    ones = [1] * cfg.layers
    moe = [0] + [1] * (cfg.layers - 1)
    text = {
        "model_type": "minimax_m3_vl_text",
        "vocab_size": cfg.vocab,
        "hidden_size": cfg.hidden,
        "num_hidden_layers": cfg.layers,
        "num_attention_heads": cfg.heads,
        "num_key_value_heads": cfg.kv,
        "head_dim": cfg.dim,
        "intermediate_size": cfg.expert,
        "dense_intermediate_size": cfg.dense,
        "shared_intermediate_size": cfg.shared,
        "n_shared_experts": 1,
        "num_local_experts": cfg.experts,
        "num_experts_per_tok": cfg.top_experts,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "routed_scaling_factor": cfg.route_scale,
        "moe_layer_freq": moe,
        "hidden_act": "swigluoai",
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "rms_norm_eps": cfg.eps,
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "rope_theta": int(cfg.theta),
        "rotary_dim": cfg.rotary,
        "partial_rotary_factor": cfg.rotary / cfg.dim,
        "max_position_embeddings": 16384,
        "attention_output_gate": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": cfg.vocab - 61 + 34,
        "eos_token_id": cfg.vocab - 61 + 20,
        "pad_token_id": cfg.vocab - 61,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_index_dim": cfg.dim,
            "sparse_num_index_heads": cfg.kv,
            "sparse_topk_blocks": cfg.top_blocks,
            "sparse_block_size": M.BLOCK,
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_score_type": "max",
            "sparse_attention_freq": ones,
            "sparse_disable_index_value": ones,
        },
    }
    first = cfg.vocab - 61
    return {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "torch_dtype": "bfloat16",
        "image_token_index": first + 25,
        "video_token_index": first + 26,
        "projector_hidden_size": cfg.hidden,
        "tie_word_embeddings": False,
        "text_config": text,
        "quantization_config": {
            "quant_method": "mxfp8",
            "weight_block_size": [1, 32],
            "moe_quant_algo": "NVFP4",
            "moe_quant_format": "nvfp4-pack-quantized",
            "kv_cache_quant_algo": "NVFP4",
            "ignore": [
                "language_model.lm_head",
                "language_model.model.embed_tokens",
                "block_sparse_moe.gate",
            ],
        },
    }


def write(checkpoint, folder):
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    cfg = M.Config(**state["config"])
    named, shards, size = tensors(cfg, state["state"]), [{}], 0
    for name, t in named.items():
        n = t.numel() * t.element_size()
        if size + n > SHARD - 2**18:
            shards.append({})
            size = 0
        shards[-1][name] = t
        size += n
    os.makedirs(folder, exist_ok=True)
    where, total = {}, sum(t.numel() * t.element_size() for t in named.values())
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, os.path.join(folder, file), metadata={"format": "pt"})
        where |= dict.fromkeys(shard, file)
    first = cfg.vocab - 61
    generation = {
        "bos_token_id": first + 34,
        "eos_token_id": [first + 20],
        "pad_token_id": first,
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
    }
    for name, value in (
        ("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where}),
        ("config.json", config(cfg)),
        ("generation_config.json", generation),
    ):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(value, f, indent=2)
            f.write("\n")
    print(len(named), "tensors,", len(shards), "shards,", round(total / 2**20, 2), "MiB")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("checkpoint")
    ap.add_argument("folder")
    a = ap.parse_args()
    write(a.checkpoint, a.folder)
