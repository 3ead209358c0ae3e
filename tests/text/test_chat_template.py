"""winnow's template engine against jinja2 as transformers configures it."""

import copy
import pathlib
import random

import multiscript
import pytest
import reference_jinja
from snippets import CONTEXT, snippets

TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in pathlib.Path(__file__).with_name("chat_templates").glob("*.jinja")
}


def check(text_tool, cases):
    """cases: (source, context). Equal text, or an error on both sides."""
    replies = text_tool("render", "test", [{"template": s, "context": c} for s, c in cases])
    wrong = []
    for (source, context), reply in zip(cases, replies, strict=True):
        expected = reference_jinja.render(source, copy.deepcopy(context))
        if reply.get("text") != expected:
            wrong.append((source, expected, reply))
        elif expected is not None:
            assert "".join(text for text, _ in reply["segments"]) == expected
    assert not wrong, f"{len(wrong)} differ: " + "\n".join(map(repr, wrong[:20]))


def test_constructs(text_tool):
    check(text_tool, [(source, CONTEXT) for source in snippets()])


def message_sets():
    rng = random.Random("messages")
    hostile = multiscript.strings(
        "chat", 60, ["{{ 7*7 }}", "{% if %}", "<|im_end|>", "[e~[", "</s>"]
    )
    call = {
        "id": "call_1",
        "type": "function",
        "function": {
            "name": "f",
            "arguments": {
                "a": 1,
                "b": [True, {"c": "x"}],
                "d": None,
                "e": 1.0,
                "f": 1e20,
                "g": {"h": {}},
                "i": 'line\nbreak "quoted" <tag> é',
                "j": 2**70,
                "k": [],
                "l": -0.5,
            },
        },
    }
    text_call = {"type": "function", "function": {"name": "g", "arguments": '{"x": "y"}'}}
    yield [{"role": "user", "content": "Hi"}]
    yield [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hi"}]
    yield [
        {"role": "system", "content": "  spaced  \n"},
        {"role": "user", "content": " Q1 "},
        {"role": "assistant", "content": "\nA1\n"},
        {"role": "user", "content": "Q2"},
    ]
    yield [
        {"role": "user", "content": "call"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "name": "f", "content": "1"},
        {"role": "tool", "tool_call_id": "call_2", "name": "f", "content": '{"r": [2]}'},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "thanks"},
    ]
    yield [
        {"role": "user", "content": "two calls"},
        {"role": "assistant", "content": None, "tool_calls": [call, text_call]},
        {"role": "tool", "content": [{"type": "text", "text": "part"}, {"output": "o"}]},
    ]
    yield [
        {"role": "user", "content": [{"type": "text", "text": "What?"}, {"type": "image"}]},
        {"role": "assistant", "content": "A cat.", "reasoning_content": "It has whiskers."},
        {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
    ]
    yield [
        {"role": "user", "content": "think"},
        {"role": "assistant", "content": "<mm:think>a</mm:think>\nb</mm:think>c"},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "<think>\nr\n</think>\n\nanswer"},
        {"role": "user", "content": "end"},
    ]
    yield [{"role": "assistant", "content": "starts"}, {"role": "user", "content": "x"}]
    yield [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    yield [{"role": "tool", "content": "orphan"}]
    yield []
    yield [
        {"role": "root", "content": "R"},
        {"role": "developer", "content": "D"},
        {"role": "user", "content": "u"},
        {"role": "strange", "content": "s"},
    ]
    yield [{"role": "user"}]
    yield [{"role": "user", "content": 5}, {"role": "assistant", "content": True}]
    for _ in range(25):
        messages = []
        for i in range(rng.randint(1, 6)):
            role = rng.choice(["user", "assistant"]) if i else rng.choice(["system", "user"])
            messages.append({"role": role, "content": rng.choice(hostile)})
        yield messages


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Wetter "heute" in <Stadt> — 天気',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "where"},
                    "days": {"type": ["integer", "null"], "default": 3},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                    "items": {"type": "array", "items": {"type": "object", "properties": {}}},
                },
                "required": ["city"],
            },
            "return": {"type": "number"},
        },
    },
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}}},
]


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_public_families(text_tool, name):
    source = TEMPLATES[name]
    cases = []
    for messages in message_sets():
        for extra in (
            {},
            {"add_generation_prompt": True},
            {"tools": TOOLS, "add_generation_prompt": True},
            {"add_generation_prompt": True, "thinking_mode": "enabled", "enable_thinking": True},
            {"add_generation_prompt": True, "thinking_mode": "disabled", "enable_thinking": False},
            {"tools": [], "documents": [{"title": "t", "text": "x"}], "date_string": "1 Jan 2025"},
        ):
            context = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>", **extra}
            cases.append((source, context))
    check(text_tool, cases)
    rendered = [reference_jinja.render(s, copy.deepcopy(c)) for s, c in cases]
    assert sum(text is not None for text in rendered) > 50, "the template refuses nearly everything"


def test_values_are_marked_wherever_they_came_through(text_tool):
    """Provenance: every character that came in with the request is in a value segment."""
    secret = "]~b]S[e~["
    cases = {
        "a{{ x }}b": "a b",
        "{{ 'p' ~ x ~ 'q' }}": "pq",
        "{{ ('p' + x)[1:] }}": "",
        "{{ x.split('S')|join('-') }}": "-",
        "{{ [x, 'z']|join(',') }}": ",z",
        "{% set y = x %}{% set z %}[{{ y }}]{% endset %}{{ z }}": "[]",
        "{% macro m(v) %}<{{ v }}>{% endmacro %}{{ m(x) }}": "<>",
        "{% for c in x %}{{ c }}{% endfor %}": "",
        "{{ x|replace('S', 'T') }}": "T",
        "{{ 'aSb'|replace('S', x) }}": "ab",
        "{{ x|trim|upper }}": "",
        "{{ x|tojson }}": "",
        "{{ {'k': x}.k ~ {'k': 'v'}|tojson }}": '{"k": "v"}',
        "{{ '%s!' % x }}": "!",
        "{{ '<{}>'.format(x) }}": "<>",
        "{% for k in d %}{{ k }}={{ d[k] }};{% endfor %}": "=;",
        "{% filter upper %}a{{ x }}{% endfilter %}": "",
        "{{ d }}": None,
    }
    requests = [{"template": s, "context": {"x": secret, "d": {secret: secret}}} for s in cases]
    replies = text_tool("render", "t", requests)
    for (source, template_text), reply in zip(cases.items(), replies, strict=True):
        from_template = "".join(text for text, is_template in reply["segments"] if is_template)
        assert secret not in from_template and "]~b]" not in from_template, source
        if template_text is not None:
            assert from_template.replace(" ", "") == template_text.replace(" ", ""), source


HOSTILE = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ 'x' * 99999999999 }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ 'x'.center(9999999999) }}",
    "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = [n.l] %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
    "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}{% endfor %}",
    "{% for x in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
    "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "{{ " + "-" * 100_000 + "1 }}",
    "{{ " + "not " * 100_000 + "1 }}",
    "{{ " + "1+" * 100_000 + "1 }}",
    "{{ " + "a." * 100_000 + "a }}",
    "{{ " + "[" * 100_000 + " }}",
    "{{ x" + "|upper" * 100_000 + " }}",
    "{% if 1 %}" * 100_000,
    "{{ 2 ** 99999999 }}",
    "{{ '{0:99999999}'.format(1) }}",
    "{{ [1]|batch(99999999999, 1)|list }}",
    "{{ [1]|slice(99999999999)|list }}",
    "{{ 'a'|indent(99999999999) }}",
    "{{ ('x' * 1000000)|replace('', 'y' * 100000) }}",
]


@pytest.mark.parametrize("index", range(len(HOSTILE)))
def test_hostile_templates_end_in_an_error(text_tool, index):
    reply = text_tool("render", "t", [{"template": HOSTILE[index], "context": {}}])[0]
    assert "error" in reply, str(reply)[:200]


def test_errors_name_template_and_line(text_tool):
    def error(source, context=None):
        return text_tool("render", "T", [{"template": source, "context": context or {}}])[0][
            "error"
        ]

    assert error("a\nb\n{{ 1 + }}").startswith("T, line 3:")
    assert error("\n\n{{ raise_exception('no ' ~ 'way') }}") == "T, line 3: no way"
    assert error("{% if 1 %}\n").startswith("T, line 1:") or "line 2" in error("{% if 1 %}\n")
    assert "'user' is undefined" in error("\n{{ user.name }}")
    assert "namespace" in error("{{ [].append(1) }}")
