"""Strings in many scripts, and strings meant to be awkward, all from a seed."""

import random
import unicodedata

ENGLISH = (
    "the quick brown fox jumps over a lazy dog while it's raining; they'll say we've seen I'd "
    "Don't YOU'RE he's Ünder naïve café coöperate e-mail https://example.org/path?q=1 "
    'print("hello\\n") for (int i = 0; i < 10; ++i) { x += 3.14159; } 1,234,567 0xFF '
    "According to recent research, language models may generate text one token at a time."
).split(" ")

# (first, last) of blocks whose characters are old enough to mean the same in every Unicode table.
BLOCKS = {
    "latin": (0x00C0, 0x024F),
    "ipa": (0x0250, 0x02FF),
    "combining": (0x0300, 0x036F),
    "greek": (0x0370, 0x03FF),
    "cyrillic": (0x0400, 0x04FF),
    "armenian": (0x0531, 0x0587),
    "hebrew": (0x0591, 0x05EA),
    "arabic": (0x0600, 0x06FF),
    "devanagari": (0x0900, 0x097F),
    "bengali": (0x0980, 0x09E3),
    "tamil": (0x0B82, 0x0BFA),
    "thai": (0x0E01, 0x0E5B),
    "tibetan": (0x0F00, 0x0FD4),
    "georgian": (0x10A0, 0x10FF),
    "jamo": (0x1100, 0x11FF),
    "ethiopic": (0x1200, 0x1399),
    "khmer": (0x1780, 0x17F9),
    "mongolian": (0x1800, 0x18AA),
    "greek_extended": (0x1F00, 0x1FFE),
    "punctuation": (0x2000, 0x206F),
    "super_sub": (0x2070, 0x209C),
    "letterlike": (0x2100, 0x218B),
    "arrows": (0x2190, 0x23FA),
    "enclosed": (0x2460, 0x24FF),
    "cjk_symbols": (0x3000, 0x303F),
    "hiragana": (0x3041, 0x309F),
    "katakana": (0x30A0, 0x30FF),
    "cjk": (0x4E00, 0x9FA5),
    "hangul": (0xAC00, 0xD7A3),
    "cjk_compat": (0xF900, 0xFAD9),
    "presentation": (0xFB00, 0xFB4F),
    "halfwidth": (0xFF01, 0xFFEE),
    "gothic": (0x10330, 0x1034A),
    "deseret": (0x10400, 0x1044F),
    "musical": (0x1D100, 0x1D126),
    "math": (0x1D400, 0x1D4FF),
    "emoji": (0x1F300, 0x1F64F),
    "cjk_extension_b": (0x20000, 0x2A6D6),
}

SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    " \n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u2028",
    "\x0b",
    "\x0c",
    "\x85",
    "\u1680",
    "\u180e",
    "\u200b",
    "\ufeff",
]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["…", "—", "«", "»", "。", "、", "¿"]


def assigned(first, last):
    return [
        chr(c) for c in range(first, last + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs")
    ]


ALPHABETS = {name: assigned(first, last) for name, (first, last) in BLOCKS.items()}


def word(rng):
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(ENGLISH)
    alphabet = ALPHABETS[rng.choice(list(ALPHABETS))]
    text = "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 8)))
    if kind < 0.45:  # bases with marks, in an order that normal forms may change
        marks = ALPHABETS["combining"]
        return "".join(
            c + "".join(rng.choice(marks) for _ in range(rng.randint(0, 3))) for c in text
        )
    if kind < 0.5:
        return text.upper() + text.lower()
    return text


def sentence(rng):
    parts = []
    for _ in range(rng.randint(0, 12)):
        parts.append(word(rng))
        if rng.random() < 0.3:
            parts.append("".join(rng.choice(PUNCTUATION) for _ in range(rng.randint(1, 4))))
        if rng.random() < 0.2:
            parts.append(str(rng.randint(0, 10 ** rng.randint(1, 9))))
        if rng.random() < 0.85:
            parts.append(" " if rng.random() < 0.7 else rng.choice(SPACES))
        if rng.random() < 0.1:
            parts.append(rng.choice(["'s", "'LL", "'ve", "'ſ", "'T ", "'re", "'m", "'x", "''"]))
    return "".join(parts)


def any_characters(rng):
    """Uniform over assigned code points of every plane the tables share."""
    out = []
    for _ in range(rng.randint(1, 20)):
        c = rng.randrange(0x110000)
        if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co"):
            out.append(chr(c))
    return "".join(out)


def noise(rng):
    """Few distinct characters in long runs: what splits and merges find hardest."""
    alphabet = rng.sample("aAbB1 \t\n\r'é\u0301ªǅ中/.-_", rng.randint(1, 5))
    return "".join(rng.choice(alphabet) * rng.randint(1, 9) for _ in range(rng.randint(1, 12)))


def random_bytes(rng):
    if rng.random() < 0.5:
        return bytes(rng.randrange(256) for _ in range(rng.randint(0, 40)))
    data = bytearray(sentence(rng).encode())
    for _ in range(rng.randint(1, 4)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def strings(seed, count, pieces=()):
    """`count` strings; `pieces` (added tokens) are strewn in."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        maker = rng.choices([sentence, any_characters, noise, random_bytes], [6, 1, 2, 2])[0]
        text = maker(rng)
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        if pieces and rng.random() < 0.5:
            for _ in range(rng.randint(1, 4)):
                at = rng.randint(0, len(text))
                piece = rng.choice(pieces)
                if rng.random() < 0.1:
                    piece = piece[: rng.randint(0, len(piece))]
                text = text[:at] + rng.choice(["", "", " ", "  ", "\n"]) + piece + text[at:]
        out.append(text)
    return out
