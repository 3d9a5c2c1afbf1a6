"""Connections, models, keys and TLS."""

from __future__ import annotations

import socket
import ssl
import subprocess

import pytest

import djinn
from djinn import _address
from serving import GOLDEN, Server

KEYS = """
[[key]]
owner = "ada"
key = "ada-0123456789abcdef"
admin = true

[[key]]
owner = "bob"
key = "bob-0123456789abcdef"
sessions = 1
"""


def test_capabilities(client):
    result = client.capabilities()
    assert "djinn.v1" in result.protocols
    assert result.version and result.device and result.limits.message_bytes > 1 << 20
    assert not result.durable
    assert result.device in repr(client)


def test_models(client, model):
    names = [m.name for m in client.models()]
    assert "stories-7m" in names and "llama2" in names
    assert model.dims.blocks == 8 and model.dims.d_model == 256 and model.dims.vocab == 4096
    assert model.info.family == "llama" and model.info.has_text and not model.info.has_chat
    assert "stories-7m" in repr(model) and "d_model" in model._repr_html_()
    with pytest.raises(djinn.NotFound):
        client.model("nothing")


def test_models_are_registered_and_unloaded(client):
    heard = []
    limits = {"context": 64, "sessions": 4, "kv_dtype": "bf16"}
    model = client.register("shape:gpt2?layers=2", "small", progress=heard.append, **limits)
    assert model.name == "small" and model.info.state == "ready" and model.dims.blocks == 2
    assert model.info.limits["context"] == 64 and model.info.limits["kv_dtype"] == "bf16"
    assert all(p.stage == "load" and p.done_bytes <= p.total_bytes for p in heard)
    assert len(model.generate([1, 2, 3], 4, ignore_eos=True).tokens) == 4
    client.unload("small", forget=True)
    with pytest.raises(djinn.NotFound):
        client.model("small")
    with pytest.raises(djinn.NotFound):
        model.generate([1, 2, 3])
    with pytest.raises(djinn.DjinnError):
        client.register("/etc")


def test_unloading_a_model_with_sessions_needs_force(client):
    model = client.register("shape:gpt2?layers=2", "small", context=64)
    with model.session(max_tokens=2) as s:
        s.generate([1, 2, 3])
        with pytest.raises(djinn.WrongState):
            client.unload("small")
        client.unload("small", force=True, forget=True)


def test_plans(client):
    plan = client.plan("shape:tinyllama-1.1b")
    assert plan.dims.blocks == 22 and plan.memory.total_bytes > 0 and plan.routing
    assert plan.session_kv_bytes > 0


def test_addresses():
    def settle(address, **env):
        return _address.settle(address, None, None, None, None, 1, env=env)

    assert settle(None).target == "127.0.0.1:5556"
    assert settle(None, GENIE_SERVER_ADDRESS="a:1").target == "a:1"
    assert settle(None, GENIE_SERVER_ADDRESS="a:1", DJINN_SERVER="b:2").target == "b:2"
    assert settle("https://c").target == "c:443" and settle("https://c").tls
    assert settle("http://c:80/").target == "c:80" and not settle("http://c:80/").tls
    assert settle("c", DJINN_KEY="k").metadata == (("authorization", "Bearer k"),)
    with pytest.raises(ValueError):
        settle("ftp://c")


def test_an_unreachable_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(djinn.Unavailable) as raised:
        djinn.connect(f"127.0.0.1:{port}", timeout=5)
    assert raised.value.code == "unavailable"
    with pytest.raises(ConnectionError):
        djinn.connect(f"127.0.0.1:{port}", timeout=5)


def test_keys(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    with Server("--keys", keys) as server:
        for key in (None, "unknown-0123456789abcdef"):
            with pytest.raises(djinn.Unauthenticated) as raised:
                djinn.connect(server.address, key)
            assert raised.value.code == "unauthenticated"
        ada = djinn.connect(server.address, "ada-0123456789abcdef")
        bob = djinn.connect(server.address, "bob-0123456789abcdef")
        assert (ada.capabilities().owner, bob.capabilities().owner) == ("ada", "bob")
        with bob.model().session(max_tokens=2) as s:
            s.generate("Once")
            assert ada.sessions() == []
            for forbidden in (ada.session, ada.model().load_session):
                with pytest.raises((djinn.NotFound, FileNotFoundError)):
                    forbidden(s.id)
            with pytest.raises(djinn.QuotaExceeded), bob.model().session() as second:
                second.generate("Once")
        with pytest.raises(djinn.errors.Forbidden):
            bob.register("shape:gpt2?layers=1", "small")


def test_tls(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    subprocess.run([*made, "-keyout", key, "-out", cert, *name], check=True, capture_output=True)
    assert ssl.create_default_context(cafile=cert)
    with Server("--tls-cert", cert, "--tls-key", key) as server:
        with djinn.connect(f"https://{server.address}", ca=cert) as client:
            assert client.model().generate("Once upon a time", 3, temperature=0).tokens
        with djinn.connect(server.address, ca=cert.read_bytes()) as client:
            assert client.models()
        with pytest.raises(djinn.Unavailable):
            djinn.connect(server.address, timeout=5)


def test_golden_models_have_no_text(client):
    model = client.model("llama2")
    assert not model.info.has_text
    with pytest.raises(djinn.Refused):
        model.generate("Once upon a time")
    with pytest.raises(djinn.Refused):
        model.tokenize("Once upon a time")
    assert model.generate([1, 5, 7], 4, ignore_eos=True).tokens
    assert (GOLDEN / "llama2").is_dir()
