"""A live `winnow serve` of a small random model, and clients for it."""

import subprocess

import pytest
from live_server import BIN, ROOT, Server


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "test-model"
    subprocess.run([BIN / "make_test_model", folder], check=True)
    return folder


@pytest.fixture(scope="session")
def server(model):
    running = Server(model, "--max-num-seqs", "8", "--kv-cache-memory-bytes", "64M")
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture(scope="session")
def client(server):
    return server.client()


@pytest.fixture(scope="session")
def tiny():
    """The bundled model, which calls tools."""
    running = Server(
        ROOT / "models" / "winnow-tiny", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "64M"
    )
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture
def start(model):
    """Starts further servers with flags of the test's own."""
    started = []

    def run(*flags, **kwargs):
        started.append(Server(model, *flags, **kwargs))
        return started[-1]

    yield run
    for one in started:
        one.stop()
