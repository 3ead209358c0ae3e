# ruff: noqa: E501
"""A plain float32 forward of an exported model, with caches and batches: checks the export and scores it.

Written against the published layout alone; shares only the number formats with the training code."""

import json
import os

import quant
import torch
from safetensors import safe_open

BLOCK = 128


def load(folder, device):
    """All tensors, dequantised to float32, under their plain names."""
    with open(os.path.join(folder, "model.safetensors.index.json")) as f:
        files = sorted(set(json.load(f)["weight_map"].values()))
    raw = {}
    for name in files:
        with safe_open(os.path.join(folder, name), "pt", device=str(device)) as f:
            for key in f.keys():  # noqa: SIM118 - not a dict
                raw[key] = f.get_tensor(key)
    out = {}
    for key, t in raw.items():
        if key.endswith(".weight_packed"):
            base = key.removesuffix("_packed")
            out[base] = quant.unpack_nvfp4(t, raw[base + "_scale"], raw[base + "_global_scale"])
        elif key.endswith(".weight") and key + "_scale_inv" in raw:
            out[key] = quant.unpack_mxfp8(t, raw[key + "_scale_inv"])
        elif not key.endswith(("_scale", "_global_scale", "_scale_inv")):
            out[key] = t.float()
    return {k.removeprefix("language_model."): v for k, v in out.items()}


class Reference:
    def __init__(self, folder, device="cpu", cache="nvfp4", attention="msa"):
        with open(os.path.join(folder, "config.json")) as f:
            self.c = json.load(f)["text_config"]
        self.w, self.device, self.cache, self.attention = (
            load(folder, device),
            device,
            cache,
            attention,
        )
        self.chosen = None  # a dict here collects chosen blocks and experts
        s = self.c["sparse_attention_config"]
        self.top, self.index_heads, self.index_dim = (
            s["sparse_topk_blocks"],
            s["sparse_num_index_heads"],
            s["sparse_index_dim"],
        )

    def start(self, batch, tmax):
        c, n = self.c, -(-tmax // BLOCK) * BLOCK
        zeros = lambda h, d: torch.zeros(batch, h, n, d, device=self.device)  # noqa: E731
        self.kv = [
            (
                zeros(c["num_key_value_heads"], c["head_dim"]),
                zeros(c["num_key_value_heads"], c["head_dim"]),
                zeros(1, self.index_dim),
            )
            for _ in range(c["num_hidden_layers"])
        ]

    def norm(self, x, w):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * (1 + w)

    def rope(self, x, pos):
        r = self.c["rotary_dim"]
        inv = 1.0 / self.c["rope_theta"] ** (torch.arange(0, r, 2, device=x.device).float() / r)
        angle = (pos.float()[:, :, None] * inv)[:, None]
        a, b = x[..., : r // 2], x[..., r // 2 : r]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., r:]], -1)

    def stored(self, x):
        return quant.cache_value(x.bfloat16()) if self.cache == "nvfp4" else x.bfloat16().float()

    def query(self, x):
        return quant.e4m3(x.bfloat16()) if self.cache == "nvfp4" else x.bfloat16().float()

    def mlp(self, h, gate, up, down):
        limit, alpha = self.c["swiglu_limit"], self.c["swiglu_alpha"]
        g, u = (h @ gate.T).clamp(max=limit), (h @ up.T).clamp(-limit, limit)
        return ((u + 1) * g * torch.sigmoid(alpha * g)) @ down.T

    def attend(self, layer, h, pos, live):
        """h [b, n, hidden] at positions pos [b, n]; rows with live = False are padding and are not stored."""
        c, p = self.c, f"model.layers.{layer}.self_attn."
        b, n, d, heads, kv = (
            *h.shape[:2],
            c["head_dim"],
            c["num_attention_heads"],
            c["num_key_value_heads"],
        )

        def project(name, count, norm=None):
            y = (h @ self.w[p + name + "_proj.weight"].T).view(b, n, count, -1).transpose(1, 2)
            return (
                y
                if norm is None
                else self.rope(self.norm(y, self.w[p + norm + "_norm.weight"]), pos)
            )

        q, k, v = project("q", heads, "q"), project("k", kv, "k"), project("v", kv)
        iq, ik = project("index_q", self.index_heads, "index_q"), project("index_k", 1, "index_k")
        rows = torch.arange(b, device=h.device)[:, None].expand(b, n)[live]
        for store, new in zip(self.kv[layer], (k, v, ik), strict=True):
            store[rows, :, pos[live]] = self.stored(new).transpose(1, 2)[live]
        K, V, IK = self.kv[layer]
        q, iq, out = self.query(q), self.query(iq), []
        t = int(pos.max()) // BLOCK * BLOCK + BLOCK
        K, V, IK = K[:, :, :t], V[:, :, :t], IK[:, :, :t]
        blocks, keys = torch.arange(t // BLOCK, device=h.device), torch.arange(t, device=h.device)
        for lo in range(0, n, 256):
            at = pos[:, lo : lo + 256]
            allow = (keys <= at[:, :, None])[:, None]
            if self.attention == "msa":
                s = (iq[:, :, lo : lo + 256] @ IK.transpose(2, 3)).masked_fill(
                    ~allow, float("-inf")
                )
                s = (
                    s.unflatten(-1, (-1, BLOCK))
                    .amax(-1)
                    .masked_fill((blocks == (at // BLOCK)[:, :, None])[:, None], float("inf"))
                )
                best = s.sort(dim=-1, descending=True, stable=True)  # ties: the lower block first
                pick = torch.zeros_like(s, dtype=torch.bool).scatter(
                    -1, best.indices[..., : self.top], True
                ) & (s > float("-inf"))
                if self.chosen is not None:
                    ids = best.indices[..., : self.top]
                    empty = best.values[..., : self.top] == float("-inf")
                    self.chosen.setdefault(f"blocks.{layer}", []).append(ids.masked_fill(empty, -1))
                allow = allow & pick.repeat_interleave(BLOCK, -1)
            qs = q[:, :, lo : lo + 256].unflatten(1, (kv, heads // kv))
            sc = (qs @ K.unsqueeze(2).transpose(3, 4)) * d**-0.5
            pr = sc.masked_fill(~allow.unsqueeze(2), float("-inf")).softmax(-1)
            out.append((pr @ V.unsqueeze(2)).flatten(1, 2))
        return torch.cat(out, 2).transpose(1, 2).reshape(b, n, -1) @ self.w[p + "o_proj.weight"].T

    def moe(self, p, h):
        c, x = self.c, h.reshape(-1, h.shape[-1])
        score = torch.sigmoid(x @ self.w[p + "gate.weight"].T)
        pick = (
            (score + self.w[p + "e_score_correction_bias"])
            .topk(c["num_experts_per_tok"], -1)
            .indices
        )
        mix = score.gather(1, pick)
        mix, y = mix / mix.sum(-1, keepdim=True), torch.zeros_like(x)
        if self.chosen is not None:
            layer = p.split(".")[2]
            self.chosen[f"router_index.{layer}"] = pick
            self.chosen[f"router_weight.{layer}"] = mix
        for e in range(c["num_local_experts"]):
            row, choice = (pick == e).nonzero(as_tuple=True)
            if len(row):
                y[row] += mix[row, choice, None] * self.mlp(
                    x[row], *(self.w[f"{p}experts.{e}.{z}.weight"] for z in ("w1", "w3", "w2"))
                )
        shared = self.mlp(
            x, *(self.w[f"{p}shared_experts.{z}_proj.weight"] for z in ("gate", "up", "down"))
        )
        return (y * c["routed_scaling_factor"] + shared).view_as(h)

    @torch.no_grad()
    def forward(self, ids, pos, live=None, trace=None):
        """Final hidden states [b, n, hidden]."""
        live = torch.ones_like(ids, dtype=torch.bool) if live is None else live
        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            x = x + self.attend(i, self.norm(x, self.w[p + "input_layernorm.weight"]), pos, live)
            h = self.norm(x, self.w[p + "post_attention_layernorm.weight"])
            if self.c["moe_layer_freq"][i]:
                x = x + self.moe(p + "block_sparse_moe.", h)
            else:
                x = x + self.mlp(
                    h, *(self.w[f"{p}mlp.{z}_proj.weight"] for z in ("gate", "up", "down"))
                )
            if trace is not None:
                trace.append(x)
        return self.norm(x, self.w["model.norm.weight"])

    def logits(self, h):
        return h @ self.w["lm_head.weight"].T

    @torch.no_grad()
    def generate(self, prompts, limit, stop, chunk=2048):
        """Greedy continuations of a batch of prompts (lists of ids); a row ends before `stop`."""
        b, lens = len(prompts), torch.tensor([len(p) for p in prompts], device=self.device)
        width = int(lens.max())
        ids = torch.zeros(b, width, dtype=torch.long, device=self.device)
        for i, p in enumerate(prompts):
            ids[i, : len(p)] = torch.tensor(p, device=self.device)
        self.start(b, width + limit)
        last = torch.zeros(b, self.c["hidden_size"], device=self.device)
        for lo in range(0, width, chunk):
            pos = torch.arange(lo, min(width, lo + chunk), device=self.device).expand(b, -1)
            h = self.forward(ids[:, lo : lo + chunk], pos, pos < lens[:, None])
            hit = (lens > lo) & (lens <= lo + chunk)
            last[hit] = h[hit, (lens - 1 - lo)[hit]]
        out, done = [[] for _ in prompts], torch.zeros(b, dtype=torch.bool, device=self.device)
        tok, pos = self.logits(last).argmax(-1), lens.clone()
        for _ in range(limit):
            done |= tok == stop
            for i, (t, d) in enumerate(zip(tok.tolist(), done.tolist(), strict=True)):
                if not d:
                    out[i].append(t)
            if bool(done.all()):
                break
            h = self.forward(tok[:, None], pos[:, None])
            tok, pos = self.logits(h[:, 0]).argmax(-1), pos + 1
        return out
