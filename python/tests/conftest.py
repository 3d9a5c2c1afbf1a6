"""A server that most tests share."""

from __future__ import annotations

import os

import pytest

import djinn
from serving import GOLDEN, STORIES, Server

FAMILIES = sorted(path.name for path in GOLDEN.iterdir())


@pytest.fixture(scope="session")
def server():
    # Golden values were computed with keys and values in 32 bits.
    golden = [f"{name}={GOLDEN / name},kv-dtype=f32" for name in FAMILIES]
    models = [arg for model in golden for arg in ("--model", model)]
    with Server("--model", f"stories-7m={STORIES}", *models) as server:
        os.environ["DJINN_SERVER"] = server.address
        yield server
        assert server.stop() == 0, "the server did not drain"


@pytest.fixture(scope="session")
def client(server):
    with djinn.connect(server.address) as client:
        yield client


@pytest.fixture(scope="session")
def model(client):
    return client.model("stories-7m")


@pytest.fixture(autouse=True)
def no_session_is_left(request):
    """Checks after every test that no session is left."""
    yield
    if "client" in request.fixturenames:
        from serving import eventually

        client = request.getfixturevalue("client")
        eventually(lambda: not client.sessions())
