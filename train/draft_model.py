# ruff: noqa: E501
"""The DSpark drafter in PyTorch, for training (spec/speculative.md 2 and 9): blocks of many anchors in one
pass over a slice of text whose target streams are known.

Projections see MXFP8 weights and attention FP8 context, as served, with straight-through gradients."""

import math
from dataclasses import dataclass

import quant
import torch
import torch.nn.functional as F
from torch import nn

import model as M


@dataclass
class Config:
    vocab: int = 8192
    hidden: int = 512
    layers: int = 2
    heads: int = 8
    kv: int = 2
    dim: int = 128
    rotary: int = 64
    theta: float = 5e6
    eps: float = 1e-6
    ffn: int = 896
    window: int = 256
    block: int = 7
    rank: int = 32
    noise: int = 8188
    target_layers: tuple = (1, 4, 7)
    markov: bool = True  # off, or the other way round: only to see what is lost
    causal: bool = False


def matrix(rows, cols):
    return nn.Parameter(torch.randn(rows, cols) * 0.02)


def linear(x, w):
    return x @ M.fake_mx(w, x.dtype).T


def norm(x, w, eps):
    return F.rms_norm(x.float(), w.shape, 1.0 + w, eps).to(x.dtype)


class Lookup(torch.autograd.Function):
    """Rows of a table. Its gradient is added up in place: the library's sorts, and waits for the host."""

    @staticmethod
    def forward(ctx, table, ids):
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx, g):
        (ids,) = ctx.saved_tensors
        out = torch.zeros(ctx.shape, dtype=g.dtype, device=g.device)
        return out.index_add_(0, ids.flatten(), g.reshape(-1, ctx.shape[1])), None


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        zeros = [nn.Parameter(torch.zeros(n)) for n in (c.hidden, c.hidden, c.dim, c.dim)]
        self.input_norm, self.post_norm, self.q_norm, self.k_norm = zeros
        self.q, self.o = matrix(c.heads * c.dim, c.hidden), matrix(c.hidden, c.heads * c.dim)
        self.k, self.v = matrix(c.kv * c.dim, c.hidden), matrix(c.kv * c.dim, c.hidden)
        self.gate, self.up = matrix(c.ffn, c.hidden), matrix(c.ffn, c.hidden)
        self.down = matrix(c.hidden, c.ffn)

    def heads(self, x, w, n, norm_weight=None, rope=None):
        y = linear(x, w).unflatten(-1, (n, self.c.dim)).transpose(1, 2)
        if norm_weight is None:
            return y
        return M.rotate(norm(y, norm_weight, self.c.eps), *rope)

    def context(self, c, rope):
        """K and V of committed tokens as the cache gives them back."""
        k = self.heads(c, self.k, self.c.kv, self.k_norm, rope)
        v = self.heads(c, self.v, self.c.kv)
        return [quant.straight_through(t, quant.e4m3(t.detach())) for t in (k, v)]

    def forward(self, x, rope, context, mask):
        c = self.c
        a = norm(x, self.input_norm, c.eps)
        q = self.heads(a, self.q, c.heads, self.q_norm, rope)
        k = torch.cat([context[0], self.heads(a, self.k, c.kv, self.k_norm, rope)], 2)
        v = torch.cat([context[1], self.heads(a, self.v, c.kv)], 2)
        k, v = (t.repeat_interleave(c.heads // c.kv, 1) for t in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + linear(o.transpose(1, 2).flatten(2), self.o)
        b = norm(x, self.post_norm, c.eps)
        return x + linear(M.swiglu(linear(b, self.gate), linear(b, self.up)).to(x.dtype), self.down)


class Drafter(nn.Module):
    """`embed` and `head` are the target's and stay as they are."""

    def __init__(self, c, embed, head):
        super().__init__()
        self.c = c
        self.register_buffer("embed", embed, persistent=False)
        self.register_buffer("head", head, persistent=False)
        width = c.hidden * len(c.target_layers)
        self.fc = nn.Parameter(torch.randn(c.hidden, width) / math.sqrt(width))
        self.hidden_norm = nn.Parameter(torch.zeros(c.hidden))
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.final_norm = nn.Parameter(torch.zeros(c.hidden))
        self.w1 = nn.Parameter(torch.randn(c.vocab, c.rank) * 0.02)
        self.w2 = nn.Parameter(torch.zeros(c.vocab, c.rank))
        self.confidence = nn.Parameter(torch.zeros(c.hidden + c.rank))
        self.confidence_bias = nn.Parameter(torch.zeros(1))

    def rope(self, pos):
        return M.rope_table(self.c, pos)

    def mask(self, at, doc, num_keys):
        """[B, 1, A * block, keys + A * block] of anchors `at` [B, A] in slices with documents `doc`."""
        c = self.c
        b, a = at.shape
        slot = torch.arange(c.block, device=at.device)
        query = (at[..., None] + slot).view(b, -1, 1)
        anchor = at.repeat_interleave(c.block, 1)[..., None]
        key = torch.arange(num_keys, device=at.device)
        seen = (key < anchor) & (query - key < c.window)
        seen &= doc[:, None, :] == doc.gather(1, anchor[..., 0])[..., None]
        unit = torch.arange(a * c.block, device=at.device)
        own = unit[:, None] // c.block == unit // c.block
        if c.causal:
            own = own & (unit[:, None] >= unit)
        return torch.cat([seen, own.expand(b, -1, -1)], 2)[:, None]

    def forward(self, streams, pos, doc, at, anchors):
        """Hidden states [B, A, block, hidden] after the final norm.

        streams [B, L, layers * hidden] of the slices, pos and doc [B, L], anchors' places `at` and ids
        `anchors` [B, A]."""
        c = self.c
        dtype = streams.dtype
        context = norm(streams @ self.fc.to(dtype).T, self.hidden_norm, c.eps)
        rope = self.rope(pos)
        ids = torch.full((*at.shape, c.block), c.noise, device=at.device)
        ids[..., 0] = anchors
        x = F.embedding(ids.flatten(1), self.embed.to(dtype))
        place = pos.gather(1, at)[..., None] + torch.arange(c.block, device=at.device)
        block_rope = self.rope(place.flatten(1))
        mask = self.mask(at, doc, pos.shape[1])
        for layer in self.layers:
            x = layer(x, block_rope, layer.context(context, rope), mask)
        return norm(x, self.final_norm, c.eps).unflatten(1, (-1, c.block))

    def token_rows(self, previous):
        return Lookup.apply(self.w1, previous)

    def logits(self, hidden, rows):
        """With the bias of the token before; in the dtype of `hidden`."""
        z = hidden @ self.head.to(hidden.dtype).T
        return z + rows.to(z.dtype) @ self.w2.to(z.dtype).T if self.c.markov else z

    def confidences(self, hidden, rows):
        """Before the sigmoid."""
        w = self.confidence
        return (
            hidden.float() @ w[: self.c.hidden] + rows @ w[self.c.hidden :] + self.confidence_bias
        )


def config_json(c):
    """config.json in M3.1's spelling."""
    text = {
        "num_hidden_layers": c.layers,
        "hidden_size": c.hidden,
        "vocab_size": c.vocab,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv,
        "head_dim": c.dim,
        "rotary_dim": c.rotary,
        "rope_theta": int(c.theta),
        "rms_norm_eps": c.eps,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "dense_intermediate_size": c.ffn,
        "dspark_ffn_hidden_size": c.ffn,
        "sliding_window": c.window,
        "layer_types": ["sliding_attention"] * c.layers,
        "moe_layer_freq": [0] * c.layers,
        "dspark_block_size": c.block,
        "dspark_markov_rank": c.rank,
        "dspark_markov_head_type": "vanilla",
        "dspark_noise_token_id": c.noise,
        "dspark_target_layer_ids": list(c.target_layers),
        "dspark_use_dense_ffn": True,
        "dspark_hybrid_context_fusion": False,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "use_gemma_norm": True,
        "sparse_attention_config": None,
    }
    return {
        "architectures": ["DSparkMiniMaxDraftModel"],
        "dspark_config": {"hybrid_context_fusion": False},
        "quantization_config": {"quant_method": "mxfp8", "weight_block_size": [1, 32]},
        "text_config": text,
    }


ROOT = "language_model.model.dspark."


def plain_weights(drafter):
    """(published name, parameter) of what is stored in BF16."""
    yield "fc.weight", drafter.fc
    yield "hidden_norm.weight", drafter.hidden_norm
    yield "final_norm.weight", drafter.final_norm
    yield "markov_head.markov_w1.weight", drafter.w1
    yield "markov_head.markov_w2.weight", drafter.w2
    yield "confidence_head.proj.weight", drafter.confidence
    yield "confidence_head.proj.bias", drafter.confidence_bias
    for i, layer in enumerate(drafter.layers):
        p = f"layers.{i}.decoder_layer."
        yield p + "input_layernorm.weight", layer.input_norm
        yield p + "post_attention_layernorm.weight", layer.post_norm
        yield p + "self_attn.q_norm.weight", layer.q_norm
        yield p + "self_attn.k_norm.weight", layer.k_norm


def packed_weights(drafter):
    """(published name, parameter) of what is stored in MXFP8, with its scales beside it."""
    for i, layer in enumerate(drafter.layers):
        for place, names in (("self_attn", "qkvo"), ("mlp", ("gate", "up", "down"))):
            for name in names:
                full = f"layers.{i}.decoder_layer.{place}.{name}_proj.weight"
                yield full, getattr(layer, name)


def tensors(drafter):
    """Published name -> tensor, quantised as M3.1's drafter."""
    out = {}
    for name, p in plain_weights(drafter):
        row = p[None] if name == "confidence_head.proj.weight" else p
        out[ROOT + name] = row.detach().bfloat16()
    for name, p in packed_weights(drafter):
        w, scale = quant.pack_mxfp8(p.detach().float())
        out[ROOT + name], out[ROOT + name + "_scale_inv"] = w, scale
    return {name: t.contiguous().cpu() for name, t in out.items()}


def load(drafter, named):
    """Sets the weights from published tensors."""
    with torch.no_grad():
        for name, p in plain_weights(drafter):
            p.copy_(named[ROOT + name].float().view_as(p))
        for name, p in packed_weights(drafter):
            p.copy_(quant.unpack_mxfp8(named[ROOT + name], named[ROOT + name + "_scale_inv"]))
