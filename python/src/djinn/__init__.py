"""Python client of Djinn.

>>> import djinn
>>> model = djinn.connect().model()
>>> print(model.generate("Once upon a time", max_tokens=8, temperature=0))
, there was a little girl named Lily
>>> logits, cache = model.run_with_cache("Once upon a time", "blocks.*.hook_resid_post@-1")
>>> cache["resid_post", 7].shape
(1, 256)
"""

from djinn import aio, errors, types
from djinn._forms import breakpoint_at, hook_name
from djinn._link import Stream
from djinn._push import push
from djinn.cache import Cache
from djinn.client import Client, connect
from djinn.edits import Edit, add, add_matched, clamp, project_out, replace, scale, zero
from djinn.errors import (
    DjinnError,
    NotFound,
    QuotaExceeded,
    Refused,
    Unauthenticated,
    Unavailable,
    WrongState,
)
from djinn.model import Model
from djinn.outcome import Generation, Logprob, Paused, Token
from djinn.session import Session
from djinn.types import Progress

__all__ = [
    "Cache",
    "Client",
    "DjinnError",
    "Edit",
    "Generation",
    "Logprob",
    "Model",
    "NotFound",
    "Paused",
    "Progress",
    "QuotaExceeded",
    "Refused",
    "Session",
    "Stream",
    "Token",
    "Unauthenticated",
    "Unavailable",
    "WrongState",
    "add",
    "add_matched",
    "aio",
    "breakpoint_at",
    "clamp",
    "connect",
    "errors",
    "hook_name",
    "project_out",
    "push",
    "replace",
    "scale",
    "types",
    "zero",
]
__version__ = "0.1.0"
