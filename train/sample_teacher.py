# ruff: noqa: E501
"""Sample conversations from the teacher on one GPU: static KV cache, one CUDA graph per step.

Every row consumes its own prompt token by token (so prompts of different lengths need no padding), then
samples. When a turn ends, the opening of the next turn is forced, so the teacher writes both sides."""

import argparse
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

LAYERS, HIDDEN, HEADS, KV, DIM = 30, 576, 9, 3, 64
IM_START, IM_END = 1, 2

if triton is not None:

    @triton.jit
    def decode_kernel(q_ptr, k_ptr, v_ptr, o_ptr, pos_ptr, TMAX: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0)  # one (sequence, KV head): three query heads share it
        n = tl.load(pos_ptr) + 1
        g = tl.arange(0, 16)
        d = tl.arange(0, 64)
        q = tl.load(
            q_ptr + row * 192 + g[:, None] * 64 + d[None, :], mask=g[:, None] < 3, other=0.0
        )
        top = tl.full([16], -1e30, tl.float32)
        total = tl.zeros([16], tl.float32)
        acc = tl.zeros([16, 64], tl.float32)
        base = row.to(tl.int64) * TMAX * 64
        for s in range(0, n, BLOCK):
            t = s + tl.arange(0, BLOCK)
            live = t < n
            k = tl.load(k_ptr + base + t[:, None] * 64 + d[None, :], mask=live[:, None], other=0.0)
            v = tl.load(v_ptr + base + t[:, None] * 64 + d[None, :], mask=live[:, None], other=0.0)
            score = tl.dot(q, tl.trans(k)) * 0.125
            score = tl.where(live[None, :], score, -1e30)
            new = tl.maximum(top, tl.max(score, 1))
            p = tl.exp(score - new[:, None])
            fix = tl.exp(top - new)
            total = total * fix + tl.sum(p, 1)
            acc = acc * fix[:, None] + tl.dot(p.to(tl.bfloat16), v)
            top = new
        out = (acc / total[:, None]).to(tl.bfloat16)
        tl.store(o_ptr + row * 192 + g[:, None] * 64 + d[None, :], out, mask=g[:, None] < 3)


class Teacher:
    def __init__(self, path, batch, tmax, device, dtype=torch.bfloat16):
        _, w = gguf.load(path)
        self.batch, self.tmax, self.device, self.dtype = batch, tmax, device, dtype

        def put(a):
            return torch.from_numpy(np.ascontiguousarray(a)).to(device=device, dtype=dtype)

        self.embed, self.final = put(w["token_embd.weight"]), put(w["output_norm.weight"])
        self.layers = []
        for i in range(LAYERS):
            p = f"blk.{i}."
            qkv = np.concatenate([w[p + f"attn_{z}.weight"] for z in "qkv"])
            up = np.concatenate([w[p + "ffn_gate.weight"], w[p + "ffn_up.weight"]])
            names = ("attn_norm", "ffn_norm", "attn_output", "ffn_down")
            self.layers.append([put(qkv), put(up)] + [put(w[p + n + ".weight"]) for n in names])
        self.k = torch.zeros(LAYERS, batch, KV, tmax, DIM, device=device, dtype=dtype)
        self.v = torch.zeros_like(self.k)
        # GGUF stores q and k permuted for rotation of adjacent pairs.
        freq = 1.0 / (
            100000.0 ** (torch.arange(0, DIM, 2, device=device, dtype=torch.float32) / DIM)
        )
        angle = torch.arange(tmax, device=device, dtype=torch.float32)[:, None] * freq
        self.rot = torch.polar(torch.ones_like(angle), angle)
        self.use_triton = False

    def attend(self, q, k, v, pos):
        if self.use_triton:
            out = torch.empty_like(q)
            decode_kernel[(self.batch * KV,)](
                q, k, v, out, pos, self.tmax, 64, num_warps=2, num_stages=3
            )
            return out
        q = q.view(self.batch * KV, 3, DIM)
        score = torch.bmm(q, k.view(-1, self.tmax, DIM).transpose(1, 2)).float() * DIM**-0.5
        dead = torch.arange(self.tmax, device=self.device) > pos
        prob = score.masked_fill(dead, -1e30).softmax(-1).to(self.dtype)
        return torch.bmm(prob, v.view(-1, self.tmax, DIM)).view(self.batch, -1)

    def forward(self, token, pos):
        b = self.batch
        x = self.embed[token]
        rot = self.rot[pos].view(1, 1, DIM // 2)
        for i, (qkv, up, n1, n2, out, down) in enumerate(self.layers):
            h = F.rms_norm(x, (HIDDEN,), n1, 1e-5) @ qkv.T
            qk = torch.view_as_complex(
                h[:, : (HEADS + KV) * DIM].float().view(b, HEADS + KV, DIM // 2, 2)
            )
            qk = torch.view_as_real(qk * rot).reshape(b, HEADS + KV, DIM).to(self.dtype)
            self.k[i].index_copy_(2, pos, qk[:, HEADS:].unsqueeze(2))
            self.v[i].index_copy_(2, pos, h[:, (HEADS + KV) * DIM :].view(b, KV, 1, DIM))
            q = qk[:, :HEADS].contiguous().view(b, HEADS * DIM)
            x = torch.addmm(x, self.attend(q, self.k[i], self.v[i], pos).view(b, -1), out.T)
            gate, val = (F.rms_norm(x, (HIDDEN,), n2, 1e-5) @ up.T).chunk(2, -1)
            x = torch.addmm(x, F.silu(gate) * val, down.T)
        return F.rms_norm(x, (HIDDEN,), self.final, 1e-5) @ self.embed.T


class Sampler:
    """The whole step, choice of the next token included, so that it can be captured in a graph."""

    def __init__(self, teacher, headers, pmax):
        t, d, b = teacher, teacher.device, teacher.batch
        self.t = t
        self.headers = torch.tensor(
            headers, device=d
        )  # row 0 opens a user turn, row 1 an assistant turn
        self.hlen = (self.headers >= 0).sum(1)
        self.prompt = torch.zeros(b, pmax, dtype=torch.long, device=d)
        self.plen = torch.ones(b, dtype=torch.long, device=d)
        self.role = torch.zeros(b, dtype=torch.long, device=d)
        self.pend = torch.zeros(b, dtype=torch.long, device=d)
        self.temp = torch.ones(b, 2, device=d)
        self.pos = torch.zeros(1, dtype=torch.long, device=d)
        self.token = torch.zeros(b, dtype=torch.long, device=d)
        self.out = torch.zeros(b, t.tmax, dtype=torch.long, device=d)
        self.pmax = pmax

    def start(self, prompt, plen, role, temp):
        self.prompt.copy_(prompt)
        self.plen.copy_(plen)
        self.role.copy_(role)
        self.temp.copy_(temp)
        self.pend.zero_()
        self.pos.zero_()
        self.out.zero_()
        self.token.copy_(self.prompt[:, 0])
        self.out[:, 0] = self.token

    def step(self):
        logits = self.t.forward(self.token, self.pos)
        temp = self.temp.gather(1, self.role[:, None]).to(logits.dtype)
        top = logits.amax(-1, keepdim=True)
        # min-p 0.08: drop what is far less likely than the best token, then the Gumbel trick
        scaled = ((logits - top) / temp).float()
        scaled = scaled.masked_fill(scaled < -2.5, float("-inf"))
        pick = (scaled - torch.empty_like(scaled).exponential_().log_()).argmax(-1)
        nxt = self.pos + 1
        in_prompt = nxt < self.plen
        given = self.prompt.gather(1, nxt.clamp(max=self.pmax - 1).expand(self.t.batch)[:, None])[
            :, 0
        ]
        forced = self.headers[self.role, -self.pend.clamp(min=1)]
        tok = torch.where(in_prompt, given, torch.where(self.pend > 0, forced, pick))
        ended = (~in_prompt) & (self.pend == 0) & ((tok == IM_END) | (tok == 0))
        tok = torch.where(ended, torch.full_like(tok, IM_END), tok)
        self.role.copy_(torch.where(ended, 1 - self.role, self.role))
        self.pend.copy_(torch.where(ended, self.hlen[self.role], (self.pend - 1).clamp(min=0)))
        self.token.copy_(tok)
        self.out.index_copy_(1, nxt.clamp(max=self.t.tmax - 1), tok[:, None])
        self.pos.copy_(nxt)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gguf", required=True)
    ap.add_argument("--prompts", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--batch", type=int, default=4096)
    ap.add_argument("--tmax", type=int, default=512)
    ap.add_argument("--seconds", type=float, default=180)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--device", default="cuda")
    a = ap.parse_args()
    t0 = time.time()
    z = np.load(a.prompts)
    cuda = a.device == "cuda"
    t = Teacher(a.gguf, a.batch, a.tmax, a.device, torch.bfloat16 if cuda else torch.float32)
    torch.manual_seed(a.seed)
    s = Sampler(t, z["headers"].tolist(), z["ids"].shape[1])
    print(f"loaded {time.time() - t0:.1f}s", flush=True)
    rng = np.random.default_rng(a.seed)
    with torch.no_grad():
        if cuda and triton is not None:
            try:  # use the fused kernel only if it agrees with the plain one
                q = torch.randn(a.batch, HEADS * DIM, device="cuda", dtype=torch.bfloat16)
                k, v, p = (
                    torch.randn_like(t.k[0]),
                    torch.randn_like(t.v[0]),
                    torch.tensor([300], device="cuda"),
                )
                want = t.attend(q, k, v, p).float()
                t.use_triton = True
                err = (t.attend(q, k, v, p).float() - want).norm() / want.norm()
                t.use_triton = bool(err < 2e-2)
                print(f"triton attention error {err:.2e}, used: {t.use_triton}", flush=True)
                del q, k, v, want
            except Exception as e:  # noqa: BLE001 - any failure means the plain path
                t.use_triton = False
                print("triton path failed:", e, flush=True)
        run = s.step
        if cuda:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(3):
                    s.step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                s.step()
            run = graph.replay
        print(f"ready {time.time() - t0:.1f}s", flush=True)
        waves, begin, wave_s = 0, time.time(), 0.0
        while waves == 0 or time.time() - begin + wave_s < a.seconds:
            w0 = time.time()
            rows = rng.choice(len(z["ids"]), a.batch)
            temp = np.stack([rng.uniform(0.8, 1.1, a.batch), rng.uniform(0.3, 0.75, a.batch)], 1)
            s.start(
                *(
                    torch.from_numpy(x)
                    for x in (
                        z["ids"][rows].astype(np.int64),
                        z["lens"][rows].astype(np.int64),
                        z["roles"][rows].astype(np.int64),
                        temp.astype(np.float32),
                    )
                )
            )
            for _ in range(a.tmax - 1):
                run()
            np.savez(
                f"{a.out}.{waves:03d}.npz",
                ids=s.out.cpu().numpy().astype(np.uint16),
                rows=rows.astype(np.int32),
            )
            waves += 1
            wave_s = time.time() - w0
            print(
                f"wave {waves}: {wave_s:.2f}s {a.batch * a.tmax / wave_s:.0f} tokens/s", flush=True
            )


if __name__ == "__main__":
    main()
