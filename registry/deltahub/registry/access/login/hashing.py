"""Argon2id of passwords: slow and large on purpose, so few are computed at once."""

import threading
import unicodedata
from functools import cache
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

# Each takes 64 MiB and up to four threads: the second recommendation of RFC 9106, section 4.
AT_ONCE: Final = 2
_slots: Final = threading.BoundedSemaphore(AT_ONCE)
_hasher: Final = PasswordHasher()


def hash_password(password: str) -> str:
    """The Argon2id of a password, with its parameters and salt."""
    with _slots:
        return _hasher.hash(_bytes(password))


def is_password(hashed: str | None, password: str) -> bool:
    """Whether a password has this hash. None takes as long, and is never right."""
    with _slots:
        try:
            return _hasher.verify(hashed or _nobodys(), _bytes(password)) and hashed is not None
        except (VerificationError, InvalidHashError):
            return False


def is_outdated(hashed: str) -> bool:
    """Whether a hash was made with other parameters than those of today."""
    return _hasher.check_needs_rehash(hashed)


@cache
def _nobodys() -> str:
    return _hasher.hash(b"")


def _bytes(password: str) -> bytes:
    # Keyboards and systems write one letter with an accent in several ways.
    return unicodedata.normalize("NFKC", password).encode(errors="replace")
