"""Changes at hooks, as data: nothing of yours runs on the server.

>>> import djinn
>>> djinn.scale("blocks.4.hook_resid_post", 0.9, positions=-1)
scale 0.9 at blocks.4.hook_resid_post@-1
>>> djinn.zero("blocks.1.attn.hook_z", part=2)
zero at blocks.1.attn.hook_z[2]
>>> djinn.add("blocks.3.hook_resid_post", [0.5] * 256, factor=2.0)
add 2.0 x float32[256] at blocks.3.hook_resid_post

Wherever edits are taken there may be one or several, in order, and each may be the text that the command
line takes as well: ``"blocks.4.hook_resid_post:scale=0.9@-1"``. A hook may be several by ``*``.

An array holds the numbers of one position, or of every selected one: ``[d_model]`` or ``[pos, d_model]``,
``[pos, head, d_head]`` where a hook has heads; float32, float16 and bfloat16 travel as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from djinn import _forms, _tensors, _wire
from djinn._forms import Part, Positions

Kind: TypeAlias = Literal["scale", "zero", "add", "replace", "project_out", "add_matched", "clamp"]


@dataclass(frozen=True, eq=False)
class Edit:
    """A change at a hook. Made by the functions of this module."""

    hook: str
    kind: Kind
    numbers: tuple[float, ...] = ()
    values: Any = None
    part: str = ""
    positions: str = ""

    def __repr__(self) -> str:
        where = f"{self.hook}{self.part}" + (f"@{self.positions}" if self.positions else "")
        numbers = "..".join(str(n) for n in self.numbers)
        array = "" if self.values is None else _digest(self.values)
        operand = " x ".join(text for text in (numbers, array) if text)
        return " ".join(text for text in (self.kind, operand, "at", where) if text)

    def to_wire(self) -> Any:
        """As it travels."""
        edit = _wire.Edit(hook=self.hook, part=self.part, positions=self.positions)
        if self.kind == "scale":
            edit.scale = self.numbers[0]
        elif self.kind == "zero":
            edit.zero = True
        elif self.kind == "clamp":
            edit.clamp.low, edit.clamp.high = self.numbers
        elif self.kind in ("add", "add_matched"):
            added = getattr(edit, self.kind)
            added.tensor.CopyFrom(_tensors.to_wire(self.values))
            added.factor = self.numbers[0]
        else:
            getattr(edit, self.kind).CopyFrom(_tensors.to_wire(self.values))
        return edit


Edits: TypeAlias = "Edit | str | Iterable[Edit | str] | None"
"""Changes, in order: one or several, each made by a function of this module or written as text."""


def scale(hook: str, factor: float, *, positions: Positions = None, part: Part = None) -> Edit:
    """Multiplies what is there."""
    return _edit("scale", hook, positions, part, numbers=(float(factor),))


def zero(hook: str, *, positions: Positions = None, part: Part = None) -> Edit:
    """Sets what is there to zero: with ``part=2`` at a ``hook_z``, takes a head out."""
    return _edit("zero", hook, positions, part)


def add(
    hook: str, values: Any, factor: float = 1.0, *, positions: Positions = None, part: Part = None
) -> Edit:
    """Adds an array, ``factor`` times: steering."""
    return _edit("add", hook, positions, part, values, (float(factor),))


def add_matched(
    hook: str, values: Any, factor: float = 1.0, *, positions: Positions = None, part: Part = None
) -> Edit:
    """Adds an array after it was made as long as what is there, ``factor`` times."""
    return _edit("add_matched", hook, positions, part, values, (float(factor),))


def replace(hook: str, values: Any, *, positions: Positions = None, part: Part = None) -> Edit:
    """Puts an array in the place of what is there: patching."""
    return _edit("replace", hook, positions, part, values)


def project_out(hook: str, values: Any, *, positions: Positions = None, part: Part = None) -> Edit:
    """Takes away what points along an array."""
    return _edit("project_out", hook, positions, part, values)


def clamp(hook: str, low: float, high: float, *, positions: Positions = None, part: Part = None) -> Edit:
    """Bounds what is there."""
    return _edit("clamp", hook, positions, part, numbers=(float(low), float(high)))


def to_wire(edits: Edits) -> list[Any]:
    """Edits as they travel."""
    return [
        _wire.Edit(text=edit) if isinstance(edit, str) else edit.to_wire() for edit in _forms.listed(edits)
    ]


def _edit(
    kind: Kind,
    hook: str,
    positions: Positions,
    part: Part,
    values: Any = None,
    numbers: tuple[float, ...] = (),
) -> Edit:
    return Edit(hook, kind, numbers, values, _forms.part(part), _forms.positions(positions))


def _digest(values: Any) -> str:
    array = _tensors.as_rows(values)
    return f"{array.dtype}{list(array.shape)}"
