"""Answers held to a grammar, and calls that must be made, through the real `openai` client."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import openai
import pytest
from live_server import ROOT, Server

MODEL = ROOT / "models" / "winnow-tiny"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "is_member": {"type": "boolean"},
    },
    "required": ["name", "age", "is_member"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "Who is Emma?"}]
PERSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "units": {"enum": ["metric", "imperial"]},
            },
            "required": ["city", "days"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "maxLength": 16}},
            "required": ["zone"],
        },
    },
}
DRAFTED = {
    "method": "dspark",
    "kv_cache_dtype": "fp8",
    "rejection_sample_method": "coupled",
    "draft_sample_method": "probabilistic",
}


@pytest.fixture(scope="module")
def tiny():
    server = Server(MODEL)
    yield server.client().with_options(timeout=600)
    assert server.stop() == 0, server.log()


@pytest.fixture(scope="module")
def drafting():
    server = Server(MODEL, "--speculative-config", json.dumps(DRAFTED))
    yield server.client().with_options(timeout=600)
    assert server.stop() == 0, server.log()


def ask(client, messages=ASK, **more):
    options = {"temperature": 0, "max_tokens": 300, **more}
    return client.chat.completions.create(model="winnow-tiny", messages=messages, **options)


def check_person(text):
    person = json.loads(text)
    assert set(person) == {"name", "age", "is_member"}
    assert len(person["name"]) <= 12
    assert 0 <= person["age"] <= 120 and isinstance(person["age"], int)
    assert isinstance(person["is_member"], bool)


def test_a_schema_shapes_every_choice(tiny):
    for seed in range(3):
        reply = ask(tiny, response_format=PERSON_FORMAT, n=4, temperature=1, seed=seed)
        for choice in reply.choices:
            assert choice.finish_reason == "stop"
            check_person(choice.message.content)


def test_a_stream_concatenates_to_the_whole(tiny):
    options = dict(response_format=PERSON_FORMAT, temperature=1, seed=5, logprobs=True)
    whole = ask(tiny, **options, top_logprobs=3).choices[0]
    check_person(whole.message.content)
    assert whole.logprobs.content
    chunks = ask(tiny, **options, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.message.content


# Case I3: all alternatives but one are forbidden, and the reply is JSON all the same.
def test_alternatives_of_a_forced_answer_have_a_floor(tiny):
    options = dict(extra_body={"structured_outputs": {"choice": ["Emma"]}}, temperature=0)
    choice = ask(tiny, **options, logprobs=True, top_logprobs=5).choices[0]
    assert choice.message.content == "Emma"
    for token in choice.logprobs.content:
        assert len(token.top_logprobs) == 5
        assert all(-9999 <= other.logprob <= 0 for other in token.top_logprobs)


# Case H2: free until the thinking ends, constrained from there on.
@pytest.mark.parametrize("thinking", ["enabled", "disabled", "adaptive"])
def test_thinking_comes_before_the_answer(tiny, thinking):
    body = {"chat_template_kwargs": {"thinking_mode": thinking}}
    for seed in range(4):
        reply = ask(
            tiny, response_format=PERSON_FORMAT, temperature=1, seed=seed, extra_body=body
        ).choices[0]
        reasoning = reply.message.model_extra["reasoning"]
        if thinking == "disabled":
            assert reasoning is None
        if reply.finish_reason == "stop":
            assert "<mm:think>" not in reply.message.content
            check_person(reply.message.content)
        else:
            assert reply.message.content is None and reasoning


def test_json_object_is_any_object(tiny):
    reply = ask(tiny, response_format={"type": "json_object"}, temperature=1, seed=1)
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(reply.choices[0].message.content), dict)
    else:
        assert reply.choices[0].message.content.lstrip().startswith("{")


def test_regex_grammar_and_choice(tiny):
    def constrained(**members):
        return (
            ask(tiny, temperature=1, seed=2, extra_body={"structured_outputs": members})
            .choices[0]
            .message.content
        )

    assert re.fullmatch(r"[A-Z]{2}-[0-9]{4}", constrained(regex="[A-Z]{2}-[0-9]{4}"))
    assert constrained(choice=["yes", "no", "perhaps not"]) in ("yes", "no", "perhaps not")
    ebnf = 'root ::= "SELECT " column " FROM t"\ncolumn ::= "a" | "b"'
    assert constrained(grammar=ebnf) in ("SELECT a FROM t", "SELECT b FROM t")
    assert constrained(grammar='start: "x" ("y" | "z")') in ("xy", "xz")
    check_person(constrained(json=PERSON, disable_any_whitespace=True))
    check_person(constrained(json=json.dumps(PERSON)))
    old = ask(tiny, extra_body={"guided_choice": ["left", "right"]}).choices[0].message.content
    assert old in ("left", "right")


def test_plain_completions_are_constrained_too(tiny):
    reply = tiny.completions.create(
        model="winnow-tiny",
        prompt=["One of the two is", "The other one is"],
        max_tokens=20,
        n=2,
        temperature=1,
        extra_body={"structured_outputs": {"choice": ["red", "blue"]}},
    )
    assert all(choice.text in ("red", "blue") for choice in reply.choices)


def test_other_rules_apply_within_the_grammar(tiny):
    digits = {"structured_outputs": {"regex": "[0-9]{2,40}"}}
    long = ask(tiny, temperature=1, seed=1, extra_body={**digits, "min_tokens": 6})
    assert long.usage.completion_tokens >= 6
    assert re.fullmatch("[0-9]{2,40}", long.choices[0].message.content)
    # Where the grammar leaves nothing but the end, the end comes before min_tokens.
    short = ask(tiny, extra_body={"structured_outputs": {"choice": ["ok"]}, "min_tokens": 50})
    assert short.choices[0].message.content == "ok"
    stopped = ask(tiny, extra_body=digits, stop=["7", "1", "2", "0"]).choices[0]
    assert not set(stopped.message.content) & set("7120")
    banned = ask(
        tiny, extra_body={"structured_outputs": {"choice": ["yes", "no"]}, "bad_words": ["yes"]}
    )
    assert banned.choices[0].message.content == "no"
    with pytest.raises(openai.APIStatusError, match="contradict each other"):
        ask(tiny, extra_body={"structured_outputs": {"choice": ["a"]}, "bad_words": ["a"]})


def test_a_bad_schema_is_refused_with_its_place(tiny):
    schema = {"type": "object", "properties": {"age": {"type": "integr"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(
            tiny,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
    assert caught.value.param == "response_format.json_schema.schema.properties.age.type"
    assert "integr" in str(caught.value)


# Speculation, prefix hits and company change no bit.
@pytest.mark.parametrize("temperature", [0, 1])
def test_drafts_change_no_token(tiny, drafting, temperature):
    cases = [
        dict(response_format=PERSON_FORMAT),
        dict(response_format=PERSON_FORMAT, n=3),
        dict(response_format=PERSON_FORMAT, reasoning_effort="high"),
        dict(tools=[WEATHER, CLOCK], tool_choice="required"),
        dict(extra_body={"structured_outputs": {"regex": "([a-z]{1,9} ){3,9}end"}}),
    ]
    for case in cases:
        plain, drafted, again = (
            [
                (c.message.content, c.message.tool_calls and c.message.tool_calls[0].function)
                for c in ask(client, temperature=temperature, seed=11, **case).choices
            ]
            for client in (tiny, drafting, drafting)
        )
        assert plain == drafted == again


def preemptions_of(server):
    text = server.get("/metrics").text
    return sum(
        float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("vllm:num_preemptions_total")
    )


def test_preemption_and_prefix_hits_change_no_token(tiny):
    """In a pool that holds few of the replies at once, each is as it is alone; so is its
    repetition, which finds its prompt in the cache."""
    long = [{"role": "user", "content": "Tell me of Emma. " * 40}]
    digits = {"structured_outputs": {"regex": "([0-9]{1,9}, ){20,60}[0-9]"}, "min_tokens": 150}
    cases = [
        dict(messages=long, response_format=PERSON_FORMAT),
        *(dict(messages=long, max_tokens=250, seed=seed, extra_body=digits) for seed in range(8)),
    ]

    def text(client, case):
        reply = ask(client, **{"temperature": 1, "seed": 5, **case}).choices[0]
        return reply.message.content, reply.finish_reason

    alone = [text(tiny, case) for case in cases]
    for flags in ([], ["--speculative-config", json.dumps(DRAFTED)]):
        server = Server(MODEL, "--num-gpu-blocks-override", "12", "--max-model-len", "1024", *flags)
        client = server.client().with_options(timeout=600)
        for _ in range(2):
            with ThreadPoolExecutor(len(cases)) as pool:
                assert list(pool.map(partial(text, client), cases)) == alone
        assert preemptions_of(server) > 0
        assert server.stop() == 0, server.log()


def arguments_of(call):
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_time":
        assert set(arguments) == {"zone"}
    else:
        assert call.function.name == "get_weather"
        assert {"city", "days"} <= set(arguments) <= {"city", "days", "units"}
        assert 1 <= arguments["days"] <= 9
    return arguments


def test_required_calls_are_made(tiny):
    for seed in range(4):
        reply = ask(
            tiny, tools=[WEATHER, CLOCK], tool_choice="required", temperature=1, seed=seed
        ).choices[0]
        if reply.finish_reason == "length":
            continue
        assert reply.finish_reason == "tool_calls" and not reply.message.content
        assert len(reply.message.tool_calls) >= 1
        for call in reply.message.tool_calls:
            arguments_of(call)


def test_a_named_tool_is_called_and_one_call_is_one(tiny):
    named = {"type": "function", "function": {"name": "get_time"}}
    for seed in range(3):
        reply = ask(
            tiny,
            tools=[WEATHER, CLOCK],
            tool_choice=named,
            parallel_tool_calls=False,
            temperature=1,
            seed=seed,
        ).choices[0]
        assert [call.function.name for call in reply.message.tool_calls] == ["get_time"]
        arguments_of(reply.message.tool_calls[0])


def test_a_call_is_made_after_thinking(tiny):
    reply = ask(
        tiny,
        tools=[CLOCK],
        tool_choice="required",
        reasoning_effort="high",
        temperature=1,
        seed=3,
    ).choices[0]
    if reply.finish_reason != "length":
        assert reply.message.tool_calls[0].function.name == "get_time"


def test_tools_and_a_format_leave_both_ways(tiny):
    for seed in range(4):
        reply = ask(
            tiny, tools=[WEATHER], response_format=PERSON_FORMAT, temperature=1, seed=seed
        ).choices[0]
        if reply.message.tool_calls:
            arguments_of(reply.message.tool_calls[0])
        elif reply.finish_reason == "stop":
            check_person(reply.message.content)


# Case H3: what a stream says about calls adds up to the whole reply's calls, byte for byte.
def test_streamed_calls_add_up(tiny):
    options = dict(tools=[WEATHER, CLOCK], tool_choice="required", temperature=1, seed=8)
    whole = ask(tiny, **options).choices[0].message.tool_calls
    calls = {}
    for chunk in ask(tiny, **options, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            call = calls.setdefault(part.index, {"name": "", "arguments": "", "id": part.id})
            call["name"] += part.function.name or ""
            call["arguments"] += part.function.arguments or ""
    assert [(c["name"], c["arguments"]) for c in calls.values()] == [
        (c.function.name, c.function.arguments) for c in whole
    ]
    assert all(call["id"].startswith("call_") for call in calls.values())
