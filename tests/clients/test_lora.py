"""Adapters through the real clients: by flag and at run time, beside the model and each other."""

import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx
import openai
import pytest
from live_server import BIN, Server
from lora_adapter import write_adapter

BASE = "test-model"
FLAGS = ("--enable-lora", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "64M")


@pytest.fixture(scope="module")
def folders(model, tmp_path_factory):
    """Three adapters, and one whose rank is above --max-lora-rank's default."""
    root = tmp_path_factory.mktemp("adapters")
    made = {name: write_adapter(root / name, model, seed) for seed, name in enumerate("abc")}
    made["wide"] = write_adapter(root / "wide", model, 9, rank=32)
    return made


@pytest.fixture(scope="module")
def server(model, folders):
    """With `a` from the start; the tests load what else they need."""
    running = Server(model, *FLAGS, "--max-loras", "2", "--lora-modules", f"a={folders['a']}")
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def load(server, name, folder, **more):
    return server.post(
        "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder), **more}
    )


def unload(server, name):
    return server.post("/v1/unload_lora_adapter", {"lora_name": name})


@pytest.fixture(scope="module")
def b(server, folders):
    reply = load(server, "b", folders["b"])
    assert reply.text == "Success: LoRA adapter 'b' added successfully.", reply.text
    assert reply.status_code == 200
    return "b"


def said(client, model, prompt="Once upon a time", **more):
    """Text and the log-probabilities of its tokens."""
    options = {"max_tokens": 12, "temperature": 0, "logprobs": 1, **more}
    options.setdefault("extra_body", {"ignore_eos": True})
    choice = client.completions.create(model=model, prompt=prompt, **options).choices[0]
    return choice.text, choice.logprobs.token_logprobs


def test_each_name_is_a_model_of_its_own(client, b):
    answers = {name: said(client, name) for name in (BASE, "a", b)}
    assert len({text for text, _ in answers.values()}) == 3
    for name, answer in answers.items():  # the second time from the prefix cache
        assert said(client, name) == answer


# Case G1: neither the model nor another adapter sees anything of an adapter's requests.
def test_requests_side_by_side_say_what_they_say_alone(client, b):
    long = "A prompt of more than one block of the cache. " * 8
    cases = [
        (name, dict(prompt=prompt, seed=seed, temperature=temperature))
        for name in (BASE, "a", b)
        for prompt in ("Once", long)
        for seed, temperature in ((1, 0), (2, 1))
    ]
    alone = [said(client, name, **options) for name, options in cases]
    with ThreadPoolExecutor(len(cases)) as pool:
        for _ in range(2):
            together = list(pool.map(lambda case: said(client, case[0], **case[1]), cases))
            assert together == alone


def test_every_api_takes_an_adapter(server, client):
    messages = [{"role": "user", "content": "Hi"}]
    whole = client.chat.completions.create(
        model="a", messages=messages, max_tokens=8, temperature=0, logprobs=True
    )
    assert whole.model == "a"
    of_base = client.chat.completions.create(
        model=BASE, messages=messages, max_tokens=8, temperature=0, logprobs=True
    )
    logprobs = [
        [token.logprob for token in reply.choices[0].logprobs.content] for reply in (whole, of_base)
    ]
    assert logprobs[0] != logprobs[1]
    chunks = list(
        client.chat.completions.create(
            model="a", messages=messages, max_tokens=8, temperature=0, stream=True
        )
    )
    assert {chunk.model for chunk in chunks} == {"a"}
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == (whole.choices[0].message.content or "")
    several = client.chat.completions.create(
        model="a", messages=messages, max_tokens=8, n=3, temperature=1, seed=1
    )
    assert len(several.choices) == 3
    response = client.responses.create(model="a", input="Hi", max_output_tokens=8)
    assert response.model == "a"
    claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    message = claude.messages.create(model="a", max_tokens=8, messages=messages)
    assert message.model == "a"
    assert claude.messages.count_tokens(model="a", messages=messages).input_tokens > 0
    assert server.post("/tokenize", {"model": "a", "prompt": "Hi"}).json()["count"] == 2


def test_the_list_of_models_has_parent_and_root(client, folders, b):
    cards = {card.id: card.model_dump() for card in client.models.list().data}
    assert set(cards) >= {BASE, "a", b}
    assert cards[BASE]["parent"] is None
    for name in ("a", b):
        assert cards[name]["parent"] == BASE
        assert cards[name]["root"] == str(folders[name])
        assert cards[name]["max_model_len"] == cards[BASE]["max_model_len"]
    assert client.models.retrieve("a").model_dump() == cards["a"]


def test_unloaded_names_are_gone_and_running_requests_are_not(server, client, folders):
    assert load(server, "temporary", folders["c"]).status_code == 200
    expected = said(client, "temporary", max_tokens=200)[0]
    chunks = client.completions.create(
        model="temporary",
        prompt="Once upon a time",
        max_tokens=200,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text = next(chunks).choices[0].text
    reply = unload(server, "temporary")
    assert reply.status_code == 200
    assert reply.text == "Success: LoRA adapter 'temporary' removed successfully."
    with pytest.raises(openai.NotFoundError, match="temporary"):
        said(client, "temporary")
    assert text + "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert "temporary" not in [card.id for card in client.models.list().data]


def test_a_name_takes_other_weights_in_place(server, client, folders):
    assert load(server, "changing", folders["b"]).status_code == 200
    before = said(client, "changing")
    refused = load(server, "changing", folders["c"])
    assert refused.status_code == 400 and "already been loaded" in refused.text
    assert said(client, "changing") == before
    assert load(server, "changing", folders["c"], load_inplace=True).status_code == 200
    after = said(client, "changing")
    assert after != before
    assert load(server, "changing", folders["b"], load_inplace=True).status_code == 200
    assert said(client, "changing") == before
    assert unload(server, "changing").status_code == 200


def test_loads_and_unloads_under_load(server, client, folders):
    """What always runs never notices; what comes and goes is there or a clear 404."""
    expected = {name: said(client, name, max_tokens=40) for name in (BASE, "a")}
    is_over = threading.Event()

    def steady(name):
        count = 0
        while not is_over.is_set() or count == 0:
            assert said(client, name, max_tokens=40) == expected[name]
            count += 1
        return count

    def fleeting():
        outcomes = set()
        while not is_over.is_set():
            try:
                said(client, "fleeting")
                outcomes.add("served")
            except openai.NotFoundError:
                outcomes.add("unknown")
        return outcomes

    with ThreadPoolExecutor(3) as pool:
        steady_runs = [pool.submit(steady, name) for name in expected]
        other = pool.submit(fleeting)
        try:
            for _ in range(6):
                assert load(server, "fleeting", folders["c"]).status_code == 200
                said(client, "fleeting")
                assert unload(server, "fleeting").status_code == 200
        finally:
            is_over.set()
        assert all(run.result() > 0 for run in steady_runs)
        assert other.result() <= {"served", "unknown"}


def test_mistakes_have_the_status_and_words_that_clients_know(server, folders, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_text('{"peft_type": "LORA", "secret": "s3cr3t"')
    no_config = tmp_path / "empty"
    no_config.mkdir()
    for body, status, words in (
        ({"lora_name": "x"}, 400, "Both 'lora_name' and 'lora_path' must be provided."),
        ({"lora_path": "x"}, 400, "Both 'lora_name' and 'lora_path' must be provided."),
        ({"lora_name": "a", "lora_path": str(folders["a"])}, 400, "has already been loaded"),
        ({"lora_name": BASE, "lora_path": str(folders["a"])}, 400, "own name"),
        ({"lora_name": "x", "lora_path": "/no/such/folder"}, 404, "no folder"),
        ({"lora_name": "x", "lora_path": "someone/adapter"}, 404, "nothing is downloaded"),
        ({"lora_name": "x", "lora_path": str(folders["wide"])}, 400, "32"),
        ({"lora_name": "x", "lora_path": str(broken)}, 400, "adapter_config.json"),
        ({"lora_name": "x", "lora_path": str(no_config)}, None, "adapter_config.json"),
        ({"lora_name": "../x y", "lora_path": str(folders["a"])}, 400, "lora_name"),
        ({"lora_name": "x", "lora_path": 7}, 400, "lora_path"),
    ):
        reply = server.post("/v1/load_lora_adapter", body)
        assert reply.status_code == (status or reply.status_code), reply.text
        assert 400 <= reply.status_code < 500, reply.text
        error = reply.json()["error"]
        assert words in error["message"] and "s3cr3t" not in reply.text
        assert error["code"] == reply.status_code
    assert unload(server, "nobody").status_code == 404
    assert "x" not in [card["id"] for card in server.get("/v1/models").json()["data"]]


def test_metrics_tell_of_adapters_with_requests(server, client, b):
    stream = client.completions.create(
        model=b, prompt="Once", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    text = server.get("/metrics").text
    stream.close()
    line = next(line for line in text.splitlines() if line.startswith("vllm:lora_requests_info{"))
    assert 'max_lora="2"' in line and 'running_lora_adapters="b"' in line
    assert server.metric("winnow:lora_adapters") >= 2
    server.wait_metric("vllm:num_requests_running", 0)


def test_drafts_change_no_token_of_an_adapter(model, folders, client, b):
    speculation = {"method": "dspark", "kv_cache_dtype": "fp8", "num_speculative_tokens": 3}
    drafting = Server(
        model,
        *FLAGS,
        "--lora-modules",
        f"a={folders['a']}",
        f"b={folders['b']}",
        "--speculative-config",
        json.dumps(speculation),
    )
    other = drafting.client()
    cases = [(name, seed) for name in (BASE, "a", b) for seed in (None, 3)]

    def one(asked, case):
        name, seed = case
        return said(asked, name, seed=seed, temperature=0, max_tokens=30)

    with ThreadPoolExecutor(len(cases)) as pool:
        drafted = list(pool.map(lambda case: one(other, case), cases))
    assert drafted == [one(client, case) for case in cases]
    assert drafting.metric("vllm:spec_decode_num_drafts_total") > 0
    assert drafting.stop() == 0, drafting.log()


def test_one_adapter_a_step_serves_all_in_turn(model, folders, client, b):
    turns = Server(
        model,
        *FLAGS,
        "--lora-modules",
        f"a={folders['a']}",
        json.dumps({"name": "b", "path": str(folders["b"]), "base_model_name": "org/base"}),
    )
    other = turns.client()
    cases = [name for name in ("a", b, BASE) for _ in range(3)]
    with ThreadPoolExecutor(len(cases)) as pool:
        answers = list(pool.map(lambda name: said(other, name), cases))
    assert answers == [said(client, name) for name in cases]
    cards = {card.id: card.model_dump() for card in other.models.list().data}
    assert cards["b"]["parent"] == "org/base"
    assert turns.stop() == 0, turns.log()


def test_flags_come_from_file_and_environment(model, folders, tmp_path):
    file = tmp_path / "flags.yaml"
    file.write_text(f"enable-lora: true\nlora-modules:\n  - a={folders['a']}\nmax-cpu-loras: 1\n")
    running = Server(model, "--config", file, env={"WINNOW_MAX_LORA_RANK": "32"})
    assert "adapters" in running.log() and "rank up to 32" in running.log()
    refused = load(running, "wide", folders["wide"])
    assert refused.status_code == 400 and "--max-cpu-loras" in refused.text
    assert unload(running, "a").status_code == 200
    assert load(running, "wide", folders["wide"]).status_code == 200
    assert running.stop() == 0, running.log()


def test_who_may_load(model, folders):
    plain = Server(model)
    assert load(plain, "a", folders["a"]).status_code == 404
    assert plain.stop() == 0
    open_to_all = Server(model, "--enable-lora", "--host", "0.0.0.0")
    url = f"http://127.0.0.1:{open_to_all.url.rsplit(':', 1)[1]}"
    body = {"lora_name": "a", "lora_path": str(folders["a"])}
    reply = httpx.post(url + "/v1/load_lora_adapter", json=body, timeout=60)
    assert reply.status_code == 403, reply.text
    assert open_to_all.stop() == 0
    keyed = Server(model, "--enable-lora", "--host", "0.0.0.0", env={"WINNOW_API_KEY": "k"})
    url = f"http://127.0.0.1:{keyed.url.rsplit(':', 1)[1]}"
    for headers, status in (({}, 401), ({"Authorization": "Bearer k"}, 200)):
        reply = httpx.post(url + "/v1/load_lora_adapter", json=body, headers=headers, timeout=60)
        assert reply.status_code == status, reply.text
    assert keyed.stop() == 0


def generate(model, *flags):
    return subprocess.run(
        [
            BIN / "winnow",
            "generate",
            model,
            "-p",
            "Hello",
            "-n",
            "12",
            "--temperature",
            "0",
            *flags,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_terminal_takes_an_adapter(model, folders):
    plain = generate(model, "--json", "--raw")
    adapted = generate(model, "--json", "--raw", "--lora", folders["a"])
    assert adapted.returncode == 0, adapted.stderr
    assert json.loads(adapted.stdout)["text"] != json.loads(plain.stdout)["text"]
    missing = generate(model, "--lora", "/no/such/folder")
    assert missing.returncode == 1 and "no folder" in missing.stderr
    assert generate(model, "--enable-lora").returncode == 1
