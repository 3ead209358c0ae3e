"""vLLM's public Triton kernels for MiniMax-M3, timed without vLLM.

They are index_topk.py and sparse_attn.py of vllm/models/minimax_m3/common/ops in the vllm wheel
(Apache-2.0), read from a folder outside the repository; the three of vLLM's own modules that they
import are made here.

The kernels run as vLLM runs them on sm_90: launched with programmatic dependent launch, tuned by
their own autotuner, here anew for every shape. FP8 caches carry no scale tensors, which is their
faster path.
"""

import importlib
import pathlib
import sys
import types
from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl
from graph_timing import sets_needed
from results import Row
from torch_cases import E4M3, random_bf16, random_e4m3, relative_error, timed

BLOCK = 128
TOP_K = 16
HEADS, KV_HEADS, DIM = 64, 4, 128
SCALE = DIM**-0.5
CACHES = {"fp8": E4M3, "bf16": torch.bfloat16}


class _Platform:
    """What the two files ask of vllm.platforms.current_platform."""

    @staticmethod
    def is_rocm() -> bool:
        return False

    @staticmethod
    def is_cuda() -> bool:
        return True

    @staticmethod
    def is_device_capability(capability: tuple[int, int]) -> bool:
        return torch.cuda.get_device_capability() == capability

    @staticmethod
    def is_arch_support_pdl() -> bool:
        return torch.cuda.get_device_capability()[0] >= 9


def load_vllm_ops(folder: pathlib.Path) -> tuple[types.ModuleType, types.ModuleType]:
    """The modules index_topk and sparse_attn of `folder`, imported without vLLM."""
    members = {
        "vllm": {},
        "vllm.platforms": {"current_platform": _Platform},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.utils": {},
        "vllm.utils.math_utils": {"round_up": lambda x, y: (x + y - 1) // y * y},
    }
    for name, values in members.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        sys.modules[name] = module
    sys.path.insert(0, str(folder))
    return importlib.import_module("index_topk"), importlib.import_module("sparse_attn")


def _tune_again(module: types.ModuleType) -> None:
    for value in vars(module).values():
        while value is not None and not isinstance(value, triton.runtime.Autotuner):
            value = getattr(value, "fn", None)  # heuristics wrap the autotuner
        if value is not None:
            value.cache.clear()


def _pages(num_requests: int, context: int, device: str = "cuda") -> torch.Tensor:
    """Block tables: every request's pages lie anywhere in the pool."""
    count = num_requests * context // BLOCK
    return torch.randperm(count, device=device).int().view(num_requests, -1)


def _random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return random_e4m3(*shape) if dtype == E4M3 else random_bf16(*shape)


def _int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def _reference_selection(
    index_q: torch.Tensor, keys: torch.Tensor, first_position: int
) -> torch.Tensor:
    """[heads, queries, blocks] bool in fp32: the local block and the 15 best others."""
    positions = first_position + torch.arange(index_q.shape[0], device=keys.device)
    score = torch.einsum("qhd,kd->hqk", index_q.float(), keys.float())
    later = torch.arange(keys.shape[0], device=keys.device) > positions[:, None]
    score.masked_fill_(later, -torch.inf)
    best = score.view(*score.shape[:2], -1, BLOCK).amax(-1)
    local = (positions // BLOCK).view(1, -1, 1).expand(best.shape[0], -1, 1)
    best = best.scatter(2, local, torch.inf)
    chosen = best.topk(TOP_K, dim=2).indices
    return torch.zeros_like(best, dtype=torch.bool).scatter(2, chosen, True)


def _agreement(topk: torch.Tensor, selection: torch.Tensor) -> str:
    """Near-ties may fall either way in FP8; a wrong kernel would agree on a few per cent."""
    found = selection.gather(2, topk.long().clamp(min=0)) & (topk >= 0)
    return f"selection agrees {found.float().mean().item() * 100:.1f} %"


def index_decode(
    index_topk: types.ModuleType,
    caches: dict[str, torch.dtype] = CACHES,
    contexts_k: tuple[int, ...] = (32, 128, 512),
) -> Iterator[Row]:
    requests, queries = 8, 8
    for suffix, dtype in caches.items():
        for context_k in contexts_k:
            context = context_k << 10
            moved = requests * context * DIM * dtype.itemsize
            sets = [
                (
                    _random(dtype, requests * queries, KV_HEADS, DIM),
                    _random(dtype, requests * context // BLOCK, BLOCK, DIM),
                    _pages(requests, context),
                )
                for _ in range(sets_needed(moved))
            ]
            lengths = _int32(*[context] * requests)

            def decode(index_q, cache, table, lengths=lengths, context=context):
                return index_topk.minimax_m3_index_decode(
                    index_q, cache, table, lengths, context,
                    TOP_K, 0, 1, KV_HEADS, queries, queries,
                )  # fmt: skip

            _tune_again(index_topk)
            index_q, cache, table = sets[0]
            topk = decode(*sets[0])[:, :queries]
            keys = cache[table[0].long()].view(-1, DIM)
            expected = _reference_selection(index_q[:queries], keys, context - queries)
            yield timed(
                f"index_decode_{suffix}",
                f"8x8 at {context_k}K",
                [partial(decode, *s) for s in sets],
                bytes=moved,
                flops=2.0 * requests * queries * KV_HEADS * context * DIM,
                note=_agreement(topk, expected),
            )
            del sets, index_q, cache, table, keys


def index_prefill(
    index_topk: types.ModuleType, caches: dict[str, torch.dtype] = CACHES
) -> Iterator[Row]:
    chunk, context = 8192, 128 << 10
    prefix = context - chunk
    starts, lengths, prefixes = _int32(0, chunk), _int32(context), _int32(prefix)
    for suffix, dtype in caches.items():
        moved = (context + chunk * KV_HEADS) * DIM * dtype.itemsize + KV_HEADS * chunk * TOP_K * 4
        sets = [
            (
                _random(dtype, chunk, KV_HEADS, DIM),
                _random(dtype, context // BLOCK, BLOCK, DIM),
                _pages(1, context),
            )
            for _ in range(sets_needed(moved))
        ]

        def prefill(index_q, cache, table):
            score = index_topk.minimax_m3_index_score(
                index_q, cache, table, starts, lengths, prefixes, chunk, context, KV_HEADS
            )
            return index_topk.minimax_m3_index_topk(score, starts, prefixes, chunk, TOP_K, 0, 1)

        _tune_again(index_topk)
        index_q, cache, table = sets[0]
        topk = prefill(*sets[0])[:, -8:]
        keys = cache[table[0].long()].view(-1, DIM)
        expected = _reference_selection(index_q[-8:], keys, context - 8)
        pairs = chunk * (prefix + chunk / 2)
        yield timed(
            f"index_prefill_{suffix}",
            "8K ending at 128K",
            [partial(prefill, *s) for s in sets],
            bytes=moved,
            flops=2.0 * pairs * KV_HEADS * DIM,
            note=_agreement(topk, expected),
        )
        del sets, index_q, cache, table, keys


def random_selection(rows: int, num_blocks: int, local: torch.Tensor) -> torch.Tensor:
    """[4, rows, 16] int32: the local block and 15 of the num_blocks, independent for each row."""
    others = torch.rand(KV_HEADS, rows, num_blocks, device=local.device).topk(TOP_K - 1).indices
    return torch.cat([local.expand(KV_HEADS, rows, 1), others], dim=2).int().contiguous()


def overlapping_selection(rows: int, num_blocks: int, local: torch.Tensor) -> torch.Tensor:
    """As random_selection, but each row keeps 13 of its predecessor's 15 and drops its oldest two.

    Four consecutive rows so name 16 + 3 * 2 = 22 distinct blocks of 64. The rows slide over a
    random sequence in which any 21 consecutive blocks are distinct.
    """
    wanted = 2 * rows + TOP_K
    heads = []
    for _ in range(KV_HEADS):
        parts = [torch.randperm(num_blocks)]
        while sum(part.numel() for part in parts) < wanted:
            recent = parts[-1][-21:]
            fresh = torch.randperm(num_blocks)
            seen = torch.isin(fresh, recent)
            parts.append(torch.cat([fresh[~seen], fresh[seen]]))
        heads.append(torch.cat(parts).unfold(0, TOP_K - 1, 2)[:rows])
    others = torch.stack(heads).to(local.device)
    return torch.cat([local.expand(KV_HEADS, rows, 1), others], dim=2).int().contiguous()


def _distinct_bytes(topk: torch.Tensor, queries: int, num_blocks: int, row_bytes: int) -> int:
    """K and V of each (request, KV head, block) that any of the request's queries names."""
    named = torch.zeros(KV_HEADS, topk.shape[1] // queries, num_blocks, dtype=torch.bool)
    named = named.to(topk.device)
    named.scatter_(2, topk.view(KV_HEADS, -1, queries * TOP_K).long(), True)
    return int(named.sum()) * BLOCK * row_bytes


def _attention_reference(
    q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, topk: torch.Tensor, position: int
) -> torch.Tensor:
    """One query's [64, 128] output in fp32. topk: [4, 16] of this query."""
    out = []
    for head in range(KV_HEADS):
        blocks = topk[head].long()
        rows = cache[table[blocks].long(), head].float().view(-1, 2 * DIM)
        at = (blocks[:, None] * BLOCK + torch.arange(BLOCK, device=q.device)).view(-1)
        score = q[head * 16 : head * 16 + 16].float() @ rows[:, :DIM].t() * SCALE
        score.masked_fill_(at > position, -torch.inf)
        out.append(score.softmax(-1) @ rows[:, DIM:])
    return torch.cat(out)


def sparse_decode(sparse_attn: types.ModuleType) -> Iterator[Row]:
    requests, queries, context = 32, 8, 32 << 10
    num_blocks, rows = context // BLOCK, requests * queries
    local = torch.full((rows, 1), num_blocks - 1, device="cuda")
    lengths = _int32(*[context] * requests)
    sets = [
        (
            random_bf16(rows, HEADS, DIM),
            random_e4m3(requests * num_blocks, KV_HEADS, BLOCK, 2 * DIM),
            random_selection(rows, num_blocks - 1, local),
            _pages(requests, context),
            torch.full((rows, HEADS, DIM), torch.nan, dtype=torch.bfloat16, device="cuda"),
        )
    ]

    def decode(q, cache, topk, table, out):
        sparse_attn.minimax_m3_sparse_attn_decode(
            q, cache, topk, table, lengths, KV_HEADS, SCALE, out, queries
        )

    q, cache, topk, table, out = sets[0]
    decode(*sets[0])
    positions = [context - queries + i for i in range(queries)]
    expected = torch.stack(
        [
            _attention_reference(q[i], cache, table[0], topk[:, i], p)
            for i, p in enumerate(positions)
        ]
    )
    distinct = _distinct_bytes(topk, queries, num_blocks, 2 * DIM)
    yield timed(
        "sparse_decode_fp8",
        "32x8 at 32K independent",
        [partial(decode, *s) for s in sets],
        bytes=distinct + 2 * rows * HEADS * DIM * 2,
        flops=4.0 * rows * HEADS * TOP_K * BLOCK * DIM,
        note=f"error {relative_error(out[:queries], expected):.1e}",
    )


def sparse_prefill(sparse_attn: types.ModuleType) -> Iterator[Row]:
    chunk, context = 8192, 64 << 10
    prefix = context - chunk
    starts, lengths, prefixes = _int32(0, chunk), _int32(context), _int32(prefix)
    local = ((prefix + torch.arange(chunk, device="cuda")) // BLOCK)[:, None]
    kv_bytes = context * KV_HEADS * 2 * DIM
    moved = kv_bytes + 2 * chunk * HEADS * DIM * 2
    selections = {"overlap 22 of 64": overlapping_selection, "random": random_selection}
    for kind, select in selections.items():
        sets = [
            (
                random_bf16(chunk, HEADS, DIM),
                random_e4m3(context // BLOCK, KV_HEADS, BLOCK, 2 * DIM),
                select(chunk, prefix // BLOCK, local),
                _pages(1, context),
                torch.full((chunk, HEADS, DIM), torch.nan, dtype=torch.bfloat16, device="cuda"),
            )
            for _ in range(sets_needed(moved))
        ]

        def prefill(q, cache, topk, table, out):
            sparse_attn.minimax_m3_sparse_attn(
                q, cache, topk, table, starts, lengths, prefixes, chunk, KV_HEADS, SCALE, out
            )

        q, cache, topk, table, out = sets[0]
        prefill(*sets[0])
        tokens = [0, 1, chunk // 2, chunk - 1]
        expected = torch.stack(
            [_attention_reference(q[i], cache, table[0], topk[:, i], prefix + i) for i in tokens]
        )
        yield timed(
            "sparse_prefill_fp8",
            f"8K ending at 64K {kind}",
            [partial(prefill, *s) for s in sets],
            bytes=moved,
            flops=4.0 * chunk * HEADS * TOP_K * BLOCK * DIM,
            note=f"error {relative_error(out[tokens], expected):.1e}",
        )
        del sets, q, cache, topk, table, out
