"""Times device work by replays of captured CUDA graphs, and says on which machine.

One callable per set of inputs: the sets together exceed twice the L2, and a graph visits them in
turn, so that no call finds its inputs in the cache. A graph holds so many calls that one replay
lasts long beside the two events around it; a figure is the median over replays, per call. Each case
starts on a rested device: minutes of products end at the power limit and lower clocks.
"""

import datetime
import math
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

L2_BYTES = 60 << 20
ROTATED_BYTES = 256 << 20  # what the inputs visited by one graph exceed; the bar asks for 2 x L2
MIN_REPLAYS = 30
MIN_REPLAY_US = 400.0
MAX_REPLAYS = 100
SPENT_US = 30_000.0  # more than 30 replays only as long as this
REST_SECONDS = 0.2


@dataclass(frozen=True)
class Timing:
    median_us: float
    spread: float  # (90th - 10th percentile) / median
    replays: int
    calls: int  # in one replay


def sets_needed(set_bytes: int) -> int:
    return max(1, math.ceil(ROTATED_BYTES / set_bytes))


def _elapsed_us(work: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def time_calls(calls: list[Callable[[], object]]) -> Timing:
    """Warms up (compiles, tunes), captures, replays. Raises what the calls or the capture raise."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in (calls[0], *calls):
            call()
        stream.synchronize()
        once_us = min(_elapsed_us(calls[0]) for _ in range(3))
    rounds = max(1, math.ceil(MIN_REPLAY_US / (once_us * len(calls))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(rounds):
            for call in calls:
                call()
    torch.cuda.synchronize()
    time.sleep(REST_SECONDS)
    graph.replay()
    replay_us = _elapsed_us(graph.replay)
    replays = max(MIN_REPLAYS, min(MAX_REPLAYS, int(SPENT_US / replay_us)))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    count = rounds * len(calls)
    times = sorted(begin.elapsed_time(end) * 1e3 / count for begin, end in events)
    median = statistics.median(times)
    spread = (times[int(0.9 * replays)] - times[int(0.1 * replays)]) / median
    return Timing(median, spread, replays, count)


def read_clocks() -> str:
    query = "clocks.sm,clocks.mem,temperature.gpu,power.draw"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"
    return out.stdout.splitlines()[0]


def describe_machine() -> dict[str, str]:
    import triton

    device = torch.cuda.get_device_properties(0)
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        driver = "unknown"
    return {
        "device": device.name,
        "multiprocessors": str(device.multi_processor_count),
        "driver": driver.strip().splitlines()[0] if driver.strip() else "unknown",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cudnn": str(torch.backends.cudnn.version()),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
