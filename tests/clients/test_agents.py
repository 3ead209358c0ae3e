"""Agent frameworks and programs from PyPI doing tool loops of several turns against winnow-tiny.

winnow-tiny calls tools by itself for questions like those it was trained on, so tool_choice stays
"auto", at temperature 0.
"""

import asyncio
import json
import os
import subprocess
import sys

import agents
import openai
import pydantic_ai
import pytest
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

CITIES = ["Paris", "Oslo", "Lima"]
QUESTION = "What is the weather in {}?"
TEMPERATURES = {"Paris": 18, "Oslo": 3, "Lima": 24}


@pytest.fixture
def asked():
    """The cities whose weather a tool was asked for, in order."""
    return []


def weather_tool(asked):
    def get_weather(city: str) -> str:
        """Get the weather of a city"""
        asked.append(city)
        return f"{TEMPERATURES[city]} degrees and sunny"

    return get_weather


def agents_model(kind, url):
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    if kind == "responses":
        return agents.OpenAIResponsesModel("winnow-tiny", openai_client=client)
    return agents.OpenAIChatCompletionsModel("winnow-tiny", openai_client=client)


@pytest.mark.parametrize("kind", ["responses", "chat"])
@pytest.mark.parametrize("streams", [False, True])
def test_openai_agents(tiny, asked, kind, streams):
    """openai-agents: one conversation, a tool call and an answer in each turn."""
    agents.set_tracing_disabled(True)
    agent = agents.Agent(
        name="Weather",
        model=agents_model(kind, tiny.url),
        tools=[agents.function_tool(weather_tool(asked))],
        model_settings=agents.ModelSettings(temperature=0),
    )

    async def turn(items):
        if not streams:
            return await agents.Runner.run(agent, items)
        result = agents.Runner.run_streamed(agent, items)
        kinds = [event.type async for event in result.stream_events()]
        assert "raw_response_event" in kinds and "run_item_stream_event" in kinds
        return result

    async def conversation():
        items = []
        for city in CITIES:
            items.append({"role": "user", "content": QUESTION.format(city)})
            result = await turn(items)
            assert str(TEMPERATURES[city]) in result.final_output
            items = result.to_input_list()

    asyncio.run(conversation())
    assert asked == CITIES


def test_openai_agents_on_stored_responses(tiny, asked):
    """The server keeps the conversation: each turn sends its new items only."""
    agents.set_tracing_disabled(True)
    agent = agents.Agent(
        name="Weather",
        model=agents_model("responses", tiny.url),
        tools=[agents.function_tool(weather_tool(asked))],
        model_settings=agents.ModelSettings(temperature=0, store=True),
    )

    async def conversation():
        previous = None
        for city in CITIES:
            result = await agents.Runner.run(
                agent, QUESTION.format(city), previous_response_id=previous
            )
            assert str(TEMPERATURES[city]) in result.final_output
            previous = result.last_response_id

    asyncio.run(conversation())
    assert asked == CITIES


def pydantic_model(kind, url):
    if kind == "anthropic":
        provider = AnthropicProvider(base_url=url, api_key="none")
        return AnthropicModel("winnow-tiny", provider=provider)
    provider = OpenAIProvider(base_url=url + "/v1", api_key="none")
    if kind == "responses":
        return OpenAIResponsesModel("winnow-tiny", provider=provider)
    return OpenAIChatModel("winnow-tiny", provider=provider)


@pytest.mark.parametrize("kind", ["anthropic", "responses", "chat"])
@pytest.mark.parametrize("streams", [False, True])
def test_pydantic_ai(tiny, asked, kind, streams):
    """pydantic-ai over all three APIs."""
    agent = pydantic_ai.Agent(
        pydantic_model(kind, tiny.url),
        tools=[weather_tool(asked)],
        model_settings={"temperature": 0, "max_tokens": 200, "extra_body": {"temperature": 0}},
    )

    async def turn(prompt, history):
        if not streams:
            result = await agent.run(prompt, message_history=history)
            return result.output, result.all_messages()
        async with agent.run_stream(prompt, message_history=history) as result:
            pieces = [piece async for piece in result.stream_text(delta=True)]
            return "".join(pieces), result.all_messages()

    async def conversation():
        history = []
        for city in CITIES:
            output, history = await turn(QUESTION.format(city), history)
            assert str(TEMPERATURES[city]) in output

    asyncio.run(conversation())
    assert asked == CITIES


def test_llm_program(tiny, tmp_path):
    """The command-line program `llm`: a tool loop, then the conversation goes on with -c."""
    (tmp_path / "extra-openai-models.yaml").write_text(
        json.dumps(
            [
                {
                    "model_id": "tiny",
                    "model_name": "winnow-tiny",
                    "api_base": tiny.url + "/v1",
                    "supports_tools": True,
                }
            ]
        )
    )
    (tmp_path / "tools.py").write_text(
        "def get_weather(city: str) -> str:\n"
        '    "Get the weather of a city"\n'
        f"    return str({TEMPERATURES!r}[city]) + ' degrees and sunny'\n"
    )

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "llm", "prompt", *words, "-o", "temperature", "0"],
            env={**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    tools = ("--functions", str(tmp_path / "tools.py"), "--td")
    for number, city in enumerate(CITIES):
        more = ("-c",) if number else ("-m", "tiny")
        done = run(QUESTION.format(city), *more, *tools)
        assert done.returncode == 0, done.stderr
        assert str(TEMPERATURES[city]) in done.stdout, (done.stdout, done.stderr)
        assert "get_weather" in done.stderr and city in done.stderr
