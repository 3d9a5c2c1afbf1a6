"""Model on a server: generation, captures and edits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

from djinn import _asks, _forms, _reads, _turns
from djinn._about import About
from djinn._files import saved_parts
from djinn._life import Settings
from djinn._link import Link, Stream
from djinn.cache import Cache
from djinn.outcome import Generation
from djinn.session import Session
from djinn.types import Hook, ModelInfo, Options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from djinn._forms import Positions
    from djinn._reads import Names
    from djinn._tensors import Array
    from djinn.edits import Edits


class Model(About):
    """Model on a server, created by ``client.model()``.

    A prompt is a text, a list or array of token ids, or, if the model has a chat template, a list of
    messages (``{"role": "user", "content": "…"}``).
    """

    def __init__(self, link: Link, info: ModelInfo) -> None:
        super().__init__(info)
        self._link = link

    @overload
    def generate(
        self,
        prompt: Any,
        max_tokens: int | None = None,
        *,
        edits: Edits = None,
        stream: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: Any,
        max_tokens: int | None = None,
        *,
        edits: Edits = None,
        stream: Literal[True],
        **options: Unpack[Options],
    ) -> Stream: ...

    def generate(
        self,
        prompt: Any,
        max_tokens: int | None = None,
        *,
        edits: Edits = None,
        stream: bool = False,
        **options: Unpack[Options],
    ) -> Generation | Stream:
        """Continues a prompt. ``stream`` returns tokens while they are generated.

        The options are those of :class:`djinn.types.Options`: ``temperature``, ``top_k``, ``top_p``,
        ``min_p``, ``repetition_penalty``, ``presence_penalty``, ``frequency_penalty``, ``logit_bias``,
        ``seed``, ``logprobs``, ``stop``, ``ignore_eos``, ``deadline_s`` and ``priority``.

        >>> import djinn
        >>> model = djinn.connect().model()
        >>> story = model.generate("Once upon a time", 6, temperature=0.8, seed=7, logprobs=2)
        >>> story.tokens == model.generate("Once upon a time", 6, temperature=0.8, seed=7).tokens
        True
        >>> story.logprobs.shape, len(story.alternatives[0])
        ((6,), 2)
        """
        request = _turns.create(self.name, prompt, max_tokens=max_tokens, edits_=edits, options=options)
        turn = _turns.Turn("Sessions.Create", request)
        if stream:
            return Stream(self._link, turn)
        return _turns.generation(self._link.outcome(turn))

    def logits(self, prompt: Any, *, positions: Positions = None, edits: Edits = None) -> Array:
        """Returns the logits of a prompt, ``[pos, vocab]``; ``positions=-1`` returns the last position only.

        >>> import djinn
        >>> model = djinn.connect().model()
        >>> model.logits("Once upon a time", positions=-1).shape
        (1, 4096)
        """
        reading = _reads.Reading(self.name, prompt, ["logits"], positions=positions, edits=edits)
        return reading.split(self._link.outcome(reading.turn))[1]["logits"]

    @overload
    def run_with_cache(
        self,
        prompt: Any,
        names: Names,
        *,
        return_logits: Literal[False] = False,
        positions: Positions = None,
        edits: Edits = None,
    ) -> tuple[None, Cache]: ...

    @overload
    def run_with_cache(
        self,
        prompt: Any,
        names: Names,
        *,
        return_logits: Literal[True],
        positions: Positions = None,
        edits: Edits = None,
    ) -> tuple[Array, Cache]: ...

    def run_with_cache(
        self,
        prompt: Any,
        names: Names,
        *,
        return_logits: bool = False,
        positions: Positions = None,
        edits: Edits = None,
    ) -> tuple[Array | None, Cache]:
        """Runs a prompt and returns ``(logits, cache)``.

        ``names`` selects the captures: one or several of ``HOOK[PART][@POSITIONS][|REDUCTION]``, or a
        function that takes a hook's name and returns a bool. The server selects parts and computes
        reductions on the device, and sends only the result. Logits are ``None`` unless ``return_logits`` is
        set. ``positions`` applies to captures that set none.

        >>> import djinn
        >>> model = djinn.connect().model()
        >>> logits, cache = model.run_with_cache(
        ...     "Once upon a time", ["blocks.3.attn.hook_z[0]", "blocks.*.hook_resid_post@-1|norm"],
        ...     return_logits=True)
        >>> logits.shape, cache["z", 3].shape, cache["resid_post", 7].shape
        ((5, 4096), (5, 1, 32), (1,))
        """
        reading = _reads.Reading(
            self.name,
            prompt,
            self._captures(names),
            logits=return_logits,
            positions=positions,
            edits=edits,
        )
        return reading.split(self._link.outcome(reading.turn))

    @overload
    def run_with_hooks(
        self, prompt: Any, edits: Edits, names: None = None, *, positions: Positions = None
    ) -> Array: ...

    @overload
    def run_with_hooks(
        self, prompt: Any, edits: Edits, names: Names, *, positions: Positions = None
    ) -> tuple[Array, Cache]: ...

    def run_with_hooks(
        self, prompt: Any, edits: Edits, names: Names = None, *, positions: Positions = None
    ) -> Array | tuple[Array, Cache]:
        """Runs a prompt with edits and returns its logits; with ``names``, ``(logits, cache)``.

        >>> import djinn
        >>> model = djinn.connect().model()
        >>> logits = model.run_with_hooks(
        ...     "Once upon a time", djinn.scale("blocks.4.hook_resid_post", 0.9))
        >>> logits.shape
        (5, 4096)
        """
        if names is None:
            return self.logits(prompt, positions=positions, edits=edits)
        return self.run_with_cache(prompt, names, return_logits=True, positions=positions, edits=edits)

    def session(
        self,
        *,
        captures: Names = None,
        capture_positions: Positions = None,
        edits: Edits = None,
        breakpoints: str | Iterable[str] | None = None,
        max_tokens: int | None = None,
        keep: bool = False,
        lease_s: float | None = None,
        **options: Unpack[Options],
    ) -> Session:
        """Creates a session. The first prompt opens it on the server.

        The end of its ``with`` closes the session unless ``keep`` is set. ``lease_s`` is the number of
        seconds that an unused session stays open. See :class:`djinn.Session`."""
        settings = Settings(
            captures=self._captures(captures),
            capture_positions=_forms.positions(capture_positions),
            edits=edits,
            max_tokens=max_tokens,
            lease_s=lease_s,
            options=options,
        )
        return Session(self._link, self.name, settings, _forms.listed(breakpoints), keep=keep)

    def load_session(self, path: str | os.PathLike[str]) -> Session:
        """Opens a session from a file that :meth:`djinn.Session.save` wrote."""
        reply = self._link.send("Sessions.Load", saved_parts(self.name, path))
        return Session.found(self._link, _asks.loaded(reply))

    def hooks(self, pattern: str = "") -> list[Hook]:
        """Lists the hooks that match a pattern; ``*`` matches any text. Default: all hooks."""
        return self._link.ask(_asks.hooks(self.name, pattern))

    def tokenize(self, text: Any, *, plain: bool = False) -> list[int]:
        """Converts text or messages to tokens. ``plain`` leaves out the token that begins a text.

        >>> import djinn
        >>> model = djinn.connect().model()
        >>> model.detokenize(model.tokenize("Once upon a time"))
        'Once upon a time'
        """
        return self._link.ask(_asks.tokenize(self.name, text, plain))

    def detokenize(self, tokens: Any, *, special: bool = False) -> str:
        """Converts tokens to text. ``special`` includes special tokens."""
        return self._link.ask(_asks.detokenize(self.name, tokens, special))

    def pieces(self, tokens: Any) -> list[str]:
        """Returns the text of every single token."""
        return self._link.ask(_asks.pieces(self.name, tokens))

    def _captures(self, names: Names) -> list[str]:
        return _reads.wanted(names, self.hooks()) if callable(names) else _forms.captures(names)
