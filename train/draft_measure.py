# ruff: noqa: E501
"""What a drafter would bring its target, counted as the engine counts it."""

import torch


@torch.no_grad()
def acceptance(run, data, texts, batch=64, layers=None):
    """Probabilities [tokens, block] that slot k after a token is accepted if those before it were, for
    drafts drawn from the drafter (standard verification) and for its most likely tokens; at temperature
    1, 0 beyond a text's end."""
    block = run.config.block
    drawn, likely = torch.zeros(2, len(data.tokens), block, device=data.tokens.device).unbind()
    begins, places, good = data.every_anchor(block, texts)
    for begin, at, is_one in zip(
        begins.split(batch), places.split(batch), good.split(batch), strict=True
    ):
        out = run.rows(data, begin, at, is_one, layers)
        overlap = run.backend.measure(out.logits, out.target, out.label)[0]
        best = out.target.float().log_softmax(-1).gather(-1, out.logits.argmax(-1, keepdim=True))
        token = (begin[:, None] + at)[is_one]
        for table, value in ((drawn, overlap), (likely, best[:, 0].exp())):
            table[token] = (value.view(out.valid.shape) * out.valid)[is_one]
    return drawn, likely


def walk(chances, starts, prompt):
    """Expected tokens of a step, and how often a step accepts at least k drafts, over texts written step
    by step: each begins at its first token, and a step that accepts n drafts moves on by n + 1."""
    block = chances.shape[1]
    size = starts.diff() - prompt  # the first of them is the prompt's and begins the first step
    longest = int(size.max())
    first = starts[:-1] + prompt
    place = first[:, None] + torch.arange(longest)
    rows = chances.cpu().double()[place.clamp(max=len(chances) - 1)]
    visits = torch.zeros(len(size), longest + block + 1, dtype=torch.float64)
    visits[:, 0] = 1
    steps = torch.zeros((), dtype=torch.float64)
    reached = torch.zeros(block, dtype=torch.float64)
    for t in range(longest):
        at_work = visits[:, t] * (t < size - 1)
        steps += at_work.sum()
        reach = torch.cat([torch.ones(len(size), 1), rows[:, t].cumprod(1)], 1)
        reached += (at_work[:, None] * reach[:, 1:]).sum(0)
        stop = reach - torch.cat([reach[:, 1:], torch.zeros(len(size), 1)], 1)
        visits[:, t + 1 : t + block + 2] += at_work[:, None] * stop
    return float(1 + reached.sum() / steps), (reached / steps).tolist()


def evaluate(run, data, texts, layers=None):
    """Lengths as the engine counts them, and the overlap by slot over all tokens of the answers."""
    texts = min(texts, data.num_texts)
    starts, prompt = data.starts[: texts + 1], data.prompt[:texts]
    drawn, likely = acceptance(run, data, texts, layers=layers)
    length, reached = walk(drawn, starts, prompt)
    anchors = data.usable[: int(starts[-1])]
    tables = drawn[: len(anchors)][anchors]
    counted = (tables > 0).sum(0).clamp(min=1)
    return {
        "length": length,
        "greedy_length": walk(likely, starts, prompt)[0],
        "reached": reached,
        "overlap": (tables.sum(0) / counted).tolist(),
        "length_over_tokens": float(1 + tables.cumprod(1).sum(1).mean()),
        "anchors": int(anchors.sum()),
    }
