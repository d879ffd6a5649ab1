"""All pages of a person's own settings."""

from typing import Final

from deltahub.server.web.settings import (
    organizations,
    password,
    profile,
    sessions,
    storage,
    tokens,
)

MODULES: Final = (profile, password, sessions, tokens, organizations, storage)
