"""Text forms of positions, parts, hooks and breakpoints.

These functions convert Python values to the syntax of the command line:

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
"""Positions as text (``"all"``, ``"prompt"``, ``"generated"``, ``"0,3,-1"``, ``"2..5"``) or as Python
values (``-1``, ``[0, 3, -1]``, ``slice(2, 5)``). Negative positions count back from the end of the
prompt."""

Part: TypeAlias = "str | SupportsIndex | slice | range | Iterable[SupportsIndex] | None"
"""Heads or elements of a hook: ``3``, ``[0, 2]``, ``slice(0, 64)``, ``"[0..64]"``."""

# End of open ranges: larger than any position.
_END = 1 << 40

_ATTENTION = frozenset(["q", "k", "v", "z", "pattern"])
_MLP = frozenset(["pre", "post"])


def positions(where: Positions) -> str:
    """Converts positions to text; ``None`` to empty text."""
    if where is None:
        return ""
    return where if isinstance(where, str) else _ranges(where)


def part(which: Part) -> str:
    """Converts a part to text in brackets; ``None`` to empty text."""
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
    """Converts a breakpoint to text."""
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
    """Returns the full name of a hook from its short name and its block."""
    if block is None:
        return name
    group = "attn." if name in _ATTENTION else "mlp." if name in _MLP else ""
    return f"blocks.{block}.{group}hook_{name.removeprefix('hook_')}"


def listed(given: Any) -> list[Any]:
    """Returns one value or several as a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def captures(names: Any) -> list[str]:
    """Splits captures into a list of texts. A text may contain several, separated by commas.

    >>> captures("blocks.0.attn.hook_z[0,2]@-1,logits")
    ['blocks.0.attn.hook_z[0,2]@-1', 'logits']
    """
    found: list[str] = []
    for name in listed(names):
        if not isinstance(name, str):
            raise TypeError(f"a capture must be a text, HOOK[PART][@POSITIONS][|REDUCTION], not {name!r}")
        for i, piece in enumerate(name.split(",")):
            # Hooks begin with a letter: a piece that begins with a digit belongs to the list before it.
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
        raise ValueError("ranges with a step are not supported: list the positions or elements one by one")
    if start is None and stop is None:
        return ""
    start = 0 if start is None else start
    if stop is None:
        # After a negative start, 0 means the end of the prompt.
        stop = 0 if start < 0 else _END
    return f"{start}..{stop}"
