"""The elementwise kernels that MiniMax-M3 needs beside PyTorch's products, one launch each.

They stand for what an engine built on PyTorch would run around its matrix products, so that a
peer's chain is not slowed by unfused elementwise launches.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _swiglu_kernel(hidden, out, width: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(hidden + row * 2 * width + column).to(tl.float32)
    up = tl.load(hidden + row * 2 * width + width + column).to(tl.float32)
    gate = tl.minimum(gate, 7.0)
    up = tl.minimum(tl.maximum(up, -7.0), 7.0)
    value = gate * tl.sigmoid(1.702 * gate) * (up + 1.0)
    tl.store(out + row * width + column, value.to(tl.bfloat16))


def swiglu(hidden: torch.Tensor) -> torch.Tensor:
    """[rows, gate | up] bf16 -> [rows, width] bf16, SwiGLU with alpha 1.702 and limit 7."""
    rows, width = hidden.shape[0], hidden.shape[1] // 2
    out = torch.empty(rows, width, dtype=hidden.dtype, device=hidden.device)
    _swiglu_kernel[(rows, width // 1024)](hidden, out, width, BLOCK=1024)
    return out


@triton.jit
def _combine_kernel(
    values,
    row_of_choice,
    weights,
    out,
    width: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in tl.static_range(TOP_K):
        row = tl.load(row_of_choice + token * TOP_K + choice)
        weight = tl.load(weights + token * TOP_K + choice)
        total += weight * tl.load(values + row * width + column).to(tl.float32)
    tl.store(out + token * width + column, total.to(tl.bfloat16))


def combine(
    values: torch.Tensor, row_of_choice: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """out[t] = sum over choices of weights[t, c] * values[row_of_choice[t, c]]."""
    num_tokens, top_k = row_of_choice.shape
    width = values.shape[1]
    out = torch.empty(num_tokens, width, dtype=values.dtype, device=values.device)
    grid = (num_tokens, width // 1024)
    _combine_kernel[grid](values, row_of_choice, weights, out, width, TOP_K=top_k, BLOCK=1024)
    return out


# Heads of a fused QKV row: 0-63 q, 64-67 k, 68-71 v, 72-75 index q, 76 index k.
@triton.jit
def _qkv_epilogue_kernel(
    qkv,
    norms,
    rope,
    positions,
    slots,
    q_out,
    index_q_out,
    kv_cache,
    index_cache,
    num_tokens,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1)
    inside = (token < num_tokens)[:, None]
    d = tl.arange(0, 128)[None, :]
    row = qkv + token[:, None].to(tl.int64) * 9856 + head * 128
    value = tl.load(row + d, mask=inside, other=0.0).to(tl.float32)
    if head < 68 or head >= 72:
        kind = tl.where(head < 64, 0, tl.where(head < 68, 1, tl.where(head < 76, 2, 3)))
        partner_d = tl.where(d < 32, d + 32, tl.where(d < 64, d - 32, d))
        partner = tl.load(row + partner_d, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, axis=1) / 128 + 1e-6)[:, None]
        value = value * scale * (1.0 + tl.load(norms + kind * 128 + d))
        partner = partner * scale * (1.0 + tl.load(norms + kind * 128 + partner_d))
        position = tl.load(positions + token, mask=token < num_tokens, other=0)[:, None]
        turned = inside & (d < 64)
        cos = tl.load(rope + position * 64 + d % 32, mask=turned, other=1.0)
        sin = tl.load(rope + position * 64 + 32 + d % 32, mask=turned, other=0.0)
        value = value * cos + tl.where(d < 32, -partner, partner) * sin
    slot = tl.load(slots + token, mask=token < num_tokens, other=0)[:, None]
    page, offset = slot // 128, slot % 128
    wide = token[:, None].to(tl.int64)
    if head < 64:
        tl.store(q_out + (wide * 64 + head) * 128 + d, value.to(tl.bfloat16), mask=inside)
    elif head < 72:
        kv_head = (head - 64) % 4
        at = ((page * 4 + kv_head) * 128 + offset) * 256 + tl.where(head < 68, 0, 128) + d
        tl.store(kv_cache + at, value.to(tl.float8e4nv), mask=inside)
    elif head < 76:
        at = (wide * 4 + head - 72) * 128 + d
        tl.store(index_q_out + at, value.to(tl.bfloat16), mask=inside)
    else:
        tl.store(index_cache + slot * 128 + d, value.to(tl.float8e4nv), mask=inside)


def qkv_epilogue(
    qkv: torch.Tensor, norms: torch.Tensor, rope: torch.Tensor, s: dict[str, torch.Tensor]
) -> None:
    """RMS norm (x * (1 + w)) per head, RoPE on the first 64 dimensions, and the cache insert.

    norms: [4, 128] fp32 for q, k, index q, index k. rope: [positions, 32 cos | 32 sin] fp32.
    """
    num_tokens = qkv.shape[0]
    block = 1 if num_tokens < 64 else 8
    _qkv_epilogue_kernel[(triton.cdiv(num_tokens, block), 77)](
        qkv,
        norms,
        rope,
        s["positions"],
        s["slots"],
        s["q"],
        s["index_q"],
        s["kv_cache"],
        s["index_cache"],
        num_tokens,
        BLOCK=block,
    )


def qkv_epilogue_reference(
    qkv: torch.Tensor, norms: torch.Tensor, rope: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """The query heads of qkv_epilogue, in fp32."""
    q = qkv.float().view(-1, 77, 128)[:, :64]
    q = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6) * (1 + norms[0])
    cos, sin = rope[positions][:, None, :32], rope[positions][:, None, 32:]
    low, high = q[..., :32], q[..., 32:64]
    return torch.cat([low * cos - high * sin, high * cos + low * sin, q[..., 64:]], dim=-1)
