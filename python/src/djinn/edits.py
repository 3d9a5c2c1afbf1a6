"""Edits of activations, as data: no client code runs on the server.

>>> import djinn
>>> djinn.scale("blocks.4.hook_resid_post", 0.9, positions=-1)
scale 0.9 at blocks.4.hook_resid_post@-1
>>> djinn.zero("blocks.1.attn.hook_z", part=2)
zero at blocks.1.attn.hook_z[2]
>>> djinn.add("blocks.3.hook_resid_post", [0.5] * 256, factor=2.0)
add 2.0 x float32[256] at blocks.3.hook_resid_post

Functions that take edits accept one or several, applied in order. An edit may also be a text in the syntax
of the command line: ``"blocks.4.hook_resid_post:scale=0.9@-1"``. ``*`` in a hook's name matches any text.

An array has the values of one position or of every selected position: ``[d_model]`` or ``[pos, d_model]``;
``[pos, head, d_head]`` at hooks with heads. float32, float16 and bfloat16 are sent without conversion.
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
    """Edit of the activation at a hook, created by the functions of this module."""

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
        """Converts the edit to a message."""
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
"""One or several edits in order, each created by a function of this module or written as text."""


def scale(hook: str, factor: float, *, positions: Positions = None, part: Part = None) -> Edit:
    """Multiplies the activation by a factor."""
    return _edit("scale", hook, positions, part, numbers=(float(factor),))


def zero(hook: str, *, positions: Positions = None, part: Part = None) -> Edit:
    """Sets the activation to zero. ``part=2`` at a ``hook_z`` ablates head 2."""
    return _edit("zero", hook, positions, part)


def add(
    hook: str, values: Any, factor: float = 1.0, *, positions: Positions = None, part: Part = None
) -> Edit:
    """Adds an array multiplied by ``factor`` (steering)."""
    return _edit("add", hook, positions, part, values, (float(factor),))


def add_matched(
    hook: str, values: Any, factor: float = 1.0, *, positions: Positions = None, part: Part = None
) -> Edit:
    """Adds an array that is scaled to the norm of the activation first, multiplied by ``factor``."""
    return _edit("add_matched", hook, positions, part, values, (float(factor),))


def replace(hook: str, values: Any, *, positions: Positions = None, part: Part = None) -> Edit:
    """Replaces the activation with an array (patching)."""
    return _edit("replace", hook, positions, part, values)


def project_out(hook: str, values: Any, *, positions: Positions = None, part: Part = None) -> Edit:
    """Removes the component along a direction."""
    return _edit("project_out", hook, positions, part, values)


def clamp(hook: str, low: float, high: float, *, positions: Positions = None, part: Part = None) -> Edit:
    """Limits every element to a range."""
    return _edit("clamp", hook, positions, part, numbers=(float(low), float(high)))


def to_wire(edits: Edits) -> list[Any]:
    """Converts edits to messages."""
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
