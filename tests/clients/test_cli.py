"""The verbs of the program, run as a user runs them."""

import json
import subprocess

import pytest
from live_server import BIN

ANNOUNCED_RANKS = ["-tp", "4"]
ANNOUNCED = [
    "--reasoning-parser", "minimax_m3", "--block-size", "128",
    "--kv-cache-dtype", "nvfp4",
    "--attention-config", '{"indexer_kv_dtype": "nvfp4", "indexer_decode_cp": true}',
    "--quantization-config.moe", "mxfp8",
    "--speculative-config",
    '{"method":"dspark","num_speculative_tokens":7,"attention_backend":"FLASHINFER_TS",'
    '"kv_cache_dtype":"fp8","draft_sample_method":"probabilistic"}',
    "--disable-hybrid-kv-cache-manager",
]  # fmt: skip


def winnow(*words, stdin=None):
    return subprocess.run(
        [BIN / "winnow", *map(str, words)], input=stdin, capture_output=True, text=True, timeout=120
    )


def test_help_and_version():
    assert winnow("--version").stdout.startswith("winnow ")
    assert "serve" in winnow("--help").stdout
    for verb in ("serve", "chat", "generate", "inspect", "quantize", "check", "capture"):
        done = winnow(verb, "--help")
        assert done.returncode == 0 and "MODEL" in done.stdout.upper() or "IN" in done.stdout


def test_the_announced_command_line_serves(start):
    server = start(*ANNOUNCED)
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 2}).status_code == 200
    log = server.log()
    for flag in (
        "--speculative-config",
        "--quantization-config.moe",
        "--disable-hybrid-kv-cache-manager",
    ):
        assert log.count(flag) == 1, (flag, log)
    assert "GPU KV cache size: " in log
    assert "drafter      up to 7 drafts a step" in log


def test_the_announced_ranks_are_refused_in_one_line_where_there_is_one_device(model):
    done = winnow("serve", model, *ANNOUNCED_RANKS, *ANNOUNCED)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "--tensor-parallel-size 4: needs 4 devices" in done.stderr and len(last) < 400


def test_the_announced_model_name_says_how_to_get_it():
    done = winnow("serve", "MiniMaxAI/MiniMax-M3.1-Flash", *ANNOUNCED)
    assert done.returncode == 1 and "hf download MiniMaxAI/MiniMax-M3.1-Flash" in done.stderr


@pytest.mark.parametrize(
    "words, message",
    [
        (["serve"], "no model folder given"),
        (["serve", "x", "--max-modl-len", "5"], "did you mean --max-model-len"),
        (["serve", "x", "-c", "4096"], "did you mean --max-model-len"),
        (["serve", "x", "--kv-cache-dtype", "int3"], "is not one of auto, bf16"),
        (["serve", "x", "--kv-cache-dtype", "fp8_e5m2"], "fp8_e5m2"),
        (["serve", "x", "--attention-config", "{"], "is not a JSON object"),
        (["serve", "x", "--attention-config.nothing", "1"], "unknown member"),
        (["serve", "x", "--lora-modules", "a=b"], "needs --enable-lora"),
        (["serve", "x", "--enable-lora", "--max-lora-rank", "24"], "is not one of 1, 8, 16"),
        (["serve", "x", "--port", "http"], "is not an integer"),
        (["serve", "x", "--port"], "needs a value"),
        (["sreve", "x"], "did you mean serve"),
        (["bench", "speed"], "is not one of latency, throughput"),
    ],
)
def test_usage_errors_exit_with_2(words, message):
    done = winnow(*words)
    assert done.returncode == 2 and message in done.stderr, done.stderr


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--block-size", "64"], "128"),
        (["--max-model-len", "1M"], "max_position_embeddings 4096"),
        (["--kv-cache-memory-bytes", "1000"], "what would fit"),
        (["--device", "cuda"], "use --device cpu"),
        (["-tp", "4"], "--tensor-parallel-size 4: needs 4 devices"),
        (["-pp", "2"], "--pipeline-parallel-size 2: needs 2 devices"),
        (["--data-parallel-size", "2"], "--data-parallel-size 2: needs 2 devices"),
        (["--enable-sleep-mode"], "--enable-sleep-mode"),
        (["--enable-lora", "--lora-modules", "a=/nowhere"], "adapter 'a': lora_path: there is no"),
        (["--ssl-keyfile", "k"], "proxy"),
    ],
)
def test_what_cannot_work_exits_with_1(model, flags, message):
    done = winnow("serve", model, "--port", "0", *flags)
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()[-1]) < 400


def test_generate(model):
    done = winnow("generate", model, "-p", "Hello", "-n", "8", "--seed", "1", "--json")
    result = json.loads(done.stdout)
    assert done.returncode == 0 and result["completion_tokens"] <= 8
    piped = winnow("generate", model, "--max-tokens", "8", "--seed=1", "--json", stdin="Hello\n")
    assert json.loads(piped.stdout)["text"] == result["text"]
    raw = winnow("generate", model, "-p", "Hello", "--raw", "-n", "4", "--json")
    assert json.loads(raw.stdout)["prompt_tokens"] == 5


def test_generate_equals_the_server(model, client):
    done = winnow("generate", model, "-p", "Hello", "-n", "20", "--seed", "4", "--json")
    answer = client.chat.completions.create(
        model="test-model", messages=[{"role": "user", "content": "Hello"}], max_tokens=20, seed=4
    )
    assert json.loads(done.stdout)["text"] == answer.choices[0].message.content


def test_chat_keeps_history_and_resets(model):
    done = winnow(
        "chat",
        model,
        "-n",
        "5",
        "--temperature",
        "0",
        stdin="first\nsecond\n/reset\nfirst\n/nonsense\n/exit\n",
    )
    assert done.returncode == 0, done.stderr
    assert "unknown command /nonsense" in done.stdout


def test_bench(model, tmp_path):
    report = tmp_path / "report.json"
    done = winnow(
        "bench",
        "latency",
        model,
        "--input-len",
        "64",
        "--output-len",
        "8",
        "--num-iters",
        "2",
        "--output-json",
        report,
    )
    assert done.returncode == 0 and "time to first token" in done.stdout, done.stderr
    values = json.loads(report.read_text())
    assert values["output_tokens"] == 16 and values["ttft_seconds"]["mean"] > 0
    done = winnow(
        "bench",
        "throughput",
        model,
        "--input-len",
        "64",
        "--output-len",
        "8",
        "--num-prompts",
        "6",
        "--output-json",
        report,
    )
    values = json.loads(report.read_text())
    assert values["num_requests"] == 6 and values["output_tokens_per_second"] > 0
    assert values["peak_resident_bytes"] > 0


def header_of(path):
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def test_capture(model, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "temperature": 0}
    raw = {"prompt": [65, 66, 67], "max_tokens": 5, "seed": 3, "ignore_eos": True}
    prompts.write_text(f"{json.dumps(chat)}\n\n{json.dumps(raw)}\n")
    texts, streams = tmp_path / "texts.safetensors", tmp_path / "streams.safetensors"
    done = winnow("capture", model, "--prompts", prompts, "--output", texts)
    assert done.returncode == 0 and done.stdout.startswith("2 texts, "), done.stderr
    plain = header_of(texts)
    assert plain["num_prompt"]["shape"] == [2] and plain["starts"]["shape"] == [3]
    done = winnow("capture", model, "--texts", texts, "--output", streams, "--layers", "0", "1")
    assert done.returncode == 0 and "streams of 2 layers" in done.stdout, done.stderr
    held = header_of(streams)
    assert held["tokens"]["shape"] == plain["tokens"]["shape"]
    for layer in (0, 1):
        assert held[f"streams.{layer}"]["dtype"] == "BF16"
        assert held[f"streams.{layer}"]["shape"][0] == plain["tokens"]["shape"][0]
    done = winnow(
        "capture", model, "--prompts", prompts, "--output", streams,
        "--speculative-config", '{"method": "dspark", "kv_cache_dtype": "fp8"}',
    )  # fmt: skip
    assert done.returncode == 0 and "mean acceptance length" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "prompts.jsonl:1: not a JSON object"),
        ('{"prompt": [1], "temperature": -1}', "line 1: "),
        ("", "no prompts"),
    ],
)
def test_capture_refuses(model, tmp_path, line, message):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(line + "\n")
    done = winnow("capture", model, "--prompts", prompts)
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert winnow("capture", model).returncode == 2


def test_config_file_and_precedence(start, tmp_path):
    config = tmp_path / "serve.yaml"
    config.write_text(
        "served-model-name: [from-file, second]\nmax_model_len: 1k\n"
        "enable-prefix-caching: false\nattention-config:\n  dequant: exact\n"
    )
    server = start("--config", str(config), "--max-model-len", "2k")
    card = server.get("/v1/models").json()["data"][0]
    assert card["id"] == "from-file" and card["max_model_len"] == 2000
    assert server.get("/version").json()["dequant"] == "exact"


def test_inspect(model):
    done = winnow("inspect", model)
    assert done.returncode == 0 and "nvfp4" in done.stdout
    assert winnow("inspect", "/nonexistent").returncode == 1
