"""Result of a turn: tokens, and then a generation or a stop at a breakpoint."""

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
"""Id of remaining text that was held back for a stop string and belongs to no single token."""


@dataclass(frozen=True)
class Logprob:
    """Token with its log-probability."""

    id: int
    logprob: float
    text: str


@dataclass(frozen=True)
class Token:
    """Generated token. ``str(token)`` is its text."""

    id: int
    text: str
    """Text that the token completes: whole characters, never a part of a stop string."""
    index: int
    """Number of tokens that the session generated before this one."""
    logprobs: tuple[Logprob, ...] = ()
    """Log-probabilities of the token and its alternatives, if requested."""

    def __str__(self) -> str:
        return self.text

    @property
    def logprob(self) -> float | None:
        """Log-probability of the token, if requested."""
        return self.logprobs[0].logprob if self.logprobs else None


@dataclass(frozen=True)
class Generation:
    """Result of a finished turn. ``str(generation)`` is its text.

    >>> import djinn
    >>> story = djinn.connect().model().generate("Once upon a time", max_tokens=5, temperature=0)
    >>> print(story)
    , there was a little
    >>> story.finish, len(story.tokens)
    ('length', 5)
    """

    text: str
    pieces: tuple[Token, ...]
    """All tokens, and remaining text."""
    finish: str
    """Reason: ``length``, ``context``, ``eos``, ``stop``, ``not-a-number``, ``deadline`` or ``lease``."""
    prompt_tokens: int
    """Number of tokens in the prompt."""
    cached_tokens: int
    """Number of tokens that the prefix cache had, so that the turn did not compute them."""
    seed: int
    """Seed of the sampler; the same seed gives the same text."""
    session: str
    kept: bool
    """Whether the session is kept and accepts another turn."""
    captured: Cache = field(default_factory=Cache, repr=False, compare=False)
    """Captures of this turn."""

    def __str__(self) -> str:
        return self.text

    @cached_property
    def tokens(self) -> list[int]:
        """Ids of the generated tokens."""
        return [piece.id for piece in self.pieces if piece.id != HELD]

    @cached_property
    def logprobs(self) -> Array | None:
        """Log-probability of each token, if requested."""
        chances = [p.logprob for p in self.pieces if p.logprob is not None]
        return np.array(chances, dtype=np.float32) if chances else None

    @property
    def alternatives(self) -> list[tuple[Logprob, ...]]:
        """Alternatives of each token, most likely first."""
        return [piece.logprobs[1:] for piece in self.pieces if piece.id != HELD]

    def _repr_html_(self) -> str:
        return _html.shaded(_shade(piece) for piece in self.pieces) + _html.facts(
            "", [("tokens", len(self.tokens)), ("finish", self.finish), ("seed", self.seed)]
        )


@dataclass(frozen=True)
class Paused(At):
    """Result of a turn that stopped at a breakpoint. :meth:`Session.resume` continues it."""

    session: str = ""
    pieces: tuple[Token, ...] = ()
    """Tokens that the turn generated before it stopped."""
    captured: Cache = field(default_factory=Cache, repr=False, compare=False)
    """Captures of the turn before it stopped."""

    @property
    def positions(self) -> range:
        """Positions that stopped."""
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
