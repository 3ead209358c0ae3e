# ruff: noqa: E501
"""The training model: MiniMax-M3.1's text architecture at a small size, quantisation-aware.

Selection of key blocks is not differentiable: the index branch sees a detached input and learns from
a KL loss between its block scores and the mass that the main attention puts on each block."""

import math
from dataclasses import dataclass

import quant
import torch
import torch.nn.functional as F
from torch import nn

BLOCK = 128


@dataclass
class Config:
    vocab: int = 8192
    hidden: int = 512
    layers: int = 8
    heads: int = 8
    kv: int = 2
    dim: int = 128
    rotary: int = 64
    theta: float = 5e6
    eps: float = 1e-6
    experts: int = 8
    top_experts: int = 2
    expert: int = 512
    shared: int = 512
    dense: int = 1536
    top_blocks: int = 4
    route_scale: float = 2.0
    capacity: float = 1.5  # training only: rows per expert, relative to an even split


def norm(x, w, eps=1e-6):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * (1.0 + w)).to(x.dtype)


def swiglu(gate, up):
    gate, up = gate.float().clamp(max=7.0), up.float().clamp(-7.0, 7.0)
    return (up + 1.0) * gate * torch.sigmoid(1.702 * gate)


def rope_table(cfg, pos):
    freq = 1.0 / cfg.theta ** (
        torch.arange(0, cfg.rotary, 2, device=pos.device, dtype=torch.float32) / cfg.rotary
    )
    angle = pos[:, None, :, None].float() * freq
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    y = x.float()
    h = cos.shape[-1]
    a, b, rest = y[..., :h], y[..., h : 2 * h], y[..., 2 * h :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)


class Dispatch(torch.autograd.Function):
    """Rows to expert slots. A custom backward, because a plain gather's would be a slow atomic scatter."""

    @staticmethod
    def forward(ctx, x, src, inv, top):
        ctx.save_for_backward(inv)
        ctx.top = top
        n = x.shape[0] * top
        return x[(src.clamp(max=n - 1)) // top] * (src < n)[:, None].to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (inv,) = ctx.saved_tensors
        n = g.shape[0]
        back = g[inv.clamp(max=n - 1)] * (inv < n)[:, None].to(g.dtype)
        return back.view(-1, ctx.top, g.shape[1]).sum(1), None, None, None


class Combine(torch.autograd.Function):
    """Expert slots back to (token, choice) rows; dropped choices read zero."""

    @staticmethod
    def forward(ctx, y, src, inv):
        ctx.save_for_backward(src)
        n = y.shape[0]
        ctx.n = inv.shape[0]
        return y[inv.clamp(max=n - 1)] * (inv < n)[:, None].to(y.dtype)

    @staticmethod
    def backward(ctx, g):
        (src,) = ctx.saved_tensors
        return g[src.clamp(max=ctx.n - 1)] * (src < ctx.n)[:, None].to(g.dtype), None, None


def weight(n_out, n_in, *lead, scale=1.0):
    return nn.Parameter(torch.randn(*lead, n_out, n_in) * scale / math.sqrt(n_in))


class Mlp(nn.Module):
    def __init__(self, cfg, width):
        super().__init__()
        self.gate_proj = weight(width, cfg.hidden)
        self.up_proj = weight(width, cfg.hidden)
        self.down_proj = weight(cfg.hidden, width, scale=0.3)

    def forward(self, h):
        gate, up, down = (
            fake_mx(w, h.dtype) for w in (self.gate_proj, self.up_proj, self.down_proj)
        )
        return swiglu(h @ gate.T, h @ up.T).to(h.dtype) @ down.T


def fake_mx(w, dtype):
    return quant.straight_through(w, quant.mxfp8_value(w.detach())).to(dtype)


class Moe(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.gate = weight(cfg.experts, cfg.hidden)
        self.register_buffer("bias", torch.zeros(cfg.experts))
        self.w1 = weight(cfg.expert, cfg.hidden, cfg.experts)
        self.w3 = weight(cfg.expert, cfg.hidden, cfg.experts)
        self.w2 = weight(cfg.hidden, cfg.expert, cfg.experts, scale=0.3)
        self.shared = Mlp(cfg, cfg.shared)

    def forward(self, x):
        c = self.cfg
        h = x.reshape(-1, c.hidden)
        t = h.shape[0]
        score = torch.sigmoid(h.float() @ self.gate.T)
        with torch.no_grad():
            pick = (score + self.bias).topk(c.top_experts, -1).indices
            e = pick.reshape(-1)
            n = e.shape[0]
            room = math.ceil(n / c.experts * c.capacity / 16) * 16
            order = torch.sort(e, stable=True).indices
            by_expert = e[order]
            count = (e[:, None] == torch.arange(c.experts, device=e.device)).sum(0)
            rank = torch.arange(n, device=e.device) - (count.cumsum(0) - count)[by_expert]
            slot = torch.where(rank < room, by_expert * room + rank, c.experts * room)
            inv = torch.empty_like(e).scatter(0, order, slot)
            src = torch.full((c.experts * room + 1,), n, device=e.device, dtype=e.dtype).scatter(
                0, slot, order
            )[:-1]
        mix = score.gather(1, pick)
        mix = mix / mix.sum(-1, keepdim=True)
        g13, g2 = (
            quant.nvfp4_global(self.w1.detach(), self.w3.detach()),
            quant.nvfp4_global(self.w2.detach()),
        )
        w1, w3, w2 = (
            quant.straight_through(w, quant.nvfp4_value(w.detach(), g)).to(h.dtype)
            for w, g in ((self.w1, g13), (self.w3, g13), (self.w2, g2))
        )
        rows = Dispatch.apply(h, src, inv, c.top_experts).view(c.experts, room, c.hidden)
        act = swiglu(torch.bmm(rows, w1.transpose(1, 2)), torch.bmm(rows, w3.transpose(1, 2))).to(
            h.dtype
        )
        y = torch.bmm(act, w2.transpose(1, 2)).view(-1, c.hidden)
        y = Combine.apply(y, src, inv).view(t, c.top_experts, c.hidden)
        y = (y.float() * mix[..., None]).sum(1) * c.route_scale
        share = score / score.sum(-1, keepdim=True)
        balance = c.experts * ((count / n) * share.mean(0)).sum()
        return (y + self.shared(h).float()).to(x.dtype).view_as(x), balance, count


def attend_plain(q, k, v, allow):
    """Explicit attention for the CPU: allow is [B, 1 or kv, L, L]."""
    g = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
    allow = allow.repeat_interleave(g, 1) if allow.shape[1] > 1 else allow
    s = (q.float() @ k.float().transpose(-1, -2)) * q.shape[-1] ** -0.5
    return (s.masked_fill(~allow, float("-inf")).softmax(-1) @ v.float()).to(q.dtype)


class Layer(nn.Module):
    def __init__(self, cfg, dense):
        super().__init__()
        self.cfg = cfg
        d = cfg.dim
        self.input_norm = nn.Parameter(torch.zeros(cfg.hidden))
        self.post_norm = nn.Parameter(torch.zeros(cfg.hidden))
        self.q_norm, self.k_norm = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        self.index_q_norm, self.index_k_norm = (
            nn.Parameter(torch.zeros(d)),
            nn.Parameter(torch.zeros(d)),
        )
        self.q_proj = weight(cfg.heads * d, cfg.hidden)
        self.k_proj = weight(cfg.kv * d, cfg.hidden)
        self.v_proj = weight(cfg.kv * d, cfg.hidden)
        self.o_proj = weight(cfg.hidden, cfg.heads * d, scale=0.3)
        self.index_q_proj = weight(cfg.kv * d, cfg.hidden)
        self.index_k_proj = weight(d, cfg.hidden)
        self.ffn = Mlp(cfg, cfg.dense) if dense else Moe(cfg)
        self.dense = dense

    def project(self, h, w, heads, nw, rope):
        y = (h @ fake_mx(w, h.dtype).T).unflatten(-1, (heads, self.cfg.dim)).transpose(1, 2)
        return y if nw is None else rotate(norm(y, nw), *rope)

    def selection(self, iq, ik, everything):
        """keep[b, group, query, block]: top-k blocks by best key, the query's own block always in."""
        b, groups, length, d = iq.shape
        nb = length // BLOCK
        best = []
        for lo in range(0, length, 2048):
            part = iq[:, :, lo : lo + 2048]
            s = part.reshape(b, -1, d) @ ik.transpose(1, 2)
            best.append(s.view(b, groups, part.shape[2], nb, BLOCK).amax(-1))
        best = torch.cat(best, 2).float()
        blk = torch.arange(nb, device=iq.device)
        own = (torch.arange(length, device=iq.device) // BLOCK)[:, None]
        best = best.masked_fill(blk == own, float("inf")).masked_fill(blk > own, float("-inf"))
        least = best.topk(min(self.cfg.top_blocks, nb), -1).values[..., -1:]
        return ((best >= least) | everything) & (blk <= own)

    def index_loss(self, q, k, iq, ik, at):
        """KL(mass of main attention over earlier blocks || softmax of block scores) at sampled queries."""
        b, heads, length, d = q.shape
        groups, s = k.shape[1], at.shape[1]
        nb = length // BLOCK
        seen = torch.arange(length, device=q.device) <= at[:, None, :, None]
        remote = torch.arange(nb, device=q.device) < (at // BLOCK)[:, None, :, None]
        with torch.no_grad():
            qs = q.gather(2, at[:, None, :, None].expand(b, heads, s, d))
            sc = (qs.reshape(b, groups, -1, d) @ k.transpose(-1, -2)).view(
                b, heads, s, length
            ).float() * d**-0.5
            p = (
                sc.masked_fill(~seen, float("-inf"))
                .softmax(-1)
                .view(b, heads, s, nb, BLOCK)
                .sum(-1)
            )
            mass = p.view(b, groups, -1, s, nb).mean(2) * remote
            total = mass.sum(-1, keepdim=True)
            target = mass / total.clamp(min=1e-9)
        iqs = iq.gather(2, at[:, None, :, None].expand(b, groups, s, d))
        si = (iqs.reshape(b, -1, d) @ ik.transpose(1, 2)).view(b, groups, s, nb, BLOCK).amax(
            -1
        ).float() * d**-0.5
        logp = si.masked_fill(~remote, -1e4).log_softmax(-1)
        kl = (target * (target.clamp(min=1e-9).log() - logp)).sum(-1, keepdim=True)
        w = total + 0.02 * (total > 0)
        return (kl * w).sum() / w.sum().clamp(min=1e-6)

    def forward(self, x, cos, sin, everything, at, mask, plain):
        """at: sampled queries for the index loss, None for short rows (then nothing is selected)."""
        c = self.cfg
        h = norm(x, self.input_norm)
        rope = (cos, sin)
        q = self.project(h, self.q_proj, c.heads, self.q_norm, rope)
        k = self.project(h, self.k_proj, c.kv, self.k_norm, rope)
        v = self.project(h, self.v_proj, c.kv, None, rope)
        q = quant.straight_through(q, quant.e4m3(q.detach()))
        k = quant.straight_through(k, quant.cache_value(k.detach()))
        v = quant.straight_through(v, quant.cache_value(v.detach()))
        kl, keep = x.new_zeros((), dtype=torch.float32), None
        if at is not None:
            hd = h.detach()
            iq = self.project(hd, self.index_q_proj, c.kv, self.index_q_norm, rope)
            ik = self.project(hd, self.index_k_proj, 1, self.index_k_norm, rope)
            iq = quant.straight_through(iq, quant.e4m3(iq.detach()))
            ik = quant.straight_through(ik, quant.cache_value(ik.detach()))[:, 0]
            kl = self.index_loss(q.detach(), k.detach(), iq, ik, at)
            with torch.no_grad():
                keep = self.selection(iq.detach(), ik.detach(), everything)
        if plain:
            allow = mask if keep is None else mask & keep.repeat_interleave(BLOCK, -1)
            o = attend_plain(q, k, v, allow)
        else:
            o = attend_flex(q, k, v, keep, mask)
        o = o.transpose(1, 2).flatten(2)
        x = x + o @ fake_mx(self.o_proj, x.dtype).T
        h = norm(x, self.post_norm)
        if self.dense:
            return x + self.ffn(h), kl, kl.new_zeros(()), kl.new_zeros(c.experts)
        y, balance, count = self.ffn(h)
        return x + y, kl, balance, count


def attend_flex(q, k, v, keep, mask):
    from torch.nn.attention.flex_attention import flex_attention

    group = q.shape[1] // k.shape[1]
    mod = None
    if keep is not None:

        def mod(score, b, h, qi, ki):
            return torch.where(keep[b, h // group, qi, ki // BLOCK], score, float("-inf"))

    return flex_attention(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        score_mod=mod,
        block_mask=mask,
        enable_gqa=True,
    )


def loss_of(x, final, head, target, w):
    """Weighted cross-entropy. Returns (sum of w * ce, correct flags)."""
    logits = (norm(x, final) @ head.to(x.dtype).T).flatten(0, 1)
    ce = F.cross_entropy(logits.float(), target.flatten(), reduction="none")
    return (ce * w.flatten()).sum(), ce


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Parameter(torch.randn(cfg.vocab, cfg.hidden) * 0.1)
        self.head = nn.Parameter(torch.randn(cfg.vocab, cfg.hidden) * 0.01)
        self.final = nn.Parameter(torch.zeros(cfg.hidden))
        self.layers = nn.ModuleList(Layer(cfg, dense=i == 0) for i in range(cfg.layers))
        self.loss_fn = loss_of

    def forward(self, ids, pos, target, w, everything, at, mask, dtype, plain):
        x = F.embedding(ids, self.embed.to(dtype))
        cos, sin = rope_table(self.cfg, pos)
        kls, balances, counts = [], [], []
        for layer in self.layers:
            x, kl, balance, count = layer(x, cos, sin, everything, at, mask, plain)
            kls.append(kl)
            balances.append(balance)
            counts.append(count)
        loss, ce = self.loss_fn(x, self.final, self.head, target, w)
        return loss, ce, torch.stack(kls), torch.stack(balances), torch.stack(counts)
