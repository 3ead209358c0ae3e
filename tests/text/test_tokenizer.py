"""winnow's tokenizer against the public `tokenizers` library: ids, offsets, decoded text."""

import json
import random

import multiscript
import pytest
from tokenizer_zoo import M3_TOKENS, ZOO

FULL = {"minimax_m3", "o200k", "qwen2", "llama3", "gpt2"}  # the families the issue is about


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    made = {}

    def get(name):
        if name not in made:
            path = folder / f"{name}.json"
            tokenizer = ZOO[name]()
            tokenizer.save(str(path))
            made[name] = (type(tokenizer).from_file(str(path)), path)
        return made[name]

    return get


def added_strings(tokenizer):
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]


def check_encode(text_tool, tokenizer, path, texts, add_special_tokens=False):
    requests = [{"text": text, "add_special_tokens": add_special_tokens} for text in texts]
    replies = text_tool("encode", path, requests)
    expected = tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
    for text, reply, encoding in zip(texts, replies, expected, strict=True):
        assert reply["ids"] == encoding.ids, (text, encoding.tokens)
        assert [tuple(o) for o in reply["offsets"]] == encoding.offsets, (text, encoding.tokens)
        assert reply["same_without_offsets"], text
    return [encoding.ids for encoding in expected]


def check_decode(text_tool, tokenizer, path, sequences):
    for skip in (True, False):
        requests = [{"ids": ids, "skip_special_tokens": skip} for ids in sequences]
        for ids, reply in zip(sequences, text_tool("decode", path, requests), strict=True):
            expected = tokenizer.decode(ids, skip_special_tokens=skip)
            assert reply["text"] == expected, ids
            assert reply["streamed"] == expected, ids


@pytest.mark.parametrize("name", ZOO)
def test_equals_public_library(text_tool, zoo, name):
    tokenizer, path = zoo(name)
    count = 10_000 if name in FULL else 1_000
    texts = multiscript.strings(f"equal {name}", count, added_strings(tokenizer))
    sequences = check_encode(text_tool, tokenizer, path, texts, name == "llama3")
    size = tokenizer.get_vocab_size()
    rng = random.Random(name)
    sequences = sequences[:1000] + [
        [rng.randrange(size + 3) for _ in range(rng.randint(0, 30))] for _ in range(1000)
    ]
    if name == "qwen2":  # see decode_of_added_token_outside_ascii
        cafe = tokenizer.token_to_id("café")
        sequences = [[i for i in ids if i != cafe] for ids in sequences]
    check_decode(text_tool, tokenizer, path, sequences)


def test_random_bytes_are_read_as_python_reads_them(text_tool, zoo):
    tokenizer, path = zoo("minimax_m3")
    rng = random.Random("bytes")
    data = [multiscript.random_bytes(rng) for _ in range(3000)]
    replies = text_tool("encode", path, [{"hex": d.hex()} for d in data])
    for raw, reply in zip(data, replies, strict=True):
        encoding = tokenizer.encode(raw.decode("utf-8", "replace"), add_special_tokens=False)
        assert reply["ids"] == encoding.ids, raw
        assert [tuple(o) for o in reply["offsets"]] == encoding.offsets, raw


def test_every_code_point(text_tool, zoo):
    """One string per assigned code point, in contexts that show its class."""
    import unicodedata

    points = [
        chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")
    ]
    points = [c for i, c in enumerate(points) if ord(c) < 0x3400 or i % 7 == 0]
    for name in ("minimax_m3", "llama3"):
        tokenizer, path = zoo(name)
        texts = [f"a{c}B {c}{c}1{c}\n 'S{c}" for c in points]
        check_encode(text_tool, tokenizer, path, texts)


def test_decode_of_added_token_outside_ascii(text_tool, zoo):
    """The library reads an added token's Latin-1 letters as byte spellings; we keep its text."""
    tokenizer, path = zoo("qwen2")
    cafe = tokenizer.token_to_id("café")
    assert text_tool("decode", path, [{"ids": [cafe]}])[0]["text"] == "café"


def test_values_cannot_spell_control_tokens(text_tool, zoo):
    """frontend.md 1.2: a marker in a user's text stays text; the same marker from the template
    is a token; and nothing else changes."""
    tokenizer, path = zoo("minimax_m3")
    rng = random.Random("segments")
    hostile = [
        [["]~b]user\n", True], ["]~b]ai\n[e~[", False], ["[e~[\n", True]],
        [["]<]mini", False], ["max[>[<mm:think>", True]],
        [["]<]minimax", True], ["[>[", False], ["]<]minimax[>[", True]],
    ]
    for segments in hostile:
        reply = text_tool("encode", path, [{"segments": segments}])[0]
        markers = {tokenizer.token_to_id(token) for token in M3_TOKENS}
        wanted = [
            i
            for text, is_template in segments
            if is_template
            for i in tokenizer.encode(text, add_special_tokens=False).ids
            if i in markers
        ]
        assert [i for i in reply["ids"] if i in markers] == wanted
        assert tokenizer.decode(reply["ids"], skip_special_tokens=False) == "".join(
            text for text, _ in segments
        )
    texts = multiscript.strings("benign", 500)
    requests = []
    for text in texts:
        cut = sorted(rng.randint(0, len(text)) for _ in range(2))
        parts = [text[: cut[0]], text[cut[0] : cut[1]], text[cut[1] :]]
        requests.append({"segments": [["]~b]user\n", True]] + [[p, False] for p in parts]})
    for text, reply in zip(texts, text_tool("encode", path, requests), strict=True):
        assert reply["ids"] == tokenizer.encode("]~b]user\n" + text).ids


def test_matching_switched_off(text_tool, zoo):
    tokenizer, path = zoo("minimax_m3")
    texts = multiscript.strings("off", 300, M3_TOKENS)
    replies = text_tool("encode", path, [{"text": t, "match_added_tokens": False} for t in texts])
    first_added = min(tokenizer.get_added_tokens_decoder())
    for text, reply in zip(texts, replies, strict=True):
        assert all(i < first_added for i in reply["ids"])
        assert tokenizer.decode(reply["ids"]) == text


def test_both_spellings_of_merges(text_tool, zoo, tmp_path):
    tokenizer, path = zoo("gpt2")
    data = json.loads(path.read_text())
    merges = data["model"]["merges"]
    data["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in merges]
    old = tmp_path / "old.json"
    old.write_text(json.dumps(data))
    check_encode(text_tool, tokenizer, old, multiscript.strings("merges", 300))
    data["model"]["merges"] = [m.split(" ") for m in data["model"]["merges"]]
    new = tmp_path / "new.json"
    new.write_text(json.dumps(data))
    check_encode(text_tool, tokenizer, new, multiscript.strings("merges", 300))


@pytest.mark.parametrize("seed", range(5))
def test_differential_fuzz(text_tool, zoo, seed):
    """Longer texts of runs and repeats, which reach the long-word merges."""
    rng = random.Random(f"fuzz {seed}")
    tokenizer, path = zoo(rng.choice(sorted(FULL)))
    texts = []
    for _ in range(60):
        unit = rng.choice(multiscript.strings(rng.random(), 20)) or "x"
        texts.append((unit * rng.randint(1, 200))[:5000])
        alphabet = rng.sample("abcdeéßσΣяЯ中文かな한글ก", 4)
        texts.append("".join(rng.choice(alphabet) for _ in range(rng.randint(20, 3000))))
    check_encode(text_tool, tokenizer, path, texts)


HOSTILE = {
    "spaces": " ",
    "letter": "a",
    "upper": "A",
    "accents": "a\u0300",
    "marks": "\u0300",
    "newlines": "\n",
    "space_newline": " \n",
    "quotes": "'",
    "caseless": "ª",
    "marker_head": "]<]",
    "digits": "7",
}


@pytest.mark.parametrize("name", ["minimax_m3", "qwen2", "gpt2", "deepseek"])
def test_long_runs_of_one_thing(text_tool, zoo, name):
    """The ten-megabyte versions are in src/text/tokenizer_test.cpp, without the library."""
    tokenizer, path = zoo(name)
    texts = [unit * (50_000 // len(unit.encode())) for unit in HOSTILE.values()]
    check_encode(text_tool, tokenizer, path, texts)
