"""A `winnow serve` process and what tests ask of it."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx
import openai

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("WINNOW_BIN", ROOT / "build" / "release" / "bin"))


class Server:
    """One process; its log is kept for messages of failed tests."""

    def __init__(self, model, *flags, env=None):
        if not any(str(flag).startswith("--uds") for flag in flags):
            flags = ("--port", "0", *flags)
        self.process = subprocess.Popen(
            [BIN / "winnow", "serve", str(model), *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.lines = []
        self.url = None
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        if not self._ready.wait(60) or self.url is None:
            self.process.kill()
            raise RuntimeError("the server did not start:\n" + self.log())

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.match(r"(?:Open|Serving on) (\S+)", line) or re.match(
                r'\{.*"message":"ready","url":"([^"]+)"', line
            )
            if found:
                self.url = found[1]
                self._ready.set()
        self._ready.set()

    def log(self):
        return "".join(self.lines)

    def client(self, **kwargs):
        kwargs.setdefault("api_key", "none")
        kwargs.setdefault("max_retries", 0)
        return openai.OpenAI(base_url=self.url + "/v1", timeout=60, **kwargs)

    def get(self, path, **kwargs):
        return httpx.get(self.url + path, timeout=60, **kwargs)

    def post(self, path, json=None, **kwargs):
        return httpx.post(self.url + path, json=json, timeout=60, **kwargs)

    def metric(self, name, **labels):
        """The sum over series with these labels."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            found = re.match(r"([\w:]+)(?:\{(.*)\})? (\S+)$", line)
            if found and found[1] == name:
                given = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
                if all(given.get(key) == value for key, value in labels.items()):
                    total += float(found[3])
        return total

    def wait_metric(self, name, value, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.metric(name) == value:
                return
            time.sleep(0.02)
        raise AssertionError(f"{name} is {self.metric(name)}, expected {value}\n" + self.log())

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()
