"""The protocol: message classes and methods, made at run time from ``djinn.binpb``.

That file is the protocol's ``FileDescriptorSet``; nothing is generated, so nothing can be out of step
with it. ``_wire.CreateRequest`` is the class of that message, ``_wire.enum("DType", "DTYPE_F32")`` a
number, ``_wire.method("Sessions.Create")`` what a channel needs to call it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "djinn.v1"


def _pool() -> descriptor_pool.DescriptorPool:
    # A pool of its own: other packages in the process cannot clash with it.
    pool = descriptor_pool.DescriptorPool()
    stored = resources.files(__name__).joinpath("djinn.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(stored).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _pool()


def __getattr__(name: str) -> Any:
    """The class of a message."""
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        descriptor = _POOL.FindMessageTypeByName(f"{PACKAGE}.{name}")
    except KeyError:
        raise AttributeError(f"the protocol has no message {name}") from None
    return globals().setdefault(name, message_factory.GetMessageClass(descriptor))


@cache
def enum(name: str, value: str) -> int:
    """The number of an enum's value."""
    return int(_POOL.FindEnumTypeByName(f"{PACKAGE}.{name}").values_by_name[value].number)


@cache
def enum_name(name: str, number: int) -> str:
    """The other way round, by its last word: ``ready``."""
    values = _POOL.FindEnumTypeByName(f"{PACKAGE}.{name}").values_by_number
    return str(values[number].name).rpartition("_")[2].lower() if number in values else str(number)


@dataclass(frozen=True)
class Method:
    """What a channel needs to call a method."""

    path: str
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


@cache
def method(name: str) -> Method:
    """A method by ``Service.Method``."""
    service, _, short = name.partition(".")
    descriptor = _POOL.FindServiceByName(f"{PACKAGE}.{service}").methods_by_name[short]
    reply = message_factory.GetMessageClass(descriptor.output_type)
    return Method(f"/{PACKAGE}.{service}/{short}", _write, reply.FromString)


def _write(message: Any) -> bytes:
    # Large parts are written by whoever makes them, with one copy less.
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())
