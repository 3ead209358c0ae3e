"""Small templates, one or a few constructs each, and the context they are rendered with."""

import pathlib

CONTEXT = {
    "name": "World",
    "empty": "",
    "number": 7,
    "negative": -3,
    "big": 123456789012345678901234567890,
    "float": 2.5,
    "large": 1e20,
    "tiny": 1e-7,
    "whole": 3.0,
    "yes": True,
    "no": False,
    "nothing": None,
    "words": ["b", "A", "c", "B", "a"],
    "numbers": [3, 1, 2, 3],
    "nested": [[1, 2], [3], []],
    "mapping": {"b": 1, "a": {"x": [1, {"y": None}]}, "C": "three"},
    "users": [
        {"name": "Ann", "age": 31, "city": "Rome"},
        {"name": "bob", "age": 25, "city": "oslo"},
        {"name": "Cid", "age": 31, "city": "Oslo", "tags": ["x", "y"]},
    ],
    "text": "  The quick\tbrown fox\nJumps — über ßtraße 中文 😀 'quoted' \"double\" <b>&amp;  ",
    "lines": "one\n\ntwo\r\nthree\n",
    "items_key": {"items": 1, "keys": 2, "get": 3},
}

SNIPPETS = pathlib.Path(__file__).with_name("snippets.txt").read_text(encoding="utf-8")


def snippets():
    """Each line is a template; a few go on over the next lines because a block stays open."""
    out = []
    pending = ""
    for line in SNIPPETS.strip("\n").split("\n"):
        out.append(line)
        pending += line + "\n"
        opens = pending.count("{% if") + pending.count("{% for") + pending.count("{#")
        closes = pending.count("{% endif") + pending.count("{% endfor") + pending.count("#}")
        if opens <= closes:
            out.append(pending.rstrip("\n") + "\n")
            out.append(pending)
            pending = ""
    return list(dict.fromkeys(out))
