# ruff: noqa: E501
"""Shrink sampled waves for transport: complete conversations only, flat ids, eight compressed parts."""

import glob
import lzma
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np

LIMIT = int(7.8 * 2**20)


def trim(path):
    rows = []
    for row in np.load(path)["ids"]:
        ends = np.flatnonzero(row == 2)
        # turns: system, user, assistant, user, ...: keep up to the last complete assistant turn
        n = (len(ends) - 1) // 2 * 2 + 1
        if n >= 3:
            rows.append(np.append(row[ends[0] + 1 : ends[n - 1] + 1], 0))
    return np.concatenate(rows).astype(np.uint16) if rows else np.zeros(0, np.uint16)


def compress(job):
    part, out = job
    while True:
        raw = (part & 255).astype(np.uint8).tobytes() + (part >> 8).astype(np.uint8).tobytes()
        data = lzma.compress(raw, preset=3)
        if len(data) <= LIMIT:
            break
        part = part[: int(len(part) * LIMIT / len(data) * 0.99)]
    with open(out, "wb") as f:
        f.write(data)
    return len(part), len(data)


def main():
    with ProcessPoolExecutor(14) as pool:
        flat = np.concatenate(list(pool.map(trim, sorted(glob.glob(sys.argv[1])))))
        print("tokens in complete conversations:", len(flat))
        print(
            list(
                pool.map(
                    compress,
                    [(p, f"{sys.argv[2]}.{i}.xz") for i, p in enumerate(np.array_split(flat, 8))],
                )
            )
        )


if __name__ == "__main__":
    main()
