"""Compares two reports of `winnow check`: what a device computed, and what the CPU computed.

usage: compare_checks.py exact|near EXPECTED ACTUAL

Both ran on the same checkpoint, prompt and cache dtype. With quantised caches neither is near the
golden outputs, which were made without; but the CPU backends are the reference's bits, so a device
with the same bits has the same errors to the last printed digit. `exact` wants that. `near` is for
tensor cores, whose inputs are rounded to BF16: the median row's error may exceed the CPU's by half
and VALUE_SLACK, choices by half and CHOICE_SLACK. The largest error says nothing there: where a
near-tie chooses another block or expert, one token is far off. Both slacks are less than what the
public model itself loses in bf16 (tests/golden/README.md): 0.0126 of the logits and 0.106 of the
chosen blocks for m3-heads.
Prints one line; exits 1 when the reports differ by more.
"""

import pathlib
import re
import sys

VALUE_SLACK = 0.01  # of a row's root mean square
CHOICE_SLACK = 0.08  # random weights, so many near-ties

VALUE = re.compile(r"^(\S.*?) {2,}(\S+ +\S+ +(\S+)) {3}(?:ok|FAILED)$")
CHOICE = re.compile(r"^(\S.*?) {2,}(\d+) of (\d+) differ.* {3}(?:ok|FAILED)$")


def read(path: str) -> dict[str, tuple[float, float, str]]:
    """Name -> (error or share that differs, slack, the printed figures)."""
    lines = {}
    for line in pathlib.Path(path).read_text().splitlines():
        if match := CHOICE.match(line):
            name, different, total = match.group(1), int(match.group(2)), int(match.group(3))
            slack = max(CHOICE_SLACK, 1 / max(total, 1))
            lines[name] = (different / max(total, 1), slack, f"{different} of {total} differ")
        elif match := VALUE.match(line):
            error, shown = float(match.group(3)), " ".join(match.group(2).split())
            lines[match.group(1)] = (error, VALUE_SLACK, shown)
    return lines


def main() -> int:
    mode, expected, actual = sys.argv[1], read(sys.argv[2]), read(sys.argv[3])
    if not expected or expected.keys() != actual.keys():
        print(f"{len(expected)} lines expected, {len(actual)} found")
        return 1
    for name, (ours, slack, shown) in actual.items():
        reference, _, reference_shown = expected[name]
        near = ours <= 1.5 * reference + slack  # false for NaN
        if shown != reference_shown if mode == "exact" else not near:
            print(f"{name}: {shown}, CPU {reference_shown}")
            return 1
    print(f"{len(actual)} lines, logits {actual['logits'][0]}, CPU {expected['logits'][0]} median")
    return 0


if __name__ == "__main__":
    sys.exit(main())
