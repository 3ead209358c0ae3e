# ruff: noqa: E501
"""Train the tokenizer: byte-level BPE, digits never merged, MiniMax-M3's marker strings at the end."""

import argparse
import json
import random
import re

import tasks
import template

SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKERS = (
    """]!p~[|<fim_prefix>|<fim_middle>|<fim_suffix>|<fim_pad>|<reponame>|<filename>|<gh_stars>|<issue_start>|<issue_comment>|<issue_closed>
<jupyter_start>|<jupyter_text>|<jupyter_code>|<jupyter_output>|<empty_output>|<commit_before>|<commit_msg>|<commit_after>|]~b]|[e~[|]!d~[
<function_call>|<code_interpreter>|]<]speech[>[|]<]image[>[|]<]video[>[|]<]start of speech[>[|]<]end of speech[>[|]<]start of image[>[
]<]end of image[>[|]<]start of video[>[|]<]end of video[>[|]<]vision pad[>[|]~!b[|<jupyter_error>|<add_file>|<delete_file>|<rename_file>
<edit_file>|<commit_message>|<empty_source_file>|<repo_struct>|<code_context>|<file_content>|<source_files>|<pr_start>|<review_comment>
<filepath>|<file_sep>|<think>|</think>|<tool_call>|</tool_call>|]<]frame[>[|]<]start of frame[>[|]<]end of frame[>[
<|content_altered_placeholder|>|]<]minimax[>[|<mm:think>|</mm:think>""".replace(
        "<|content_altered_placeholder|>", "@@"
    )
    .replace("\n", "|")
    .split("|")
)
MARKERS[MARKERS.index("@@")] = "<|content_altered_placeholder|>"
VISIBLE = {
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "]<]minimax[>[",
    "<mm:think>",
    "</mm:think>",
}


def corpus(chats, render):
    """Teacher text and rendered task prompts. Digits go, so that no merge ever holds one."""
    for turns in chats:
        yield re.sub(r"\d", " ", "\n".join(turns))
    maker = tasks.Maker(chats, 5)
    for _ in range(30000):
        text = render(*maker.short())
        for m in MARKERS:
            text = text.replace(m, "\n")
        yield re.sub(r"\d", " ", text)


def main():
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    ap = argparse.ArgumentParser()
    ap.add_argument("--chats", required=True)
    ap.add_argument(
        "--model",
        required=True,
        help="folder with chat_template.jinja; gets tokenizer.json and its config",
    )
    ap.add_argument("--vocab", type=int, default=8192)
    a = ap.parse_args()
    with open(a.chats) as f:
        chats = [json.loads(x) for x in f]
    random.Random(1).shuffle(chats)
    render = template.load(f"{a.model}/chat_template.jinja")
    assert len(MARKERS) == len(set(MARKERS)) == 61, len(MARKERS)
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        corpus(chats, render),
        trainers.BpeTrainer(
            vocab_size=a.vocab - len(MARKERS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    assert tok.get_vocab_size() == a.vocab - len(MARKERS), tok.get_vocab_size()
    tok.add_tokens([AddedToken(m, special=m not in VISIBLE, normalized=False) for m in MARKERS])
    tok.save(f"{a.model}/tokenizer.json")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "]~!b[",
        "eos_token": "[e~[",
        "pad_token": "]!p~[",
        "unk_token": "]!d~[",
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 16384,
    }
    with open(f"{a.model}/tokenizer_config.json", "w") as f:
        json.dump(config, f, indent=2)
    for text in (
        "]~b]ai\n",
        "12345 + 67 = 99",
        "Hello! How can I help you today?",
        "<thinking_instructions>",
    ):
        print(tok.encode(text, add_special_tokens=False).tokens)
    print(
        len(
            tok.encode(
                render([{"role": "user", "content": "Hi"}], None, None), add_special_tokens=False
            ).ids
        ),
        "tokens for a one-word prompt",
    )


if __name__ == "__main__":
    main()
