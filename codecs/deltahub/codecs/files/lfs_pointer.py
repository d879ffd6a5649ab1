"""Git LFS pointers: the text that git keeps in place of a large file.

A clone without git-lfs has them where the weights should be.
"""

import re
from typing import Final

# git-lfs writes shorter ones, and takes no longer ones for pointers.
MAX_POINTER_BYTES: Final = 1024
_POINTER: Final = re.compile(
    rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\n"
    rb"(?:[a-z0-9.-]+ [^\n]*\n)*?oid sha256:[0-9a-f]{64}\nsize (\d{1,19})\n"
)


def pointed_size(data: bytes) -> int | None:
    """The bytes of the file that a pointer stands for; None if these bytes are no pointer."""
    match = _POINTER.fullmatch(data) if len(data) <= MAX_POINTER_BYTES else None
    return None if match is None else int(match[1])
