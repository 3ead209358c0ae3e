"""Runs build/release/bin/text_tool (or $WINNOW_BIN_DIR/text_tool) over lists of requests."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = pathlib.Path(os.environ.get("WINNOW_BIN_DIR", ROOT / "build/release/bin")) / "text_tool"


@pytest.fixture(scope="session")
def text_tool():
    if not TOOL.exists():
        pytest.fail(f"{TOOL} is missing: build the target text_tool first")

    def call(verb, path, requests):
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        done = subprocess.run(
            [TOOL, verb, str(path)], input=lines.encode(), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        replies = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
        assert len(replies) == len(requests)
        return replies

    return call
