"""How positions, parts, hooks and breakpoints are written.

Everything here makes the text that the command line takes too, out of what Python has for it:

>>> positions([0, 3, -1]), positions(slice(2, 5)), positions("prompt")
('0,3,-1', '2..5', 'prompt')
>>> part(3), part(range(0, 64)), part("[0..64]")
('[3]', '[0..64]', '[0..64]')
>>> breakpoint_at("blocks.5.hook_resid_post", positions=-1, step=0, norm_above=40)
'blocks.5.hook_resid_post@-1,step=0,norm>40'
>>> hook_name("resid_post", 3), hook_name("z", 0), hook_name("logits")
('blocks.3.hook_resid_post', 'blocks.0.attn.hook_z', 'logits')
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex, TypeAlias

import numpy as np

Positions: TypeAlias = "str | SupportsIndex | slice | range | Iterable[SupportsIndex] | None"
"""Which positions: ``"all"``, ``"prompt"``, ``"generated"``, ``"0,3,-1"``, ``"2..5"``, or as Python
says such things: ``-1``, ``[0, 3, -1]``, ``slice(2, 5)``. Negative ones count back from the end of the
prompt."""

Part: TypeAlias = "str | SupportsIndex | slice | range | Iterable[SupportsIndex] | None"
"""Which heads or elements of a hook: ``3``, ``[0, 2]``, ``slice(0, 64)``, ``"[0..64]"``."""

# As far as the server counts positions: what has no end goes up to here.
_END = 1 << 40

_ATTENTION = frozenset(["q", "k", "v", "z", "pattern"])
_MLP = frozenset(["pre", "post"])


def positions(where: Positions) -> str:
    """Positions as text; nothing where nothing was said."""
    if where is None:
        return ""
    return where if isinstance(where, str) else _ranges(where)


def part(which: Part) -> str:
    """A part as text, in its brackets; nothing where nothing was said."""
    if which is None:
        return ""
    text = which if isinstance(which, str) else _ranges(which)
    return text if not text or text.startswith("[") else f"[{text}]"


def breakpoint_at(
    hook: str,
    *,
    positions: Positions = None,
    step: int | None = None,
    token: int | None = None,
    norm_above: float | None = None,
    norm_below: float | None = None,
) -> str:
    """A breakpoint as text."""
    where = globals()["positions"](positions)
    conditions = [
        ("step=", step),
        ("token=", token),
        ("norm>", norm_above),
        ("norm<", norm_below),
    ]
    given = [f",{sign}{value}" for sign, value in conditions if value is not None]
    return hook + (f"@{where}" if where else "") + "".join(given)


def hook_name(name: str, block: int | None = None) -> str:
    """The whole name of a hook from its short one and its block."""
    if block is None:
        return name
    room = "attn." if name in _ATTENTION else "mlp." if name in _MLP else ""
    return f"blocks.{block}.{room}hook_{name.removeprefix('hook_')}"


def listed(given: Any) -> list[Any]:
    """One thing or several, as a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def captures(names: Any) -> list[str]:
    """Captures as a list of texts: several of them, or one text with commas between.

    >>> captures("blocks.0.attn.hook_z[0,2]@-1,logits")
    ['blocks.0.attn.hook_z[0,2]@-1', 'logits']
    """
    found: list[str] = []
    for name in listed(names):
        if not isinstance(name, str):
            raise TypeError(f"a capture is a text, HOOK[PART][@POSITIONS][|REDUCTION], not {name!r}")
        for i, piece in enumerate(name.split(",")):
            # Hooks begin with a letter: a number goes on with the list before it.
            if i > 0 and piece[:1] in "-0123456789":
                found[-1] += f",{piece}"
            else:
                found.append(piece.strip())
    return found


def _ranges(which: Any) -> str:
    if isinstance(which, slice):
        return _range(which.start, which.stop, which.step)
    if isinstance(which, range):
        return _range(which.start, which.stop, which.step)
    if hasattr(which, "__index__") and np.ndim(which) == 0:
        return str(which.__index__())
    return ",".join(str(n.__index__()) for n in which)


def _range(start: int | None, stop: int | None, step: int | None) -> str:
    if step not in (None, 1):
        raise ValueError("positions and parts are ranges without steps: list them one by one")
    if start is None and stop is None:
        return ""
    start = 0 if start is None else start
    if stop is None:
        # Behind a negative start, zero is the end of the prompt.
        stop = 0 if start < 0 else _END
    return f"{start}..{stop}"
