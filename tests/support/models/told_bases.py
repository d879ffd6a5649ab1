"""What a hub tells of the base that a pushed model declares."""

import time
from collections.abc import Callable
from typing import Any

from deltahub.client import Hub
from support.service.client_process import deltahub
from support.service.hub import RunningHub


def info_text(hub_server: RunningHub, token: str, name: str) -> str:
    """The text that `deltahub info` prints."""
    environment = {"DELTAHUB_URL": hub_server.url, "DELTAHUB_TOKEN": token}
    run = deltahub("info", name, "--brief", environment=environment)
    assert run.status == 0, run.err
    return run.out


def info_once(hub: Hub, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The repository's info once the condition holds: re-planning is a separate job."""
    deadline = time.monotonic() + 60
    while not condition(found := hub.info(name)):
        assert time.monotonic() < deadline, found["base"]
        time.sleep(0.1)
    return found
