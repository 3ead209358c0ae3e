"""The server under many clients at once: signals, processes that are killed, senders and readers
that stall, and figures that no request may upset."""

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from test_server import LONG, MESSAGES, address, request_bytes

VICTIM = Path(__file__).with_name("victim.py")
ROUTES = {  # body of a long stream, and what its last event has in it when the server cuts it off
    "/v1/chat/completions": ({**LONG, "stream": True}, "data: [DONE]"),
    "/v1/completions": (
        {"prompt": "Hi", "max_tokens": 3500, "ignore_eos": True, "stream": True},
        "data: [DONE]",
    ),
    "/v1/messages": (
        {"model": "test-model", "messages": MESSAGES, "max_tokens": 3500, "stream": True},
        "event: error",
    ),
    "/v1/responses": (
        {"input": "Hi", "max_output_tokens": 3500, "stream": True},
        "event: response.failed",
    ),
}

FINISHED = ('"finish_reason":"', "message_stop", "response.completed", "response.incomplete")


def read_stream(server, path, body):
    """The stream's whole text; raises when it does not end in order."""
    with httpx.stream("POST", server.url + path, json=body, timeout=60) as response:
        assert response.status_code == 200
        return "".join(response.iter_text())


def in_crowd(server, jobs):
    """Starts them all; returns their futures once all streams run or wait."""
    pool = concurrent.futures.ThreadPoolExecutor(len(jobs))
    futures = [pool.submit(read_stream, server, *job) for job in jobs]
    server.wait_metric("winnow:requests_submitted_total", len(jobs))
    return futures


def test_sigterm_under_load_ends_every_stream(start):
    """Running ones and queued ones, of every route: cut off with that route's own last words."""
    server = start("--shutdown-timeout", "0.5", "--max-num-seqs", "4")
    jobs = [(path, body) for path, (body, _) in ROUTES.items() for _ in range(6)]
    futures = in_crowd(server, jobs)
    server.terminate()
    for (path, _), future in zip(jobs, futures, strict=True):
        text = future.result(60)  # a body that is cut off raises
        assert any(ending in text for ending in (ROUTES[path][1], *FINISHED)), (path, text[-300:])
        assert text.endswith("\n\n"), (path, text[-300:])
    assert server.process.wait(20) == 0, server.log()


def test_sigterm_under_load_lets_streams_finish(start):
    server = start("--shutdown-timeout", "50", "--max-num-seqs", "4")
    body = {**LONG, "max_tokens": 100, "stream": True}
    futures = in_crowd(server, [("/v1/chat/completions", body)] * 16)
    server.terminate()
    for future in futures:
        text = future.result(60)
        assert text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in text, text[-300:]
    assert server.process.wait(20) == 0, server.log()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_under_load(start, second):
    server = start("--shutdown-timeout", "60", "--max-num-seqs", "4")
    connections = [socket.create_connection(address(server)) for _ in range(12)]
    for connection in connections:
        connection.sendall(request_bytes({**LONG, "stream": True}))
    server.wait_metric("winnow:requests_submitted_total", len(connections))
    server.terminate()
    time.sleep(0.2)
    server.process.send_signal(second)
    assert server.process.wait(5) == 130
    for connection in connections:
        connection.close()


def test_killed_client_processes_leave_no_blocks(start):
    server = start("--max-num-seqs", "8", "--kv-cache-memory-bytes", "64M")
    free = server.metric("winnow:kv_blocks_free")
    host, port = address(server)
    data = request_bytes({**LONG, "stream": True, "n": 2}).hex()
    victims = [
        subprocess.Popen(
            [sys.executable, "-S", VICTIM, host, str(port), data, "6"], stdout=subprocess.PIPE
        )
        for _ in range(3)
    ]
    for victim in victims:
        assert victim.stdout.readline() == b"open\n"
    server.wait_metric("winnow:requests_submitted_total", 18)
    end = time.monotonic() + 20
    while server.metric("winnow:kv_blocks_free") == free and time.monotonic() < end:
        time.sleep(0.02)
    assert server.metric("winnow:kv_blocks_free") < free
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    for victim in victims:
        victim.wait()
        victim.stdout.close()
    server.wait_metric("winnow:requests_ended_total", 18)
    server.wait_metric("winnow:kv_blocks_free", free)
    assert server.metric("vllm:num_requests_waiting") == 0
    assert server.get("/load").json() == {"server_load": 0}
    finished = server.metric("vllm:request_success_total")
    assert finished == server.metric("vllm:request_params_n_sum") == 36


def test_slow_bodies_end_with_408(start):
    """A body that stops coming, and one that drips: the whole has a time limit too."""
    server = start("--body-timeout", "0.2")
    head = request_bytes({"x": "y" * 1000})[:-900]
    with socket.create_connection(address(server), timeout=20) as stalled:
        stalled.sendall(head)
        assert stalled.recv(4096).startswith(b"HTTP/1.1 408")
    with socket.create_connection(address(server), timeout=20) as dripping:
        dripping.sendall(head)
        dripping.settimeout(0.05)
        answer = b""
        end = time.monotonic() + 20
        while not answer and time.monotonic() < end:
            try:
                answer = dripping.recv(4096)
            except TimeoutError:
                dripping.sendall(b"y")
        assert answer.startswith(b"HTTP/1.1 408"), answer


def test_a_client_that_does_not_read_is_given_up(start):
    server = start("--write-timeout", "1")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect(address(server))
    body = {**LONG, "n": 8, "stream": True, "logprobs": True, "top_logprobs": 20}
    connection.sendall(request_bytes(body))
    server.wait_metric("winnow:requests_ended_total", 1, seconds=90)
    assert server.metric("vllm:request_success_total", finished_reason="abort") > 0
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    connection.close()


def test_a_request_may_limit_its_time(start):
    """What still waits is refused, what runs is cut off."""
    server = start("--max-num-seqs", "1")
    chat = "/v1/chat/completions"
    with httpx.stream("POST", server.url + chat, json={**LONG, "stream": True}, timeout=60) as one:
        lines = one.iter_lines()  # the request ends with whoever reads it
        next(lines)
        late = server.post(chat, {"messages": MESSAGES, "max_tokens": 2, "timeout_ms": 1})
        assert late.status_code == 503, late.text
    server.wait_metric("vllm:num_requests_running", 0)
    running = server.post(chat, {**LONG, "n": 8}, headers={"X-Request-Timeout-Ms": "1000"})
    if running.status_code == 200:  # else the machine was too busy to begin it
        assert running.json()["choices"][-1]["finish_reason"] == "abort"
    else:
        assert running.status_code == 503, running.text
    server.wait_metric("vllm:kv_cache_usage_perc", 0)


FLOATS = {
    "/v1/messages": ({"model": "test-model", "messages": MESSAGES}, ["temperature", "top_p"]),
    "/v1/responses": ({"input": "Hi"}, ["temperature", "top_p"]),
    "/v1/completions": ({"prompt": "Hi"}, ["temperature", "top_p", "min_p", "presence_penalty"]),
}


@pytest.mark.parametrize("path", FLOATS)
def test_numbers_that_are_none(server, path):
    """I2 on every route: the field is named and nothing is queued."""
    body, fields = FLOATS[path]
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    submitted = server.metric("winnow:requests_submitted_total")
    for field in fields:
        for value in ("NaN", "Infinity", "-Infinity", "1e999", '"nan"', "true", "[]", "{}"):
            text = json.dumps({**body, limit: 3, field: "VALUE"}).replace('"VALUE"', value)
            headers = {"Content-Type": "application/json"}
            answer = httpx.post(server.url + path, content=text, headers=headers, timeout=30)
            assert answer.status_code == 400, (text, answer.text)
            assert field in answer.text, (text, answer.text)
    assert server.metric("winnow:requests_submitted_total") == submitted


def test_nothing_to_do(server):
    """I1 on the agents' routes."""
    for path, body in [
        ("/v1/responses", {"input": []}),
        ("/v1/responses", {}),
        ("/v1/messages", {"model": "test-model", "max_tokens": 3, "messages": []}),
        ("/v1/messages", {"model": "test-model", "messages": MESSAGES, "max_tokens": 0}),
    ]:
        answer = server.post(path, body)
        assert answer.status_code == 400 and answer.json()["error"]["message"], (body, answer.text)
    assert server.get("/health").status_code == 200
