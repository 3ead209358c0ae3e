"""Clients that want an answer. Each takes a Soak and returns the name of what happened."""

import asyncio
import contextlib
import json

from wire import connect, get, post, post_bytes

CHAT = "/v1/chat/completions"
WORDS = "river stone lamp garden winter paper bridge salt copper morning letter field".split()
TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
REFERENCE = {
    "messages": [{"role": "user", "content": "What is 12 plus 30?"}],
    "max_tokens": 24,
    "temperature": 0.8,
    "seed": 5,
    "logprobs": True,
    "top_logprobs": 3,
}


def text(rng, low, high):
    return " ".join(rng.choices(WORDS, k=rng.randint(low, high)))


def chat(rng, **fields):
    message = {"role": "user", "content": text(rng, 3, 40)}
    return {"messages": [message], "max_tokens": rng.randint(1, 8), **fields}


def check_whole(soak, reply):
    """A 200 with usage, or a refusal for load."""
    if reply.status == 503 and reply.headers.get("retry-after"):
        return "queue full"
    soak.expect(reply.status == 200, f"status {reply.status}: {reply.body[:200]}")
    return "answered"


async def stream(soak, path, body, last):
    """Reads to the end; `last` is what a complete stream's last event has in it."""
    async with connect(soak.address) as connection:
        await connection.send(post_bytes(path, json.dumps(body).encode()))
        reply = await connection.read_reply()
    soak.saw(path, reply.status)
    if check_whole(soak, reply) != "answered":
        return "queue full"
    events = reply.events()
    soak.expect(events and last in events[-1], f"a stream ended with {events[-1:]}")
    soak.expect('"error"' not in reply.body.decode(), "an error in a stream")
    return "streamed"


async def whole(soak, path, body):
    reply = await post(soak.address, path, body)
    soak.saw(path, reply.status)
    return check_whole(soak, reply), reply


async def short(soak):
    return (await whole(soak, CHAT, chat(soak.rng)))[0]


async def streaming(soak):
    body = chat(soak.rng, stream=True, stream_options={"include_usage": True})
    return await stream(soak, CHAT, body, "[DONE]")


async def long(soak):
    body = chat(soak.rng, stream=True, max_tokens=soak.rng.randint(80, 200), ignore_eos=True)
    return await stream(soak, CHAT, body, "[DONE]")


async def long_prompt(soak):
    body = {"prompt": text(soak.rng, 500, 2000), "max_tokens": 4}
    return (await whole(soak, "/v1/completions", body))[0]


async def choices(soak):
    body = chat(soak.rng, n=soak.rng.randint(2, 5), logprobs=True, top_logprobs=5, stop=["zz"])
    outcome, reply = await whole(soak, CHAT, body)
    if outcome == "answered":
        soak.expect(len(reply.json()["choices"]) == body["n"], "choices are missing")
    return outcome


async def conversation(soak):
    """Each turn sends the whole history: hits in the prefix cache."""
    messages = []
    outcome = "answered"
    for _ in range(3):
        messages.append({"role": "user", "content": text(soak.rng, 20, 120)})
        outcome, reply = await whole(soak, CHAT, {"messages": messages, "max_tokens": 6})
        if outcome != "answered":
            break
        answer = reply.json()["choices"][0]["message"]["content"] or "…"
        messages.append({"role": "assistant", "content": answer})
    return outcome


async def tools(soak):
    city = soak.rng.choice(["Paris", "Oslo", "Rome"])
    function = {"name": "get_weather", "description": "Weather of a city", "parameters": TOOL}
    body = {
        "messages": [{"role": "user", "content": f"What is the weather in {city}?"}],
        "tools": [{"type": "function", "function": function}],
        "temperature": 0,
        "max_tokens": 48,
    }
    if soak.rng.random() < 0.5:
        return await stream(soak, CHAT, {**body, "stream": True}, "[DONE]")
    return (await whole(soak, CHAT, body))[0]


async def structured(soak):
    """Answered, or refused by name where a build has no grammars."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reply = await post(soak.address, CHAT, chat(soak.rng, response_format=form, max_tokens=24))
    soak.saw(CHAT, reply.status)
    if reply.status == 400:
        soak.expect(reply.json()["error"]["param"] == "response_format", "an unnamed refusal")
        return "refused by name"
    return check_whole(soak, reply)


async def anthropic(soak):
    body = {**chat(soak.rng), "model": soak.model, "stream": soak.rng.random() < 0.5}
    if soak.rng.random() < 0.5:
        body["tools"] = [{"name": "f", "description": "d", "input_schema": TOOL}]
    if body["stream"]:
        return await stream(soak, "/v1/messages", body, "message_stop")
    return (await whole(soak, "/v1/messages", body))[0]


async def responses(soak):
    path = "/v1/responses"
    body = {"input": text(soak.rng, 3, 40), "max_output_tokens": 8}
    outcome, reply = await whole(soak, path, body)
    if outcome != "answered":
        return outcome
    body["previous_response_id"] = reply.json()["id"]
    body["stream"] = True
    async with connect(soak.address) as connection:
        await connection.send(post_bytes(path, json.dumps(body).encode()))
        reply = await connection.read_reply()
    soak.saw(path, reply.status)
    if reply.status == 400:  # the store is bounded, and others store much
        return "forgotten" if b"not found" in reply.body else soak.fault(str(reply.body[:200]))
    if reply.status == 404:
        return "forgotten"
    outcome = check_whole(soak, reply)
    if outcome == "answered":
        last = reply.events()[-1]
        ended = "response.completed" in last or "response.incomplete" in last or "[DONE]" in last
        soak.expect(ended, f"a response stream ended with {last[:80]}")
    return outcome


async def background(soak):
    """Started, perhaps cancelled, and asked for until it is over."""
    body = {"input": text(soak.rng, 3, 40), "max_output_tokens": 60, "background": True}
    outcome, reply = await whole(soak, "/v1/responses", body)
    if outcome != "answered":
        return outcome
    path = "/v1/responses/" + reply.json()["id"]
    if soak.rng.random() < 0.5:
        await post(soak.address, path + "/cancel", b"")
    while True:  # until the driver calls it a hang
        reply = await get(soak.address, path)
        if reply.status == 404:
            return "forgotten"
        if reply.json()["status"] not in ("queued", "in_progress"):
            return reply.json()["status"]
        await asyncio.sleep(0.5)


async def burst(soak):
    """More at once than the queue takes."""
    body = chat(soak.rng, max_tokens=2)
    replies = await asyncio.gather(*(whole(soak, CHAT, body) for _ in range(soak.burst)))
    full = sum(outcome == "queue full" for outcome, _ in replies)
    return "some refused" if full else "all taken"


async def reference(soak):
    """The same bits whatever else runs."""
    outcome, reply = await whole(soak, CHAT, REFERENCE)
    if outcome == "answered":
        said = reply.json()["choices"]
        if soak.reference is None:
            soak.reference = said
        soak.expect(said == soak.reference, f"the reference answer changed: {said}")
    return outcome


async def probes(soak):
    for path in ("/health", "/metrics", "/version", "/load", "/v1/models", "/"):
        reply = await get(soak.address, path)
        soak.expect(reply.status == 200, f"{path}: {reply.status}")
    with contextlib.suppress(ValueError):
        await post(soak.address, "/tokenize", {"prompt": text(soak.rng, 1, 50)})
    return "answered"
