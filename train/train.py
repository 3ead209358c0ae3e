# ruff: noqa: E501
"""Train winnow-tiny on one GPU for a fixed wall-clock time.

The schedule follows the clock, not a step count, so that the learning rate reaches zero when the time
is up whatever the speed of the machine. Rows come in three shapes of equal token count: `short` rows pack
documents of at most 512 tokens (there every block is selected), `mid` and `long` rows hold one document."""

import argparse
import json
import os
import random
import time

import numpy as np
import optim
import torch

import model as M

SHAPES = {"short": (64, 1024), "mid": (32, 2048), "long": (8, 8192)}
LOG_EVERY = 50
SAMPLED = {"mid": 128, "long": 192}  # queries per row for the index loss


def causal_mask(b, length, doc, device):
    """Block mask for flex attention; `doc` is a buffer that the trainer refills for every batch."""
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask

    if doc is None:
        return create_block_mask(
            lambda b, h, q, k: q >= k, None, None, length, length, device=device
        )
    n = length // M.BLOCK
    count = torch.arange(1, n + 1, device=device, dtype=torch.int32)
    index = torch.arange(n, device=device, dtype=torch.int32).expand(n, n).contiguous()

    def same_document(b, h, q, k):
        return (q >= k) & (doc[b, q] == doc[b, k])

    return BlockMask.from_kv_blocks(
        count.expand(b, 1, n).contiguous(),
        index.expand(b, 1, n, n).contiguous(),
        BLOCK_SIZE=M.BLOCK,
        mask_mod=same_document,
        seq_lengths=(length, length),
    )


class Trainer:
    def __init__(self, cfg, device, shapes, compiled):
        self.cfg, self.device, self.shapes, self.compiled = cfg, device, shapes, compiled
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        torch.manual_seed(0)
        self.model = M.Model(cfg).to(device)
        hidden, index, tables, small = optim.split(self.model)
        self.muon, self.muon_index = optim.Muon(hidden), optim.Muon(index)
        self.adam = torch.optim.AdamW(
            [
                {"params": tables, "base": 2e-3, "weight_decay": 0.01},
                {"params": small, "base": 2e-3, "weight_decay": 0.0},
            ],
            betas=(0.9, 0.95),
            fused=device == "cuda",
        )
        self.doc = torch.zeros(shapes["short"], dtype=torch.int32, device=device)
        self.flags = [torch.tensor(x, device=device) for x in (False, True)]
        self.plain = not compiled
        self.masks = {}
        for kind, (b, length) in shapes.items():
            if compiled:
                self.masks[kind] = causal_mask(
                    b, length, self.doc if kind == "short" else None, device
                )
            else:
                self.masks[kind] = torch.tril(
                    torch.ones(length, length, dtype=torch.bool, device=device)
                )[None, None]
        if compiled:
            torch._dynamo.config.recompile_limit = 64
            for layer in self.model.layers:
                layer.compile(dynamic=False)
            self.model.loss_fn = torch.compile(M.loss_of, dynamic=False)

    def sample_queries(self, kind, w):
        """Half of the sampled queries inside answers, half anywhere."""
        b, length = self.shapes[kind]
        n = min(SAMPLED[kind], length) // 2
        rand = torch.rand(2, b, length, device=self.device)
        return torch.cat(
            [rand[0].topk(n, -1).indices, (rand[1] + (w >= 1.0)).topk(n, -1).indices], -1
        )

    def step(self, kind, ids, pos, doc, w, lr, everything=False, kl_weight=1.0):
        def put(a, t):
            a = torch.as_tensor(a)
            a = (
                a.pin_memory() if self.device == "cuda" else a
            )  # a pageable copy would wait for the last step
            return a.to(self.device, non_blocking=True).to(t)

        ids, pos, w = put(ids, torch.long), put(pos, torch.int32), put(w, torch.float32)
        mask, at = self.masks[kind], None
        if kind == "short":
            self.doc.copy_(put(doc, torch.int32))
            if self.plain:
                mask = mask & (self.doc[:, None, :, None] == self.doc[:, None, None, :])
        else:
            at = self.sample_queries(kind, w)
        target = ids.roll(-1, 1)
        everything = self.flags[int(everything)]
        loss, ce, kl, balance, count = self.model(
            ids, pos, target, w, everything, at, mask, self.dtype, self.plain
        )
        norm = w.sum()
        (loss / norm + kl_weight * kl.sum() + 0.002 * balance.sum()).backward()
        self.muon.step(lr * 0.012)
        if at is not None:
            self.muon_index.step(lr * 0.012)
        for g in self.adam.param_groups:
            g["lr"] = lr * g["base"]
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        with (
            torch.no_grad()
        ):  # balance without touching the loss: nudge the choice bias against the load
            for layer, c in zip(self.model.layers[1:], count[1:], strict=True):
                layer.ffn.bias.add_(
                    torch.sign(c.float().mean() - c.float()), alpha=1e-3 * min(1.0, lr * 4)
                )
        return {
            "loss": loss.detach() / norm,
            "kl": kl.detach(),
            "ce": ce.detach(),
            "w": w,
            "load": count[1:].detach(),
        }


def bench(trainer, steps):
    for kind, (b, length) in trainer.shapes.items():
        ids = np.random.randint(0, trainer.cfg.vocab, (b, length))
        pos = np.tile(np.arange(length), (b, 1))
        w = np.random.rand(b, length) < 0.3
        t0 = time.time()
        for i in range(steps + 2):
            out = trainer.step(kind, ids, pos, pos // 256, w, 0.3)
            if i == 1:
                out["loss"].item()
                print(f"{kind}: two steps with compilation {time.time() - t0:.1f}s", flush=True)
                t1 = time.time()
        loss = out["loss"].item()
        dt = (time.time() - t1) / steps
        mem = torch.cuda.max_memory_allocated() / 2**30 if trainer.device == "cuda" else 0
        print(
            f"{kind}: {dt * 1e3:.1f} ms/step {b * length / dt:.0f} tokens/s loss {loss:.3f} kl {out['kl'].sum().item():.3f} mem {mem:.1f} GiB",
            flush=True,
        )


def schedule(f):
    """Share of the run -> (relative learning rate, weights of short, mid, long, everything selected)."""
    lr = min(1.0, f / 0.02 + 0.05) if f < 0.45 else max(0.0, (1.0 - f) / 0.55)
    if f < 0.16:
        return lr, (0.75, 0.25, 0.0), True
    if f < 0.24:
        return lr, (0.70, 0.30, 0.0), False
    if f < 0.50:
        return lr, (0.62, 0.18, 0.20), False
    return lr, (0.62, 0.13, 0.25), False


def save(trainer, path, note):
    state = {k: v.detach().cpu() for k, v in trainer.model.state_dict().items()}
    torch.save({"config": trainer.cfg.__dict__, "state": state, "note": note}, path + ".part")
    os.replace(path + ".part", path)


def train(trainer, feed, seconds, path, log_path):
    log, begin, seen, step = open(log_path, "a"), time.time(), 0, 0  # lives as long as the run
    pick, kinds, saved, recent = random.Random(3), ("short", "mid", "long"), 0.0, []
    last = None
    while True:
        f = (time.time() - begin) / seconds
        if f >= 1:
            break
        lr, weights, everything = schedule(f)
        kind = pick.choices(kinds, weights)[0]
        waited = time.time()
        batch = feed.get(kind)
        waited = time.time() - waited
        out = trainer.step(kind, *batch[:4], lr, everything)
        recent.append((kind, waited, out["loss"]))
        b, length = trainer.shapes[kind]
        seen += b * length
        step += 1
        last = {**last, kind: out} if last else {kind: out}
        if step % LOG_EVERY == 0:
            torch.cuda.synchronize() if trainer.device == "cuda" else None
            now = time.time() - begin
            mean = {
                k: float(torch.stack([x for q, _, x in recent if q == k]).mean())
                for k in {r[0] for r in recent}
            }
            line = {
                "s": round(now, 1),
                "step": step,
                "Mtok": round(seen / 1e6, 1),
                "tok/s": int(seen / now),
                "lr": round(lr, 3),
                "wait": round(sum(r[1] for r in recent), 2),
                "loss": {k: round(v, 3) for k, v in mean.items()},
            }
            for k, o in last.items():
                hard = o["w"].flatten() >= 1.0
                line[k] = [
                    round(o["ce"][hard].mean().item(), 3),
                    [round(x, 3) for x in o["kl"].tolist()],
                ]
            load = out["load"].float()
            line["maxload"] = round((load.amax(-1) / load.mean(-1).clamp(min=1e-9)).max().item(), 2)
            print(json.dumps(line), file=log, flush=True)
            recent, last = [], None
            if now - saved > 120:
                saved = now
                save(trainer, path, line)
    save(trainer, path, {"step": step, "tokens": seen, "seconds": time.time() - begin})
    print(
        json.dumps({"done": step, "tokens": seen, "seconds": time.time() - begin}),
        file=log,
        flush=True,
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--bench", type=int, default=0)
    ap.add_argument("--toy", action="store_true", help="small shapes for a check on a CPU")
    ap.add_argument("--tokenizer", default="")
    ap.add_argument("--template", default="")
    ap.add_argument("--chats", default="")
    ap.add_argument("--seconds", type=float, default=60)
    ap.add_argument("--workers", type=int, default=13)
    ap.add_argument("--out", default="checkpoint.pt")
    ap.add_argument("--log", default="train.log")
    a = ap.parse_args()
    cfg = M.Config()
    shapes = dict(SHAPES)
    if a.toy:
        cfg = M.Config(hidden=128, layers=2, heads=4, expert=64, shared=64, dense=128)
        shapes = {"short": (2, 1024), "mid": (1, 2048), "long": (1, 2048)}
    trainer = Trainer(cfg, a.device, shapes, compiled=a.device == "cuda")
    if a.bench:
        return bench(trainer, a.bench)
    import feed

    source = feed.Feed(a.tokenizer, a.template, a.chats, shapes, a.workers)
    train(trainer, source, a.seconds, a.out, a.log)
    source.close()


if __name__ == "__main__":
    main()
