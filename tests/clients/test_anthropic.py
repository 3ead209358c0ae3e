"""The flows of the real `anthropic` client, and of coding agents, against a live server."""

import json

import anthropic
import httpx
import pytest
import schemas

TOOL = schemas.WEATHER["function"]
WEATHER = {
    "name": TOOL["name"],
    "description": TOOL["description"],
    "input_schema": TOOL["parameters"],
}
HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def claude(tiny):
    return anthropic.Anthropic(base_url=tiny.url, api_key="none", max_retries=0)


def ask(claude, messages, **more):
    more = {"max_tokens": 200, **GREEDY, **more}
    return claude.messages.create(model="winnow-tiny", messages=messages, **more)


def user(text):
    return {"role": "user", "content": text}


def test_message(claude):
    message = ask(claude, HELLO)
    assert message.type == "message" and message.role == "assistant"
    assert message.stop_reason == "end_turn" and message.content[0].type == "text"
    assert message.usage.output_tokens > 2 and message.usage.input_tokens > 10
    assert message._request_id.startswith("req_")


def test_stream_equals_whole(claude):
    whole = ask(claude, HELLO)
    with claude.messages.stream(
        model="winnow-tiny", max_tokens=200, messages=HELLO, **GREEDY
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    total = final.usage.input_tokens + final.usage.cache_read_input_tokens
    assert total == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_raw_events_come_in_order(claude):
    stream = claude.messages.create(
        model="winnow-tiny", max_tokens=200, messages=HELLO, stream=True, **GREEDY
    )
    names = [event.type for event in stream if event.type != "ping"]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}


def test_thinking_blocks_go_back(claude):
    asked = [user("What is 27 + 35?")]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    message = ask(claude, asked, thinking=thinking, max_tokens=2000)
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text"] and "62" in message.content[1].text
    assert message.content[0].thinking and message.content[0].signature
    asked += [{"role": "assistant", "content": message.content}, user("What is 12 + 30?")]
    again = ask(claude, asked, thinking=thinking, max_tokens=2000)
    assert "42" in again.content[-1].text
    # The same as if the client had never been shown the thinking.
    hidden = [block.model_dump() for block in message.content]
    hidden[0]["thinking"] = ""
    asked[1] = {"role": "assistant", "content": hidden}
    counts = [
        claude.messages.count_tokens(model="winnow-tiny", messages=messages).input_tokens
        for messages in (asked, [asked[0], {"role": "assistant", "content": "x"}])
    ]
    same = ask(claude, asked, thinking=thinking, max_tokens=2000)
    assert same.content[-1].text == again.content[-1].text and counts[0] > counts[1]
    with claude.messages.stream(
        model="winnow-tiny", max_tokens=2000, messages=asked[:1], thinking=thinking, **GREEDY
    ) as stream:
        deltas = [e.delta.type for e in stream if e.type == "content_block_delta"]
    assert deltas.index("signature_delta") > deltas.index("thinking_delta")
    assert deltas.index("text_delta") > deltas.index("signature_delta")


def test_no_thinking_unless_asked_for(claude):
    message = ask(claude, [user("What is 27 + 35?")])
    assert [block.type for block in message.content] == ["text"]


def test_tool_loop(claude):
    """Three questions in one conversation, each by way of a tool, streamed."""
    messages = []
    temperatures = {"Paris": "18", "Oslo": "3", "Lima": "24"}
    for city, degrees in temperatures.items():
        messages.append(user(f"What is the weather in {city}?"))
        while True:
            with claude.messages.stream(
                model="winnow-tiny", max_tokens=200, messages=messages, tools=[WEATHER], **GREEDY
            ) as stream:
                message = stream.get_final_message()
            messages.append({"role": "assistant", "content": message.content})
            if message.stop_reason != "tool_use":
                break
            calls = [block for block in message.content if block.type == "tool_use"]
            assert [call.input for call in calls] == [{"city": city}]
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": call.id,
                    "content": [{"type": "text", "text": f"{degrees} degrees and sunny"}],
                }
                for call in calls
            ]
            messages.append({"role": "user", "content": results})
        assert message.stop_reason == "end_turn" and degrees in message.content[-1].text
    assert len(messages) == 12


def test_cached_prefixes_are_counted(claude):
    long = [user("A long beginning. " * 60 + "Say hello.")]
    first = ask(claude, long, max_tokens=4)
    second = ask(claude, long, max_tokens=4)
    assert second.usage.cache_read_input_tokens >= 128
    assert (
        second.usage.cache_read_input_tokens + second.usage.input_tokens
        == first.usage.cache_read_input_tokens + first.usage.input_tokens
    )


def test_count_tokens(claude):
    more = dict(messages=HELLO, system="Be kind.", tools=[WEATHER])
    count = claude.messages.count_tokens(model="winnow-tiny", **more).input_tokens
    usage = ask(claude, max_tokens=1, **more).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens


def test_stop_sequences_and_limits(claude):
    whole = ask(claude, HELLO).content[0].text
    stop = whole[4:7]
    message = ask(claude, HELLO, stop_sequences=[stop])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    assert message.content[0].text == whole[: whole.index(stop)]
    assert ask(claude, HELLO, max_tokens=2).stop_reason == "max_tokens"


def test_prefill_is_continued(claude):
    message = ask(claude, [*HELLO, {"role": "assistant", "content": "Hello! How can"}])
    assert message.content and not message.content[0].text.startswith("Hello")


def test_models(claude):
    models = claude.models.list().data
    assert models[0].id == "winnow-tiny" and models[0].display_name == "winnow-tiny"
    assert claude.models.retrieve("winnow-tiny").type == "model"


def test_errors_are_the_client_librarys_own(claude, start):
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(model="another", max_tokens=5, messages=HELLO)
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert caught.value.request_id.startswith("req_")
    with pytest.raises(anthropic.BadRequestError, match="messages: the array is empty"):
        claude.messages.create(model="winnow-tiny", max_tokens=5, messages=[])
    with pytest.raises(
        anthropic.BadRequestError, match="prompt is too long: [0-9]+ tokens > 16384"
    ):
        ask(claude, [user("word " * 20000)])
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
    with pytest.raises(anthropic.BadRequestError, match="without vision"):
        ask(claude, [{"role": "user", "content": [image]}])
    locked = start("--api-key", "good")
    wrong = anthropic.Anthropic(base_url=locked.url, api_key="bad", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(model="test-model", max_tokens=2, messages=HELLO)
    for how in ({"api_key": "good"}, {"auth_token": "good", "api_key": None}):
        client = anthropic.Anthropic(base_url=locked.url, max_retries=0, **how)
        assert client.messages.create(model="test-model", max_tokens=2, messages=HELLO).content


def test_what_a_coding_agent_sends(tiny):
    """A request as Claude Code makes it, twice: the second finds the first one's prefix although
    its billing header differs."""
    tools = [WEATHER | {"cache_control": {"type": "ephemeral"}}]
    for hash_ in ("eb6c6", "0aaa9"):
        body = {
            "model": "winnow-tiny",
            "max_tokens": 32000,
            "stream": True,
            "temperature": 0,
            "system": [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={hash_};"},
                {
                    "type": "text",
                    "text": "You are a coding agent. " * 60,
                    "cache_control": {"type": "ephemeral", "ttl": "1h"},
                },
            ],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "text",
                            "text": "<system-reminder>\nBe brief.\n</system-reminder>",
                        },
                        {
                            "type": "text",
                            "text": "What is the weather in Paris?",
                            "cache_control": {"type": "ephemeral"},
                        },
                    ],
                }
            ],
            "tools": tools,
            "metadata": {"user_id": json.dumps({"session_id": "s"})},
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
        }
        response = httpx.post(
            tiny.url + "/v1/messages?beta=true",
            json=body,
            headers={
                "authorization": "Bearer anything",
                "anthropic-version": "2023-06-01",
                "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,x-2030",
                "x-app": "cli",
                "user-agent": "claude-cli/2.1.0 (external, cli)",
            },
            timeout=60,
        )
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [
            json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")
        ]
        assert events[-1] == {"type": "message_stop"}
        usage = events[-2]["usage"]
    assert usage["cache_read_input_tokens"] >= 256


CLOCK = {
    "name": "get_time",
    "description": "Get the time in a zone",
    "strict": True,
    "input_schema": schemas.CLOCK,
}


def check_clock(block):
    assert block.type == "tool_use" and block.name == "get_time"
    schemas.check_clock(block.input)


def sampled(seed):
    return {"extra_body": {"temperature": 1, "seed": seed}}


@pytest.mark.parametrize("seed", range(3))
def test_tool_choice_any_and_tool_are_held_to(claude, seed):
    message = ask(
        claude, HELLO, tools=[WEATHER, CLOCK], tool_choice={"type": "any"}, **sampled(seed)
    )
    if message.stop_reason != "max_tokens":
        assert message.stop_reason == "tool_use"
        assert {block.type for block in message.content} == {"tool_use"}
        for block in message.content:
            if block.name == "get_weather":
                assert isinstance(block.input["city"], str)
            else:
                check_clock(block)
    named = {"type": "tool", "name": "get_time", "disable_parallel_tool_use": True}
    message = ask(claude, HELLO, tools=[WEATHER, CLOCK], tool_choice=named, **sampled(seed))
    (block,) = message.content
    check_clock(block)
    none = ask(claude, HELLO, tools=[WEATHER, CLOCK], tool_choice={"type": "none"})
    assert {block.type for block in none.content} == {"text"}


@pytest.mark.parametrize("seed", range(3))
def test_strict_tools_leave_text_and_calls(claude, seed):
    asked = [user("What is the time in Paris?")]
    message = ask(claude, asked, tools=[CLOCK], **sampled(seed))
    for block in message.content:
        if block.type == "tool_use":
            check_clock(block)


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_output_formats_shape_the_answer(claude, where):
    def body(schema):
        output = {"type": "json_schema", "schema": schema}
        return {where: {"format": output} if where == "output_config" else output}

    for seed in range(3):
        asked = {**body(schemas.name_and_age()), "temperature": 1, "seed": seed}
        message = ask(claude, HELLO, extra_body=asked)
        answers = [block.text for block in message.content if block.type == "text"]
        if message.stop_reason == "end_turn" and answers:
            schemas.check_name_and_age(answers[0])
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(claude, HELLO, extra_body=body(schemas.name_and_age("integr")))
    assert "output_config.format.schema.properties.age.type" in str(caught.value)


def test_a_bad_schema_of_a_strict_tool_is_named(claude):
    bad = {**CLOCK, "input_schema": {"type": "object", "properties": {"zone": {"type": "strin"}}}}
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(claude, HELLO, tools=[WEATHER, bad])
    assert "tools[1].input_schema.properties.zone.type" in str(caught.value)


def test_arguments_stream_as_they_are_written(claude):
    options = dict(
        model="winnow-tiny",
        max_tokens=300,
        messages=HELLO,
        tools=[WEATHER, CLOCK],
        tool_choice={"type": "tool", "name": "get_time"},
        **sampled(4),
    )
    whole = claude.messages.create(**options)
    with claude.messages.stream(**options) as stream:
        events = list(stream)
        final = stream.get_final_message()
    pieces = [event.partial_json for event in events if event.type == "input_json"]
    assert len(pieces) > 3
    assert [block.input for block in final.content] == [block.input for block in whole.content]
    assert final.stop_reason == whole.stop_reason == "tool_use"
