"""Types that describe a server, its models and its sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from djinn import _wire

T = TypeVar("T")


class Sampling(TypedDict, total=False):
    """Sampling parameters. Defaults are the model's recommendation, or greedy."""

    temperature: float
    """Temperature; 0 always takes the most likely token."""
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    """Values added to the logits of tokens, by token id."""
    seed: int
    """Seed; the same seed gives the same tokens. Default: drawn, and returned as ``Generation.seed``."""
    logprobs: int
    """Number of alternatives to return with the log-probability of each token."""


class Options(Sampling, total=False):
    """Options of a new session."""

    stop: str | list[str] | tuple[str, ...]
    """Texts that end a turn; the output does not contain them."""
    ignore_eos: bool
    """Whether to continue past end-of-text tokens."""
    deadline_s: float
    """Time limit of the session in seconds."""
    priority: Literal["interactive", "batch"]


class Limits(TypedDict, total=False):
    """Limits that a model is laid out for. Defaults are the server's."""

    memory_bytes: int
    """Device memory in bytes."""
    context: int
    """Context length: tokens of the longest session."""
    batch: int
    """Sessions that one pass may combine."""
    sessions: int
    """Sessions that may be open at once."""
    rows: int
    """Rows of a pass: tokens of all its sessions together."""
    no_prefetch: bool
    """Disables prefetching of streamed weights, to measure its benefit."""
    resident_bytes: int
    """Limit in bytes on weights that stay resident; the others stream."""
    kv_dtype: Literal["auto", "f16", "bf16", "f32"]
    """Element type of keys and values; ``auto`` is the 16-bit type nearest to the weights."""


@dataclass(frozen=True)
class Dims:
    """Dimensions of a model."""

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
    """Memory of a model, by purpose."""

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
    """Description of a model."""

    name: str
    reference: str
    family: str
    state: str
    """``unloaded``, ``loading``, ``ready`` or ``failed``."""
    routing: str
    """One sentence on which weights are resident and which stream."""
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
    """Plan of a model's memory."""

    routing: str
    dims: Dims
    memory: Memory
    session_kv_bytes: int


@dataclass(frozen=True)
class Hook:
    """Named point of a model where activations can be captured and edited."""

    name: str
    layout: str
    shape: tuple[int, ...]
    """Shape of one position."""
    stops: bool
    """Whether a breakpoint can be set here."""


@dataclass(frozen=True)
class ServerLimits:
    """Limits on requests."""

    message_bytes: int
    prompt_tokens: int
    upload_bytes: int
    branches: int
    capture_bytes: int
    lease_s: float


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a server."""

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
    """Breakpoint where a session stands: a hook, the first position that stopped, and their number."""

    hook: str
    position: int
    rows: int
    shape: tuple[int, ...]
    took_us: int | None = field(default=None, compare=False, repr=False, kw_only=True)
    """Microseconds since the turn began or since its last token; only in the result of a turn."""


@dataclass(frozen=True)
class SessionInfo:
    """Description of a session."""

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
    """All tokens; only in the description of a single session."""


@dataclass(frozen=True)
class Progress:
    """Progress of a push or a load."""

    stage: Literal["hash", "send", "load"]
    done_bytes: int
    total_bytes: int


OnProgress: TypeAlias = Callable[[Progress], object]


def read(kind: type[T], message: Any) -> T:
    """Converts a message to one of the types above, field by field."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: _READ.get(name, _plain)(message, name) for name in names})


def _plain(message: Any, name: str) -> Any:
    value = getattr(message, name)
    # Repeated fields become tuples.
    return value if isinstance(value, (str, int, float, bool, bytes)) else tuple(value)


def _limits(message: Any, name: str) -> Any:
    limits = getattr(message, name)
    if limits.DESCRIPTOR.name == "Limits":
        return read(ServerLimits, limits)
    found = {one.name: value for one, value in limits.ListFields()}
    if "kv_dtype" in found:
        found["kv_dtype"] = _wire.enum_name("KvDtype", found["kv_dtype"])
    return found


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
