"""The flows of the real `openai` client on /v1/responses against a live server."""

import json
import time

import openai
import pytest
import schemas

WEATHER = {"type": "function", **schemas.WEATHER["function"], "strict": False}


@pytest.fixture(scope="module")
def openai_tiny(tiny):
    return tiny.client()


def ask(client, asked, **more):
    more = {"model": "winnow-tiny", "temperature": 0, "max_output_tokens": 200, **more}
    return client.responses.create(input=asked, **more)


def test_response(openai_tiny):
    response = ask(openai_tiny, "Hello", metadata={"topic": "greeting"}, instructions="Be kind.")
    assert response.status == "completed" and response.output_text
    assert response.metadata == {"topic": "greeting"} and response.instructions == "Be kind."
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert openai_tiny.responses.retrieve(response.id).output_text == response.output_text


def test_stream_equals_whole(openai_tiny):
    whole = ask(openai_tiny, "Hello")
    events = list(ask(openai_tiny, "Hello", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text
    assert len(deltas) > 1  # how many tokens a delta holds depends on how fast they are taken


def test_streaming_tool_loop_with_items(openai_tiny):
    """The client keeps the conversation and sends everything back, reasoning too."""
    items = []
    for city, degrees in {"Paris": "18", "Oslo": "3", "Lima": "24"}.items():
        items.append({"role": "user", "content": f"What is the weather in {city}?"})
        while True:
            with openai_tiny.responses.stream(
                model="winnow-tiny",
                input=items,
                tools=[WEATHER],
                temperature=0,
                store=False,
                include=["reasoning.encrypted_content"],
            ) as stream:
                for _ in stream:
                    pass
                response = stream.get_final_response()
            items += [item.model_dump(exclude_none=True) for item in response.output]
            for item in items:
                item.pop("parsed_arguments", None)
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                break
            for call in calls:
                assert json.loads(call.arguments) == {"city": city}
                items.append(
                    {
                        "type": "function_call_output",
                        "call_id": call.call_id,
                        "output": f"{degrees} degrees and sunny",
                    }
                )
        assert degrees in response.output_text


def test_tool_loop_on_stored_responses(openai_tiny):
    previous = None
    for city, degrees in {"Paris": "18", "Oslo": "3"}.items():
        response = ask(
            openai_tiny,
            f"What is the weather in {city}?",
            tools=[WEATHER],
            previous_response_id=previous,
        )
        (call,) = (item for item in response.output if item.type == "function_call")
        output = {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": f"{degrees} degrees and sunny",
        }
        answer = ask(openai_tiny, [output], tools=[WEATHER], previous_response_id=response.id)
        assert degrees in answer.output_text
        previous = answer.id
    listed = openai_tiny.responses.input_items.list(answer.id).data
    assert [item.type for item in listed] == ["function_call_output"]


def test_reasoning_items(openai_tiny):
    response = ask(openai_tiny, "What is 27 + 35?", reasoning={"effort": "high"})
    kinds = [item.type for item in response.output]
    assert kinds == ["reasoning", "message"] and "62" in response.output_text
    assert response.output[0].content[0].text
    assert response.usage.output_tokens_details.reasoning_tokens > 10
    none = ask(openai_tiny, "What is 27 + 35?", reasoning={"effort": "none"})
    assert [item.type for item in none.output] == ["message"]


def test_logprobs(openai_tiny):
    response = ask(
        openai_tiny,
        "Hello",
        top_logprobs=2,
        reasoning={"effort": "none"},
        include=["message.output_text.logprobs"],
    )
    logprobs = response.output[0].content[0].logprobs
    assert len(logprobs) == response.usage.output_tokens
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in logprobs)


def test_limits(openai_tiny):
    response = ask(openai_tiny, "Hello", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


def test_store(openai_tiny):
    response = ask(openai_tiny, "Hello")
    openai_tiny.responses.delete(response.id)
    for call in (openai_tiny.responses.retrieve, openai_tiny.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call(response.id)
    with pytest.raises(openai.NotFoundError) as caught:
        ask(openai_tiny, "And?", previous_response_id=response.id)
    assert caught.value.param == "previous_response_id"
    unstored = ask(openai_tiny, "Hello", store=False)
    with pytest.raises(openai.NotFoundError):
        openai_tiny.responses.retrieve(unstored.id)


def test_background_and_cancel(openai_tiny):
    response = ask(openai_tiny, "Hello", background=True)
    assert response.status == "queued"
    end = time.monotonic() + 30
    while response.status in ("queued", "in_progress") and time.monotonic() < end:
        time.sleep(0.05)
        response = openai_tiny.responses.retrieve(response.id)
    assert response.status == "completed" and response.output_text
    long = ask(
        openai_tiny,
        "Hello",
        background=True,
        max_output_tokens=8000,
        extra_body={"ignore_eos": True},
    )
    assert openai_tiny.responses.cancel(long.id).status == "cancelled"


def test_refusals(openai_tiny):
    for more, param in (
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"extra_body": {"prompt": {"id": "x"}}}, "prompt"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"temperature": -1}, "temperature"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(openai_tiny, "Hello", **more)
        assert caught.value.param == param


CLOCK = {
    "type": "function",
    "name": "get_time",
    "description": "Get the time in a zone",
    "parameters": schemas.CLOCK,
    "strict": True,
}


def calls_of(response):
    return [item for item in response.output if item.type == "function_call"]


def check_clock(call):
    assert call.name == "get_time"
    schemas.check_clock(json.loads(call.arguments))


@pytest.mark.parametrize("seed", range(3))
def test_tool_choice_required_and_named_are_held_to(openai_tiny, seed):
    sampled = {"temperature": 1, "extra_body": {"seed": seed}, "tools": [WEATHER, CLOCK]}
    response = ask(openai_tiny, "Hello", tool_choice="required", **sampled)
    if response.status == "completed":
        assert calls_of(response)
        for call in calls_of(response):
            if call.name == "get_weather":
                assert isinstance(json.loads(call.arguments)["city"], str)
            else:
                check_clock(call)
    named = {"type": "function", "name": "get_time"}
    response = ask(openai_tiny, "Hello", tool_choice=named, parallel_tool_calls=False, **sampled)
    (call,) = calls_of(response)
    check_clock(call)
    assert not calls_of(ask(openai_tiny, "Hello", tool_choice="none", tools=[WEATHER, CLOCK]))


@pytest.mark.parametrize("seed", range(3))
def test_strict_tools_leave_text_and_calls(openai_tiny, seed):
    response = ask(
        openai_tiny,
        "What is the time in Paris?",
        tools=[CLOCK],
        temperature=1,
        extra_body={"seed": seed},
    )
    for call in calls_of(response):
        if call.status == "completed":
            check_clock(call)


def test_text_formats_shape_the_answer(openai_tiny):
    schema = schemas.name_and_age()
    form = {"type": "json_schema", "name": "person", "schema": schema, "strict": True}
    for seed in range(3):
        response = ask(
            openai_tiny,
            "Who is Emma?",
            text={"format": form},
            temperature=1,
            extra_body={"seed": seed},
        )
        if response.status == "completed":
            schemas.check_name_and_age(response.output_text)
    response = ask(openai_tiny, "Who is Emma?", text={"format": {"type": "json_object"}})
    assert response.output_text.lstrip().startswith("{")


def test_a_bad_schema_is_refused_with_its_place(openai_tiny):
    schema = schemas.name_and_age("integr")
    form = {"type": "json_schema", "name": "person", "schema": schema}
    named = {"type": "function", "name": "get_tim"}
    for more, param in (
        ({"text": {"format": form}}, "text.format.schema.properties.age.type"),
        (
            {"tools": [WEATHER, {**CLOCK, "parameters": schema}]},
            "tools[1].parameters.properties.age.type",
        ),
        ({"tools": [CLOCK], "tool_choice": named}, "tool_choice.name"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(openai_tiny, "Hello", **more)
        assert caught.value.param == param


def test_arguments_stream_as_they_are_written(openai_tiny):
    options = dict(
        tools=[WEATHER, CLOCK],
        tool_choice={"type": "function", "name": "get_time"},
        parallel_tool_calls=False,
        temperature=1,
        extra_body={"seed": 4},
    )
    (whole,) = calls_of(ask(openai_tiny, "Hello", **options))
    events = list(ask(openai_tiny, "Hello", stream=True, **options))
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(pieces) > 3 and "".join(pieces) == whole.arguments
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert done.arguments == whole.arguments and done.name == "get_time"
    (call,) = calls_of(events[-1].response)
    assert call.arguments == whole.arguments and call.status == "completed"
