"""Thousands of open streams at once: do all end, how long do they wait, what does it cost?

python tests/soak/streams.py models/winnow-tiny --streams 2000 --tokens 16
"""

import argparse
import asyncio
import collections
import json
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))

from live_server import Server  # noqa: E402
from wire import Connection, post_bytes  # noqa: E402

PATH = "/v1/completions"


class Crowd:
    """All connect first, then all ask at once."""

    def __init__(self, address, tokens):
        self.address, self.tokens = address, tokens
        self.num_open = self.peak_open = 0
        self.outcomes = collections.Counter()
        self.first_tokens, self.ends = [], []  # seconds after the question, of finished streams

    async def run(self, num_streams):
        connections = []
        for begin in range(0, num_streams, 100):  # a listen queue is no place for thousands
            some = range(begin, min(begin + 100, num_streams))
            connections += await asyncio.gather(*(Connection.open(self.address) for _ in some))
        await asyncio.gather(*(self.stream(i, one) for i, one in enumerate(connections)))

    async def stream(self, number, connection):
        body = {
            "prompt": f"Count from {number}:",
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "stream": True,
        }
        start = time.monotonic()
        first = None
        received = b""
        try:
            await connection.send(post_bytes(PATH, json.dumps(body).encode()))
            reply = await connection.read_head()
            if reply.status == 200:
                self.num_open += 1
                self.peak_open = max(self.peak_open, self.num_open)
            async for piece in connection.pieces():
                received += piece
                if first is None and b"data: " in received:
                    first = time.monotonic() - start
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self.outcomes[type(error).__name__] += 1
            return
        finally:
            await connection.close()
        if reply.status != 200:
            waits = "with" if "retry-after" in reply.headers else "without"
            self.outcomes[f"{reply.status} {waits} Retry-After"] += 1
            return
        self.num_open -= 1
        is_whole = (
            received.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in received
        )
        self.outcomes["finished" if is_whole else "broken off"] += 1
        if is_whole:
            self.first_tokens.append(first)
            self.ends.append(time.monotonic() - start)


def percentiles(values):
    if len(values) < 2:
        return "none"
    cuts = statistics.quantiles(values, n=100)
    return (
        ", ".join(f"p{p} {cuts[p - 1]:.2f} s" for p in (50, 90, 99)) + f", max {max(values):.2f} s"
    )


def rss_mib(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return {
        name: int(status.split(name + ":")[1].split()[0]) // 1024 for name in ("VmRSS", "VmHWM")
    }


def measure(server, num_streams, tokens):
    """Returns the Crowd after all its streams have ended, and prints what it saw."""
    host, port = server.url.removeprefix("http://").split(":")
    before = rss_mib(server.process)["VmRSS"]
    crowd = Crowd((host, int(port)), tokens)
    start = time.monotonic()
    asyncio.run(crowd.run(num_streams))
    seconds = time.monotonic() - start
    memory = rss_mib(server.process)
    print(f"{num_streams} streams of {tokens} tokens in {seconds:.1f} s: {dict(crowd.outcomes)}")
    print(f"open at once: {crowd.peak_open}")
    print(f"first token: {percentiles(crowd.first_tokens)}")
    print(f"end: {percentiles(crowd.ends)}")
    print(
        f"server: RSS {before} MiB before, at most {memory['VmHWM']} MiB, {memory['VmRSS']} after"
    )
    return crowd


def allow_files(count):
    """For this process; a child gets the usual soft limit back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--flag", action="append", default=[], help="one more word for the server")
    args = parser.parse_args()
    server = Server(args.model, "--disable-access-log", *args.flag)
    allow_files(args.streams + 64)
    try:
        measure(server, args.streams, args.tokens)
        server.wait_metric(
            "winnow:requests_ended_total", server.metric("winnow:requests_submitted_total")
        )
        print("blocks in use:", server.metric("vllm:kv_cache_usage_perc"))
        refused = server.metric("vllm:admission_rejections_total")
        print(f"refused: {refused:.0f}")
    finally:
        code = server.stop()
    sys.exit(code)


if __name__ == "__main__":
    main()
