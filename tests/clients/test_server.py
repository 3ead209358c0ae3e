"""What the server does under load, on disconnects, at its end, and with hostile bytes."""

import concurrent.futures
import json
import signal
import socket
import subprocess
import threading
import time
import urllib.parse

import httpx
import openai
import pytest
from live_server import BIN

MESSAGES = [{"role": "user", "content": "Say something."}]
LONG = {"messages": MESSAGES, "max_tokens": 3500, "ignore_eos": True}


def address(server):
    parts = urllib.parse.urlsplit(server.url)
    return parts.hostname, parts.port


def raw(server, data, timeout=30):
    """Sends bytes, returns all that comes back until the server closes or stays silent."""
    with socket.create_connection(address(server), timeout=timeout) as connection:
        connection.sendall(data)
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
                if b"\r\n\r\n" in received and timeout < 5:
                    break
        except (TimeoutError, ConnectionResetError):
            pass
        return received


def request_bytes(body):
    data = json.dumps(body).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(data)
    ) + data


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_frees_blocks(server, stream):
    server.wait_metric("vllm:num_requests_running", 0)
    aborted = server.metric("vllm:request_success_total", finished_reason="abort")
    connection = socket.create_connection(address(server))
    connection.sendall(request_bytes({**LONG, "stream": stream}))
    server.wait_metric("vllm:num_requests_running", 1)
    assert server.metric("vllm:kv_cache_usage_perc") > 0
    connection.close()
    server.wait_metric("vllm:num_requests_running", 0)
    server.wait_metric("vllm:kv_cache_usage_perc", 0)
    assert server.metric("vllm:request_success_total", finished_reason="abort") == aborted + 1
    assert server.get("/load").json() == {"server_load": 0}


def test_closing_the_client_stream_cancels(server):
    stream = server.client().chat.completions.create(
        model="test-model",
        messages=MESSAGES,
        max_tokens=3500,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    server.wait_metric("vllm:num_requests_running", 0)


def test_full_queue_is_503_with_retry_after(start):
    server = start(
        "--max-num-seqs", "1", "--max-num-queued-reqs", "1", "--kv-cache-memory-bytes", "64M"
    )
    connections = []
    try:
        for waiting in (0, 1):
            connection = socket.create_connection(address(server))
            connection.sendall(request_bytes(LONG))
            connections.append(connection)
            server.wait_metric("vllm:num_requests_running", 1)
            server.wait_metric("vllm:num_requests_waiting", waiting)
        refused = server.post("/v1/chat/completions", LONG)
        assert refused.status_code == 503 and refused.headers["Retry-After"] == "1"
        with pytest.raises(openai.InternalServerError):
            server.client().chat.completions.create(model="test-model", messages=MESSAGES)
        assert server.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") == 2
    finally:
        for connection in connections:
            connection.close()
    server.wait_metric("vllm:num_requests_running", 0)
    server.wait_metric("vllm:num_requests_waiting", 0)
    assert (
        server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}).status_code
        == 200
    )


def test_many_clients(server):
    def ask(i):
        return server.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": f"client {i}"}], "max_tokens": 12, "seed": i},
        )

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, range(96)))
    assert {answer.status_code for answer in answers} == {200}


def test_sigterm_lets_running_requests_finish(start):
    server = start("--shutdown-timeout", "100")
    results = []

    def ask():
        with httpx.stream(
            "POST",
            server.url + "/v1/chat/completions",
            timeout=60,
            json={**LONG, "max_tokens": 2500, "stream": True},
        ) as response:
            results.append("".join(response.iter_text()))

    thread = threading.Thread(target=ask)
    thread.start()
    server.wait_metric("vllm:num_requests_running", 1)
    server.terminate()
    time.sleep(0.1)
    if server.process.poll() is None:
        try:  # unless the answer was quicker than this
            assert server.get("/health").status_code == 503
            assert server.post("/v1/chat/completions", LONG).status_code == 503
        except httpx.ConnectError:
            pass
    thread.join()
    assert results[0].endswith("data: [DONE]\n\n") and '"error"' not in results[0]
    assert '"finish_reason":"length"' in results[0]
    assert server.process.wait(20) == 0


def test_sigterm_cuts_off_after_the_timeout(start):
    server = start("--shutdown-timeout", "0")
    results = []

    def ask():
        with httpx.stream(
            "POST", server.url + "/v1/chat/completions", timeout=60, json={**LONG, "stream": True}
        ) as response:
            results.append("".join(response.iter_text()))

    thread = threading.Thread(target=ask)
    thread.start()
    server.wait_metric("vllm:num_requests_running", 1)
    server.terminate()
    thread.join()
    events = [line[6:] for line in results[0].split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]" and json.loads(events[-2])["error"]["code"] == 503
    assert server.process.wait(20) == 0


def test_second_signal_exits_at_once(start):
    server = start("--shutdown-timeout", "60")
    connection = socket.create_connection(address(server))
    connection.sendall(request_bytes(LONG))
    server.wait_metric("vllm:num_requests_running", 1)
    server.terminate()
    time.sleep(0.2)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(5) == 130
    connection.close()


def test_unix_socket(start, tmp_path):
    path = str(tmp_path / "winnow.sock")
    start("--uds", path)
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://t") as client:
        assert client.get("/health").json() == {"status": "ready"}
        answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
        assert answer.status_code == 200


def test_a_port_in_use_is_told_before_loading(start, model):
    server = start()
    port = str(address(server)[1])
    second = subprocess.run(
        [BIN / "winnow", "serve", model, "--port", port], capture_output=True, text=True, timeout=30
    )
    assert second.returncode == 1
    assert "another program uses it" in second.stderr


HOSTILE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200 + b"\r\n\r\n",
    b"\x00" * 1000 + b"\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: t\r\n\r\n",
    b"GET /%00 HTTP/1.1\r\nHost: t\r\n\r\n",
    b"\r\n\r\n\r\n\r\n",
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bytes(server, data):
    answer = raw(server, data, timeout=4)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:200]
    assert server.get("/health").status_code == 200


def test_slow_loris_and_half_open(start):
    server = start("--header-timeout", "0.5", "--idle-timeout", "1")
    slow = [socket.create_connection(address(server), timeout=20) for _ in range(50)]
    for connection in slow[:25]:
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
    assert server.get("/health").status_code == 200
    for connection in slow[:25]:
        assert connection.recv(4096).startswith(b"HTTP/1.1 408")
    for connection in slow[25:]:
        assert connection.recv(4096) == b""
    for connection in slow:
        connection.close()
    half = socket.create_connection(address(server), timeout=20)
    half.sendall(request_bytes(LONG))
    server.wait_metric("vllm:num_requests_running", 1)
    half.shutdown(socket.SHUT_WR)
    server.wait_metric("vllm:num_requests_running", 0)
    half.close()


BODIES = [
    b"",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"messages": "\xff"}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b"[" * 1_000_000,
    b'{"a":' * 100_000,
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    b'{"messages": [{"role": "user", "content": "x"}], "top_p": 1e999}',
    b'{"messages": [{"role": "user"}]' + b" " * 1000,
    b'{"messages": [{"role": 5, "content": {}}]}',
    b'{"messages": {"role": "user"}}',
    b'{"messages": [5]}',
    b'{"messages": [{"role": "tool", "content": "x"}]}',
    b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}',
]


@pytest.mark.parametrize("data", BODIES, ids=range(len(BODIES)))
def test_bad_bodies_are_400(server, data):
    answer = httpx.post(
        server.url + "/v1/chat/completions",
        content=data,
        timeout=30,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"] and error["code"] == 400
    assert server.get("/health").status_code == 200


def test_oversized_body_is_413(start):
    server = start("--max-body-bytes", "1M")
    answer = httpx.post(
        server.url + "/v1/chat/completions",
        content=b" " * 5_000_000,
        headers={"Content-Type": "application/json"},
        timeout=30,
    )
    assert answer.status_code == 413


def test_status_codes(server):
    assert server.get("/v1/chat/completions").status_code == 405
    assert server.get("/nothing").status_code == 404
    assert server.post("/v1/embeddings", {}).status_code == 404
    assert httpx.post(server.url + "/v1/completions", content=b"{}").status_code == 415
    assert server.get("/version").json()["version"]
    assert "<title>winnow</title>" in server.get("/").text


def test_counters_add_up(server):
    """I5: hits and computed tokens make up the prompt tokens; counters only rise."""
    server.wait_metric("vllm:num_requests_running", 0)
    prompt = server.metric("vllm:prompt_tokens_total")
    assert prompt == server.metric("vllm:prompt_tokens_by_source_total")
    assert server.metric("vllm:prompt_tokens_cached_total") == server.metric(
        "vllm:prompt_tokens_by_source_total", source="local_cache_hit"
    )
    before = server.metric("vllm:generation_tokens_total")
    answer = server.post(
        "/v1/completions", {"prompt": "count", "max_tokens": 9, "ignore_eos": True}
    ).json()
    assert answer["usage"]["completion_tokens"] == 9
    assert server.metric("vllm:generation_tokens_total") == before + 9
    assert server.metric("vllm:prompt_tokens_total") == prompt + 5


def test_cors(start):
    server = start("--allowed-origins", '["https://page.example"]')
    answer = server.get("/health", headers={"Origin": "https://page.example"})
    assert answer.headers["Access-Control-Allow-Origin"] == "https://page.example"
    other = server.get("/health", headers={"Origin": "https://other.example"})
    assert "Access-Control-Allow-Origin" not in other.headers
