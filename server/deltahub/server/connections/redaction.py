"""Cuts secrets out of logs: tokens, and the signed links that need no token."""

import re
from typing import Final

# A signed link holds the JSON of its claims in URL-safe base64, which begins with `{"` as eyJ, and
# the signature after a dot (server/signing.py). A part of it that a log cut off is cut, too.
_SECRET: Final = re.compile(r"(?<![\w-])(dh_|eyJ)[\w-]{8,}(?:\.[\w-]*)?")


def redacted(text: str) -> str:
    """Return the text with `...` for the secret part of every token and signed link."""
    return _SECRET.sub(r"\1...", text)
