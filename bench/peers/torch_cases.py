"""What PyTorch itself reaches: ceilings, dense attention, grouped and FP8 products."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from graph_timing import sets_needed, time_calls
from m3_kernels import combine, qkv_epilogue, qkv_epilogue_reference, swiglu
from results import Row
from torch.nn.attention import SDPBackend, sdpa_kernel

HIDDEN = 6144
INTERMEDIATE = 3072
NUM_EXPERTS = 128
TOP_K = 4
QKV_ROWS = 9856  # 64 q + 4 k + 4 v + 4 index q + 1 index k heads of 128
E4M3 = torch.float8_e4m3fn
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def random_bf16(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0, scale)


def random_e4m3(*shape: int) -> torch.Tensor:
    """Normal values; made a slice at a time, since e4m3 has no generator of its own."""
    out = torch.empty(shape, dtype=E4M3, device="cuda")
    flat = out.view(-1)
    for begin in range(0, flat.numel(), 1 << 28):
        part = flat[begin : begin + (1 << 28)]
        part.copy_(random_bf16(part.numel()))
    return out


def timed(name: str, shape: str, calls: list[Callable[[], object]], **fields) -> Row:
    timing = time_calls(calls)
    return Row(
        name, shape, timing.median_us, spread=timing.spread, replays=timing.replays, **fields
    )


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    out, reference = out.double(), reference.double()
    return ((out - reference).norm() / reference.norm()).item()


def ceilings() -> Iterator[Row]:
    size = 4 << 30
    source = torch.empty(size // 4, device="cuda").uniform_()
    target = torch.empty_like(source)
    kernel = partial(torch.mul, source, 1.0, out=target)
    yield timed("copy", "4 GiB, kernel", [kernel], bytes=2 * size)
    memcpy = partial(target.copy_, source)
    yield timed("copy", "4 GiB, memcpy node", [memcpy], bytes=2 * size)
    yield timed("read", "4 GiB, sum", [partial(torch.sum, source)], bytes=size)
    del source, target, kernel, memcpy

    n = 8192
    a, b = random_bf16(n, n), random_bf16(n, n)
    yield timed("matmul_bf16", "8192^3", [lambda: a @ b.t()], flops=2.0 * n**3)
    a, b = random_e4m3(n, n), random_e4m3(n, n)
    one = torch.ones((), device="cuda")
    for fast in (True, False):
        call = partial(
            torch._scaled_mm, a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=fast
        )
        shape = f"8192^3, {'fast' if fast else 'full'} accumulation"
        yield timed("matmul_fp8", shape, [call], flops=2.0 * n**3)


def _qkv_set(num_tokens: int) -> dict[str, torch.Tensor]:
    pages = (num_tokens + 127) // 128
    return {
        "x": random_e4m3(num_tokens, HIDDEN),
        "weight": random_e4m3(QKV_ROWS, HIDDEN),
        "x_scale": torch.rand(num_tokens, 1, device="cuda") + 0.5,
        "weight_scale": torch.rand(1, QKV_ROWS, device="cuda") + 0.5,
        "positions": torch.randint(0, 1 << 17, (num_tokens,), device="cuda"),
        "slots": torch.randperm(pages * 128, device="cuda")[:num_tokens],
        "q": torch.empty(num_tokens, 64, 128, dtype=torch.bfloat16, device="cuda"),
        "index_q": torch.empty(num_tokens, 4, 128, dtype=torch.bfloat16, device="cuda"),
        "kv_cache": torch.empty(pages, 4, 128, 256, dtype=E4M3, device="cuda"),
        "index_cache": torch.empty(pages, 128, 128, dtype=E4M3, device="cuda"),
    }


def _rope_table(num_positions: int) -> torch.Tensor:
    frequency = 5e6 ** (-torch.arange(32, dtype=torch.float64, device="cuda") / 32)
    angle = torch.arange(num_positions, device="cuda", dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=1).float()


def fused_qkv(counts: tuple[int, ...] = (1, 512, 2048, 8192)) -> Iterator[Row]:
    """Activations come quantised, which flatters the peer: winnow takes them in fp32."""
    rope = _rope_table(1 << 17)
    norms = random_bf16(4, 128, scale=0.1).float()

    def product(s: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch._scaled_mm(
            s["x"],
            s["weight"].t(),
            s["x_scale"],
            s["weight_scale"],
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    def chain(s: dict[str, torch.Tensor]) -> torch.Tensor:
        qkv = product(s)
        qkv_epilogue(qkv, norms, rope, s)
        return qkv

    for num_tokens in counts:
        moved = QKV_ROWS * HIDDEN + num_tokens * (HIDDEN + QKV_ROWS + 68 * 128)
        sets = [_qkv_set(num_tokens) for _ in range(sets_needed(moved))]
        flops = 2.0 * num_tokens * QKV_ROWS * HIDDEN
        shape = f"M = {num_tokens}, {QKV_ROWS} x {HIDDEN}"
        qkv = chain(sets[0])
        expected = qkv_epilogue_reference(qkv, norms, rope, sets[0]["positions"])
        note = f"epilogue error {relative_error(sets[0]['q'], expected):.1e}"
        fields = {"bytes": moved, "flops": flops}
        yield timed("qkv_fp8", shape, [partial(chain, s) for s in sets], note=note, **fields)
        yield timed("qkv_fp8_gemm_only", shape, [partial(product, s) for s in sets], **fields)
        del sets


def dense_attention_decode(contexts_k: tuple[int, ...] = (32, 128, 512)) -> Iterator[Row]:
    yield from _dense_attention(1, contexts_k, tuple(BACKENDS))


def dense_attention_prefill(backends: tuple[str, ...] = tuple(BACKENDS)) -> Iterator[Row]:
    """The whole product, not causal: with the chunk at the end of its keys that is 3 % more."""
    yield from _dense_attention(8192, (128,), backends)


def _dense_attention(
    num_queries: int, contexts_k: tuple[int, ...], backends: tuple[str, ...]
) -> Iterator[Row]:
    for context_k in contexts_k:
        context = context_k << 10
        kv_bytes = 2 * 4 * context * 128 * 2
        moved = kv_bytes + 2 * num_queries * 64 * 128 * 2
        sets = [
            (
                random_bf16(1, 64, num_queries, 128),
                random_bf16(1, 4, context, 128),
                random_bf16(1, 4, context, 128),
            )
            for _ in range(sets_needed(kv_bytes) if num_queries == 1 else 1)
        ]
        shape = f"{num_queries} over {context_k}K"
        flops = 4.0 * num_queries * context * 64 * 128
        for name in backends:
            calls = [partial(F.scaled_dot_product_attention, *s, enable_gqa=True) for s in sets]
            try:
                with sdpa_kernel(BACKENDS[name]):
                    row = timed(f"sdpa_{name}", shape, calls, bytes=moved, flops=flops)
            except RuntimeError as error:
                row = Row(f"sdpa_{name}", shape, 0.0, note=str(error).splitlines()[0][:120])
            yield row


def draft_attention() -> Iterator[Row]:
    """A drafter's blocks of 8 queries over a window of 4096 keys and themselves, not causal; the
    window's mask, which hides up to 7 keys of a query, is left out. Packed: the 16 query heads of a
    KV head as rows of one head, which a caller may do where no mask tells them apart."""
    num_sequences, num_queries, heads, kv_heads, keys = 32, 8, 64, 4, 4104
    kv_bytes = 2 * num_sequences * kv_heads * keys * 128 * 2
    sets = [
        (
            random_bf16(num_sequences, heads, num_queries, 128),
            random_bf16(num_sequences, kv_heads, keys, 128),
            random_bf16(num_sequences, kv_heads, keys, 128),
        )
        for _ in range(max(2, sets_needed(kv_bytes)))
    ]
    shape = f"{num_sequences} x {num_queries} over 4K"
    fields = {
        "bytes": kv_bytes,
        "flops": 4.0 * num_sequences * num_queries * heads * keys * 128,
    }
    for name, backend in BACKENDS.items():
        for packed in (False, True):
            calls = [partial(_attend, *s, packed) for s in sets]
            label = f"draft_sdpa_{name}{'_packed' if packed else ''}"
            try:
                with sdpa_kernel(backend):
                    row = timed(label, shape, calls, **fields)
            except RuntimeError as error:
                row = Row(label, shape, 0.0, note=str(error).splitlines()[0][:120])
            yield row


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: bool) -> torch.Tensor:
    if packed:
        return F.scaled_dot_product_attention(q.reshape(*k.shape[:2], -1, q.shape[-1]), k, v)
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _routing(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Uniform choice of experts: (token of each sorted row, row of each choice, row offsets)."""
    chosen = torch.rand(num_tokens, NUM_EXPERTS, device="cuda").topk(TOP_K, dim=1).indices
    order = chosen.flatten().argsort(stable=True)
    row_of_choice = torch.empty_like(order)
    row_of_choice[order] = torch.arange(order.numel(), device="cuda")
    counts = torch.bincount(chosen.flatten(), minlength=NUM_EXPERTS)
    return order // TOP_K, row_of_choice.view(num_tokens, TOP_K), counts.cumsum(0).int()


def moe_prefill() -> Iterator[Row]:
    num_tokens = 8192
    rows = num_tokens * TOP_K
    shape = f"{num_tokens} x top-{TOP_K} of {NUM_EXPERTS}"
    flops = 6.0 * rows * HIDDEN * INTERMEDIATE
    token_of_row, row_of_choice, offsets = _routing(num_tokens)
    gate_up = random_bf16(NUM_EXPERTS, 2 * INTERMEDIATE, HIDDEN, scale=0.02)
    down = random_bf16(NUM_EXPERTS, HIDDEN, INTERMEDIATE, scale=0.02)
    weights = torch.rand(num_tokens, TOP_K, device="cuda")
    x = random_bf16(num_tokens, HIDDEN)
    gathered = x[token_of_row]

    def experts(inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch._grouped_mm(inputs, gate_up.transpose(1, 2), offs=offsets)
        return torch._grouped_mm(swiglu(hidden), down.transpose(1, 2), offs=offsets)

    def whole() -> torch.Tensor:
        return combine(experts(x[token_of_row]), row_of_choice, weights)

    first = slice(0, int(offsets[0]))
    expected = _expert_reference(gathered[first], gate_up[0], down[0])
    note = f"error {relative_error(experts(gathered)[first], expected):.1e}"
    moved = (gate_up.numel() + down.numel()) * 2 + 2 * rows * HIDDEN * 2
    fields = {"bytes": moved, "flops": flops}
    yield timed("moe_grouped_bf16", shape, [lambda: experts(gathered)], note=note, **fields)
    yield timed("moe_bf16_with_gather", shape, [whole], **fields)

    def shared() -> torch.Tensor:
        return swiglu(x @ gate_up[0].t()) @ down[0].t()

    shared_flops = flops / TOP_K
    yield timed("moe_shared_bf16", f"{num_tokens} tokens", [shared], flops=shared_flops)
    both = partial(_in_turn, partial(experts, gathered), shared)
    yield timed("moe_grouped_shared_bf16", shape, [both], flops=flops + shared_flops)


def _in_turn(*calls: Callable[[], object]) -> None:
    for call in calls:
        call()


def moe_prefill_fp8() -> Iterator[Row]:
    """Not one of the bars: FP8 operands, rowwise scales, activations already quantised."""
    num_tokens = 8192
    rows = num_tokens * TOP_K
    _, _, offsets = _routing(num_tokens)
    gate_up = random_e4m3(NUM_EXPERTS, 2 * INTERMEDIATE, HIDDEN)
    down = random_e4m3(NUM_EXPERTS, HIDDEN, INTERMEDIATE)
    x, hidden = random_e4m3(rows, HIDDEN), random_e4m3(rows, INTERMEDIATE)
    scale = torch.rand(rows, device="cuda") * 0.01
    scales = {
        size: torch.rand(NUM_EXPERTS, size, device="cuda") * 0.01
        for size in (HIDDEN, 2 * INTERMEDIATE)
    }

    def product(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch._scaled_grouped_mm(
            inputs,
            weight.transpose(1, 2),
            scale,
            scales[weight.shape[1]],
            offs=offsets,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    yield timed(
        "moe_grouped_fp8_products",
        f"{num_tokens} x top-{TOP_K} of {NUM_EXPERTS}",
        [lambda: (product(x, gate_up), product(hidden, down))],
        flops=6.0 * rows * HIDDEN * INTERMEDIATE,
    )


def _expert_reference(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = (x.float() @ gate_up.float().t()).chunk(2, dim=1)
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return (gate * torch.sigmoid(1.702 * gate) * (up + 1)) @ down.float().t()
