"""Message classes and methods of the protocol, created at run time from ``djinn.binpb``.

``djinn.binpb`` is the protocol's ``FileDescriptorSet``; there is no generated code. ``_wire.CreateRequest``
is a message class, ``_wire.enum("DType", "DTYPE_F32")`` the number of an enum value, and
``_wire.method("Sessions.Create")`` the path and serializers of a method.
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
    # A separate pool: messages of other packages cannot clash with these.
    pool = descriptor_pool.DescriptorPool()
    stored = resources.files(__name__).joinpath("djinn.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(stored).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _pool()


def __getattr__(name: str) -> Any:
    """Returns the class of a message."""
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        descriptor = _POOL.FindMessageTypeByName(f"{PACKAGE}.{name}")
    except KeyError:
        raise AttributeError(f"the protocol has no message {name}") from None
    return globals().setdefault(name, message_factory.GetMessageClass(descriptor))


@cache
def enum(name: str, value: str) -> int:
    """Returns the number of an enum value."""
    return int(_POOL.FindEnumTypeByName(f"{PACKAGE}.{name}").values_by_name[value].number)


@cache
def enum_name(name: str, number: int) -> str:
    """Returns the last word of an enum value's name in lower case, for example ``ready``."""
    values = _POOL.FindEnumTypeByName(f"{PACKAGE}.{name}").values_by_number
    return str(values[number].name).rpartition("_")[2].lower() if number in values else str(number)


@dataclass(frozen=True)
class Method:
    """Path and serializers of a method."""

    path: str
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


@cache
def method(name: str) -> Method:
    """Returns a method by its name, ``Service.Method``."""
    service, _, short = name.partition(".")
    descriptor = _POOL.FindServiceByName(f"{PACKAGE}.{service}").methods_by_name[short]
    reply = message_factory.GetMessageClass(descriptor.output_type)
    return Method(f"/{PACKAGE}.{service}/{short}", _write, reply.FromString)


def _write(message: Any) -> bytes:
    # Parts of a push are serialized already, which saves a copy.
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())
