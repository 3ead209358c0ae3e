"""Small tokenizers of the public families' shapes, trained on generated text."""

import multiscript
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}"
)
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
M3 = CASED + r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
O200K = CASED + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
LLAMA3 = CL100K + r"{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
QWEN2 = CL100K + r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]

M3_TOKENS = [
    "]!p~[",
    "<fim_prefix>",
    "<reponame>",
    "]~b]",
    "[e~[",
    "]!d~[",
    "]<]speech[>[",
    "]<]image[>[",
    "]<]video[>[",
    "]<]start of image[>[",
    "]~!b[",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "]<]frame[>[",
    "]<]minimax[>[",
    "<mm:think>",
    "</mm:think>",
]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **options})


def train(pre_tokenizer, *, normalizer=None, vocab_size=1500, seed=1, alphabet=True, special=()):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
        special_tokens=list(special),
    )
    tokenizer.train_from_iterator(multiscript.strings(seed, 1500), trainer)
    return tokenizer


def gpt2():
    tokenizer = train(byte_level(use_regex=True))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def gpt2_prefix_space():
    tokenizer = train(byte_level(use_regex=True, add_prefix_space=True))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=True)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True), "<s>"])
    return tokenizer


def minimax_m3():
    tokenizer = train(pre_tokenizers.Sequence([split(Regex(M3)), byte_level()]), vocab_size=3000)
    tokenizer.add_special_tokens(M3_TOKENS[:11])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in M3_TOKENS[11:]])
    return tokenizer


def o200k():
    tokenizer = train(pre_tokenizers.Sequence([split(Regex(O200K)), byte_level()]))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|start|>", "<|end|>", "<|message|>"])
    return tokenizer


def qwen2():
    tokenizer = train(
        pre_tokenizers.Sequence([split(Regex(QWEN2)), byte_level()]), normalizer=normalizers.NFC()
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<tool_call>", "café"])
    return tokenizer


def llama3():
    tokenizer = train(pre_tokenizers.Sequence([split(Regex(LLAMA3)), byte_level()]))
    tokenizer.model.ignore_merges = True
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
            ),
        ]
    )
    return tokenizer


def deepseek():
    steps = [split(Regex(pattern)) for pattern in DEEPSEEK]
    tokenizer = train(pre_tokenizers.Sequence([*steps, byte_level()]))
    tokenizer.add_special_tokens(["<｜begin▁of▁sentence｜>", "<｜User｜>"])
    return tokenizer


def starcoder():
    steps = [pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)]
    tokenizer = train(pre_tokenizers.Sequence(steps))
    tokenizer.add_special_tokens(["<fim_prefix>"])
    return tokenizer


def added_token_flags():
    tokenizer = train(byte_level(use_regex=True), normalizer=normalizers.NFKC())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_tokens(
        [
            AddedToken("<l>", lstrip=True, normalized=False),
            AddedToken("<r>", rstrip=True, normalized=False),
            AddedToken("<lr>", lstrip=True, rstrip=True, normalized=True),
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("ﬁne", normalized=True),
            AddedToken("ab", normalized=False),
            AddedToken("abcd", normalized=False),
            AddedToken("bcx", normalized=False),
            AddedToken("\n\n", rstrip=True, normalized=False),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<l><r>", single_word=True)])
    return tokenizer


def words_and_punctuation():
    steps = [
        pre_tokenizers.Whitespace(),
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.Digits(),
        byte_level(),
    ]
    return train(pre_tokenizers.Sequence(steps))


def white_space_split_prefix():
    steps = [pre_tokenizers.WhitespaceSplit(), byte_level(add_prefix_space=True, use_regex=True)]
    return train(pre_tokenizers.Sequence(steps))


def normal_form(name):
    def build():
        form = normalizers.Sequence([getattr(normalizers, name)()])
        tokenizer = train(byte_level(use_regex=True, trim_offsets=True), normalizer=form)
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        return tokenizer

    return build


def unknown_bytes():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = byte_level(use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=200, show_progress=False, special_tokens=["<unk>"])
    tokenizer.train_from_iterator(["only plain english letters here " * 20], trainer)
    return tokenizer


def behavior(name, invert, pattern):
    def build():
        steps = [split(pattern, name, invert), byte_level()]
        return train(pre_tokenizers.Sequence(steps), vocab_size=700)

    return build


ZOO = {
    "gpt2": gpt2,
    "gpt2_prefix_space": gpt2_prefix_space,
    "minimax_m3": minimax_m3,
    "o200k": o200k,
    "qwen2": qwen2,
    "llama3": llama3,
    "deepseek": deepseek,
    "starcoder": starcoder,
    "added_token_flags": added_token_flags,
    "words_and_punctuation": words_and_punctuation,
    "white_space_split_prefix": white_space_split_prefix,
    "unknown_bytes": unknown_bytes,
    **{f"form_{name}": normal_form(name) for name in ("NFC", "NFD", "NFKC", "NFKD")},
    **{
        f"split_{name}_{'inverted' if invert else 'plain'}_{kind}": behavior(name, invert, pattern)
        for name in (
            "isolated",
            "removed",
            "merged_with_previous",
            "merged_with_next",
            "contiguous",
        )
        for invert in (False, True)
        for kind, pattern in (("string", " "), ("regex", Regex(r"\p{P}|\s|[aeiou]+")))
    },
}
