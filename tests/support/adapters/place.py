"""A hub with a worker, and a tiny Llama that ann has pushed."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deltahub.client import Hub
from deltahub.client.errors import EntryNotFound
from support.adapters.tuning import write_base
from support.service.hub import RunningHub, running_hub


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

    def report_of(self, name: str) -> dict[str, Any]:
        """The report, which is written a moment after a push whose files the hub knew."""
        for _ in range(300):
            with contextlib.suppress(EntryNotFound):
                return self.ann.adapter_report(name)
            time.sleep(0.1)
        raise AssertionError(f"{name} has no report")


@contextlib.contextmanager
def adapter_place(root: Path) -> Iterator[Place]:
    """Run one in a folder."""
    with pytest.MonkeyPatch.context() as patch, running_hub(root / "data", with_worker=True) as hub:
        patch.setenv("DELTAHUB_CACHE", str(root / "cache"))
        patch.setenv("HF_HOME", str(root / "hf"))
        token = hub.user("ann")
        base = write_base(root / "base")
        with Hub(hub.url, token) as ann:
            ann.push(base, "ann/base")
            yield Place(hub, ann, token, base)
