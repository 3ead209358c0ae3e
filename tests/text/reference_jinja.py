"""jinja2 set up as transformers sets it up for chat templates."""

import datetime
import functools
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant says; rendering prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def make_environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def strftime_now(pattern):
        return datetime.datetime.fromtimestamp(1_700_000_000).strftime(pattern)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


ENVIRONMENT = make_environment()


@functools.cache
def compiled(source):
    return ENVIRONMENT.from_string(source)


ERRORS = (
    jinja2.exceptions.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    SyntaxError,  # break outside a loop
    TypeError,
    ValueError,
)


def render(source, context):
    """The text, or None where jinja2 raises."""
    try:
        return compiled(source).render(**context)
    except ERRORS:
        return None
