"""A plain float64 DSpark drafter (spec/speculative.md 2), and the golden files made with it.

Written from the specification alone, one query at a time, with no shared code: it decides whether
winnow's drafter is right. The target is tests/golden/nano-text, of which the embedding and lm_head
are read; streams are random, since the drafter's mathematics does not ask where they come from.

  python train/drafter_reference.py tests/golden/nano-text tests/golden/nano-drafter
  python train/drafter_reference.py --qwen3 tests/golden/nano-text tests/golden/nano-drafter-qwen3
"""

import argparse
import json
import pathlib

import numpy as np
import torch
from safetensors.torch import load_file, save_file

ROOT = "language_model.model.dspark."
CONFIG = {
    "architectures": ["DSparkMiniMaxDraftModel"],
    "dspark_config": {"hybrid_context_fusion": False},
    "quantization_config": {"quant_method": "mxfp8", "weight_block_size": [1, 32]},
    "text_config": {
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "vocab_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rotary_dim": 16,
        "rope_theta": 5000000,
        "rms_norm_eps": 1e-6,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "dense_intermediate_size": 192,
        "dspark_ffn_hidden_size": 192,
        "sliding_window": 24,
        "layer_types": ["sliding_attention"] * 2,
        "moe_layer_freq": [0, 0],
        "dspark_block_size": 7,
        "dspark_markov_rank": 32,
        "dspark_markov_head_type": "vanilla",
        "dspark_noise_token_id": 511,
        "dspark_target_layer_ids": [1, 3, 4],
        "dspark_use_dense_ffn": True,
        "dspark_hybrid_context_fusion": False,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "use_gemma_norm": True,
        "sparse_attention_config": None,
    },
}
# A drafter of Qwen3 layers (section 1.2), with the keys that such files have.
QWEN3_CONFIG = {
    "architectures": ["Qwen3DSparkModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "vocab_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 32,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000000,
    "sliding_window": 12,
    "use_sliding_window": True,
    "layer_types": ["sliding_attention"] * 2,
    "is_causal": False,
    "block_size": 5,
    "dflash_config": {"mask_token_id": 510, "target_layer_ids": [2, 4]},
    "markov_rank": 8,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
# Contexts: none, short, on both sides of the window of 24, and longer than it by a block and more.
CONTEXTS = [0, 5, 17, 23, 24, 30, 61]
QWEN3_CONTEXTS = [0, 11, 30]


def mxfp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 codes and one E8M0 exponent per 32 columns."""
    groups = x.double().reshape(x.shape[0], -1, 32)
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    exponent = torch.ceil(torch.log2(largest / 448.0))
    codes = (groups / 2.0**exponent).float().to(torch.float8_e4m3fn).reshape(x.shape)
    return codes, (exponent.squeeze(-1) + 127).to(torch.uint8)


def e4m3_value(code: int) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def make_weights(config: dict, seed: int) -> dict[str, torch.Tensor]:
    text = config["text_config"]
    random = torch.Generator().manual_seed(seed)
    hidden, ffn = text["hidden_size"], text["dspark_ffn_hidden_size"]
    heads, kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
    dim, rank = text["head_dim"], text["dspark_markov_rank"]
    vocab = text["vocab_size"]
    tensors: dict[str, torch.Tensor] = {}

    def normal(shape: tuple[int, ...], deviation: float) -> torch.Tensor:
        return torch.randn(shape, generator=random) * deviation

    def plain(name: str, shape: tuple[int, ...], deviation: float) -> None:
        tensors[ROOT + name] = normal(shape, deviation).bfloat16()

    def linear(name: str, rows: int, cols: int, gain: float = 1.0) -> None:
        codes, scales = mxfp8(normal((rows, cols), gain * cols**-0.5))
        tensors[ROOT + name + ".weight"] = codes
        tensors[ROOT + name + ".weight_scale_inv"] = scales

    streams = len(text["dspark_target_layer_ids"])
    plain("fc.weight", (hidden, hidden * streams), (hidden * streams) ** -0.5)
    plain("hidden_norm.weight", (hidden,), 0.2)
    plain("final_norm.weight", (hidden,), 0.2)
    plain("markov_head.markov_w1.weight", (vocab, rank), 0.5)
    plain("markov_head.markov_w2.weight", (vocab, rank), 0.5)
    plain("confidence_head.proj.weight", (1, hidden + rank), 0.1)
    plain("confidence_head.proj.bias", (1,), 0.5)
    for i in range(text["num_hidden_layers"]):
        layer = f"layers.{i}.decoder_layer."
        plain(layer + "input_layernorm.weight", (hidden,), 0.2)
        plain(layer + "post_attention_layernorm.weight", (hidden,), 0.2)
        plain(layer + "self_attn.q_norm.weight", (dim,), 0.3)
        plain(layer + "self_attn.k_norm.weight", (dim,), 0.3)
        linear(layer + "self_attn.q_proj", heads * dim, hidden)
        linear(layer + "self_attn.k_proj", kv_heads * dim, hidden)
        linear(layer + "self_attn.v_proj", kv_heads * dim, hidden)
        linear(layer + "self_attn.o_proj", hidden, heads * dim)
        # Gains beyond 1, so that some gates and ups pass the limit of 7.
        linear(layer + "mlp.gate_proj", ffn, hidden, 3.0)
        linear(layer + "mlp.up_proj", ffn, hidden, 3.0)
        linear(layer + "mlp.down_proj", hidden, ffn, 0.3)
    return tensors


def make_qwen3_weights(config: dict, seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    q_width = config["num_attention_heads"] * config["head_dim"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]
    dim, rank, vocab = config["head_dim"], config["markov_rank"], config["vocab_size"]
    streams = len(config["dflash_config"]["target_layer_ids"])
    tensors: dict[str, torch.Tensor] = {}

    def matrix(name: str, rows: int, cols: int, gain: float = 1.0) -> None:
        values = torch.randn((rows, cols), generator=random) * gain * cols**-0.5
        tensors[name + ".weight"] = values.bfloat16()

    def norm(name: str, size: int) -> None:
        # Around 1, some of them small and one of them 0.
        values = 1 + 0.4 * torch.randn(size, generator=random)
        values[1], values[2] = 0.0, 1e-5
        tensors[name + ".weight"] = values.bfloat16()

    matrix("fc", hidden, hidden * streams)
    norm("hidden_norm", hidden)
    norm("norm", hidden)
    matrix("markov_head.markov_w1", vocab, rank, rank**0.5)
    matrix("markov_head.markov_w2", vocab, rank, rank**0.5)
    matrix("confidence_head.proj", 1, hidden + rank)
    tensors["confidence_head.proj.bias"] = torch.randn(1, generator=random).bfloat16()
    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}."
        norm(layer + "input_layernorm", hidden)
        norm(layer + "post_attention_layernorm", hidden)
        norm(layer + "self_attn.q_norm", dim)
        norm(layer + "self_attn.k_norm", dim)
        matrix(layer + "self_attn.q_proj", q_width, hidden)
        matrix(layer + "self_attn.k_proj", kv_width, hidden)
        matrix(layer + "self_attn.v_proj", kv_width, hidden)
        matrix(layer + "self_attn.o_proj", hidden, q_width)
        # Gates and ups beyond any limit that MiniMax layers have.
        matrix(layer + "mlp.gate_proj", ffn, hidden, 5.0)
        matrix(layer + "mlp.up_proj", ffn, hidden, 5.0)
        matrix(layer + "mlp.down_proj", hidden, ffn, 0.1)
    return tensors


class Drafter:
    root = ROOT
    layer = "layers.{}.decoder_layer."
    final_norm = "final_norm.weight"

    def __init__(self, config: dict, tensors: dict[str, torch.Tensor], embed, lm_head):
        self.text = config.get("text_config", config)
        self.tensors = tensors
        self.embed = embed
        self.lm_head = lm_head

    def noise(self) -> int:
        return self.text["dspark_noise_token_id"]

    def plain(self, name: str) -> np.ndarray:
        return self.tensors[self.root + name].double().numpy()

    def linear(self, name: str) -> np.ndarray:
        table = np.array([e4m3_value(code) for code in range(256)])
        codes = self.tensors[ROOT + name + ".weight"].view(torch.uint8).numpy()
        scales = self.tensors[ROOT + name + ".weight_scale_inv"].numpy().astype(np.float64)
        return table[codes] * np.repeat(2.0 ** (scales - 127), 32, axis=1)

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.text["rms_norm_eps"]) * (1 + weight)

    def rope(self, head: np.ndarray, position: int) -> np.ndarray:
        rotary = self.text["rotary_dim"]
        half = rotary // 2
        out = head.copy()
        for j in range(half):
            angle = position * self.text["rope_theta"] ** (-2.0 * j / rotary)
            c, s = np.cos(angle), np.sin(angle)
            out[j] = head[j] * c - head[j + half] * s
            out[j + half] = head[j + half] * c + head[j] * s
        return out

    def heads(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, self.text["head_dim"])

    def context(self, streams: np.ndarray, position: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """streams [num streams][hidden] of one token: K, V [kv heads][head_dim] per layer."""
        x = np.concatenate(list(streams))
        c = self.norm(self.plain("fc.weight") @ x, self.plain("hidden_norm.weight"))
        rows = []
        for i in range(self.text["num_hidden_layers"]):
            layer = self.layer.format(i) + "self_attn."
            k = self.heads(self.linear(layer + "k_proj") @ c)
            k = self.norm(k, self.plain(layer + "k_norm.weight"))
            k = np.stack([self.rope(head, position) for head in k])
            rows.append((k, self.heads(self.linear(layer + "v_proj") @ c)))
        return rows

    def attend(self, i: int, x: np.ndarray, start: int, context: list) -> np.ndarray:
        text = self.text
        layer = self.layer.format(i) + "self_attn."
        group = text["num_attention_heads"] // text["num_key_value_heads"]
        queries, keys, values = [], [], []
        for j, row in enumerate(x):
            q = self.norm(
                self.heads(self.linear(layer + "q_proj") @ row),
                self.plain(layer + "q_norm.weight"),
            )
            k = self.norm(
                self.heads(self.linear(layer + "k_proj") @ row),
                self.plain(layer + "k_norm.weight"),
            )
            queries.append([self.rope(head, start + j) for head in q])
            keys.append([self.rope(head, start + j) for head in k])
            values.append(self.heads(self.linear(layer + "v_proj") @ row))
        out = np.zeros((len(x), text["num_attention_heads"], text["head_dim"]))
        for j in range(len(x)):
            position = start + j
            for n in range(text["num_attention_heads"]):
                kv = n // group
                visible = [
                    (context[t][i][0][kv], context[t][i][1][kv])
                    for t in range(start)
                    if position - t <= text["sliding_window"] - 1
                ]
                visible += [(keys[b][kv], values[b][kv]) for b in range(len(x))]
                scores = np.array([queries[j][n] @ k for k, _ in visible])
                scores = scores / np.sqrt(text["head_dim"])
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                out[j, n] = sum(w * v for w, (_, v) in zip(weights, visible, strict=True))
        return out.reshape(len(x), -1) @ self.linear(layer + "o_proj").T

    def mlp(self, i: int, x: np.ndarray) -> np.ndarray:
        layer = self.layer.format(i) + "mlp."
        limit, alpha = self.text["swiglu_limit"], self.text["swiglu_alpha"]
        gate = np.minimum(x @ self.linear(layer + "gate_proj").T, limit)
        up = np.clip(x @ self.linear(layer + "up_proj").T, -limit, limit)
        hidden = gate / (1 + np.exp(-alpha * gate)) * (up + 1)
        return hidden @ self.linear(layer + "down_proj").T

    def block(self, anchor: int, start: int, num_tokens: int, context: list) -> np.ndarray:
        """Hidden states [num_tokens][hidden] after the final norm."""
        x = self.embed[[anchor] + [self.noise()] * (num_tokens - 1)]
        for i in range(self.text["num_hidden_layers"]):
            layer = self.layer.format(i)
            normed = self.norm(x, self.plain(layer + "input_layernorm.weight"))
            x = x + self.attend(i, normed, start, context)
            normed = self.norm(x, self.plain(layer + "post_attention_layernorm.weight"))
            x = x + self.mlp(i, normed)
        return self.norm(x, self.plain(self.final_norm))

    def draw(self, anchor: int, hidden: np.ndarray, logits: np.ndarray):
        """The greedy draft: tokens, biased logits, and the confidence of each slot."""
        w1 = self.plain("markov_head.markov_w1.weight")
        w2 = self.plain("markov_head.markov_w2.weight")
        wc = self.plain("confidence_head.proj.weight")[0]
        bc = self.plain("confidence_head.proj.bias")[0]
        tokens, biased, confidence, previous = [], [], [], anchor
        for h, u in zip(hidden, logits, strict=True):
            z = u + w2 @ w1[previous]
            confidence.append(1 / (1 + np.exp(-(wc @ np.concatenate([h, w1[previous]]) + bc))))
            previous = int(np.argmax(z))
            tokens.append(previous)
            biased.append(z)
        return tokens, np.stack(biased), confidence


class Qwen3Drafter(Drafter):
    """Section 1.2: other names, and what a Qwen3 layer does otherwise."""

    root = ""
    layer = "layers.{}."
    final_norm = "norm.weight"

    def noise(self) -> int:
        return self.text["dflash_config"]["mask_token_id"]

    def linear(self, name: str) -> np.ndarray:
        return self.plain(name + ".weight")

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return weight * (x / np.sqrt(mean + self.text["rms_norm_eps"]))

    def rope(self, head: np.ndarray, position: int) -> np.ndarray:
        half = len(head) // 2
        angles = position / self.text["rope_theta"] ** (np.arange(half) / half)
        turned = (head[:half] + 1j * head[half:]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag])

    def mlp(self, i: int, x: np.ndarray) -> np.ndarray:
        layer = self.layer.format(i) + "mlp."
        gate = x @ self.linear(layer + "gate_proj").T
        up = x @ self.linear(layer + "up_proj").T
        return (gate / (1 + np.exp(-gate)) * up) @ self.linear(layer + "down_proj").T


class Golden:
    """Outputs of a drafter over several contexts, for winnow to be compared with."""

    def __init__(self, drafter, lm_head) -> None:
        self.drafter, self.lm_head = drafter, lm_head
        names = ("anchor", "hidden", "logits", "biased", "tokens", "confidence")
        self.outputs: dict[str, list] = {name: [] for name in names}
        self.streams, self.keys, self.values = [], [], []

    def add(self, streams, anchor: int, block_size: int):
        """One draft behind `streams` [tokens][num streams][hidden], float32; returns hidden."""
        context = [self.drafter.context(row.astype(np.float64), t) for t, row in enumerate(streams)]
        hidden = self.drafter.block(anchor, len(streams), block_size, context)
        logits = hidden @ self.lm_head.T
        tokens, biased, confidence = self.drafter.draw(anchor, hidden, logits)
        drawn = (anchor, hidden, logits, biased, tokens, confidence)
        for collected, value in zip(self.outputs.values(), drawn, strict=True):
            collected.append(value)
        self.streams.append(streams)
        self.keys += [[layer[0] for layer in row] for row in context]
        self.values += [[layer[1] for layer in row] for row in context]
        return hidden

    def save(self, path: pathlib.Path) -> None:
        def tensor(value, dtype=torch.float32):
            return torch.tensor(np.array(value), dtype=dtype)

        integers = ("anchor", "tokens")
        out = {
            name: tensor(value, torch.int32 if name in integers else torch.float32)
            for name, value in self.outputs.items()
        }
        out["context_length"] = tensor([len(own) for own in self.streams], torch.int32)
        # [num streams][all contexts' tokens][hidden]
        out["streams"] = torch.tensor(np.concatenate(self.streams).transpose(1, 0, 2).copy())
        out["context_k"] = tensor(self.keys)  # [tokens][layers][heads]
        out["context_v"] = tensor(self.values)
        save_file(out, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--qwen3", action="store_true")
    args = parser.parse_args()
    target = load_file(args.target / "model.safetensors")
    embed = target["language_model.model.embed_tokens.weight"].double().numpy()
    lm_head = target["language_model.lm_head.weight"].double().numpy()
    folder = args.out / "dspark"
    folder.mkdir(parents=True, exist_ok=True)
    config = QWEN3_CONFIG if args.qwen3 else CONFIG
    contexts = QWEN3_CONTEXTS if args.qwen3 else CONTEXTS
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = (make_qwen3_weights if args.qwen3 else make_weights)(config, args.seed)
    save_file(tensors, folder / "model.safetensors")
    drafter = (Qwen3Drafter if args.qwen3 else Drafter)(config, tensors, embed, lm_head)

    text = drafter.text
    rng = np.random.default_rng(args.seed)
    block_size = text["block_size" if args.qwen3 else "dspark_block_size"]
    num_streams, size = 2 if args.qwen3 else 3, text["hidden_size"]
    scale = np.array([1.0, 2.0, 4.0])[:num_streams, None]  # a residual stream grows with depth
    golden = Golden(drafter, lm_head)
    for length in contexts:
        own = rng.standard_normal((length, num_streams, size)) * scale
        anchor = int(rng.integers(text["vocab_size"]))
        golden.add(own.astype(np.float32), anchor, block_size)
    golden.save(args.out / "golden.safetensors")


if __name__ == "__main__":
    main()
