"""A prompt that is run to be looked at: what is asked for, and what of it goes where."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from djinn import _turns
from djinn.cache import Cache
from djinn.errors import NotFound
from djinn.types import Hook

if TYPE_CHECKING:
    from djinn._forms import Positions
    from djinn._tensors import Array
    from djinn.edits import Edits
    from djinn.outcome import Outcome

Names: TypeAlias = "str | Iterable[str] | Callable[[str], bool] | None"
"""What to read: ``HOOK[PART][@POSITIONS][|REDUCTION]``, one or several, or a function that says of a
hook's name whether it is wanted."""


class Reading:
    """A turn that generates nothing, and what was read in it."""

    def __init__(
        self,
        model: str,
        prompt: Any,
        captures: list[str],
        *,
        logits: bool = False,
        positions: Positions = None,
        edits: Edits = None,
    ) -> None:
        self._logits = logits
        # Whether they are there for themselves alone, and not as part of the cache.
        self._alone = logits and "logits" not in captures
        request = _turns.create(
            model,
            prompt,
            max_tokens=0,
            captures=[*captures, "logits"] if self._alone else captures,
            capture_positions=positions,
            edits_=edits,
        )
        self.turn = _turns.Turn("Sessions.Create", request)

    def split(self, outcome: Outcome) -> tuple[Array | None, Cache]:
        """The logits, where they were asked for, and the rest."""
        arrays = dict(_turns.generation(outcome).captured)
        logits = arrays["logits"] if self._logits else None
        if self._alone:
            del arrays["logits"]
        return logits, Cache(arrays)


def wanted(is_wanted: Callable[[str], bool], hooks: list[Hook]) -> list[str]:
    """The hooks that a function picks."""
    picked = [hook.name for hook in hooks if is_wanted(hook.name)]
    if not picked:
        raise NotFound(f"of {len(hooks)} hooks none is wanted")
    return picked
