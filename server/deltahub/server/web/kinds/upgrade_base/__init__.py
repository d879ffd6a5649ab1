"""The form that plans an upgrade of a base, and what its job has planned."""

from typing import Final

TITLE: Final = "Upgrade a base"
