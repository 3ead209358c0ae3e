# ruff: noqa: E501
"""Muon for the hidden matrices, AdamW for the rest.

A learning rate is a number or a tensor of one, and all state is in tensors, so that a step can be
recorded as a CUDA graph and replayed."""

import torch


def orthogonalise(g):
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrix, batched over leading dims."""
    x = g.bfloat16() if g.is_cuda else g.float()
    wide = x.shape[-2] <= x.shape[-1]
    if not wide:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x if wide else x.mT


class Muon:
    """Parameters of one shape are stacked, so that a step is a few batched matrix products."""

    def __init__(self, params, momentum=0.95, decay=0.05):
        groups = {}
        for p in params:
            groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.momentum, self.decay = momentum, decay
        self.groups = []
        for (rows, cols), ps in groups.items():
            n = sum(p.numel() // (rows * cols) for p in ps)
            self.groups.append(
                (ps, torch.zeros(n, rows, cols, device=ps[0].device), max(1.0, rows / cols) ** 0.5)
            )

    @torch.no_grad()
    def step(self, lr):
        for ps, buf, scale in self.groups:
            rows, cols = buf.shape[1:]
            # a parameter without a gradient (the index branch in short batches) keeps still
            live = [p.grad is not None for p in ps]
            if not any(live):
                continue
            g = torch.cat(
                [
                    (p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1, rows, cols)
                    for p in ps
                ]
            )
            buf.lerp_(g, 1 - self.momentum)
            update = orthogonalise(g.lerp(buf, self.momentum))
            at = 0
            for p, on in zip(ps, live, strict=True):
                n = p.numel() // (rows * cols)
                if on:
                    change = update[at : at + n].reshape(p.shape).to(p.dtype)
                    p.mul_(1 - lr * self.decay).sub_(change * (lr * scale))
                at += n


class Adam:
    """Without weight decay. torch.optim's takes seconds to import where nothing is cached."""

    def __init__(self, params, betas=(0.9, 0.95), eps=1e-8):
        self.params, self.betas, self.eps = list(params), betas, eps
        self.steps = torch.zeros((), device=self.params[0].device)
        self.mean = [torch.zeros_like(p) for p in self.params]
        self.square = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self, lr):
        self.steps += 1
        b1, b2 = self.betas
        c1, c2 = 1 - b1**self.steps, 1 - b2**self.steps
        for p, m, v in zip(self.params, self.mean, self.square, strict=True):
            if p.grad is None:
                continue
            m.lerp_(p.grad, 1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            p.sub_(m / (v / c2).sqrt_().add_(self.eps) * (lr / c1))


@torch.no_grad()
def clip(params, largest):
    """Scales the gradients so that their common norm is at most `largest`."""
    grads = [p.grad for p in params if p.grad is not None]
    norm = torch.stack([g.norm() for g in grads]).norm()
    scale = (largest / (norm + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(scale)


def split(model):
    """(matrices for Muon, index matrices for Muon, embeddings, small ones)."""
    hidden, index, tables, small = [], [], [], []
    for name, p in model.named_parameters():
        if name in ("embed", "head"):
            tables.append(p)
        elif p.ndim < 2 or name.endswith(".gate"):
            small.append(p)
        elif ".index_" in name:
            index.append(p)
        else:
            hidden.append(p)
    return hidden, index, tables, small
