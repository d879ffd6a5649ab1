"""Cuts secrets out of logs: tokens, and the signed links that need no token."""

import re
from typing import Final

# A signed link holds the JSON of its claims in URL-safe base64, which begins with `{"` as eyJ, and
# the signature after a dot (server/signing.py). A part of it that a log cut off is cut, too.
# Tokens have 34 letters after hf_; fewer than 16 may be the name of a model, as in hf_tiny_model.
_SECRET: Final = re.compile(r"(?<![\w-])(?:(hf_)[A-Za-z0-9]{16,}|(dh_|eyJ)[\w-]{8,}(?:\.[\w-]*)?)")


def redacted(text: str) -> str:
    """Return the text with `...` for the secret part of every token and signed link."""
    return _SECRET.sub(lambda found: f"{found[1] or found[2]}...", text)
