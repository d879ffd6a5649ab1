"""A hub with a worker, and a tiny Llama that ann has pushed."""

from dataclasses import dataclass
from pathlib import Path

from deltahub.client import Hub
from support.service.hub import RunningHub


@dataclass(frozen=True)
class Place:
    """A running hub, ann's client and token, and her base `ann/base` in a folder."""

    hub: RunningHub
    ann: Hub
    token: str
    base: Path

    @property
    def environment(self) -> dict[str, str]:
        """For a command of ann's."""
        return {"DELTAHUB_URL": self.hub.url, "DELTAHUB_TOKEN": self.token}
