"""Measures what winnow's Hopper kernels are compared with, on one H200, and prints the bars.

usage: hopper.py --vllm-ops DIR [--output FILE.json] [--bars] [--only SECTION...] [--winnow FILE...]
       hopper.py --peers FILE.json --winnow FILE...

DIR holds index_topk.py and sparse_attn.py out of the published vllm wheel, folder
vllm/models/minimax_m3/common/ops; they never enter the repository. The second form measures nothing
and needs no GPU: it reads earlier figures. FILE of --winnow is what winnow's benches printed, see
bars.py. Exit status 1: a section failed or a bar was missed.
"""

import argparse
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial

import results
from bars import compare
from results import Row

Section = Callable[[], Iterator[Row]]


def _sections(vllm_ops: pathlib.Path | None, bars_only: bool) -> dict[str, Section]:
    """Short ones first, so that a run cut off has lost little."""
    import torch_cases as torch_peers

    sections: dict[str, Section] = {"ceilings": torch_peers.ceilings}
    if vllm_ops is not None:
        import vllm_cases as vllm

        index_topk, sparse_attn = vllm.load_vllm_ops(vllm_ops)
        fp8 = {"fp8": vllm.E4M3}
        chosen = {"caches": fp8} if bars_only else {}
        contexts = {"contexts_k": (128,)} if bars_only else {}
        sections |= {
            "sparse_decode": partial(vllm.sparse_decode, sparse_attn),
            "sparse_prefill": partial(vllm.sparse_prefill, sparse_attn),
            "index_decode": partial(vllm.index_decode, index_topk, **chosen, **contexts),
            "index_prefill": partial(vllm.index_prefill, index_topk, **chosen),
        }
    if bars_only:
        sections |= {
            "qkv": partial(torch_peers.fused_qkv, (512, 2048)),
            "dense_decode": partial(torch_peers.dense_attention_decode, (512,)),
            "draft_attention": torch_peers.draft_attention,
            "moe": torch_peers.moe_prefill,
            "dense_prefill": partial(torch_peers.dense_attention_prefill, ("cudnn",)),
        }
    else:
        sections |= {
            "qkv": torch_peers.fused_qkv,
            "dense_decode": torch_peers.dense_attention_decode,
            "draft_attention": torch_peers.draft_attention,
            "moe": torch_peers.moe_prefill,
            "dense_prefill": torch_peers.dense_attention_prefill,
            "moe_fp8": torch_peers.moe_prefill_fp8,
        }
    return sections


def measure(arguments: argparse.Namespace) -> tuple[list[Row], int]:
    begin = time.monotonic()
    import torch
    from graph_timing import describe_machine, read_clocks

    torch.manual_seed(arguments.seed)
    machine = describe_machine()
    machine["clocks before"] = read_clocks()
    print(" | ".join(f"{key} {value}" for key, value in machine.items()))
    print(results.HEADER, flush=True)
    rows: list[Row] = []
    failed = 0
    for name, section in _sections(arguments.vllm_ops, arguments.bars).items():
        if arguments.only and name not in arguments.only:
            continue
        try:
            for row in section():
                rows.append(row)
                print(results.line(row), flush=True)
        except Exception:  # one peer that does not run must not lose the others
            failed += 1
            print(f"section {name} failed:")
            traceback.print_exc(limit=-3, file=sys.stdout)
        seconds = time.monotonic() - begin
        machine[f"clocks after {name}"] = f"{read_clocks()}, at {seconds:.1f} s"
        torch.cuda.empty_cache()
        if arguments.output:
            results.save(arguments.output, machine, rows)
    for key, value in machine.items():
        if key.startswith("clocks after"):
            print(f"{key}: {value}")
    print(f"{len(rows)} rows in {time.monotonic() - begin:.0f} s, {failed} sections failed")
    return rows, failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm-ops", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE.json")
    parser.add_argument("--only", nargs="+", metavar="SECTION")
    parser.add_argument("--bars", action="store_true", help="only what a bar needs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peers", type=pathlib.Path, metavar="FILE.json")
    parser.add_argument("--winnow", type=pathlib.Path, nargs="+", metavar="FILE", default=[])
    arguments = parser.parse_args()
    failed = 0
    if arguments.peers:
        machine, rows = results.load(arguments.peers)
        print(" | ".join(f"{key} {value}" for key, value in machine.items() if " " not in key))
        print(results.HEADER)
        print("\n".join(map(results.line, rows)))
    else:
        rows, failed = measure(arguments)
    missed = 0
    if arguments.winnow:
        winnow = [row for path in arguments.winnow for row in results.read_winnow(path)]
        lines, missed = compare(rows, winnow)
        print("\n".join(lines))
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
