"""What a server tells of itself, its models and its sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from djinn import _wire

T = TypeVar("T")


class Sampling(TypedDict, total=False):
    """How tokens are chosen. What is not said is as the model recommends, or greedy."""

    temperature: float
    """Zero is greedy."""
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    """Added to the logits of these tokens."""
    seed: int
    """The same seed gives the same tokens. Not said: drawn, and told as ``Generation.seed``."""
    logprobs: int
    """Tell of every token its log-probability, and so many alternatives."""


class Options(Sampling, total=False):
    """What else there is to say when a session begins."""

    stop: str | list[str] | tuple[str, ...]
    """Texts that end a turn; they are not part of the output."""
    ignore_eos: bool
    """Go on past the tokens that end a text."""
    deadline_s: float
    """Seconds after which it is over, whatever it has generated."""
    priority: Literal["interactive", "batch"]


class Limits(TypedDict, total=False):
    """What a model is laid out for. What is not said is the server's own."""

    memory_bytes: int
    """Bytes of the device it may take."""
    context: int
    """Positions of its longest session."""
    batch: int
    """Sessions in one pass."""
    sessions: int
    """Sessions open at once."""
    rows: int
    """Tokens that go through together while prompts run."""
    no_prefetch: bool
    """Brings weights that stream only when they are needed: shows what running ahead is worth."""
    resident_bytes: int
    """Weights that stay on the device at most; what is left streams."""


@dataclass(frozen=True)
class Dims:
    """The shape of a model."""

    blocks: int
    d_model: int
    heads: int
    kv_heads: int
    d_head: int
    d_mlp: int
    vocab: int
    context: int


@dataclass(frozen=True)
class Memory:
    """Where a model's bytes are."""

    resident_bytes: int
    ring_bytes: int
    experts_bytes: int
    kv_bytes: int
    activations_bytes: int
    total_bytes: int
    host_bytes: int
    streamed_bytes: int


@dataclass(frozen=True)
class ModelInfo:
    """A model as a server has it."""

    name: str
    reference: str
    family: str
    state: str
    """``unloaded``, ``loading``, ``ready`` or ``failed``."""
    routing: str
    """What is resident and what streams, in a sentence."""
    dims: Dims
    memory: Memory
    limits: Limits
    has_text: bool
    has_chat: bool
    sessions: int
    idle_s: float
    eos: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What would become of a model that is not loaded yet."""

    routing: str
    dims: Dims
    memory: Memory
    session_kv_bytes: int


@dataclass(frozen=True)
class Hook:
    """A point in a model that can be read and changed."""

    name: str
    layout: str
    shape: tuple[int, ...]
    """Of one position."""
    stops: bool
    """Whether a session can stop there."""


@dataclass(frozen=True)
class ServerLimits:
    """What a server takes."""

    message_bytes: int
    prompt_tokens: int
    upload_bytes: int
    branches: int
    capture_bytes: int
    lease_s: float


@dataclass(frozen=True)
class Capabilities:
    """What a server is and can do."""

    version: str
    protocols: tuple[str, ...]
    node: str
    device: str
    device_detail: str
    limits: ServerLimits
    owner: str
    durable: bool


@dataclass(frozen=True)
class At:
    """A place where a session stands: a hook, the first position that stopped, and how many did."""

    hook: str
    position: int
    rows: int
    shape: tuple[int, ...]
    took_us: int | None = field(default=None, compare=False, repr=False, kw_only=True)
    """Microseconds the engine took to get there, since it was told to go on or since its last token; of
    a stop that was followed."""


@dataclass(frozen=True)
class SessionInfo:
    """A session as a server has it."""

    session: str
    model: str
    state: str
    """``ready``, ``running``, ``waiting``, ``paused`` or ``done``."""
    tokens: int
    generated: int
    pages: int
    pages_away: int
    paused: At | None
    owner: str
    token_ids: tuple[int, ...]
    """Every token; only where one session was asked for."""


@dataclass(frozen=True)
class Progress:
    """How far something has come."""

    stage: Literal["hash", "send", "load"]
    done_bytes: int
    total_bytes: int


OnProgress: TypeAlias = Callable[[Progress], object]


def read(kind: type[T], message: Any) -> T:
    """A message as one of the types above: fields of the same names."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: _READ.get(name, _plain)(message, name) for name in names})


def _plain(message: Any, name: str) -> Any:
    value = getattr(message, name)
    # What is there several times becomes a tuple.
    return value if isinstance(value, (str, int, float, bool, bytes)) else tuple(value)


def _limits(message: Any, name: str) -> Any:
    limits = getattr(message, name)
    if limits.DESCRIPTOR.name == "Limits":
        return read(ServerLimits, limits)
    return {one.name: value for one, value in limits.ListFields()}


_READ: dict[str, Callable[[Any, str], Any]] = {
    "dims": lambda message, _: read(Dims, message.dims),
    "memory": lambda message, _: read(Memory, message.memory),
    "limits": _limits,
    "state": lambda message, _: (
        message.state if isinstance(message.state, str) else _wire.enum_name("ModelState", message.state)
    ),
    "took_us": lambda message, _: message.took_us if message.HasField("took_us") else None,
    "paused": lambda message, _: read(At, message.paused) if message.HasField("paused") else None,
}
