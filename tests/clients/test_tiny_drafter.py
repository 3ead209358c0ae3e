"""The bundled model's drafter loads, drafts well on prompts it never saw, and changes no token.

The prompts are of the kinds that the model was trained on (train/draft_prompts.py, held-out
conversations and fresh numbers), as token ids with the temperature of 1 that the bar is stated for.
"""

import json
import re
import subprocess

import pytest
from live_server import BIN, ROOT

MODEL = ROOT / "models" / "winnow-tiny"
PROMPTS = ROOT / "tests" / "clients" / "heldout_prompts.jsonl"


def capture(tmp_path, prompts, **config):
    words = [BIN / "winnow", "capture", MODEL, "--prompts", prompts]
    words += ["--output", tmp_path / "texts.safetensors"]
    if config:
        words += ["--speculative-config", json.dumps(config | {"kv_cache_dtype": "fp8"})]
    done = subprocess.run(map(str, words), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = re.search(r"mean acceptance length ([\d.]+)", done.stdout)
    return float(found.group(1)) if found else 0, (tmp_path / "texts.safetensors").read_bytes()


@pytest.mark.parametrize(("method", "bar"), [("standard", 2.4), ("block", 2.5)])
def test_a_step_yields_enough(tmp_path, method, bar):
    """Tokens of a step, of at most 8; docs/tiny-model.md has the figures of more prompts."""
    length, _ = capture(
        tmp_path,
        PROMPTS,
        method="dspark",
        draft_sample_method="probabilistic",
        rejection_sample_method=method,
    )
    assert length >= bar


def test_coupled_drafts_change_no_token(tmp_path):
    _, plain = capture(tmp_path, PROMPTS)
    length, coupled = capture(
        tmp_path,
        PROMPTS,
        method="dspark",
        draft_sample_method="probabilistic",
        rejection_sample_method="coupled",
    )
    assert plain == coupled
    assert length > 2
