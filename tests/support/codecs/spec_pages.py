"""The bytes that stand on the format pages."""

import re
from pathlib import Path

SPEC = Path(__file__).parents[3] / "codecs" / "spec"


def hex_block(name: str, info: str) -> bytes:
    """The bytes of the page's one fenced block with this info string; comments begin with ;"""
    text = (SPEC / f"{name}.md").read_text()
    (block,) = re.findall(rf"^```{info}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return bytes.fromhex("".join(line.split(";")[0] for line in block.splitlines()))
