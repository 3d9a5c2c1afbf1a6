"""Examples in docstrings, the README and the guides run and print what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re

import pytest

import djinn
from serving import REPO

MODULES = [m.name for m in pkgutil.walk_packages(djinn.__path__, "djinn.")] + ["djinn"]
PAGES = [
    path
    for path in [
        REPO / "python" / "README.md",
        REPO / "docs" / "python.md",
        REPO / "docs" / "from-transformers.md",
        REPO / "docs" / "from-transformerlens.md",
    ]
    if path.exists()
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(server, name):
    module = importlib.import_module(name)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=flags).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages(server, page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").symlink_to(REPO / "models")
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), scope)
