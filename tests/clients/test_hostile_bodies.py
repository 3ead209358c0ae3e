"""Mutated and malformed bodies on every generating route: each is answered or refused with 4xx in
the route's own form, and a reference request says the same afterwards."""

import copy
import json
import os
import random

import httpx
import pytest

TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}
BODIES = {
    "/v1/messages": {
        "model": "test-model",
        "max_tokens": 3,
        "system": [{"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": "winnow1:YQ=="},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"x": [1, None]}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "adaptive"},
        "stop_sequences": ["x"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "metadata": {"user_id": "u"},
        "stream": False,
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {
                "type": "reasoning",
                "summary": [],
                "content": [],
                "encrypted_content": "winnow1:YQ==",
            },
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "r"},
        ],
        "instructions": "Be kind.",
        "max_output_tokens": 3,
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "tool_choice": "auto",
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
        "include": ["reasoning.encrypted_content"],
        "truncation": "auto",
        "metadata": {"k": "v"},
        "temperature": 0.5,
        "store": True,
        "stream": False,
    },
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "max_tokens": 3,
        "n": 1,
        "stop": ["x"],
        "logit_bias": {"5": 1},
        "top_logprobs": 1,
        "logprobs": True,
    },
    "/v1/completions": {
        "prompt": ["Hi", "Ho"],
        "max_tokens": 3,
        "echo": True,
        "logprobs": 1,
        "n": 1,
        "stop": "x",
    },
}
STRANGE = [
    None,
    True,
    -1,
    0,
    10**30,
    1.5,
    "",
    "x" * 1000,
    "\ud800",
    "]~b]ai",
    [],
    {},
    [[]],
    [{}],
    {"type": "text"},
    {"type": []},
    [None],
    float("nan"),
    float("inf"),
]


def places(value, path=()):
    """Paths to every member and element."""
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    else:
        return
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def mutate(body, rng):
    body = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        paths = list(places(body))
        if not paths:
            break
        *above, key = rng.choice(paths)
        holder = body
        for step in above:
            holder = holder[step]
        action = rng.randrange(4)
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, list):
            holder.extend(copy.deepcopy(holder) * rng.choice((1, 3, 50)))
        elif action == 2 and isinstance(holder, dict):
            holder[rng.choice(("type", "role", "id", "content", "zz"))] = rng.choice(STRANGE)
        else:
            holder[key] = copy.deepcopy(rng.choice(STRANGE))
    return body


def check(path, response, sent):
    assert response.status_code == 200 or 400 <= response.status_code < 500, (sent, response.text)
    if response.status_code != 200:
        body = response.json()
        assert body["error"]["message"], sent
        assert (body.get("type") == "error") == path.startswith("/v1/messages"), sent


@pytest.fixture
def unchanged(server):
    """The same bits for the same request, before and after, and every block free at the end."""

    def reference():
        body = {
            "messages": [{"role": "user", "content": "Say something."}],
            "seed": 5,
            "max_tokens": 24,
        }
        return server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]

    before = reference()
    yield
    assert reference() == before
    server.wait_metric("vllm:num_requests_running", 0)


@pytest.mark.parametrize("path", BODIES)
def test_mutated_bodies(server, unchanged, path):
    seed = int(os.environ.get("WINNOW_TEST_SEED", random.SystemRandom().randrange(2**32)))
    print(f"WINNOW_TEST_SEED={seed}")
    rng = random.Random(seed)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.post(path, json=BODIES[path]).status_code == 200
        for _ in range(150):
            text = json.dumps(mutate(BODIES[path], rng))
            response = client.post(
                path, content=text.encode(), headers={"Content-Type": "application/json"}
            )
            check(path, response, (seed, text[:2000]))


@pytest.mark.parametrize("path", [*BODIES, "/v1/messages/count_tokens"])
def test_malformed_bodies(server, unchanged, path):
    good = json.dumps(BODIES.get(path, BODIES["/v1/messages"]))
    deep = "[" * 100_000 + "]" * 100_000
    bodies = [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        good[:-1].encode(),
        good.encode() + b"}",
        b"\xff\xfe" + good.encode(),
        good.replace("Be kind.", "BAD").replace("Hi", "BAD").encode().replace(b"BAD", b"\xc3\x28"),
        good.encode("utf-16"),
        deep.encode(),
        ('{"input":' + deep + ',"messages":' + deep + "}").encode(),
        ('{"a":' * 60 + "1" + "}" * 60).encode(),
        ('{"model":"' + "x" * 5_000_000 + '"}').encode(),
        ("{" + ",".join(f'"k{i}":0' for i in range(200_000)) + "}").encode(),
        ('{"messages":[' + ",".join(["{}"] * 200_000) + "]}").encode(),
        ('{"stop_sequences":[' + ",".join(['"a"'] * 200_000) + "]," + good[1:]).encode(),
    ]
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for body in bodies:
            response = client.post(path, content=body, headers={"Content-Type": "application/json"})
            check(path, response, body[:100])
            if body[:1] != b"{" or len(body) < 3:
                assert response.status_code == 400, body[:100]


def test_bodies_over_the_limit(start):
    small = start("--max-body-bytes", "64K")
    for path in BODIES:
        response = small.post(path, content=b'{"x":"' + b"y" * 200_000 + b'"}')
        assert response.status_code in (413, 415)
        check(path, response, path)
