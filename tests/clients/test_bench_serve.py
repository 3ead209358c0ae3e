"""`winnow bench serve` against live servers."""

import json
import os
import re
import subprocess

import pytest
from live_server import BIN, ROOT

KEYS = (
    "duration completed failed total_input_tokens total_output_tokens request_throughput "
    "output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests "
    "mean_ttft_ms median_ttft_ms std_ttft_ms p50_ttft_ms p90_ttft_ms p99_ttft_ms mean_tpot_ms "
    "p99_itl_ms p90_e2el_ms request_rate burstiness max_concurrency num_prompts model_id"
).split()


def bench(server, *flags, code=0, env=None):
    done = subprocess.run(
        [BIN / "winnow", "bench", "serve", "--base-url", server.url, *flags],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_made_prompts_on_the_bundled_model(tiny, tmp_path, backend):
    result = tmp_path / "result.json"
    text = bench(
        tiny,
        *("--backend", backend, "--num-prompts", "12", "--max-concurrency", "4"),
        *("--random-input-len", "60", "--random-output-len", "9", "--random-prefix-len", "40"),
        *("--ignore-eos", "--output-json", result, "--goodput", "e2el:600000"),
        *("--tokenizer", ROOT / "models" / "winnow-tiny"),
    )
    values = json.loads(result.read_text())
    assert not set(KEYS) - set(values)
    assert values["completed"] == 12 and values["failed"] == 0
    assert values["total_output_tokens"] == 12 * 9
    assert values["max_concurrent_requests"] == 4
    assert values["request_goodput"] == pytest.approx(values["request_throughput"])
    extra = values["total_input_tokens"] - 12 * 100
    assert extra == 0 if backend == "openai" else extra > 0  # the chat template's own tokens
    assert 0 < values["p50_ttft_ms"] <= values["p99_ttft_ms"] <= values["p99_e2el_ms"]
    rows = dict(re.findall(r"^(.+?):\s+(\S+)\s*$", text, re.MULTILINE))
    assert rows["Successful requests"] == "12"
    assert rows["P99 E2EL (ms)"] == f"{values['p99_e2el_ms']:.2f}"


def test_conversations_from_a_file_at_a_rate(tiny, tmp_path):
    turns = [{"from": "human", "value": "Where does the river begin?"}]
    turns.append({"from": "gpt", "value": "In the mountains, far to the north."})
    (tmp_path / "sharegpt.json").write_text(json.dumps([{"conversations": turns}, {"odd": 1}]))
    bench(
        tiny,
        *("--dataset-name", "sharegpt", "--dataset-path", tmp_path / "sharegpt.json"),
        *("--num-prompts", "6", "--request-rate", "20", "--burstiness", "0.5"),
        *("--endpoint", "/v1/chat/completions", "--sharegpt-output-len", "5"),
        *("--save-result", "--save-detailed", "--result-dir", tmp_path / "results"),
    )
    (file,) = (tmp_path / "results").iterdir()
    values = json.loads(file.read_text())
    assert values["endpoint_type"] == "openai-chat" and values["request_rate"] == 20
    assert len(values["ttfts"]) == len(values["generated_texts"]) == 6
    assert values["start_times"] == sorted(values["start_times"])


def test_a_key_is_sent(start, tmp_path):
    server = start("--api-key", "secret")
    flags = ("--num-prompts", "2", "--random-input-len", "4", "--random-output-len", "2")
    assert "HTTP 401" in bench(server, *flags, code=1)
    bench(server, *flags, env={"OPENAI_API_KEY": "secret"})
    bench(server, *flags, "--api-key", "secret")


@pytest.mark.parametrize(
    "flags",
    [
        ("--request-rate", "0"),
        ("--request-rate", "nan"),
        ("--num-prompts", "0"),
        ("--burstiness", "0"),
        ("--metric-percentiles", "101"),
        ("--percentile-metrics", "speed"),
        ("--goodput", "ttft"),
        ("--goodput", "itl:5"),
        ("--header", "X-A"),
        ("--api-key", "a\r\nX: b"),
        ("--extra-body", "[1]"),
        ("--dataset-name", "sharegpt"),
        ("--random-range-ratio", "1"),
        ("--port", "70000"),
        ("--endpoint", "chat"),
    ],
)
def test_flags_that_mean_nothing_are_refused(flags):
    done = subprocess.run(
        [BIN / "winnow", "bench", "serve", *flags], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stdout + done.stderr
