"""The soak in short: the same clients and checks, with less time to get warm."""

import asyncio
import os
import random
import resource

import soak
import streams
from live_server import ROOT, Server


def test_mixed_clients_leave_nothing_behind():
    server = Server(ROOT / "models" / "winnow-tiny", *soak.FLAGS)
    try:
        seed = int(os.environ.get("WINNOW_TEST_SEED", random.SystemRandom().randrange(2**32)))
        done, _, _ = asyncio.run(
            soak.run(
                server,
                "winnow-tiny",
                seconds=24,
                phases=2,
                clients=16,
                is_filled=False,  # takes longer than all the rest
                tolerance=1.0,  # so most of the KV pool is written to for the first time
                seed=seed,
            )
        )
        assert not done.faults, "\n".join([f"WINNOW_TEST_SEED={seed}", *done.faults, server.log()])
    finally:
        assert server.stop() == 0, server.log()


def test_more_streams_than_the_usual_file_limit():
    """Beyond --max-num-seqs they wait, beyond the queue they are told when to come again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))  # the server raises its own
    try:
        server = Server(
            ROOT / "models" / "winnow-tiny",
            *("--disable-access-log", "--max-num-seqs", "64", "--max-num-queued-reqs", "256"),
            *("--kv-cache-memory-bytes", "96M"),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        crowd = streams.measure(server, 400, 3)
        refused = crowd.outcomes.pop("503 with Retry-After", 0)
        assert crowd.outcomes == {"finished": 400 - refused}, server.log()
        assert crowd.outcomes["finished"] >= 256
        assert server.metric("vllm:admission_rejections_total") == refused
        assert server.metric("vllm:kv_cache_usage_perc") == 0
    finally:
        assert server.stop() == 0, server.log()
