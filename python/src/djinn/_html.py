"""HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:left;padding:2px 10px"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str | None = None) -> str:
    """Returns a table."""
    head = "".join(f'<th style="{_CELL}">{escape(text)}</th>' for text in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(str(x))}</td>' for x in row) + "</tr>" for row in rows
    )
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    """Returns a title and a table of properties."""
    rows = "".join(
        f'<tr><th style="{_CELL}">{escape(key)}</th><td style="{_CELL}">{escape(str(value))}</td></tr>'
        for key, value in pairs
    )
    return f"<strong>{escape(title)}</strong><table><tbody>{rows}</tbody></table>"


def shaded(pieces: Iterable[tuple[str, float | None, str]]) -> str:
    """Returns texts with background colors by probability (paler is more likely) and tooltips."""
    spans = []
    for text, chance, words in pieces:
        ground = "" if chance is None else f"background:rgba(230,120,20,{0.6 * (1 - chance):.2f})"
        spans.append(f'<span style="{ground}" title="{escape(words)}">{escape(text)}</span>')
    return f'<div style="white-space:pre-wrap">{"".join(spans)}</div>'
