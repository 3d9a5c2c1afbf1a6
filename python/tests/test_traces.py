"""OpenTelemetry traces contain requests and turns, but no prompts or generated text."""

from __future__ import annotations

from concurrent import futures

import grpc

import djinn
from serving import STORIES, Server, eventually

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Collector(grpc.GenericRpcHandler):
    """Collector that stores all received spans."""

    def __init__(self) -> None:
        self.sent = b""

    def service(self, call):
        assert call.method == EXPORT
        return grpc.unary_unary_rpc_method_handler(self.take)

    def take(self, request: bytes, _: object) -> bytes:
        self.sent += request
        return b""


def test_requests_and_turns_are_traced():
    collector = Collector()
    taker = grpc.server(futures.ThreadPoolExecutor(2), handlers=[collector])
    port = taker.add_insecure_port("127.0.0.1:0")
    taker.start()
    with Server(
        "--model", f"m={STORIES}", "--otlp", f"http://127.0.0.1:{port}", "--node-id", "here"
    ) as server:
        with djinn.connect(server.address) as client:
            result = client.model().generate("The secret word is banana", max_tokens=5, temperature=0)
        assert server.stop() == 0
    eventually(lambda: b"turn" in collector.sent and b"request" in collector.sent)
    for word in (b"Sessions/Create", b"here", b"tokens"):
        assert word in collector.sent
    for word in (b"banana", result.text.strip().encode()):
        assert word not in collector.sent
    taker.stop(0)
