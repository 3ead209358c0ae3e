"""Clients that break off, stall, or send what nobody should."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from pathlib import Path

from good_clients import CHAT, TOOL, chat
from wire import Connection, connect, post, post_bytes

ROUTES = [CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/v1/messages/count_tokens"]
VICTIM = Path(__file__).resolve().parents[1] / "clients" / "victim.py"


def endless(rng, **fields):
    return chat(rng, max_tokens=2000, ignore_eos=True, **fields)


async def cancelled(soak):
    """Goes away in the middle: before, during or after the first bytes; with FIN or RST."""
    body = endless(soak.rng, stream=soak.rng.random() < 0.8, n=soak.rng.choice((1, 1, 3)))
    connection = await Connection.open(soak.address)
    await connection.send(post_bytes(CHAT, json.dumps(body).encode()))
    try:
        async with asyncio.timeout(soak.rng.choice((0.01, 0.3, 1, 3))):
            await connection.read_head()
            async for _ in connection.pieces():
                if soak.rng.random() < 0.1:
                    break
    except TimeoutError:
        pass
    if soak.rng.random() < 0.5:
        connection.reset()
    else:
        await connection.close()
    return "gone"


async def slow_reader(soak):
    """A small window, hardly read. It may finish, or be ended by the server."""
    body = endless(soak.rng, stream=True, logprobs=True, top_logprobs=20)
    body["max_tokens"] = 60
    async with connect(soak.address, receive_buffer=2048) as connection:
        await connection.send(post_bytes(CHAT, json.dumps(body).encode()))
        for _ in range(soak.rng.randint(5, 40)):
            if not await connection.reader.read(256):
                return "finished"
            await asyncio.sleep(0.2)
        connection.reset()
    return "gone"


async def half_open(soak):
    """Sends a request and closes its own direction: counts as gone."""
    async with connect(soak.address) as connection:
        body = json.dumps(endless(soak.rng, stream=True)).encode()
        await connection.send(post_bytes(CHAT, body))
        connection.writer.write_eof()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await connection.reader.read()
    return "ended"


async def stalled(soak):
    """Half a header or half a body, then silence: 408 or closed."""
    data = post_bytes(CHAT, json.dumps(chat(soak.rng)).encode())
    async with connect(soak.address) as connection:
        await connection.send(data[: soak.rng.randrange(0, len(data) - 1)])
        with contextlib.suppress(ConnectionError):
            answer = await connection.reader.read()
            soak.expect(answer == b"" or b" 408 " in answer[:16], f"stalled: {answer[:60]}")
    return "ended"


async def killed(soak):
    """kill -9 of a process with streams in flight."""
    data = post_bytes(CHAT, json.dumps(endless(soak.rng, stream=True)).encode())
    host, port = soak.address
    words = [sys.executable, "-S", VICTIM, host, str(port), data.hex(), "6"]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    await process.stdout.readline()
    await asyncio.sleep(soak.rng.random())
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    return "killed"


def malformed_bodies(rng: random.Random):
    good = json.dumps(chat(rng)).encode()
    deep = rng.choice((65, 1000, 200_000))
    cut = rng.randrange(1, len(good) - 1)
    return {
        "empty": b"",
        "cut off": good[:cut],
        "trailing": good + b"}",
        "no object": rng.choice((b"null", b"[]", b'"x"', b"1e999")),
        "invalid UTF-8": good.replace(b"content", b"content\xff"),
        "lone surrogate": b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        "deep lists": b"[" * deep + b"]" * deep,
        "deep objects": b'{"a":' * deep + b"1" + b"}" * deep,
        "deep schema": b'{"messages":[],"tools":' + b'{"a":[' * deep + b"]}" * deep + b"}",
        "many members": b"{" + b",".join(b'"k%d":0' % i for i in range(100_000)) + b"}",
        "noise": rng.randbytes(rng.randint(1, 5000)),
    }


async def malformed(soak):
    bodies = malformed_bodies(soak.rng)
    what = soak.rng.choice(list(bodies))
    path = soak.rng.choice(ROUTES)
    reply = await post(soak.address, path, bodies[what])
    soak.saw(path, reply.status)
    soak.expect(reply.status == 400, f"{what} on {path}: {reply.status} {reply.body[:200]}")
    soak.expect(reply.json()["error"]["message"], f"{what} on {path}: no message")
    return "400"


def hostile_fields(rng: random.Random):
    big = 10 ** rng.choice((3, 10, 30))
    return {
        "n": {"n": big},
        "negative n": {"n": -1},
        "max_tokens": {"max_tokens": 10**12},
        "logit_bias": {"logit_bias": {str(i): 100 for i in range(20_000)}},
        "stop": {"stop": ["s" * 20] * 5000},
        "empty stop": {"stop": [""]},
        "bad_words": {"bad_words": ["w"] * 5000},
        "top_logprobs": {"logprobs": True, "top_logprobs": big},
        "temperature": {"temperature": rng.choice((-1, "hot", [], {}))},
        "messages": {"messages": [{"role": "user", "content": {"x": 1}}]},
        "tools": {"tools": [{"type": "function", "function": {"name": 5}}]},
        "schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}},
        "timeout": {"timeout_ms": -5},
        "image": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "too long": {"messages": [{"role": "user", "content": "word " * 200_000}]},
    }


async def hostile(soak):
    """Fields out of every range, in bodies that are otherwise right."""
    fields = hostile_fields(soak.rng)
    what = soak.rng.choice(list(fields))
    body = {**chat(soak.rng), **fields[what]}
    reply = await post(soak.address, CHAT, body)
    soak.saw(CHAT, reply.status)
    soak.expect(reply.status == 400, f"{what}: {reply.status} {reply.body[:200]}")
    soak.expect(reply.json()["error"]["message"], f"{what}: no message")
    return "400"


async def hostile_agent_bodies(soak):
    """The same for Anthropic's and the Responses route."""
    message = {"role": "user", "content": "x"}
    tool = {"name": "f", "input_schema": TOOL}
    path, body = soak.rng.choice(
        [
            ("/v1/messages", {"model": soak.model, "messages": [message]}),
            (
                "/v1/messages",
                {"model": soak.model, "max_tokens": 5, "messages": [message] * 2 + [5]},
            ),
            ("/v1/messages", {"model": soak.model, "max_tokens": -1, "messages": [message]}),
            (
                "/v1/messages",
                {"max_tokens": 5, "messages": [message], "tools": [{**tool, "input_schema": []}]},
            ),
            ("/v1/responses", {"input": [{"type": "function_call_output"}]}),
            ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}),
            ("/v1/responses", {"input": "x", "max_output_tokens": 10**30}),
            ("/v1/responses", {"input": [{"type": "message", "role": 5, "content": {}}]}),
        ]
    )
    reply = await post(soak.address, path, body)
    soak.saw(path, reply.status)
    soak.expect(reply.status in (400, 404), f"{path} {body}: {reply.status} {reply.body[:200]}")
    return str(reply.status)


async def huge_body(soak):
    """100 MB: announced, or in chunks and only seen while it comes."""
    size = 100_000_000
    piece = b" " * 1_000_000
    async with connect(soak.address) as connection:
        sent = 0
        try:
            if soak.rng.random() < 0.5:
                await connection.send(post_bytes(CHAT, b"", length=size))
                while sent < size:
                    await connection.send(piece)
                    sent += len(piece)
            else:
                await connection.send(post_bytes(CHAT, b"", chunked=True))
                while sent < size:
                    await connection.send(b"%x\r\n" % len(piece) + piece + b"\r\n")
                    sent += len(piece)
        except ConnectionError:
            pass  # the server stopped reading; its answer may be there all the same
        try:
            reply = await connection.read_reply()
        except (ConnectionError, asyncio.IncompleteReadError):
            return "cut off"
    soak.expect(reply.status == 413, f"100 MB: {reply.status} {reply.body[:200]}")
    return "413"


async def big_valid_body(soak):
    """Below the body limit and far beyond the context: 400 that names both lengths."""
    body = {"messages": [{"role": "user", "content": "x y " * 1_000_000}]}
    reply = await post(soak.address, CHAT, body)
    soak.saw(CHAT, reply.status)
    named = b"maximum context length" in reply.body
    soak.expect(reply.status == 400 and named, f"4 MB prompt: {reply.status} {reply.body[:200]}")
    return "400"


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200 + b"\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


async def garbage(soak):
    async with connect(soak.address) as connection:
        answer = b""
        with contextlib.suppress(ConnectionError):
            await connection.send(soak.rng.choice(GARBAGE))
            connection.writer.write_eof()
            answer = await connection.reader.read(4096)
        soak.expect(answer == b"" or answer.startswith(b"HTTP/1.1 4"), f"garbage: {answer[:80]}")
    return "refused"
