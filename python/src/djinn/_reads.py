"""Turns that run a prompt for its captures and generate nothing."""

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
"""Captures: one or several of ``HOOK[PART][@POSITIONS][|REDUCTION]``, or a function that takes a hook's
name and returns whether to capture it."""


class Reading:
    """Turn that generates nothing, and its captures."""

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
        # Whether the logits are captured only to be returned, and are not part of the cache.
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
        """Splits the captures into the logits, if requested, and the cache."""
        arrays = dict(_turns.generation(outcome).captured)
        logits = arrays["logits"] if self._logits else None
        if self._alone:
            del arrays["logits"]
        return logits, Cache(arrays)


def wanted(is_wanted: Callable[[str], bool], hooks: list[Hook]) -> list[str]:
    """Names of the hooks that a function selects."""
    picked = [hook.name for hook in hooks if is_wanted(hook.name)]
    if not picked:
        raise NotFound(f"the function selects none of {len(hooks)} hooks")
    return picked
