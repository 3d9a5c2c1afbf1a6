"""The Python reference matches the docstrings. `UPDATE_REFERENCE=1 pytest` regenerates it."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator

import djinn
from serving import REPO

PATH = REPO / "docs" / "reference" / "python.md"


def signature(name: str, what: object) -> str:
    """Returns the signature without module names of types."""
    try:
        text = f"{name}{inspect.signature(what)}"  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return name
    text = re.sub(r"'|\bself, |\(self\)", lambda m: "()" if m[0] == "(self)" else "", text)
    return re.sub(r"\bdjinn\.(_?\w+\.)*", "", text)


def about(what: object) -> str:
    return inspect.cleandoc(getattr(what, "__doc__", None) or "")


def members(kind: type) -> Iterator[tuple[str, object]]:
    for name, member in inspect.getmembers(kind):
        own = any(name in base.__dict__ for base in kind.__mro__ if base.__module__.startswith("djinn"))
        if not name.startswith("_") and own and about(member):
            yield name, member


def entry(name: str, what: object, level: str) -> str:
    heading = signature(name, what) if callable(what) else name
    text = about(what)
    parts = [f"{level} `{heading}`", ""]
    code = text.find(">>>")
    prose, examples = (text, "") if code < 0 else (text[:code], text[code:])
    parts += [prose.strip().replace("``", "`"), ""]
    if examples:
        parts += ["```python", examples.strip(), "```", ""]
    return "\n".join(parts)


def reference() -> str:
    text = "# Python\n\nGenerated from the docstrings of `djinn`. "
    text += "`djinn.aio` has the same names for `asyncio`.\n\n"
    for name in sorted(djinn.__all__):
        what = getattr(djinn, name)
        if inspect.ismodule(what) or not about(what):
            continue
        text += entry(name, what, "##") + "\n"
        if inspect.isclass(what) and not issubclass(what, Exception):
            for member, found in members(what):
                text += entry(f"{name}.{member}", found, "###") + "\n"
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def test_the_reference_is_up_to_date():
    text = reference()
    if os.environ.get("UPDATE_REFERENCE"):
        PATH.write_text(text)
    assert PATH.read_text() == text, "out of date: run UPDATE_REFERENCE=1 pytest"
