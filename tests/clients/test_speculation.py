"""Drafts as clients and operators see them."""

import json
import subprocess
import sys

from live_server import BIN, ROOT

COUPLED = {
    "method": "dspark",
    "kv_cache_dtype": "fp8",
    "rejection_sample_method": "coupled",
    "draft_sample_method": "probabilistic",
}


def config(**members):
    return ["--speculative-config", json.dumps({**COUPLED, **members})]


def test_a_reply_and_the_metrics_tell_of_drafts(start):
    server = start(*config(), "--per-request-spec-decode-metrics", "detailed")
    body = {"prompt": "abc", "max_tokens": 40, "seed": 1, "ignore_eos": True}
    reply = server.post("/v1/completions", body).json()
    drafts = reply["metrics"]["speculative_decoding"]
    assert drafts["num_spec_tokens"] == 7
    assert drafts["num_spec_steps"] == len(drafts["per_step_accepted"])
    accepted = drafts["num_accepted_draft_tokens"]
    assert sum(drafts["per_step_accepted"]) == accepted
    # The last token is not worth a draft.
    assert 1 + drafts["num_spec_steps"] + accepted in (39, 40)
    assert server.metric("vllm:spec_decode_num_drafts_total") == drafts["num_spec_steps"]
    by_position = server.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total")
    assert by_position == server.metric("vllm:spec_decode_num_accepted_tokens_total") == accepted
    two = server.post("/v1/completions", {**body, "n": 2}).json()
    assert "metrics" not in two


def test_synthetic_acceptance_needs_its_switch_and_is_stamped(model, start):
    wanted = config(rejection_sample_method="synthetic", synthetic_acceptance_length=3.2)
    refused = subprocess.run(
        [BIN / "winnow", "serve", model, *wanted], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 1 and "--benchmark-mode" in refused.stderr
    server = start(*wanted, "--benchmark-mode")
    body = {"prompt": "abc", "max_tokens": 161, "ignore_eos": True, "return_metrics": True}
    reply = server.post("/v1/completions", body).json()
    assert abs(reply["metrics"]["speculative_decoding"]["mean_acceptance_length"] - 3.2) < 0.3
    assert "synthetic" in reply["system_fingerprint"]
    assert server.get("/version").json()["synthetic_acceptance"] is True
    assert "meaningless" in server.log()


def test_answers_are_those_without_drafts(model):
    for temperature in ("0", "1"):
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / "compare_drafting.py", model]
            + ["--winnow", BIN / "winnow", "--num-prompts", "24", "--max-tokens", "24"]
            + ["--temperature", temperature],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_stops_logprobs_and_usage_are_those_without_drafts(start):
    plain, drafting = start(), start(*config())

    def answer(server, **members):
        body = {"max_tokens": 60, "logprobs": 2, "temperature": 1, **members}
        reply = server.post("/v1/completions", body).json()
        return [
            {key: choice[key] for key in ("text", "finish_reason", "stop_reason", "logprobs")}
            for choice in reply["choices"]
        ], reply["usage"]["completion_tokens"]

    reasons = set()
    for seed in range(12):
        members = {
            "prompt": "abc" * (seed + 1),
            "seed": seed,
            "n": 1 + seed % 3,
            "stop": ["a", "\u00e9", "zz"][: seed % 4],
            "min_tokens": seed,
            "presence_penalty": 0.5 * (seed % 2),
        }
        expected = answer(plain, **members)
        assert answer(drafting, **members) == expected, members
        reasons |= {choice["finish_reason"] for choice in expected[0]}
    assert reasons == {"stop", "length"}
    assert drafting.metric("vllm:spec_decode_num_accepted_tokens_total") > 0
