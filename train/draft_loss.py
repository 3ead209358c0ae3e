# ruff: noqa: E501
"""What the drafter is trained for: rows of its logits against the target's (spec/speculative.md 9.1).

Rows are measured and differentiated by two kernels on a GPU, where the vocabulary's rows are what takes
time, and by the same formulas in PyTorch elsewhere."""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BETA = 4.0  # slots weigh exp(-(k - 1) / BETA)
CROSS_ENTROPY, DISTANCE = 0.1, 0.9  # shares of the label's cross-entropy and of the L1 distance

if triton is not None:

    @triton.jit
    def measure_kernel(
        z_rows, t_rows, labels, overlap, ce, z_norm, t_norm, size, width: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, width)
        inside = at < size
        z = tl.load(z_rows + row * size + at, mask=inside, other=float("-inf")).to(tl.float32)
        t = tl.load(t_rows + row * size + at, mask=inside, other=float("-inf")).to(tl.float32)
        z_max, t_max = tl.max(z, 0), tl.max(t, 0)
        z_log = z_max + tl.log(tl.sum(tl.exp(z - z_max), 0))
        t_log = t_max + tl.log(tl.sum(tl.exp(t - t_max), 0))
        common = tl.minimum(tl.exp(z - z_log), tl.exp(t - t_log))
        label = tl.load(labels + row)
        own = tl.load(z_rows + row * size + label).to(tl.float32)
        tl.store(overlap + row, tl.sum(common, 0))
        tl.store(ce + row, z_log - own)
        tl.store(z_norm + row, z_log)
        tl.store(t_norm + row, t_log)

    @triton.jit
    def gradient_kernel(
        z_rows,
        t_rows,
        labels,
        weights,
        z_norm,
        t_norm,
        out,
        size,
        ce_share: tl.constexpr,
        distance_share: tl.constexpr,
        width: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, width)
        inside = at < size
        z = tl.load(z_rows + row * size + at, mask=inside, other=float("-inf")).to(tl.float32)
        t = tl.load(t_rows + row * size + at, mask=inside, other=float("-inf")).to(tl.float32)
        q = tl.exp(z - tl.load(z_norm + row))
        p = tl.exp(t - tl.load(t_norm + row))
        sign = tl.where(q > p, 1.0, 0.0) - tl.where(q < p, 1.0, 0.0)
        mean = tl.sum(q * sign, 0)
        grad = q * (distance_share * (sign - mean) + ce_share)
        grad = tl.where(at == tl.load(labels + row), grad - ce_share, grad)
        grad *= tl.load(weights + row)
        tl.store(out + row * size + at, grad.to(out.dtype.element_ty), mask=inside)


class Fused:
    """Two passes over the rows, nothing of their size in between."""

    @staticmethod
    def measure(z, t, label):
        overlap, ce, z_log, t_log = torch.empty(4, len(z), device=z.device).unbind()
        width = triton.next_power_of_2(z.shape[1])
        measure_kernel[(len(z),)](
            z, t, label, overlap, ce, z_log, t_log, z.shape[1], width, num_warps=8
        )
        return overlap, ce, z_log, t_log

    @staticmethod
    def gradient(z, t, label, weights, z_log, t_log):
        out = torch.empty_like(z)
        width = triton.next_power_of_2(z.shape[1])
        gradient_kernel[(len(z),)](
            z,
            t,
            label,
            weights,
            z_log,
            t_log,
            out,
            z.shape[1],
            CROSS_ENTROPY,
            DISTANCE,
            width,
            num_warps=8,
        )
        return out


class Plain:
    @staticmethod
    def measure(z, t, label):
        z, t = z.float(), t.float()
        z_log, t_log = z.logsumexp(-1), t.logsumexp(-1)
        common = torch.minimum((z - z_log[:, None]).exp(), (t - t_log[:, None]).exp())
        ce = z_log - z.gather(-1, label[:, None])[:, 0]
        return common.sum(-1), ce, z_log, t_log

    @staticmethod
    def gradient(z, t, label, weights, z_log, t_log):
        q = (z.float() - z_log[:, None]).exp()
        sign = (q - (t.float() - t_log[:, None]).exp()).sign_()
        sign.sub_((q * sign).sum(-1, keepdim=True)).mul_(DISTANCE)
        grad = sign.add_(CROSS_ENTROPY).mul_(q)
        less = torch.full_like(label, -CROSS_ENTROPY, dtype=q.dtype)
        grad.scatter_add_(-1, label[:, None], less[:, None])
        return grad.mul_(weights[:, None]).to(z.dtype)


def choose_backend(device):
    """The kernels where they compile and agree with the formulas."""
    if triton is None or torch.device(device).type != "cuda":
        return Plain
    generator = torch.Generator(device).manual_seed(3)
    z, t = (
        (torch.randn(64, 8192, device=device, generator=generator) * 3).bfloat16() for _ in "zt"
    )
    label = torch.randint(8192, (64,), device=device, generator=generator)
    weights = torch.rand(64, device=device, generator=generator)
    try:
        mine, plain = (backend.measure(z, t, label) for backend in (Fused, Plain))
        pairs = list(zip(mine, plain, strict=True))
        pairs.append(
            tuple(
                backend.gradient(z, t, label, weights, *plain[2:]).float()
                for backend in (Fused, Plain)
            )
        )
        error = max(float((a - b).norm() / b.norm()) for a, b in pairs)
    except Exception as problem:  # whatever the compiler or the driver says: slower, not wrong
        print("fused loss failed:", problem, flush=True)
        return Plain
    print(f"fused loss: relative error {error:.1e}, used: {error < 1e-3}", flush=True)
    return Fused if error < 1e-3 else Plain


def slot_weights(overlap, valid, length_share):
    """Weights [anchors, block], of sum 1: exp(-(k - 1) / BETA), and by `length_share` instead how much
    the expected number of accepted drafts, the sum of the products of the overlaps up to k, changes
    with slot k's overlap."""
    block = overlap.shape[1]
    early = torch.exp(-torch.arange(block, device=overlap.device) / BETA) * valid
    reach = (overlap * valid).cumprod(1)
    beyond = reach.flip(1).cumsum(1).flip(1)  # sum over k' >= k of the products
    gain = beyond / overlap.clamp(min=1e-3) * valid
    share = length_share
    return (1 - share) * early / early.sum().clamp(min=1e-6) + share * gain / gain.sum().clamp(
        min=1e-6
    )


class Distance(torch.autograd.Function):
    """Rows of logits z against target logits t: cross-entropy of the label and L1 between the softmaxes,
    weighted and summed. Also returns the overlap 1 - L1 / 2 of each row and the cross-entropy."""

    @staticmethod
    def forward(ctx, z, t, label, valid, length_share, backend):
        overlap, ce, z_log, t_log = backend.measure(z, t, label)
        weights = slot_weights(overlap.view(valid.shape), valid, length_share).flatten().float()
        ctx.save_for_backward(z, t, label, weights, z_log, t_log)
        ctx.backend = backend
        ctx.mark_non_differentiable(overlap, ce, weights)
        loss = (weights * (CROSS_ENTROPY * ce + 2 * DISTANCE * (1 - overlap))).sum()
        return loss, overlap, ce, weights

    @staticmethod
    def backward(ctx, g, *_):
        return ctx.backend.gradient(*ctx.saved_tensors) * g, None, None, None, None, None
