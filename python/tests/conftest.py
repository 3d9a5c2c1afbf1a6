"""A server that most tests share."""

from __future__ import annotations

import os

import pytest

import djinn
from serving import GOLDEN, STORIES, Server

FAMILIES = sorted(path.name for path in GOLDEN.iterdir())


@pytest.fixture(scope="session")
def server():
    models = [arg for name in FAMILIES for arg in ("--model", f"{name}={GOLDEN / name}")]
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
