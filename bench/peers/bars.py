"""The bars of the Hopper backend: winnow's rows beside the peer's, or beside a measured ceiling.

winnow's benches print rows `name,shape,us,bytes,flops,floor_us`. This is the table of the names and
shapes that a bar looks for:

    index_decode      8x8 at 32K | 128K | 512K      requests x queries, cache nvfp4
    index_prefill     8K ending at 128K
    sparse_decode     32x8 at 32K independent
    sparse_prefill    8K ending at 64K overlap | random
    msa_decode        1 over 512K                   indexer and attention, one graph
    msa_prefill       8192 over 128K
    moe_decode        M = 1 | 8 | 32
    moe_prefill       M = 8192                      with router and shared expert
    qkv_insert        M = 1 | 512 | 2048
    draft_attention   32 x 8 over 4K                sequences x queries, cache fp8
    layer_persistent, layer_graph   M = 1 | 8 at 32K
    decode_step       M = 1 | 8 at 32K              of the JSON that results.py names
"""

import re
from dataclasses import dataclass

from results import Row


@dataclass(frozen=True)
class Bar:
    what: str
    name: str  # of winnow's row; name and shape are regular expressions on the whole field
    shape: str
    at_least: float
    peer: str = ""  # names of the peer's rows, the fastest counts; empty: a fraction of the floor
    peer_shape: str = ""
    peer_is_winnow: bool = False


BARS = (
    Bar("indexer decode / Triton FP8", "index_decode", "8x8 at 128K", 2.5, "index_decode_fp8"),
    Bar("indexer decode, of bandwidth", "index_decode", "8x8 at 512K", 0.70),
    Bar(
        "indexer prefill / Triton FP8", "index_prefill", "8K ending at 128K", 4, "index_prefill_fp8"
    ),
    Bar(
        "sparse decode / Triton FP8",
        "sparse_decode",
        "32x8 at 32K independent",
        2.2,
        "sparse_decode_fp8",
    ),
    Bar("sparse decode, of bandwidth", "sparse_decode", "32x8 at 32K independent", 0.60),
    Bar(
        "sparse prefill / Triton FP8",
        "sparse_prefill",
        "8K ending at 64K overlap.*",
        4,
        "sparse_prefill_fp8",
    ),
    Bar(
        "sparse prefill / Triton FP8",
        "sparse_prefill",
        "8K ending at 64K random",
        2,
        "sparse_prefill_fp8",
    ),
    Bar("MSA decode / dense SDPA", "msa_decode", "1 over 512K", 12, "sdpa_.*"),
    Bar("MSA prefill / dense SDPA", "msa_prefill", "8192 over 128K", 10, "sdpa_.*"),
    Bar("MoE decode, of bandwidth", "moe_decode", "M = 1", 0.65),
    Bar("MoE decode, of bandwidth", "moe_decode", "M = 8", 0.75),
    Bar("MoE decode, of bandwidth", "moe_decode", "M = 32", 0.75),
    Bar(
        "MoE prefill / grouped bf16",
        "moe_prefill",
        "M = 8192",
        1.3,
        "moe_grouped_shared_bf16",
        ".*",
    ),
    Bar("fused QKV / FP8 GEMM + 1", "qkv_insert", "M = 512", 1.2, "qkv_fp8", "M = 512,.*"),
    Bar("fused QKV / FP8 GEMM + 1", "qkv_insert", "M = 2048", 1.1, "qkv_fp8", "M = 2048,.*"),
    Bar("fused QKV, of floor", "qkv_insert", "M = 1", 0.70),
    Bar(
        "draft attention / dense SDPA",
        "draft_attention",
        "32 x 8 over 4K",
        2,
        "draft_sdpa_(flash|cudnn)",
    ),
    Bar("draft attention, of bandwidth", "draft_attention", "32 x 8 over 4K", 0.60),
    Bar(
        "persistent layer / graph",
        "layer_persistent",
        "M = 1 at 32K",
        1.3,
        "layer_graph",
        peer_is_winnow=True,
    ),
    Bar(
        "persistent layer / graph",
        "layer_persistent",
        "M = 8 at 32K",
        1.3,
        "layer_graph",
        peer_is_winnow=True,
    ),
    Bar("decode step, of roofline", "decode_step", "M = 1 at 32K", 0.60),
    Bar("decode step, of roofline", "decode_step", "M = 8 at 32K", 0.65),
)


def _find(rows: list[Row], name: str, shape: str) -> Row | None:
    """The fastest of the rows that match and did not fail."""
    found = [
        row
        for row in rows
        if row.us > 0 and re.fullmatch(name, row.name) and re.fullmatch(shape, row.shape)
    ]
    return min(found, key=lambda row: row.us, default=None)


def floor_us(row: Row, ceilings: dict[str, float]) -> float:
    """Bytes over the measured copy bandwidth where the row states bytes, else its own floor."""
    if row.bytes and ceilings.get("copy"):
        return row.bytes / ceilings["copy"]
    return row.floor_us


def read_ceilings(peers: list[Row]) -> dict[str, float]:
    """bytes per microsecond under "copy", flops per microsecond under the matmuls' names."""
    found: dict[str, float] = {}
    for row in peers:
        if row.us > 0 and row.name == "copy":
            found["copy"] = max(found.get("copy", 0.0), row.bytes / row.us)
        elif row.us > 0 and row.name.startswith("matmul_"):
            found[row.name] = max(found.get(row.name, 0.0), row.flops / row.us)
    return found


def compare(peers: list[Row], winnow: list[Row]) -> tuple[list[str], int]:
    """Lines of the table, and how many of the bars that could be read were missed."""
    ceilings = read_ceilings(peers)
    lines = [f"{'what':30} {'shape':30} {'winnow':>11} {'beside':>11} {'ratio':>7} {'bar':>6}"]
    missed = measured = 0
    for bar in BARS:
        own = _find(winnow, bar.name, bar.shape)
        shape = bar.peer_shape or bar.shape
        if bar.peer:
            other = _find(winnow if bar.peer_is_winnow else peers, bar.peer, shape)
            beside = other.us if other else 0.0
        else:
            beside = floor_us(own, ceilings) if own else 0.0
        prefix = f"{bar.what:30} {bar.shape.removesuffix('.*'):30}"
        cells = [f"{value:8.1f} us" if value else "-" for value in (own.us if own else 0, beside)]
        ratio, verdict = "-", ""
        if own and beside:
            value = beside / own.us
            met = value >= bar.at_least
            missed += not met
            ratio, verdict = f"{value:.2f}", "met" if met else "MISSED"
        measured += ratio != "-"
        lines.append(
            f"{prefix} {cells[0]:>11} {cells[1]:>11} {ratio:>7} {bar.at_least:6.2f} {verdict}"
        )
    lines.append(f"{measured} of {len(BARS)} bars measured, {missed} missed")
    return lines, missed
