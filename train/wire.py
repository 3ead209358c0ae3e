"""The tool-call and thinking markers as text: split and read raw completions."""

import re


def split_answer(text, mode):
    """(reasoning, content) of a raw completion, by the published rules."""
    if mode == "enabled" or text.startswith("<mm:think>"):
        head, closed, tail = text.removeprefix("<mm:think>").partition("</mm:think>")
        return head, tail if closed else ""
    return "", text.removeprefix("</mm:think>")


def read_calls(text):
    """Calls of a well-formed block as (name, {key: text or nested}), None when it is malformed."""
    ns = re.escape("]<]minimax[>[")
    block = re.fullmatch(rf"\s*{ns}<tool_call>\s*(.*?)\s*{ns}</tool_call>\s*", text, re.S)
    if not block:
        return None
    calls, at, body = [], 0, block[1]
    invoke = re.compile(rf'\s*{ns}<invoke name="([^"]+)">(.*?){ns}</invoke>', re.S)
    while at < len(body):
        m = invoke.match(body, at)
        if not m:
            return None
        args = elements(m[2], ns)
        if args is None:
            return None
        calls.append((m[1], args))
        at = m.end()
    return calls or None


def elements(text, ns):
    out, at = [], 0
    one = re.compile(rf"{ns}<([^>/][^>]*)>(.*?){ns}</\1>", re.S)
    while at < len(text):
        m = one.match(text, at)
        if not m:
            return None
        inner = elements(m[2], ns) if "]<]minimax[>[" in m[2] else m[2]
        if inner is None:
            return None
        out.append((m[1], inner))
        at = m.end()
    return out


def expected(value):
    """Arguments in the shape that `elements` gives."""
    if isinstance(value, dict):
        return [(k, expected(v)) for k, v in value.items()]
    if isinstance(value, list):
        return [("item", expected(v)) for v in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
