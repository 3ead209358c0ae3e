# ruff: noqa: E501
"""Number formats: straight-through fake quantisers for training, packers and unpackers for export.

E2M1 magnitudes are 0, .5, 1, 1.5, 2, 3, 4, 6; E4M3 is the finite-only OCP variant (largest 448);
E8M0 is a bare exponent, 2^(byte - 127)."""

import torch

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3(x):
    """Round to E4M3, saturating; the result stays in float32."""
    return x.float().clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()


def ladder(a, s):
    """E2M1 magnitude of |x| = a for the stored scale s: compares with t*s, so ties never move."""
    m = 0.5 * (
        (a > 0.25 * s).float()
        + (a >= 0.75 * s).float()
        + (a > 1.25 * s).float()
        + (a >= 1.75 * s).float()
    )
    return m + (a > 2.5 * s).float() + (a >= 3.5 * s).float() + 2.0 * (a > 5.0 * s).float()


def cache_value(x, rounded=True):
    """What attention reads back from an NVFP4 cache (groups of 16, no tensor scale).

    `rounded` is the deployed grid: the product of element and scale goes through E4M3."""
    g = x.float().unflatten(-1, (-1, 16))
    s = e4m3((g.abs().amax(-1, keepdim=True) / 6.0).clamp(1.0 / 512.0, 448.0))
    v = torch.copysign(ladder(g.abs(), s) * s, g)
    return (e4m3(v) if rounded else v).flatten(-2)


def straight_through(x, value):
    return x + (value.to(x.dtype) - x).detach()


def mx_scale(w):
    """Exponent per 32 inputs, large enough that nothing saturates."""
    amax = w.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    return torch.exp2(torch.ceil(torch.log2(amax / 448.0)))


def mxfp8_value(w):
    g = w.float().unflatten(-1, (-1, 32))
    s = mx_scale(g)
    return (e4m3(g / s) * s).flatten(-2)


def nvfp4_global(*weights):
    """2688 / amax per matrix; matrices passed together share it (gate and up projection)."""
    amax = torch.stack([w.float().abs().amax((-2, -1), keepdim=True) for w in weights]).amax(0)
    return 2688.0 / amax.clamp(min=1e-12)


def nvfp4_parts(w, g):
    """(magnitude, sign source, block scale) of a weight with global factor g."""
    x = w.float().unflatten(-1, (-1, 16))
    gg = g.unsqueeze(-1)
    s = e4m3(x.abs().amax(-1, keepdim=True) * gg / 6.0)
    return ladder(x.abs() * gg, s), x, s


def nvfp4_value(w, g):
    m, x, s = nvfp4_parts(w, g)
    return (torch.copysign(m * s, x) / g.unsqueeze(-1)).flatten(-2)


def pack_nvfp4(w, g):
    """One [N, K] weight -> packed codes U8 [N, K/2], scales E4M3 [N, K/16]. Low nibble first, no -0."""
    m, x, s = nvfp4_parts(w, g)
    table = torch.tensor(MAGNITUDES, device=w.device)
    code = torch.searchsorted(table, m.contiguous()).to(torch.uint8)
    code = code | ((x < 0) & (code > 0)).to(torch.uint8) << 3
    code = code.flatten(-2)
    return code[:, 0::2] | code[:, 1::2] << 4, s.squeeze(-1).to(torch.float8_e4m3fn)


def unpack_nvfp4(packed, scale, g):
    code = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    table = torch.tensor(MAGNITUDES, device=packed.device)
    value = table[code & 7] * torch.where(code > 7, -1.0, 1.0)
    return (value.unflatten(-1, (-1, 16)) * scale.float().unsqueeze(-1)).flatten(-2) / g.float()


def pack_mxfp8(w):
    """One [N, K] weight -> E4M3 [N, K], exponent bytes U8 [N, K/32]."""
    g = w.float().unflatten(-1, (-1, 32))
    s = mx_scale(g)
    byte = (torch.log2(s).round() + 127).clamp(0, 254)
    s = torch.exp2(byte - 127)
    return (g / s).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(-2), byte.squeeze(-1).to(
        torch.uint8
    )


def unpack_mxfp8(w, byte):
    return (
        w.float().unflatten(-1, (-1, 32)) * torch.exp2(byte.float() - 127).unsqueeze(-1)
    ).flatten(-2)
