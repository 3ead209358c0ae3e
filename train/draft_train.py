# ruff: noqa: E501
"""Train the drafter of winnow-tiny on texts that winnow-tiny wrote (spec/speculative.md 9).

  python draft_train.py --model ../models/winnow-tiny --streams train.safetensors \\
      --heldout heldout.safetensors --seconds 100 --out drafter.pt
"""

import argparse
import json
import math
import os
import time

import draft_data
import draft_model
import optim
import torch
import torch.nn.functional as F

import model as M

BETA = 4.0  # slots weigh exp(-(k - 1) / BETA)


class Distance(torch.autograd.Function):
    """Rows of logits z against target logits t: 0.1 cross-entropy of the label and 0.9 L1 between the
    softmaxes, weighted and summed. Also returns the overlap 1 - L1 / 2 of each row and the cross-entropy."""

    @staticmethod
    def forward(ctx, z, t, label, w):
        z = z.float()
        logq = z.log_softmax(-1)
        q = logq.exp()
        p = t.float().softmax(-1)
        ce = -logq.gather(-1, label[:, None])[:, 0]
        sign = (q - p).sign_()
        l1 = ((q - p) * sign).sum(-1)
        if ctx.needs_input_grad[0]:
            sign.sub_((q * sign).sum(-1, keepdim=True)).mul_(0.9)
            grad = sign.add_(0.1).mul_(q)
            grad.scatter_add_(
                -1, label[:, None], torch.full_like(label, -0.1, dtype=q.dtype)[:, None]
            )
            ctx.save_for_backward(grad.mul_(w[:, None]).to(t.dtype))
        overlap = 1 - l1 / 2
        ctx.mark_non_differentiable(overlap, ce)
        return (w * (0.1 * ce + 0.9 * l1)).sum(), overlap, ce

    @staticmethod
    def backward(ctx, g, *_):
        (grad,) = ctx.saved_tensors
        return grad * g, None, None, None


def pick_anchors(usable, count, generator=None):
    """Places [B, count] of usable tokens and whether each is one."""
    noise = torch.rand(usable.shape, device=usable.device, generator=generator)
    value, at = (noise + usable).topk(count, -1)
    return at, value >= 1


def run_batch(drafter, target, data, begins, anchors, generator=None):
    """(loss, overlap [n, block], valid [n, block]) over all anchors of the slices."""
    c = drafter.c
    tokens, pos, doc, usable, streams, last = data.slices(begins, c.window)
    at, good = pick_anchors(usable, anchors, generator)
    slot = torch.arange(c.block, device=at.device)
    seen = (at[..., None] + slot).clamp(max=data.length - 1)  # the token before each slot's
    next_at = (seen + 1).clamp(max=data.length - 1)
    flat, flat_next = seen.flatten(1), next_at.flatten(1)
    same = doc.gather(1, flat_next).view_as(seen) == doc.gather(1, at)[..., None]
    valid = good[..., None] & same & (at[..., None] + slot + 1 < data.length)
    w = valid * torch.exp(-slot / BETA)

    hidden = drafter(streams, pos, doc, at, tokens.gather(1, at))
    rows = drafter.token_rows(tokens.gather(1, flat).view_as(seen))
    z = drafter.logits(hidden, rows)
    after = last.gather(1, flat[..., None].expand(-1, -1, c.hidden)).view_as(hidden)
    with torch.no_grad():
        t = M.norm(after, target.final, c.eps) @ target.head.to(after.dtype).T
    label = tokens.gather(1, flat_next).view_as(seen)
    total = w.sum().clamp(min=1)
    distance, overlap, ce = Distance.apply(
        z.flatten(0, 2), t.flatten(0, 2), label.flatten(), (w / total).flatten().float()
    )
    guess = drafter.confidences(hidden, rows).flatten()
    bce = F.binary_cross_entropy_with_logits(guess, overlap.clamp(0, 1), reduction="none")
    loss = distance + (bce * w.flatten() / total).sum()
    shape = (-1, c.block)
    return loss, overlap.detach().view(shape), valid.view(shape), ce.detach().view(shape), z, t


@torch.no_grad()
def evaluate(drafter, target, data, slices=64, anchors=64, limit=32):
    """Overlap by slot, and the expected tokens of a step: 1 + the sum of the overlaps' products.

    Drafts drawn from the drafter's distribution are accepted with the overlap's probability; its most
    likely tokens, with the target's probability of them."""
    drafter.eval()
    generator = torch.Generator(data.begins.device).manual_seed(5)
    order = torch.randperm(len(data.begins), device=data.begins.device, generator=generator)
    order = order[: slices * limit]
    sums = torch.zeros(4, drafter.c.block, dtype=torch.float64, device=data.begins.device)
    for begins in order.split(slices):
        _, overlap, valid, _, z, t = run_batch(drafter, target, data, begins, anchors, generator)
        greedy = t.float().softmax(-1).gather(-1, z.argmax(-1, keepdim=True)).view(overlap.shape)
        drawn = (overlap * valid).double()
        sums[0] += drawn.sum(0)
        sums[1] += valid.sum(0)
        sums[2] += drawn.cumprod(1).sum(0)
        sums[3] += (greedy * valid).double().cumprod(1).sum(0)
    drafter.train()
    anchors = sums[1, 0].clamp(min=1)
    return {
        "overlap": (sums[0] / sums[1].clamp(min=1)).tolist(),
        "length": 1 + float((sums[2] / anchors).sum()),
        "greedy_length": 1 + float((sums[3] / anchors).sum()),
        "anchors": int(anchors),
    }


def learning_rate(share):
    """Relative: warm-up over 4 %, then half a cosine down to zero."""
    if share < 0.04:
        return share / 0.04
    return 0.5 * (1 + math.cos(math.pi * (share - 0.04) / 0.96))


def make_optimisers(drafter):
    matrices, small = [], []
    for name, p in drafter.named_parameters():
        is_matrix = p.ndim == 2 and name not in ("w1", "w2")
        (matrices if is_matrix else small).append(p)
    return optim.Muon(matrices, decay=0.0), optim.Adam(small)


def train(drafter, target, data, a, report):
    muon, adam = make_optimisers(drafter)
    begin, step, share = time.time(), 0, 0.0
    device = data.begins.device
    order = torch.randperm(len(data.begins), device=device)
    at = 0
    while share < 1:
        if at + a.batch > len(order):
            order, at = torch.randperm(len(data.begins), device=device), 0
        loss, overlap, valid, ce, _, _ = run_batch(
            drafter, target, data, data.begins[order[at : at + a.batch]], a.anchors
        )
        at += a.batch
        for p in drafter.parameters():
            p.grad = None
        loss.backward()
        loss = loss.detach()
        optim.clip(list(drafter.parameters()), 1.0)
        rate = learning_rate(share)
        adam.step(a.lr * rate)
        muon.step(a.muon * rate)
        step += 1
        share = step / a.steps if a.steps else (time.time() - begin) / a.seconds
        if step % a.log == 0 or share >= 1:
            v = valid.sum(0).clamp(min=1)
            report(
                step=step,
                seconds=round(time.time() - begin, 1),
                loss=round(float(loss), 4),
                ce=round(float((ce * valid).sum(0)[0] / v[0]), 3),
                overlap=[round(x, 3) for x in ((overlap * valid).sum(0) / v).tolist()],
                anchors=int(v[0]),
            )
    return step, time.time() - begin


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--streams", required=True, nargs="+")
    ap.add_argument("--heldout", required=True)
    ap.add_argument("--out", help="exported tensors and config")
    ap.add_argument("--history", help="JSON lines")
    ap.add_argument("--seconds", type=float, default=60)
    ap.add_argument("--steps", type=int, default=0, help="instead of seconds")
    ap.add_argument("--batch", type=int, default=32, help="slices of a step")
    ap.add_argument("--anchors", type=int, default=64, help="of a slice")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--muon", type=float, default=0.02)
    ap.add_argument(
        "--until", type=float, help="Unix time at which training ends, instead of seconds"
    )
    ap.add_argument("--wait-for", help="file whose appearance starts the training")
    ap.add_argument("--layers", type=int, nargs="+", default=[1, 4, 7])
    ap.add_argument("--rank", type=int, default=32)
    ap.add_argument("--ffn", type=int, default=896)
    ap.add_argument("--no-markov", action="store_true")
    ap.add_argument("--causal", action="store_true")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--log", type=int, default=100)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--eval-limit", type=int, default=32)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    dtype = torch.bfloat16 if a.device == "cuda" else torch.float32
    history = open(a.history, "w") if a.history else None

    def report(**values):
        print(json.dumps(values), flush=True)
        if history:
            history.write(json.dumps(values) + "\n")
            history.flush()

    begin = time.time()
    target = draft_data.Target(a.model, a.device)
    config = draft_model.Config(
        target_layers=tuple(a.layers),
        rank=a.rank,
        ffn=a.ffn,
        markov=not a.no_markov,
        causal=a.causal,
    )
    drafter = draft_model.Drafter(config, target.embed, target.head).to(a.device)
    last = target.layers - 1
    data, heldout = (
        draft_data.Streams(paths, a.layers, last, a.device, dtype)
        for paths in (a.streams, [a.heldout])
    )
    report(
        parameters=sum(p.numel() for p in drafter.parameters()),
        texts=data.num_texts,
        tokens=data.num_tokens,
        load_seconds=round(time.time() - begin, 1),
        settings=vars(a),
    )
    while a.wait_for and not os.path.exists(a.wait_for):
        time.sleep(0.1)
    if a.until:
        a.seconds = a.until - time.time()
    steps, seconds = train(drafter, target, data, a, report)
    named = draft_model.tensors(drafter)
    if a.out:
        torch.save({"tensors": named, "config": draft_model.config_json(config)}, a.out)
    draft_model.load(drafter, named)  # what is exported is what is measured
    report(
        result=evaluate(drafter, target, heldout, slices=a.batch, limit=a.eval_limit),
        steps=steps,
        seconds=round(seconds, 1),
    )


if __name__ == "__main__":
    main()
