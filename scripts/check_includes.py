"""Fails on an #include that points up the tree: each folder may include only what is listed here
(the arrows of docs/architecture.md), and external headers with one owner stay with that owner."""

import pathlib
import re
import sys

ALLOWED = {
    "base": set(),
    "formats": {"base"},
    "text": {"base"},
    "grammar": {"text", "base"},
    "parallel": {"base"},
    "checkpoint": {"formats", "base"},
    "cache": {"formats", "base"},
    "ops": {"formats", "parallel", "base"},
    "model": {"ops", "checkpoint", "cache", "parallel", "formats", "base"},
    "engine": {"model", "cache", "parallel", "base"},
    "server": {"engine", "grammar", "text", "base"},
    "load": {"server", "engine", "text", "base"},
    "cli": {
        "load",
        "server",
        "engine",
        "grammar",
        "model",
        "checkpoint",
        "text",
        "formats",
        "ops",
        "base",
    },
}
ONE_OWNER = {"boost/asio": "src/server/asio.h"}
INCLUDE = re.compile(r'^\s*#include\s+(["<])([^">]+)[">]')


def problems_of(path: pathlib.Path) -> list[str]:
    folder = path.parts[1]
    if folder not in ALLOWED:
        return []
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        top = target.split("/")[0]
        if quote == '"' and top in ALLOWED and top != folder and top not in ALLOWED[folder]:
            found.append(f"{path}:{number}: {folder} may not include {target}")
        for prefix, owner in ONE_OWNER.items():
            if quote == "<" and target.startswith(prefix) and str(path) != owner:
                found.append(f"{path}:{number}: only {owner} includes <{target}>")
    return found


def main() -> int:
    files = [p for p in pathlib.Path("src").rglob("*") if p.suffix in (".h", ".cpp", ".cu", ".cuh")]
    found = [problem for path in sorted(files) for problem in problems_of(path)]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
