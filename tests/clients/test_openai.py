"""The flows of the real `openai` client against a live server."""

import concurrent.futures
import math

import openai
import pytest

MESSAGES = [{"role": "user", "content": "Say something."}]


def text_of(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_chat(client):
    answer = client.chat.completions.create(model="test-model", messages=MESSAGES, max_tokens=8)
    assert answer.object == "chat.completion"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert 1 <= answer.usage.completion_tokens <= 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_equals_whole(client):
    options = dict(model="test-model", messages=MESSAGES, max_tokens=40, seed=7)
    whole = client.chat.completions.create(**options)
    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "length")


def test_continuous_usage_rises(client):
    chunks = client.chat.completions.create(
        model="test-model",
        messages=MESSAGES,
        max_tokens=10,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert counts == sorted(counts) and len(counts) > 2


def test_choices(client):
    answer = client.chat.completions.create(
        model="test-model", messages=MESSAGES, max_tokens=12, n=4, seed=3, temperature=1.5
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) > 1
    texts = [""] * 4
    for chunk in client.chat.completions.create(
        model="test-model",
        messages=MESSAGES,
        max_tokens=12,
        n=4,
        seed=3,
        temperature=1.5,
        stream=True,
    ):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]


def test_logprobs(client):
    answer = client.chat.completions.create(
        model="test-model", messages=MESSAGES, max_tokens=6, logprobs=True, top_logprobs=5
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 5
        assert all(one.logprob >= -9999.0 for one in entry.top_logprobs)
        assert entry.bytes


def test_logprobs_floor_with_small_top_p(start):
    """I3: alternatives of probability 0 are valid JSON."""
    client = start("--logprobs-mode", "processed_logprobs").client()
    answer = client.chat.completions.create(
        model="test-model",
        messages=MESSAGES,
        max_tokens=4,
        top_p=0.001,
        logprobs=True,
        top_logprobs=5,
    )
    values = [
        one.logprob for entry in answer.choices[0].logprobs.content for one in entry.top_logprobs
    ]
    assert -9999.0 in values and not any(math.isnan(v) for v in values)


def test_stop_string(client):
    options = dict(model="test-model", messages=MESSAGES, max_tokens=60, seed=11)
    whole = client.chat.completions.create(**options).choices[0].message.content
    printable = [c for c in whole[2:] if c.isprintable() and c != "\ufffd"]
    assert printable
    stop = printable[0]
    answer = client.chat.completions.create(**options, stop=[stop])
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra["stop_reason"] == stop


def test_seed_is_the_same_under_load(client):
    """Same seed, same text, whatever else is running."""
    options = dict(model="test-model", messages=MESSAGES, max_tokens=48, seed=99, temperature=1.0)
    alone = client.chat.completions.create(**options).choices[0].message.content

    def noise(i):
        return client.chat.completions.create(
            model="test-model",
            messages=[{"role": "user", "content": "x" * (37 * i + 1)}],
            max_tokens=20 + i,
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        others = [pool.submit(noise, i) for i in range(12)]
        same = [pool.submit(client.chat.completions.create, **options) for _ in range(6)]
        texts = {future.result().choices[0].message.content for future in same}
        for other in others:
            other.result()
    assert texts == {alone}


def test_greedy_is_repeatable_and_counts_cached_tokens(client):
    options = dict(
        model="test-model",
        messages=[{"role": "user", "content": "A long beginning. " * 40}],
        max_tokens=10,
        temperature=0,
    )
    first = client.chat.completions.create(**options)
    second = client.chat.completions.create(**options)
    assert first.choices[0].message.content == second.choices[0].message.content
    assert second.usage.prompt_tokens_details.cached_tokens >= 512


def test_completions(client):
    answer = client.completions.create(model="test-model", prompt="Once", max_tokens=5)
    assert answer.object == "text_completion" and answer.usage.prompt_tokens == 4
    batch = client.completions.create(
        model="test-model", prompt=["a", "b"], max_tokens=3, n=2, seed=1
    )
    assert [choice.index for choice in batch.choices] == [0, 1, 2, 3]
    ids = client.completions.create(
        model="test-model", prompt=[79, 110, 99, 101], max_tokens=5, temperature=0
    )
    again = client.completions.create(
        model="test-model", prompt="Once", max_tokens=5, temperature=0
    )
    assert ids.choices[0].text == again.choices[0].text


def test_completions_echo_scores_the_prompt(client):
    answer = client.completions.create(
        model="test-model", prompt="score me", max_tokens=0, echo=True, logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == "score me"
    assert len(logprobs.tokens) == 8 and logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert logprobs.text_offset == list(range(8))


def test_completions_stream(client):
    whole = client.completions.create(model="test-model", prompt="Once", max_tokens=20, seed=5)
    stream = client.completions.create(
        model="test-model", prompt="Once", max_tokens=20, seed=5, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_prompt_logprobs(client):
    answer = client.chat.completions.create(
        model="test-model", messages=MESSAGES, max_tokens=1, extra_body={"prompt_logprobs": 1}
    )
    entries = answer.model_extra["prompt_logprobs"]
    assert len(entries) == answer.usage.prompt_tokens and entries[0] is None
    assert all("decoded_token" in one for one in entries[1].values())


def test_ids_without_a_string_are_never_said(client):
    """Embedding rows beyond the tokenizer have no meaning."""
    answer = client.chat.completions.create(
        model="test-model",
        messages=MESSAGES,
        max_tokens=200,
        temperature=5.0,
        extra_body={"return_token_ids": True, "ignore_eos": True, "top_k": 0, "top_p": 1.0},
    )
    assert max(answer.choices[0].model_extra["token_ids"]) < 258


def test_tools_are_rendered(client, server):
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
    plain = server.post("/tokenize", {"messages": MESSAGES}).json()["count"]
    with_tools = server.post("/tokenize", {"messages": MESSAGES, "tools": tools}).json()["count"]
    assert with_tools > plain
    answer = client.chat.completions.create(
        model="test-model", messages=MESSAGES, tools=tools, tool_choice="auto", max_tokens=3
    )
    assert answer.choices[0].message.content is not None


def test_thinking_mode(server):
    def count(**more):
        return server.post("/tokenize", {"messages": MESSAGES, **more}).json()["count"]

    plain = count()
    marker = len("<mm:think>")
    assert count(chat_template_kwargs={"thinking_mode": "enabled"}) == plain + marker
    assert count(chat_template_kwargs={"enable_thinking": True}) == plain + marker
    assert count(reasoning_effort="high") == plain + marker
    assert count(reasoning_effort="none") == plain
    assert count(reasoning_effort="high", enable_thinking=False) == plain


def test_continue_final_message(client):
    answer = client.chat.completions.create(
        model="test-model",
        messages=[*MESSAGES, {"role": "assistant", "content": "The answer"}],
        max_tokens=3,
        extra_body={
            "continue_final_message": True,
            "add_generation_prompt": False,
            "echo": True,
            "return_prompt_text": True,
        },
    )
    assert answer.model_extra["prompt_text"].endswith("The answer")
    assert answer.choices[0].message.content.startswith("The answer")


def test_models(client):
    models = client.models.list().data
    assert models[0].id == "test-model" and models[0].model_extra["max_model_len"] == 4096
    assert client.models.retrieve("test-model").id == "test-model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_errors_are_the_client_libraries_own(client):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="test-model", messages=MESSAGES, temperature=-1)
    assert caught.value.param == "temperature" and str(caught.value.code) == "400"
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.chat.completions.create(
            model="test-model", messages=[{"role": "user", "content": "x" * 5000}]
        )
    with pytest.raises(openai.NotFoundError, match="generates text"):
        client.embeddings.create(model="test-model", input="x")
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.chat.completions.create(
            model="test-model", messages=MESSAGES, response_format={"type": "yaml"}
        )


def test_keys(start):
    server = start(
        "--api-key", "good", "better", "--host", "127.0.0.1", env={"VLLM_API_KEY": "env"}
    )
    for key in ("good", "better", "env"):
        assert server.client(api_key=key).models.list().data
    with pytest.raises(openai.AuthenticationError):
        server.client(api_key="bad").models.list()
    assert server.get("/health").status_code == 200
