"""The secret key of a hub, from which it makes signed links and the keys of S3 clients."""

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from deltahub.registry.settings import EnvironmentSettings
from deltahub.registry.storage.base import StoreError
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.private_files import create_private

KEY_FILE: Final = "signing.key"
_KEY_BYTES: Final = 32
_DERIVED: Final = b"deltahub signing key\n"
_SECRET_LENGTH: Final = 32


class SigningSettings(EnvironmentSettings):
    """What servers and the commands beside them read alike, so that both have the same key."""

    model_config = SettingsConfigDict(env_prefix="DELTAHUB_SERVER_", frozen=True)

    signing_key: SecretStr | None = Field(
        default=None,
        description="Secret of at least 32 characters that signs links and tokens. All servers of "
        "one hub need the same; a server alone makes one in its data folder.",
    )

    @field_validator("signing_key", mode="before")
    @classmethod
    def _no_key_if_empty(cls, secret: object) -> object:
        return secret or None

    @field_validator("signing_key")
    @classmethod
    def _check_signing_key(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(secret.get_secret_value()) < _SECRET_LENGTH:
            raise ValueError(f"a secret has at least {_SECRET_LENGTH} random characters")
        return secret


def signing_key(data_dir: Path, secret: SecretStr | None) -> bytes:
    """The key of a hub: from the secret, which several servers share; else of its data folder.

    Writes a random key if the folder has none. StoreError if it cannot be read or written.
    """
    if secret is not None:
        return hashlib.sha256(_DERIVED + secret.get_secret_value().encode()).digest()
    path = data_dir / KEY_FILE
    with translated(str(path)):
        return _read_or_make(path)


def fingerprint(key: bytes) -> str:
    """A text that is equal for equal keys, and says nothing else about the key."""
    return hashlib.sha256(b"fingerprint\n" + key).hexdigest()[:16]


def _read_or_make(path: Path) -> bytes:
    if not path.exists():
        # link() publishes the key whole or not at all; of two hubs that start at once, the first
        # one wins.
        fresh = path.with_name(f"{KEY_FILE}.{secrets.token_hex(8)}")
        try:
            create_private(fresh)
            with fresh.open("r+b") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES or not any(key):
        # With a key that can be guessed, everybody could sign links to private data.
        raise StoreError(
            f"{path} is damaged: delete it, so that the hub makes a new one; links that clients "
            "follow now end"
        )
    return key
