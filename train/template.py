"""Render the model's chat template the way that servers do."""

import json

import jinja2


def load(path):
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)

    def fail(message):
        raise ValueError(message)

    # jinja2's own tojson escapes for HTML; chat templates expect plain JSON
    env.filters["tojson"] = lambda x, ensure_ascii=False: json.dumps(x, ensure_ascii=ensure_ascii)
    env.globals["raise_exception"] = fail
    with open(path) as f:
        template = env.from_string(f.read())

    def render(messages, tools=None, thinking_mode=None, add_generation_prompt=False, **more):
        if thinking_mode is not None:
            more["thinking_mode"] = thinking_mode
        return template.render(
            messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **more
        )

    return render
