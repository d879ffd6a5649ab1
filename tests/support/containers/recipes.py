"""The named blocks of docs/operations.md, which the tests run, so that the page stays true."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operations.md"


def recipe(name: str) -> str:
    """The block whose first line has this name behind its language."""
    found = re.findall(
        rf"^```\w+ {re.escape(name)}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.M
    )
    assert len(found) == 1, f"{len(found)} blocks are named {name}"
    return str(found[0])


def names() -> list[str]:
    """The names of all blocks that have one."""
    return re.findall(r"^```\w+ (\S+)$", PAGE.read_text(), re.M)
