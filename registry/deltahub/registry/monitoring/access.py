"""Who may read the metrics of a process: whoever sends the secret of the settings."""

import hmac

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from deltahub.registry.settings import EnvironmentSettings


class MetricsSettings(EnvironmentSettings):
    """What a server and a worker read alike, so that one secret serves one scraper of a hub."""

    model_config = SettingsConfigDict(env_prefix="DELTAHUB_SERVER_", frozen=True)

    metrics_token: str | None = Field(
        default=None,
        min_length=16,
        description="Secret with which GET /metrics may be read, of a server and of a worker.",
    )

    @field_validator("metrics_token", mode="before")
    @classmethod
    def _no_token_if_empty(cls, token: object) -> object:
        return token or None


def has_secret(authorization: str, secret: str) -> bool:
    """Whether a header Authorization has the secret as its bearer token."""
    scheme, _, given = authorization.partition(" ")
    # In a time that does not depend on how much of the secret is right.
    return scheme.lower() == "bearer" and hmac.compare_digest(
        given.strip().encode(), secret.encode()
    )
