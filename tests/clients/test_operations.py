"""What who runs the server sees of it: logs, times, settings, what would fit, service managers."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest
from live_server import BIN, ROOT

MESSAGES = [{"role": "user", "content": "Say something."}]
BODY = {"messages": MESSAGES, "max_tokens": 8, "ignore_eos": True}
TRACE = "0af7651916cd43dd8448eb211c80319c"


def request_lines(server):
    return [entry for entry in map(json.loads, server.lines) if entry["message"] == "request"]


def test_json_logs_tell_each_request(start):
    server = start("--log-format", "json")
    hostile = {
        "X-Request-Id": 'abc","level":"error',
        "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
    }
    answer = server.post("/v1/chat/completions", BODY, headers=hostile)
    assert answer.headers["X-Request-Id"] == "abclevel:error"
    assert answer.json()["id"] == "chatcmpl-abclevel:error"
    server.post("/v1/chat/completions", {**BODY, "stream": True})
    server.get("/nowhere%1e%0a")
    server.get("/health")  # a probe: no line
    assert server.stop() == 0
    entries = [json.loads(line) for line in server.lines]  # every line is JSON
    for entry in entries:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"])
        assert entry["level"] in ("info", "warning")
    first, second, third = request_lines(server)
    assert first["request_id"] == "abclevel:error" and first["trace_id"] == TRACE
    assert (first["method"], first["status"], first["finish_reason"]) == ("POST", 200, "length")
    assert first["output_tokens"] == 8 and first["prompt_tokens"] > 8
    assert first["queue_ms"] + first["prefill_ms"] == pytest.approx(first["ttft_ms"], abs=0.01)
    assert first["ttft_ms"] + first["decode_ms"] <= first["duration_ms"]
    assert re.fullmatch(r"[0-9a-f]{32}", second["request_id"])
    assert second["bytes"] > 500
    assert third["status"] == 404 and "\n" not in third["path"]
    ready = next(entry for entry in entries if entry["message"] == "ready")
    assert ready["url"] == server.url and ready["kv_cache_tokens"] > 0


def test_fields_that_nobody_defines_are_told_once(start):
    """I4: tolerated, and the log tells; a name from outside cannot begin a line of its own."""
    server = start()
    for _ in range(2):
        body = {**BODY, "max_tokns": 5, "a\n[error] b": 1}
        assert server.post("/v1/chat/completions", body).status_code == 200
    assert server.stop() == 0
    assert server.log().count("unknown field 'max_tokns' is ignored") == 1
    assert not any(line.startswith("[error]") for line in server.lines)
    assert any("[error] b" in line and "unknown field" in line for line in server.lines)


def test_text_logs_have_the_same_facts(start):
    server = start()
    server.post("/v1/chat/completions", BODY, headers={"X-Request-Id": "r-1"})
    with pytest.raises(Exception, match="timed out"):
        server.client().with_options(timeout=0.2).chat.completions.create(
            model="test-model", messages=MESSAGES, max_tokens=3500, extra_body={"ignore_eos": True}
        )
    server.wait_metric("vllm:num_requests_running", 0)
    assert server.stop() == 0
    done, gone = (line for line in server.lines if " info request " in line)
    assert "request_id=r-1 method=POST path=/v1/chat/completions status=200" in done
    assert re.search(r"finish_reason=length .*ttft_ms=[\d.]+ decode_ms=[\d.]+$", done.strip())
    assert "status=499" in gone and "finish_reason=abort" in gone


def test_one_precedence_of_settings(start, model, tmp_path):
    config = tmp_path / "serve.yaml"
    config.write_text("max-num-seqs: 5\nmax-model-len: 2048\nserved-model-name: [from-file]\n")
    env = {
        "WINNOW_CONFIG": str(config),
        "WINNOW_MAX_NUM_SEQS": "6",
        "WINNOW_KV_CACHE_MEMORY_BYTES": "8M",
        "WINNOW_SPELT_WRONG": "1",
    }
    server = start("--max-model-len", "1024", env=env)
    log = server.log()
    assert "1,024 tokens a sequence" in log  # the command line
    assert "5 sequences" in log  # the file
    assert server.get("/v1/models").json()["data"][0]["id"] == "from-file"
    assert re.search(r"pool +(7\.\d\d|8\.\d\d|[78]\.\d) MB", log)  # the environment
    assert "WINNOW_SPELT_WRONG names no flag" in log


def serve(model, *flags):
    return subprocess.run(
        [BIN / "winnow", "serve", str(model), "--port", "0", *flags],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_what_does_not_fit_says_what_would(start, model):
    small = ["--kv-cache-memory-bytes", "256K"]
    failed = serve(model, *small)
    assert failed.returncode == 1
    assert "what would fit, each by itself:" in failed.stderr
    advice = [line.split() for line in failed.stderr.split("itself:")[1].strip().splitlines()]
    assert len(advice) >= 2, failed.stderr
    for line in advice:  # each works as it is printed
        flags = [] if "--kv-cache-memory-bytes" in line else small
        assert start(*flags, *line).get("/health").status_code == 200


def test_the_service_manager_is_told(model, start, tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(30)
        server = start(env={"NOTIFY_SOCKET": path})
        states = [manager.recv(4096).decode()]
        while "READY=1" not in states[-1]:
            states.append(manager.recv(4096).decode())
        assert states[0].startswith("STATUS=loading")
        assert server.stop() == 0
        assert manager.recv(4096).decode().startswith("STOPPING=1")


def test_the_unit_is_one(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = (ROOT / "packaging" / "winnow.service").read_text()
    copy = tmp_path / "winnow.service"
    copy.write_text(unit.replace("/usr/local/bin/winnow", sys.executable))
    result = subprocess.run([analyze, "verify", copy], capture_output=True, text=True)
    assert result.returncode == 0 and "winnow" not in result.stderr, result.stderr
    # And the flags in it are flags.
    assert "--config /etc/winnow/serve.yaml --log-format json" in unit
    assert "--api-key-file ${CREDENTIALS_DIRECTORY}/api-keys" in unit


def test_the_health_check_of_the_image(server):
    dockerfile = (ROOT / "packaging" / "Dockerfile").read_text()
    check = json.loads(re.search(r"HEALTHCHECK [^\[]*CMD (\[.*\])\n", dockerfile)[1])

    def asked(port):
        return subprocess.run(check, env={**os.environ, "WINNOW_PORT": port}, capture_output=True)

    assert asked(server.url.rsplit(":", 1)[1]).returncode == 0
    with socket.socket() as nobody:  # bound, and nobody listens
        nobody.bind(("127.0.0.1", 0))
        assert asked(str(nobody.getsockname()[1])).returncode != 0


def test_the_example_settings_are_flags(model, start):
    lines = (ROOT / "packaging" / "serve.yaml").read_text().splitlines()
    given = [line.removeprefix("# ") for line in lines if re.match(r"(# )?[a-z-]+: \S", line)]
    assert len(given) >= 6
    config = model.parent / "example.yaml"
    config.write_text("\n".join(line for line in given if "max-model-len" not in line))
    assert start("--config", str(config), "--port", "0").get("/health").json() == {
        "status": "ready"
    }
