"""What becomes of a turn: tokens, and then a generation or a stop at a breakpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from djinn import _html
from djinn.cache import Cache
from djinn.types import At

if TYPE_CHECKING:
    from djinn._tensors import Array

HELD = -1
"""The id of text that was held back in case a stop string was coming, and is no token's."""


@dataclass(frozen=True)
class Logprob:
    """A token, and how likely it was."""

    id: int
    logprob: float
    text: str


@dataclass(frozen=True)
class Token:
    """A token as it comes. ``str(token)`` is its text."""

    id: int
    text: str
    """The text that this released: whole characters, no part of a stop string."""
    index: int
    """How many tokens its session had generated before."""
    logprobs: tuple[Logprob, ...] = ()
    """The token itself, and then its alternatives, where they were asked for."""

    def __str__(self) -> str:
        return self.text

    @property
    def logprob(self) -> float | None:
        """How likely it was, where that was asked for."""
        return self.logprobs[0].logprob if self.logprobs else None


@dataclass(frozen=True)
class Generation:
    """What a turn came to. ``str(generation)`` is its text.

    >>> import djinn
    >>> told = djinn.connect().model().generate("Once upon a time", max_tokens=5, temperature=0)
    >>> print(told)
    , there was a little
    >>> told.finish, len(told.tokens)
    ('length', 5)
    """

    text: str
    pieces: tuple[Token, ...]
    """Token by token."""
    finish: str
    """Why it ended: ``length``, ``context``, ``eos``, ``stop``, ``not-a-number``, ``deadline``, ``lease``."""
    prompt_tokens: int
    """What it was told, in tokens."""
    seed: int
    """With this seed it says the same again."""
    session: str
    kept: bool
    """Whether its session waits for more, or is over."""
    captured: Cache = field(default_factory=Cache, repr=False, compare=False)
    """What was read in this turn."""

    def __str__(self) -> str:
        return self.text

    @cached_property
    def tokens(self) -> list[int]:
        """The ids of what was generated."""
        return [piece.id for piece in self.pieces if piece.id != HELD]

    @cached_property
    def logprobs(self) -> Array | None:
        """The log-probability of each token, where they were asked for."""
        chances = [p.logprob for p in self.pieces if p.logprob is not None]
        return np.array(chances, dtype=np.float32) if chances else None

    @property
    def alternatives(self) -> list[tuple[Logprob, ...]]:
        """Of each token, what else there was to say, the likeliest first."""
        return [piece.logprobs[1:] for piece in self.pieces if piece.id != HELD]

    def _repr_html_(self) -> str:
        return _html.shaded(_shade(piece) for piece in self.pieces) + _html.facts(
            "", [("tokens", len(self.tokens)), ("finish", self.finish), ("seed", self.seed)]
        )


@dataclass(frozen=True)
class Paused(At):
    """A session stopped at a breakpoint, and stands there until it is resumed."""

    session: str = ""
    pieces: tuple[Token, ...] = ()
    """What this turn had generated before it stopped."""
    captured: Cache = field(default_factory=Cache, repr=False, compare=False)
    """What this turn had read before it stopped."""

    @property
    def positions(self) -> range:
        """The positions that stopped."""
        return range(self.position, self.position + self.rows)

    def __str__(self) -> str:
        last = self.position + self.rows - 1
        return f"stopped at {self.hook} {list(self.shape)}, positions {self.position} to {last}"


Outcome: TypeAlias = "Generation | Paused"


def _shade(piece: Token) -> tuple[str, float | None, str]:
    if piece.logprob is None:
        return piece.text, None, str(piece.id)
    words = "\n".join(f"{math.exp(p.logprob):6.1%}  {p.text!r}" for p in piece.logprobs)
    return piece.text, math.exp(piece.logprob), words
