"""Mixed clients, good and bad, against a live server for a given time; afterwards nothing is lost.

    python tests/soak/soak.py models/winnow-tiny --minutes 30

First everything that has a bound is filled up to it: the KV pool, whose memory becomes resident
when a block is first written, and the buffers of the largest step. The time is cut into phases.
After each the clients stop and the server is looked at while idle:
every block free, no connection or file left, counters that add up, the memory of the end of the
first phase, and the same bits for the reference request. Exit code 1: something was not so.
"""

import argparse
import asyncio
import collections
import json
import random
import re
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))

import bad_clients as bad  # noqa: E402
import good_clients as good  # noqa: E402
from live_server import Server  # noqa: E402
from wire import get  # noqa: E402

# How often each kind of client comes.
MIX = {
    good.short: 8,
    good.streaming: 8,
    good.long: 2,
    good.long_prompt: 1,
    good.choices: 2,
    good.conversation: 2,
    good.tools: 2,
    good.structured: 2,
    good.anthropic: 3,
    good.responses: 3,
    good.background: 1,
    good.burst: 0.3,
    good.reference: 2,
    good.probes: 1,
    bad.cancelled: 6,
    bad.slow_reader: 2,
    bad.half_open: 2,
    bad.stalled: 2,
    bad.killed: 0.5,
    bad.malformed: 6,
    bad.hostile: 6,
    bad.hostile_agent_bodies: 4,
    bad.huge_body: 0.5,
    bad.big_valid_body: 0.5,
    bad.garbage: 2,
}
MAX_QUEUED = 64
FLAGS = [
    *("--max-num-seqs", "32", "--kv-cache-memory-bytes", "96M"),
    *("--max-num-queued-reqs", str(MAX_QUEUED), "--disable-access-log"),
    # Short, so that stalled clients end within a phase; small stores, so that they fill.
    *(
        "--header-timeout",
        "3",
        "--body-timeout",
        "3",
        "--idle-timeout",
        "5",
        "--write-timeout",
        "8",
    ),
    *("--max-stored-responses", "50", "--token-cache-bytes", "512K"),
]
CLIENT_SECONDS = 1200  # longer means that a request hangs, even on a machine with much else to do


@dataclass
class Idle:
    """What an idle server holds."""

    rss_kb: int
    anonymous_kb: int
    files: int
    threads: int
    free_blocks: int

    def __str__(self):
        return (
            f"RSS {self.rss_kb / 1024:.1f} MiB (anonymous {self.anonymous_kb / 1024:.1f}), "
            f"{self.files} files, {self.threads} threads, {self.free_blocks} blocks free"
        )


@dataclass
class Soak:
    """What the clients share."""

    server: Server
    address: tuple
    model: str
    rng: random.Random
    burst: int = 2 * MAX_QUEUED
    reference: list | None = None
    outcomes: collections.Counter = field(default_factory=collections.Counter)
    statuses: collections.Counter = field(default_factory=collections.Counter)
    longest: collections.Counter = field(default_factory=collections.Counter)  # seconds, by kind
    faults: list = field(default_factory=list)
    idle_files: int = 10**6  # what an idle server has open; known after the first look

    def saw(self, path, status):
        self.statuses[path, str(status)] += 1

    def fault(self, what):
        self.faults.append(what)
        print("FAULT:", what, file=sys.stderr, flush=True)
        return "fault"

    def expect(self, holds, what):
        if not holds:
            self.fault(what)

    async def client(self, until):
        kinds, weights = list(MIX), list(MIX.values())
        while time.monotonic() < until and self.server.process.poll() is None:
            kind = self.rng.choices(kinds, weights)[0]
            begun = time.monotonic()
            try:
                async with asyncio.timeout(CLIENT_SECONDS):
                    outcome = await kind(self)
            except TimeoutError:
                outcome = self.fault(f"{kind.__name__} hangs")
            except Exception:
                outcome = self.fault(f"{kind.__name__}: {traceback.format_exc(limit=4)}")
            self.outcomes[kind.__name__, outcome] += 1
            took = time.monotonic() - begun
            self.longest[kind.__name__] = max(self.longest[kind.__name__], took)

    async def phase(self, seconds, num_clients):
        until = time.monotonic() + seconds
        await asyncio.gather(*(self.client(until) for _ in range(num_clients)))
        if self.server.process.poll() is not None:
            raise SystemExit(f"the server has died: {self.server.process.returncode}")

    async def metrics(self):
        """name -> list of (labels, value)."""
        found = collections.defaultdict(list)
        for line in (await get(self.address, "/metrics")).body.decode().splitlines():
            match = re.match(r"([\w:]+)(?:\{(.*)\})? (\S+)$", line)
            if match:
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                found[match[1]].append((labels, float(match[3])))
        return found

    async def idle(self, seconds=90):
        """Waits for quiet, then for the server's second thoughts on memory."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            total = totals(await self.metrics())
            load = (await get(self.address, "/load")).json()["server_load"]
            load += total["vllm:num_requests_running"] + total["vllm:num_requests_waiting"]
            files = self.look(0).files
            if load == 0 and files <= self.idle_files:
                break
            await asyncio.sleep(0.5)
        else:
            self.fault(f"not idle after {seconds} s: load {load}, {files} files")
        await asyncio.sleep(4)  # free memory goes back after two quiet seconds
        return self.look(int(totals(await self.metrics())["winnow:kv_blocks_free"]))

    def look(self, free_blocks):
        process = Path(f"/proc/{self.server.process.pid}")
        status = dict(re.findall(r"(\w+):\s+(\d+)", (process / "status").read_text()))
        return Idle(
            rss_kb=int(status["VmRSS"]),
            anonymous_kb=int(status["RssAnon"]),
            files=len(list((process / "fd").iterdir())),
            threads=int(status["Threads"]),
            free_blocks=free_blocks,
        )

    async def check_counters(self):
        metrics = await self.metrics()
        total = totals(metrics)
        equal = [
            ("vllm:num_requests_running", 0),
            ("vllm:num_requests_waiting", 0),
            ("vllm:kv_cache_usage_perc", 0),
            ("winnow:failed_steps_total", 0),
            ("vllm:corrupted_requests_total", 0),
            ("winnow:engine_healthy", 1),
            ("winnow:requests_ended_total", "winnow:requests_submitted_total"),
            ("vllm:e2e_request_latency_seconds_count", "winnow:requests_submitted_total"),
            ("vllm:request_success_total", "vllm:request_params_n_sum"),
            ("vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_total"),
            ("vllm:generation_tokens_total", "vllm:request_generation_tokens_sum"),
        ]
        for name, other in equal:
            wanted = total[other] if isinstance(other, str) else other
            self.expect(total[name] == wanted, f"{name} is {total[name]}, {other} is {wanted}")
        counted = collections.Counter()
        for labels, value in metrics["http_requests_total"]:
            counted[labels["handler"], labels["status"]] += value
        for key, seen in self.statuses.items():
            self.expect(counted[key] >= seen, f"{key}: {seen} seen, {counted[key]} counted")
        refused = total["vllm:admission_rejections_total"]
        seen = sum(n for (_, status), n in self.statuses.items() if status == "503")
        self.expect(refused >= seen, f"{seen} refusals seen, {refused} counted")
        return total


def totals(metrics):
    """Sums over the series of each name; 0 for a name that is not there."""
    return collections.Counter(
        {name: sum(value for _, value in series) for name, series in metrics.items()}
    )


async def fill(soak):
    """Writes every KV block at least once, in steps as large as the server makes them."""
    config = (await soak.metrics())["vllm:cache_config_info"][0][0]
    num_tokens = int(config["num_gpu_blocks"]) * int(config["block_size"])
    while totals(await soak.metrics())["vllm:prompt_tokens_total"] < 1.5 * num_tokens:
        replies = await asyncio.gather(*(good.long_prompt(soak) for _ in range(MAX_QUEUED // 2)))
        if "answered" not in replies:
            raise SystemExit(f"the pool cannot be filled: {replies}")


async def run(server, model, *, seconds, phases, clients, tolerance, seed, is_filled=True):
    """Returns the Soak, its idle states and the last counters; faults are in the Soak."""
    host, port = server.url.removeprefix("http://").split(":")
    soak = Soak(server, (host, int(port)), model, random.Random(seed))
    await good.reference(soak)
    start = await soak.idle()
    soak.idle_files = start.files + 1  # the connection that asks
    print(f"seed {seed}\nstart: {start}", flush=True)
    if is_filled:
        await fill(soak)
        print(f"filled: {await soak.idle()}", flush=True)
    states = []
    for number in range(phases):
        await soak.phase(seconds / phases, clients)
        await soak.idle()
        await good.reference(soak)
        states.append(await soak.idle())
        await soak.check_counters()
        print(
            f"phase {number + 1}: {states[-1]}, {soak.outcomes.total()} clients so far, "
            f"{len(soak.faults)} faults",
            flush=True,
        )
    warm, last = states[0], states[-1]
    for state in states:
        soak.expect(state.free_blocks == start.free_blocks, f"blocks are lost: {state}")
        soak.expect(state.files <= start.files + 1, f"files are left open: {state}")
    growth = last.rss_kb / warm.rss_kb - 1
    print(f"memory since the first phase: {100 * growth:+.2f} %")
    soak.expect(growth <= tolerance, f"memory grew by {100 * growth:.2f} %: {warm}, then {last}")
    return soak, states, await soak.check_counters()


def report(soak, total):
    for (kind, outcome), count in sorted(soak.outcomes.items()):
        print(f"  {kind:22} {outcome:20} {count:6}   at most {soak.longest[kind]:.1f} s")
    names = [
        *("winnow:requests_submitted_total", "winnow:requests_ended_total"),
        *("vllm:request_success_total", "vllm:admission_rejections_total"),
        *("vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total"),
        *("vllm:generation_tokens_total", "vllm:num_preemptions_total", "winnow:steps_total"),
    ]
    print(json.dumps({name: total[name] for name in names}, indent=1))
    print(f"{soak.outcomes.total()} clients, {len(soak.faults)} faults")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--phases", type=int, default=6)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--tolerance", type=float, default=0.01, help="growth of memory, a share")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--flag", action="append", default=[], help="one more word for the server")
    args = parser.parse_args()
    server = Server(args.model, *FLAGS, *args.flag)
    try:
        soak, _, total = asyncio.run(
            run(
                server,
                Path(args.model).name,
                seconds=60 * args.minutes,
                phases=args.phases,
                clients=args.clients,
                tolerance=args.tolerance,
                seed=args.seed,
            )
        )
        report(soak, total)
    finally:
        code = server.stop()
        print(f"the server's exit code: {code}")
        log = [line for line in server.lines if "error" in line or "critical" in line]
        print(f"{len(log)} errors in its log", *log[:10])
    sys.exit(1 if soak.faults or code != 0 else 0)


if __name__ == "__main__":
    main()
