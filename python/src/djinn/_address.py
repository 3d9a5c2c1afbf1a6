"""Address and credentials of a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc

DEFAULT = "127.0.0.1:5556"

Pem: TypeAlias = "bytes | str | os.PathLike[str] | None"
"""Certificate or private key in PEM format, as bytes or as a file."""

# No limit on message sizes, since tensors are large; keep-alive pings for silent streams.
OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
]


@dataclass(frozen=True)
class Address:
    """Address of a server, with credentials and timeout."""

    target: str
    tls: bool
    key: str | None
    ca: Pem = None
    cert: tuple[Pem, Pem] | None = None
    timeout_s: float | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Metadata of every call."""
        return (("authorization", f"Bearer {self.key}"),) if self.key else ()

    def credentials(self) -> grpc.ChannelCredentials | None:
        """TLS credentials of a channel; ``None`` for plain text."""
        if not self.tls:
            return None
        chain, private = self.cert or (None, None)
        return grpc.ssl_channel_credentials(_pem(self.ca), _pem(private), _pem(chain))

    def options(self) -> list[tuple[str, Any]]:
        """Options of a channel."""
        host = self.target.rpartition(":")[0]
        is_here = host in ("localhost", "127.0.0.1", "[::1]")
        return [*OPTIONS, ("grpc.enable_http_proxy", 0)] if is_here else OPTIONS


def settle(
    address: str | None,
    key: str | None,
    tls: bool | None,
    ca: Pem,
    cert: tuple[Pem, Pem] | None,
    timeout_s: float | None,
    env: Mapping[str, str] = os.environ,
) -> Address:
    """Fills arguments that are not given from the environment variables.

    >>> settle("https://models.example:443", None, None, None, None, 60, env={}).tls
    True
    >>> settle(None, None, None, None, None, 60, env={"DJINN_SERVER": "gpu:5556"}).target
    'gpu:5556'
    """
    given = address or env.get("DJINN_SERVER") or env.get("GENIE_SERVER_ADDRESS") or DEFAULT
    scheme, _, rest = given.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise ValueError(f"invalid address {given!r}: use HOST:PORT, http://HOST:PORT or https://HOST:PORT")
    host = rest.rstrip("/")
    secure = scheme == "https" or ca is not None or cert is not None if tls is None else tls
    if ":" not in host:
        host = f"{host}:{443 if scheme == 'https' else DEFAULT.rpartition(':')[2]}"
    return Address(host, secure, key or env.get("DJINN_KEY") or None, ca, cert, timeout_s)


def _pem(given: Pem) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    return Path(given).read_bytes()
